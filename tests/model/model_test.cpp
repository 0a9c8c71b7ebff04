// The whole model against finite differences, and the invariants a training step relies on.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "model/small_models.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

constexpr int64_t kSeqs = 2, kLen = 5;

// A model with storage of its own, in double precision.
class TestModel {
 public:
  explicit TestModel(const ModelConfig& config, int num_threads = 2, Recompute recompute = Recompute::kNone)
      : ops_(cpu_device(DType::kF64, num_threads)),
        weights_(describe_model(config).weights),
        model_(config, weights_, *ops_, kLen, {.recompute = recompute}) {
    for (Arena* arena : {&values_, &grads_, &state_, &activations_}) arena->reserve(ops_.device().memory(), 4 << 20);
    weights_.allocate(*ops_, values_, grads_);
    model_.allocate(state_);
    weights_.initialise(*ops_, 7, config.init.truncation);
  }

  Batch batch(int64_t first_seq = 0, int64_t num_seqs = kSeqs) {
    const int64_t begin = first_seq * kLen, end = (first_seq + num_seqs) * kLen;
    return {.num_seqs = num_seqs,
            .seq_len = kLen,
            .tokens = tokens_.rows(begin, end),
            .rows = {{BatchRow::kTargets, targets_.rows(begin, end)}},
            .positions = positions_.rows(begin, end)};
  }
  StepScale scale() const { return {.num_seqs = kSeqs, .num_tokens = kSeqs * kLen, .loss = mean_}; }

  // The scalar that forward_backward differentiates.
  double loss() {
    model_.begin_step();
    model_.forward(batch(), activations_, losses_, /*predictions=*/{}, /*statistics=*/true);
    const std::vector<double> losses = values(losses_);
    double total = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    for (const Moe* moe : model_.moe_layers()) {
      total += get(moe->stats().aux_loss, 0) + get(moe->stats().aux_loss, 1);
    }
    return total;
  }
  void backward() {
    model_.begin_step();
    model_.forward_backward(batch(), scale(), activations_, losses_);
  }
  void backward(const GradientsReady& ready) {
    model_.begin_step();
    model_.forward_backward(batch(), scale(), activations_, losses_, {.gradients_ready = ready});
  }
  void backward_by_sequence() {
    model_.begin_step();
    for (int64_t seq = 0; seq < kSeqs; ++seq) {
      model_.forward_backward(batch(seq, 1), scale(), activations_, losses_.rows(0, kLen));
    }
  }
  std::vector<std::vector<double>> grads() {
    std::vector<std::vector<double>> result;
    for (const Weight& weight : model_.weights().all()) {
      if (weight.grad.defined()) result.push_back(values(weight.grad));
    }
    return result;
  }
  Weight& weight(const std::string& name) { return model_.weights().at(name); }
  Model& model() { return model_; }
  Tensor losses() { return losses_; }
  Tensor targets() { return targets_; }
  Ops& ops() { return *ops_; }
  Arena& activations() { return activations_; }
  TensorPool& pool() { return pool_; }

 private:
  ReadyDevice ops_;
  TensorPool pool_{DType::kF64, 3};
  Arena values_{"values"}, grads_{"grads"}, state_{"state"}, activations_{"activations"};
  WeightSet weights_;
  Model model_;
  Tensor tokens_ = pool_.random_ints({kSeqs * kLen}, 11);
  Tensor targets_ = pool_.random_ints({kSeqs * kLen}, 11);
  Tensor positions_ = pool_.ints({kSeqs * kLen}, {0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  Tensor losses_ = pool_.zeros({kSeqs * kLen});
  Tensor mean_ = pool_.full({1}, 1.0 / (kSeqs * kLen));
};

class EveryModel : public ::testing::TestWithParam<SmallModel> {};

TEST_P(EveryModel, GradientsMatchFiniteDifferences) {
  TestModel test(GetParam().config);
  test.backward();
  for (Weight& weight : test.model().weights().all()) {
    if (!weight.grad.defined()) continue;
    // loss() begins a step of its own: compare a copy.
    const Tensor grad = test.pool().clone(weight.grad);
    const std::vector<double> numeric = numeric_gradient([&] { return test.loss(); }, weight.value, 1e-5);
    EXPECT_TRUE(near(grad, numeric, 1e-5)) << weight.spec.name;
    test.backward();
  }
}

TEST_P(EveryModel, MicrobatchesAddUpToTheWholeBatch) {
  TestModel test(GetParam().config);
  test.backward();
  const auto whole = test.grads();
  test.backward_by_sequence();
  const auto parts = test.grads();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(near(parts[i], whole[i], 1e-9)) << "gradient " << i;
}

TEST_P(EveryModel, GradientsOfAStepKeepNothingOfTheLast) {
  TestModel test(GetParam().config);
  test.backward_by_sequence();
  const auto grads = test.grads();
  for (const Weight& weight : test.model().weights().all()) {
    if (weight.grad.defined()) test.ops().fill({weight.grad, NAN});
  }
  test.backward_by_sequence();
  EXPECT_EQ(test.grads(), grads);
}

// What backward says is ready is ready: nothing changes it any more. And it says so as early as the mixer before.
TEST_P(EveryModel, GradientsThatAreReadyStayAsTheyAre) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kBlocks}) {
    TestModel test(GetParam().config, 2, recompute);
    const auto& weights = test.model().weights().all();
    for (const Weight& weight : weights) {
      if (weight.grad.defined()) test.ops().fill({weight.grad, NAN});
    }
    std::vector<size_t> ends = {weights.size()};
    std::vector<std::vector<double>> when_ready(weights.size());
    test.backward([&](size_t first) {
      ASSERT_LT(first, ends.back());
      for (size_t i = first; i < ends.back(); ++i) {
        if (weights[i].grad.defined()) when_ready[i] = values(weights[i].grad);
      }
      ends.push_back(first);
    });
    EXPECT_EQ(ends.back(), 0u);
    std::vector<int64_t> mixers;  // the layers that have one; ends[k + 1] came before the backward of the k-th last
    for (const auto& parts : layer_parts(GetParam().config)) {
      if (is_mixer(parts.front().spec.kind)) mixers.push_back(parts.front().layer);
    }
    ASSERT_EQ(ends.size(), mixers.size() + 2);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i].grad.defined()) continue;
      EXPECT_EQ(when_ready[i], values(weights[i].grad)) << weights[i].spec.name;
      const auto below = std::ranges::lower_bound(mixers, weights[i].spec.layer) - mixers.begin();
      if (below > 0) {
        EXPECT_GE(i, ends[mixers.size() - static_cast<size_t>(below) + 1]) << weights[i].spec.name;
      }
    }
  }
}

TEST_P(EveryModel, SameBitsForAnyNumberOfThreads) {
  TestModel one(GetParam().config, 1), three(GetParam().config, 3);
  one.backward();
  three.backward();
  EXPECT_EQ(one.grads(), three.grads());
  EXPECT_EQ(values(one.losses()), values(three.losses()));
}

TEST_P(EveryModel, SameBitsWhateverIsComputedAgain) {
  const auto statistics = [](TestModel& test) {
    std::vector<std::vector<double>> all;
    for (const Moe* moe : test.model().moe_layers()) {
      const RouterStats& stats = moe->stats();
      for (const Tensor tensor : {stats.counts, stats.aux_loss, stats.entropy}) all.push_back(values(tensor));
    }
    return all;
  };
  TestModel keeps_all(GetParam().config);
  keeps_all.backward();
  for (const Recompute level : {Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks}) {
    TestModel test(GetParam().config, 2, level);
    test.backward();
    test.backward();  // nothing of a first pass is left over
    EXPECT_EQ(test.grads(), keeps_all.grads()) << static_cast<int>(level);
    EXPECT_EQ(values(test.losses()), values(keeps_all.losses())) << static_cast<int>(level);
    EXPECT_EQ(statistics(test), statistics(keeps_all)) << "counted twice, or not";
    EXPECT_EQ(test.activations().used(), 0);
  }
}

// Documents of 2 and 3 tokens packed into a sequence, and of 5: each loss is that of the document in a sequence of its
// own, and the gradients add up.
TEST_P(EveryModel, PackedDocumentsAreAsIfAlone) {
  TestModel test(GetParam().config);
  Batch packed = test.batch();
  packed.positions = test.pool().ints({kSeqs * kLen}, {0, 1, 0, 1, 2, 0, 1, 2, 3, 4});
  packed.cu_seqlens = test.pool().ints({kSeqs * kLen + 1}, {0, 2, 5, 10, 10, 10, 10, 10, 10, 10, 10});
  test.model().begin_step();
  test.model().forward_backward(packed, test.scale(), test.activations(), test.losses());
  const std::vector<double> losses = values(test.losses());
  const auto grads = test.grads();

  std::vector<double> losses_alone;
  test.model().begin_step();
  for (const auto& [begin, end] : {std::pair{0, 2}, {2, 5}, {5, 10}}) {
    const Batch alone{.num_seqs = 1,
                      .seq_len = end - begin,
                      .tokens = packed.tokens.rows(begin, end),
                      .rows = {{BatchRow::kTargets, packed.rows[BatchRow::kTargets].rows(begin, end)}},
                      .positions = packed.positions.rows(begin, end)};
    const Tensor alone_losses = test.losses().rows(0, end - begin);
    test.model().forward_backward(alone, test.scale(), test.activations(), alone_losses);
    for (const double loss : values(alone_losses)) losses_alone.push_back(loss);
  }
  // Rounding apart: sums run in another order.
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], losses_alone[i], 1e-12) << "token " << i;
  if (GetParam().config.moe.balance_loss > 0) return;  // a mean over the sequence, documents or not
  const auto grads_alone = test.grads();
  for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(near(grads_alone[i], grads[i], 1e-9)) << "gradient " << i;
}

// The road of objectives whose weights depend on the log-probabilities: those first, then a weight for each target, the
// derivative of the loss to its negative log-probability, then backward. Here the loss is the mean square of the
// difference to old log-probabilities.
TEST_P(EveryModel, WeightsOfTargetsGiveTheGradientOfAnyLossOfTheirLogProbabilities) {
  if (GetParam().config.moe.balance_loss > 0) GTEST_SKIP() << "auxiliary losses have gradients of their own";
  TestModel test(GetParam().config);
  const Tensor old = test.pool().normal({kSeqs * kLen}), weights = test.pool().zeros({kSeqs * kLen});
  const auto loss = [&] {
    test.model().forward(test.batch(), test.activations(), test.losses());
    double sum = 0;
    for (int64_t t = 0; t < kSeqs * kLen; ++t) sum += std::pow(get(test.losses(), t) - get(old, t), 2);
    return sum / static_cast<double>(kSeqs * kLen);
  };
  loss();
  for (int64_t t = 0; t < kSeqs * kLen; ++t) set(weights, t, 2 * (get(test.losses(), t) - get(old, t)));
  Batch batch = test.batch();
  batch.rows[BatchRow::kTargetWeights] = weights;
  test.model().begin_step();
  test.model().forward_backward(batch, test.scale(), test.activations(), test.losses());
  for (Weight& weight : test.model().weights().all()) {
    if (!weight.grad.defined()) continue;
    const Tensor grad = test.pool().clone(weight.grad);
    EXPECT_TRUE(near(grad, numeric_gradient(loss, weight.value, 1e-5), 1e-5)) << weight.spec.name;
  }
}

// A part of sequences divided over ranks, which attention of this model cannot see.
TEST(ModelTest, PartsOfSequencesAreRefused) {
  TestModel test(small_models().front().config);
  Batch batch = test.batch();
  batch.part = {.first_position = kLen, .whole_len = 2 * kLen};
  EXPECT_THROW(test.model().forward(batch, test.activations(), test.losses()), CheckFailure);
  batch.part = {.first_seq = 8, .whole_len = kLen};
  test.model().forward(batch, test.activations(), test.losses());
}

TEST_P(EveryModel, AnotherDocumentChangesNothing) {
  TestModel test(GetParam().config);
  Batch packed = test.batch();
  packed.positions = test.pool().ints({kSeqs * kLen}, {0, 1, 0, 1, 2, 0, 1, 2, 3, 4});
  packed.cu_seqlens = test.pool().ints({4}, {0, 2, 5, 10});
  test.model().forward(packed, test.activations(), test.losses());
  const std::vector<double> before = values(test.losses());
  for (const int64_t i : {0, 1}) set(packed.tokens, i, 10 - get(packed.tokens, i));
  test.model().forward(packed, test.activations(), test.losses());
  const std::vector<double> after = values(test.losses());
  EXPECT_NE(before[0], after[0]);
  for (size_t i = 2; i < before.size(); ++i) EXPECT_EQ(before[i], after[i]) << "token " << i;
}

INSTANTIATE_TEST_SUITE_P(Small, EveryModel, ::testing::ValuesIn(small_models()),
                         [](const auto& param_info) { return param_info.param.name; });
INSTANTIATE_TEST_SUITE_P(Scaled, EveryModel, ::testing::ValuesIn(scaled_models()),
                         [](const auto& param_info) { return param_info.param.name; });

// Projections that change nothing give the plain layer: its bits where a token has one expert, else another order of
// adding its experts' outputs.
TEST(Model, ExpertsInALatentSpaceOfTheSameWidthAreThosePlain) {
  for (const int64_t top_k : {1, 2}) {
    ModelConfig config = base_model();
    config.num_layers = 3;
    config.moe.top_k = top_k;
    TestModel plain(config);
    config.moe.latent_dim = config.dim;
    TestModel latent(config);
    for (Weight& weight : latent.model().weights().all()) {
      if (!contains(weight.spec.name, ".latent_")) continue;
      for (int64_t i = 0; i < weight.value.num_elements(); ++i) {
        set(weight.value, i, i % config.dim == i / config.dim ? 1.0 : 0.0);
      }
    }
    plain.backward();
    latent.backward();
    const auto expect_equal = [&](Tensor of_latent, Tensor of_plain, const std::string& what) {
      EXPECT_TRUE(top_k == 1 ? same_bits(of_latent, of_plain) : near(of_latent, of_plain, 1e-12)) << what;
    };
    expect_equal(latent.losses(), plain.losses(), "losses");
    int64_t others = 0;
    for (const Weight& weight : latent.model().weights().all()) {
      if (contains(weight.spec.name, ".latent_")) {
        ++others;
      } else if (weight.grad.defined()) {
        expect_equal(weight.grad, plain.weight(weight.spec.name).grad, weight.spec.name);
      }
    }
    EXPECT_EQ(others, 4);
  }
}

TEST(Model, AllTokensToTheSameExpertsStillHasTrueGradients) {
  ModelConfig config = base_model();
  config.moe.top_k = 1;
  TestModel test(config);
  test.ops().fill({test.weight("layers.1.moe.router_bias").value.rows(3, 4), 100.0});
  test.backward();
  const Tensor counts = test.model().moe_layers()[0]->stats().counts;
  EXPECT_EQ(values(counts), (std::vector<double>{0, 0, 0, kSeqs * kLen, 0}));
  Weight& experts = test.weight("layers.1.moe.experts_in");
  const Tensor grad = test.pool().clone(experts.grad);
  EXPECT_TRUE(near(grad, numeric_gradient([&] { return test.loss(); }, experts.value, 1e-5), 1e-5));
  for (int64_t expert : {0, 1, 2, 4}) {
    for (const double value : values(grad[expert])) EXPECT_EQ(value, 0.0);
  }
}

TEST(Model, PositionsWithoutTargetCarryNoLoss) {
  TestModel test(base_model());
  for (int64_t i = 0; i < kSeqs * kLen; ++i) set(test.targets(), i, -1);
  test.backward();
  for (const double loss : values(test.losses())) EXPECT_EQ(loss, 0.0);
  for (const auto& grad : test.grads()) {
    for (const double value : grad) EXPECT_EQ(value, 0.0);
  }
}

TEST(Model, LaterTokensDoNotChangeEarlierLosses) {
  TestModel test(base_model());
  test.loss();
  const std::vector<double> before = values(test.losses());
  set(test.batch().tokens, kLen - 1, 10 - get(test.batch().tokens, kLen - 1));
  test.loss();
  const std::vector<double> after = values(test.losses());
  for (size_t i = 0; i + 1 < kLen; ++i) EXPECT_EQ(before[i], after[i]) << "position " << i;
  EXPECT_NE(before[kLen - 1], after[kLen - 1]);
  for (size_t i = kLen; i < before.size(); ++i) EXPECT_EQ(before[i], after[i]) << "the other sequence, " << i;
}

// What a token sees of the order of earlier ones, beyond that they are earlier, is what RoPE tells.
TEST(Model, WithoutRotaryPositionsDistancesMeanNothing) {
  const auto losses = [](const char* layers, const std::vector<double>& positions) {
    ModelConfig config = base_model();
    config.layers = layers;
    TestModel test(config);
    Batch batch = test.batch();
    batch.positions = test.pool().ints({kSeqs * kLen}, positions);
    test.model().forward(batch, test.activations(), test.losses());
    return values(test.losses());
  };
  const std::vector<double> near = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, far = {0, 0, 1, 1, 4, 4, 3, 2, 1, 0};
  EXPECT_EQ(losses("gqa_nope, moe", near), losses("gqa_nope, moe", far));
  EXPECT_NE(losses("gqa, moe", near), losses("gqa, moe", far));
}

TEST(Model, LogitsGiveTheLosses) {
  TestModel test(base_model());
  test.loss();
  const double routed = get(test.model().moe_layers()[0]->stats().counts, 0);
  const Tensor logits = test.pool().zeros({kSeqs * kLen, 11}), chosen = test.pool().zeros({3, 11});
  test.model().logits(test.batch(), test.activations(), logits);
  for (int64_t i = 0; i < kSeqs * kLen; ++i) {
    double sum = 0;
    for (int64_t id = 0; id < 11; ++id) sum += std::exp(get(logits[i], id));
    const double target_logit = get(logits[i], static_cast<int64_t>(get(test.targets(), i)));
    EXPECT_NEAR(std::log(sum) - target_logit, get(test.losses(), i), 1e-12);
  }
  test.model().logits(test.batch(), test.activations(), chosen, test.pool().ints({3}, {9, 0, 4}));
  EXPECT_TRUE(near(chosen[0], logits[9], 1e-12));
  EXPECT_TRUE(near(chosen[1], logits[0], 1e-12));
  EXPECT_TRUE(near(chosen[2], logits[4], 1e-12));
  EXPECT_EQ(get(test.model().moe_layers()[0]->stats().counts, 0), routed) << "statistics are training's";
}

TEST(Model, InspectorSeesEveryLayerInOrder) {
  TestModel test(base_model());
  std::vector<std::string> names;
  test.model().begin_step();
  test.model().forward_backward(test.batch(), test.scale(), test.activations(), test.losses(),
                                {.inspect = [&](Intermediate what, int64_t layer, Tensor, Tensor) {
                                  names.push_back(intermediate_name(what, layer));
                                }});
  const auto position = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
  };
  EXPECT_LT(position("embedding_out"), position("layers.0.attention.heads"));
  EXPECT_LT(position("layers.0.mlp.hidden"), position("layers.1.moe.logits"));
  EXPECT_LT(position("layers.1.moe.expert_hidden"), position("losses"));
  EXPECT_LT(position("losses"), position("layers.1.attention_gradient"));
  EXPECT_LT(position("layers.1.attention_gradient"), static_cast<std::ptrdiff_t>(names.size()));
  std::vector<std::string> marks;
  test.model().forward_backward(
      test.batch(), test.scale(), test.activations(), test.losses(),
      {.mark = [&](Intermediate what, int64_t layer) { marks.push_back(intermediate_name(what, layer)); }});
  EXPECT_EQ(marks, names);
}

TEST(Model, RouterBiasMovesAgainstTheLoad) {
  ModelConfig config = base_model();
  config.moe.bias_rate = 0.25;
  TestModel test(config);
  test.backward();
  test.model().update_router_bias(test.pool().full({1}, 1.0));
  const Moe& moe = *test.model().moe_layers()[0];
  const double mean =
      static_cast<double>(kSeqs * kLen * config.moe.top_k) / static_cast<double>(config.moe.num_experts);
  for (int64_t expert = 0; expert < config.moe.num_experts; ++expert) {
    const double error = mean - get(moe.stats().counts, expert);
    const double expected = error > 0 ? 0.25 : (error < 0 ? -0.25 : 0.0);
    EXPECT_EQ(get(moe.router_bias().value, expert), expected) << "expert " << expert;
  }
}

}  // namespace
}  // namespace nmoe::test
