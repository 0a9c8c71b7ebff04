// A part that is applied twice in one pass, as by two layers that share it: its gradients are the sums of both
// applications', against finite differences, and are ready after the last of them.
#include "model/application.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "model/block.h"
#include "model/parts/moe.h"
#include "model/parts/part_kinds.h"
#include "model/parts/rope_table.h"
#include "model/small_models.h"
#include "model/spec/spec.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

constexpr int64_t kSequences = 2, kPositions = 3, kTokens = kSequences * kPositions;

// The weights of a small model, and a pass over a batch of random hidden states.
class SharedParts {
 public:
  explicit SharedParts(const ModelConfig& model, Recompute recompute = Recompute::kNone)
      : config(model),
        layers(layer_parts(config)),
        ops_(cpu_device(DType::kF64)),
        weights(describe_model(config).weights) {
    for (Arena* arena : {&values_, &grads_, &activations}) arena->reserve(ops_.device().memory(), 1 << 20);
    weights.allocate(*ops_, values_, grads_);
    weights.initialise(*ops_, 7, config.init.truncation);
    for (const int64_t dim : {config.mla.qk_rope_head_dim, config.gqa.head_dim}) {
      const RopeAngles angles = rope_angles(config.rope, config.yarn, dim, kPositions);
      const Shape shape({kPositions, dim / 2});
      rope_.by_dim.emplace(dim, RopeTable{.cos = pool.of(shape, angles.cos), .sin = pool.of(shape, angles.sin)});
    }
    pass_.keep = Keep(*ops_, activations, {.recompute = recompute});
  }

  const Pass& pass() const { return pass_; }
  void watch(const GradientsReady& ready) { pass_.watchers.gradients_ready = ready; }
  void begin_step() {
    weights.begin_step();
    weights.begin_microbatch();
  }
  Tensor stream() { return activations.allocate(DType::kF64, x.shape()); }
  Ops& ops() { return *ops_; }
  std::unique_ptr<Part> part(size_t layer, size_t idx) { return make_part(layers[layer][idx], weights, routing); }

  const ModelConfig config;
  const std::vector<std::vector<LayerPart>> layers;

 private:
  ReadyDevice ops_;
  Arena values_{"values"}, grads_{"grads"};
  RopeTables rope_;

 public:
  Arena activations{"activations"};
  TensorPool pool{DType::kF64, 5};
  WeightSet weights;
  std::vector<Moe*> routing;  // of the parts that were made
  const Tensor x = pool.normal({kTokens, config.dim}), factors = pool.normal({kTokens, config.dim});

 private:
  const Batch batch_{.num_seqs = kSequences,
                     .seq_len = kPositions,
                     .tokens = {},
                     .positions = pool.ints({kTokens}, {0, 1, 2, 0, 1, 2})};
  Pass pass_{.ops = *ops_,
             .activations = activations,
             .batch = batch_,
             .rope = rope_,
             .keep = Keep(*ops_, activations),
             .scale = {.num_seqs = kSequences, .num_tokens = kTokens, .loss = pool.full({1}, 1.0)}};
};

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) sum += get(a, i) * get(b, i);
  return sum;
}

// x + part(x), and of that again: sum(factors * y) and its gradients.
void expect_true_gradients_of_two_applications(SharedParts& test, const Part& part, const std::string& prefix) {
  const Pass& pass = test.pass();
  const auto loss = [&] {
    const ArenaScope scope(test.activations);
    const Tensor once = test.stream(), twice = test.stream();
    part.forward(pass, test.x, test.x, once);
    part.forward(pass, once, once, twice);
    return dot(test.factors, twice);
  };
  test.begin_step();
  const Tensor dx = test.pool.clone(test.factors);
  {
    const ArenaScope scope(test.activations);
    const Tensor once = test.stream(), twice = test.stream(), change = test.stream();
    const Application first = part.forward(pass, test.x, test.x, once);
    const Application second = part.forward(pass, once, once, twice);
    for (const auto& [of, x] : {std::pair{&second, once}, {&first, test.x}}) {
      part.backward(pass, *of, x, dx, change);
      for (int64_t i = 0; i < dx.num_elements(); ++i) set(dx, i, get(dx, i) + get(change, i));
    }
  }
  EXPECT_TRUE(near(dx, numeric_gradient(loss, test.x, 1e-5), 1e-5)) << "of x";
  size_t num_compared = 0;
  for (Weight& weight : test.weights.all()) {
    if (!weight.has_grad()) continue;
    EXPECT_TRUE(weight.spec.name.starts_with(prefix)) << weight.spec.name;
    EXPECT_TRUE(near(weight.grad, numeric_gradient(loss, weight.value, 1e-5), 1e-5)) << weight.spec.name;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 2u);
}

class AppliedTwice : public ::testing::TestWithParam<Recompute> {};

TEST_P(AppliedTwice, LatentAttentionHasTrueGradients) {
  ModelConfig config = base_model();
  config.mla.q_lora_rank = 3;
  SharedParts test(config, GetParam());
  expect_true_gradients_of_two_applications(test, *test.part(0, 0), "layers.0.attention.");
}

TEST_P(AppliedTwice, GroupedQueryAttentionHasTrueGradients) {
  ModelConfig config = base_model();
  config.attention = PartKind::kGqa;
  SharedParts test(config, GetParam());
  expect_true_gradients_of_two_applications(test, *test.part(0, 0), "layers.0.attention.");
}

TEST_P(AppliedTwice, AnMlpHasTrueGradients) {
  SharedParts test(base_model(), GetParam());
  expect_true_gradients_of_two_applications(test, *test.part(0, 1), "layers.0.mlp.");
}

TEST_P(AppliedTwice, ExpertsHaveTrueGradients) {
  SharedParts test(base_model(), GetParam());
  const int64_t num_experts = test.config.moe.num_experts;
  const std::unique_ptr<Part> moe = test.part(1, 1);
  ASSERT_EQ(test.routing.size(), 1u);
  test.routing[0]->keep_stats(
      {.counts = test.pool.ints({num_experts}, std::vector<double>(static_cast<size_t>(num_experts))),
       .aux_loss = test.pool.zeros({2}),
       .entropy = test.pool.zeros({1})});
  expect_true_gradients_of_two_applications(test, *moe, "layers.1.moe.");
}

// Of three blocks in a row the first is also the last.
TEST_P(AppliedTwice, ABlocksGradientsAreReadyAfterTheLast) {
  ModelConfig config = base_model();
  config.num_dense_layers = config.num_layers;
  SharedParts test(config, GetParam());
  WeightSet& weights = test.weights;
  const Block shared(test.layers[0], weights, test.routing), between(test.layers[1], weights, test.routing);
  std::vector<std::vector<double>> when_ready(weights.all().size());
  size_t end = weights.end_of("layers.1.");
  std::vector<size_t> firsts;
  test.watch([&](size_t first) {
    firsts.push_back(first);
    for (size_t i = first; i < end; ++i) when_ready[i] = values(weights.all()[i].grad);
    end = std::min(end, first);
  });

  test.begin_step();
  const ArenaScope scope(test.activations);
  const Pass& pass = test.pass();
  std::array<Block::Kept, 3> kept;
  const std::array order = {&shared, &between, &shared};
  const Tensor dx = test.pool.clone(test.factors);
  std::array<int64_t, 3> marks{};
  Tensor x = test.x;
  for (size_t i = 0; i < order.size(); ++i) {
    x = order[i]->forward(pass, x, kept[i]);
    marks[i] = test.activations.mark();
  }
  for (size_t i = order.size(); i-- > 0;) {
    test.activations.rewind(marks[i]);
    order[i]->backward(pass, kept[i], dx, /*leaves_codes=*/false);
  }

  // Nothing of what is shared before its first application's backward, but what lies behind it.
  EXPECT_EQ(firsts, (std::vector<size_t>{weights.end_of("layers.1."), weights.index_of("layers.1.mlp_norm"),
                                         weights.index_of("layers.0.mlp_norm")}));
  EXPECT_EQ(weights.complete_from(), 0u);
  for (size_t i = end; i < weights.end_of("layers.1."); ++i) {
    EXPECT_EQ(when_ready[i], values(weights.all()[i].grad)) << weights.all()[i].spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(WhateverIsComputedAgain, AppliedTwice,
                         ::testing::Values(Recompute::kNone, Recompute::kNorms, Recompute::kExperts));

}  // namespace
}  // namespace nmoe::test
