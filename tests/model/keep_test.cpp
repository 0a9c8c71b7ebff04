// What the policy of a pass answers, and what its answers take.
#include "model/keep.h"

#include <gtest/gtest.h>

#include "model/model.h"
#include "model/small_models.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

constexpr int64_t kNumRows = 256, kRowWidth = 384;  // three blocks of FP8
constexpr Site kSites[] = {Site::kNormOutput, Site::kExpertRows, Site::kPreActivation, Site::kHidden};

class KeepTest : public ::testing::Test {
 protected:
  KeepTest() { activations_.reserve(ops_.device().memory(), 1 << 22); }
  Keep keep(Recompute recompute, RowFormat saved = RowFormat::kDevice) {
    return {*ops_, activations_, {.recompute = recompute, .saved = saved}};
  }
  int64_t bytes_of(const std::function<void()>& work) {
    const ArenaScope scope(activations_);
    const int64_t before = activations_.used();
    work();
    return activations_.used() - before;
  }

  ReadyDevice ops_ = cpu_device(DType::kF32, 1);
  Arena activations_{"activations"};
};

TEST_F(KeepTest, EveryLevelOfRecomputationDropsMore) {
  using enum KeptAs;
  const auto forms = [&](Recompute recompute, RowFormat saved, bool in_columns) {
    std::vector<KeptAs> all;
    for (const Site site : kSites) all.push_back(keep(recompute, saved).form(site, in_columns));
    return all;
  };
  const auto device = RowFormat::kDevice, fp8 = RowFormat::kFp8;
  EXPECT_EQ(forms(Recompute::kNone, device, false), (std::vector{kValues, kValues, kValues, kValues}));
  EXPECT_EQ(forms(Recompute::kNorms, device, false), (std::vector{kNothing, kValues, kValues, kNothing}));
  EXPECT_EQ(forms(Recompute::kNorms, device, true), (std::vector{kNothing, kValues, kValues, kColumns}));
  EXPECT_EQ(forms(Recompute::kExperts, device, true), (std::vector{kNothing, kNothing, kNothing, kNothing}));
  EXPECT_EQ(forms(Recompute::kNone, fp8, true), (std::vector{kValues, kValues, kQuantised, kNothing}));
  EXPECT_EQ(forms(Recompute::kExperts, fp8, false), (std::vector{kNothing, kNothing, kNothing, kNothing}));
  EXPECT_EQ(keep(Recompute::kExperts).form(Site::kBlock), kValues);
  EXPECT_EQ(keep(Recompute::kBlocks).form(Site::kBlock), kNothing);
}

TEST_F(KeepTest, WhatWaitsTakesTheBytesOfItsForm) {
  constexpr int64_t kValueBytes = kNumRows * kRowWidth * 4, kFp8Bytes = kNumRows * (kRowWidth + kRowWidth / 128);
  const ColumnForm columns{.num_matrices = 2, .num_rows = kNumRows / 2, .num_groups = 1};
  const int64_t blocks = 2 * (kNumRows / 2 / 128 + 1);
  const auto bytes = [&](Recompute recompute, RowFormat saved, Site site, const ColumnForm& form = {}) {
    return bytes_of([&] { keep(recompute, saved).put(site, {kNumRows, kRowWidth}, form); });
  };
  EXPECT_EQ(bytes(Recompute::kNone, RowFormat::kDevice, Site::kPreActivation), kValueBytes);
  EXPECT_EQ(bytes(Recompute::kNone, RowFormat::kFp8, Site::kPreActivation), kFp8Bytes);
  EXPECT_EQ(bytes(Recompute::kExperts, RowFormat::kFp8, Site::kPreActivation), 0);
  EXPECT_EQ(bytes(Recompute::kNorms, RowFormat::kDevice, Site::kHidden, columns), blocks * kRowWidth * (128 + 1));
}

// Backward gets what was put, or memory of the form in which it would wait if nothing were made again.
TEST_F(KeepTest, GetIsWhatWasPutOrRoomForIt) {
  const Shape shape({kNumRows, kRowWidth});
  const Keep all = keep(Recompute::kNone, RowFormat::kFp8), none = keep(Recompute::kExperts, RowFormat::kFp8);
  const KeptRows waits = all.put(Site::kPreActivation, shape), dropped = none.put(Site::kPreActivation, shape);
  EXPECT_EQ(all.get(waits).quantised.values.raw(), waits.rows.quantised.values.raw());
  EXPECT_FALSE(dropped.wait());
  EXPECT_FALSE(dropped.rows.quantised.defined());
  const Rows again = none.get(dropped);
  EXPECT_EQ(again.quantised.values.shape(), shape);
  EXPECT_FALSE(again.has_values());
  // Hidden units that somebody takes by columns are made so again only beside what waits in FP8.
  const ColumnForm columns{.num_matrices = 1, .num_rows = kNumRows, .num_groups = 3};
  EXPECT_TRUE(none.get(none.put(Site::kHidden, shape, columns)).columns.defined());
  const Keep values = keep(Recompute::kExperts);
  EXPECT_TRUE(values.get(values.put(Site::kHidden, shape, columns)).has_values());
}

// Outputs of norms that do not wait share one memory, from forward to backward.
TEST_F(KeepTest, NormsShareTheMemoryOfWhatDoesNotWait) {
  const Shape stream({kNumRows, kRowWidth});
  Keep shared = keep(Recompute::kNorms), apart = keep(Recompute::kNone);
  const KeepOptions shares{.recompute = Recompute::kNorms}, keeps;
  shared.begin(stream, {&shares, 1}, /*quantises=*/false);
  apart.begin(stream, {&keeps, 1}, /*quantises=*/true);
  const auto memory = [&](const Keep& policy) {
    const KeptRows kept = policy.put(Site::kNormOutput, stream);
    EXPECT_EQ(policy.with_values(kept).tensor().raw(), policy.get(kept).tensor().raw());
    return policy.get(kept).tensor().raw();
  };
  EXPECT_EQ(memory(shared), memory(shared));
  EXPECT_NE(memory(apart), memory(apart));
  EXPECT_NE(memory(shared.again()), memory(shared)) << "of a block that is made again, all is there";
  EXPECT_FALSE(shared.quantised_norm().defined());
  EXPECT_TRUE(apart.quantised_gradient().defined());
}

TEST_F(KeepTest, ALayersMemoryIsOnTopWhenItsBackwardBegins) {
  Keep policy = keep(Recompute::kNone);
  const std::vector<KeepOptions> layers(3);
  policy.begin({1, 1}, layers, /*quantises=*/false);
  std::vector<int64_t> marks;
  for (int64_t layer = 0; layer < 3; ++layer) {
    policy.begin_forward();
    policy.put(Site::kHidden, {kNumRows, 8 * (layer + 1)});
    policy.end_forward();
    marks.push_back(activations_.mark());
  }
  activations_.allocate(DType::kF32, {1000});
  for (size_t layer = 3; layer-- > 0;) {
    policy.before_backward();
    EXPECT_EQ(activations_.mark(), marks[layer]);
  }
}

// Each layer's options count from its forward on, and again from before its backward; one layer that shares the memory
// of norms' outputs is enough for there to be some.
TEST_F(KeepTest, EveryLayerHasItsOwnOptions) {
  const std::vector<KeepOptions> layers = {{.recompute = Recompute::kBlocks},
                                           {.saved = RowFormat::kFp8},
                                           {.recompute = Recompute::kNorms},
                                           {.recompute = Recompute::kExperts, .saved = RowFormat::kFp8}};
  Keep policy = keep(Recompute::kNone);
  policy.begin({kNumRows, kRowWidth}, layers, /*quantises=*/false);
  EXPECT_EQ(activations_.used(), kNumRows * kRowWidth * 4);
  const auto expect_options = [&](size_t layer) {
    for (const Site site : kSites) {
      EXPECT_EQ(policy.form(site), keep(layers[layer].recompute, layers[layer].saved).form(site)) << layer;
    }
  };
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    policy.begin_forward();
    expect_options(layer);
    policy.end_forward();
  }
  for (size_t layer = layers.size(); layer-- > 0;) {
    policy.before_backward();
    expect_options(layer);
  }
}

// A step of a small model in fp32: its losses and gradients.
struct StepResult {
  std::vector<double> losses;
  std::vector<std::vector<double>> grads;
};
StepResult step_of(const ModelConfig& config, const PassOptions& options) {
  constexpr int64_t kPositions = 6;
  const ReadyDevice ops = cpu_device(DType::kF32, 2);
  ops.device().scratch(Lane::kCopy).reserve(ops.device().memory(), 1 << 20);
  TensorPool pool(DType::kF32, 3), doubles(DType::kF64);
  Arena values("values"), grads("grads"), state("state"), activations("activations"), host("host inputs");
  for (Arena* arena : {&values, &grads, &state, &activations}) arena->reserve(ops.device().memory(), 4 << 20);
  host.reserve(ops.device().mapped_memory(), 1 << 20);
  WeightSet weights(describe_model(config).weights);
  Model model(config, weights, *ops, kPositions, options);
  weights.allocate(*ops, values, grads);
  model.allocate(state);
  model.keep_inputs_in(host);
  weights.initialise(*ops, 7, config.init.truncation);
  const Batch batch{.num_seqs = 1,
                    .seq_len = kPositions,
                    .tokens = pool.random_ints({kPositions}, config.vocab_size),
                    .rows = {{BatchRow::kTargets, pool.random_ints({kPositions}, config.vocab_size)}},
                    .positions = pool.ints({kPositions}, {0, 1, 2, 3, 4, 5})};
  const Tensor losses = pool.zeros({kPositions}), mean = doubles.full({1}, 1.0 / kPositions);
  StepResult result;
  for (int64_t time = 0; time < 2; ++time) {  // nothing of a first pass is left over
    model.begin_step();
    model.forward_backward(batch, {.num_seqs = 1, .num_tokens = kPositions, .loss = mean}, activations, losses);
  }
  EXPECT_EQ(activations.used(), 0);
  result.losses = test::values(losses);
  for (const Weight& weight : weights.all()) {
    if (weight.grad.defined()) result.grads.push_back(test::values(weight.grad));
  }
  return result;
}

class SavedInFp8 : public ::testing::TestWithParam<SmallModel> {};

// What waits in FP8 changes backward alone, and is the same whatever is made again; so is what travels so.
TEST_P(SavedInFp8, SameBitsWhateverIsMadeAgain) {
  const ModelConfig& config = GetParam().config;
  const auto with = [&](PerLayer<Recompute> recompute, RowFormat wire, PerLayer<RowFormat> saved) {
    return step_of(config, {.recompute = recompute, .wire = wire, .saved = saved});
  };
  for (const RowFormat wire : {RowFormat::kDevice, RowFormat::kFp8}) {
    const StepResult plain = with(Recompute::kNone, wire, RowFormat::kDevice),
                     saved = with(Recompute::kNone, wire, RowFormat::kFp8);
    EXPECT_EQ(saved.losses, plain.losses);
    EXPECT_NE(saved.grads, plain.grads);
    for (const Recompute recompute : {Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks}) {
      const StepResult again = with(recompute, wire, RowFormat::kFp8);
      EXPECT_EQ(again.losses, plain.losses) << static_cast<int>(recompute);
      EXPECT_EQ(again.grads, saved.grads) << static_cast<int>(recompute);
    }
  }
}

// Layers may differ. What waits in FP8 in the first ones, up to one that has a feed-forward part, changes no gradient
// of a later one.
TEST_P(SavedInFp8, LayersMayDiffer) {
  const ModelConfig& config = GetParam().config;
  const std::vector<LayerSpec> layers = layer_specs(config);
  const auto last_in_fp8 =
      std::ranges::find_if(layers, [](const LayerSpec& layer) { return !is_mixer(layer.parts.back().kind); });
  const int64_t first = last_in_fp8 - layers.begin() + 1, others = std::ssize(layers) - first;
  if (others < 1) GTEST_SKIP() << "one layer";
  const auto with = [&](const PerLayer<Recompute>& recompute, const PerLayer<RowFormat>& saved) {
    return step_of(config, {.recompute = recompute, .saved = saved}).grads;
  };
  using Formats = std::vector<LayerRun<RowFormat>>;
  const PerLayer<RowFormat> in_first(Formats{{first, RowFormat::kFp8}, {others, RowFormat::kDevice}});
  const auto plain = with(Recompute::kNone, RowFormat::kDevice), saved = with(Recompute::kNone, in_first);
  EXPECT_TRUE(saved != plain);
  EXPECT_EQ(saved.back(), plain.back());
  constexpr Recompute kLevels[] = {Recompute::kNone, Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks};
  for (const Recompute a : kLevels) {
    for (const Recompute b : kLevels) {
      SCOPED_TRACE(static_cast<int>(a) * 10 + static_cast<int>(b));
      const PerLayer<Recompute> levels(std::vector<LayerRun<Recompute>>{{first, a}, {others, b}});
      EXPECT_TRUE(with(levels, RowFormat::kDevice) == plain);
      EXPECT_TRUE(with(levels, in_first) == saved);
    }
  }
}

// Inputs of blocks that wait in host memory: of all blocks, and behind and before others.
TEST_P(SavedInFp8, InputsMayWaitInTheHost) {
  const ModelConfig& config = GetParam().config;
  const int64_t num_layers = std::ssize(layer_specs(config));
  if (num_layers < 4) GTEST_SKIP() << num_layers << " layers";
  const auto plain = step_of(config, {});
  const auto expect_same = [&](const PerLayer<Recompute>& levels) {
    const StepResult host = step_of(config, {.recompute = levels});
    EXPECT_EQ(host.losses, plain.losses);
    EXPECT_TRUE(host.grads == plain.grads);
  };
  using Levels = std::vector<LayerRun<Recompute>>;
  expect_same(Recompute::kHost);
  expect_same(PerLayer<Recompute>(Levels{{num_layers - 1, Recompute::kHost}, {1, Recompute::kNorms}}));
  expect_same(PerLayer<Recompute>(Levels{{1, Recompute::kNone}, {num_layers - 1, Recompute::kHost}}));
  expect_same(PerLayer<Recompute>(Levels{{1, Recompute::kBlocks}, {num_layers - 1, Recompute::kHost}}));
}

INSTANTIATE_TEST_SUITE_P(Small, SavedInFp8, ::testing::ValuesIn(small_models()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace nmoe::test
