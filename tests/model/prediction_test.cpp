// Modules of multi-token prediction: their gradients against finite differences, with the model's, and what a pass with
// them relies on.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "config/load.h"
#include "model/model.h"
#include "model/prediction_module.h"
#include "model/small_models.h"
#include "model/spec/cost.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

constexpr int64_t kSeqs = 2, kLen = 5, kTokens = kSeqs * kLen;
constexpr double kDepthWeight = 0.07;  // of each depth's token losses

class PredictingModel {
 public:
  explicit PredictingModel(const ModelConfig& config, Recompute recompute = Recompute::kNone)
      : config_(config),
        ops_(cpu_device(DType::kF64, 2)),
        weights_(describe_model(config_).weights),
        model_(config_, weights_, *ops_, kLen, {.recompute = recompute}),
        losses_(pool_.zeros({1 + config.mtp.depth, kTokens})),
        scale_(pool_.full({1 + config.mtp.depth}, kDepthWeight)) {
    for (Arena* arena : {&values_, &grads_, &state_, &activations_}) arena->reserve(ops_.device().memory(), 4 << 20);
    weights_.allocate(*ops_, values_, grads_);
    model_.allocate(state_);
    weights_.initialise(*ops_, 7, config.init.truncation);
    set(scale_, 0, 1.0 / kTokens);
    for (int64_t k = 1; k <= config.mtp.depth; ++k) {
      const AheadRows rows = {.tokens = pool_.zeros(DType::kI32, {kTokens}),
                              .targets = pool_.zeros(DType::kI32, {kTokens})};
      for (int64_t i = 0; i < kTokens; ++i) {
        const bool is_there = i % kLen + k < kLen;
        rows.tokens.data<int32_t>()[i] = is_there ? tokens_.data<int32_t>()[i + k] : 0;
        rows.targets.data<int32_t>()[i] = is_there ? targets_.data<int32_t>()[i + k] : -1;
      }
      ahead_.push_back(rows);
    }
  }

  Batch batch(int64_t first_seq = 0, int64_t num_seqs = kSeqs) {
    const int64_t begin = first_seq * kLen, end = (first_seq + num_seqs) * kLen;
    Batch batch = {.num_seqs = num_seqs,
                   .seq_len = kLen,
                   .tokens = tokens_.rows(begin, end),
                   .rows = {{BatchRow::kTargets, targets_.rows(begin, end)}},
                   .positions = positions_.rows(begin, end)};
    for (const AheadRows& rows : ahead_) {
      batch.ahead.push_back({.tokens = rows.tokens.rows(begin, end), .targets = rows.targets.rows(begin, end)});
    }
    return batch;
  }
  void backward(const GradientsReady& ready = {}, Tensor predictions = {}) {
    model_.begin_step();
    model_.forward_backward(batch(), scale(), activations_, losses_, {.gradients_ready = ready}, predictions);
  }
  void backward_by_sequence() {
    model_.begin_step();
    const Tensor losses = losses_.reshape({losses_.num_elements()}).rows(0, losses_.dim(0) * kLen);
    for (int64_t seq = 0; seq < kSeqs; ++seq) model_.forward_backward(batch(seq, 1), scale(), activations_, losses);
  }
  // What backward differentiates; of the depths alone.
  double loss(bool of_depths_alone = false) {
    backward();
    double total = 0;
    for (int64_t i = of_depths_alone ? 1 : 0; i < losses_.dim(0); ++i) {
      for (const double loss : values(losses_[i])) total += loss * get(scale_, i);
    }
    for (const Moe* moe : model_.moe_layers()) total += get(moe->stats().aux_loss, 0) + get(moe->stats().aux_loss, 1);
    return total;
  }
  std::vector<std::vector<double>> grads() {
    std::vector<std::vector<double>> result;
    for (const Weight& weight : weights_.all()) {
      if (weight.grad.defined()) result.push_back(values(weight.grad));
    }
    return result;
  }
  StepScale scale() const { return {.num_seqs = kSeqs, .num_tokens = kTokens, .loss = scale_}; }
  WeightSet& weights() { return weights_; }
  Model& model() { return model_; }
  Arena& activations() { return activations_; }
  TensorPool& pool() { return pool_; }
  Ops& ops() { return *ops_; }
  Tensor losses() { return losses_; }
  std::vector<AheadRows>& ahead() { return ahead_; }

 private:
  ModelConfig config_;
  ReadyDevice ops_;
  TensorPool pool_{DType::kF64, 3};
  Arena values_{"values"}, grads_{"grads"}, state_{"state"}, activations_{"activations"};
  WeightSet weights_;
  Model model_;
  Tensor tokens_ = pool_.random_ints({kTokens}, 11);
  Tensor targets_ = pool_.random_ints({kTokens}, 11);
  Tensor positions_ = pool_.ints({kTokens}, {0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  Tensor losses_, scale_;
  std::vector<AheadRows> ahead_;
};

std::vector<SmallModel> predicting_models() {
  std::vector<SmallModel> models;
  const auto add = [&](const std::string& name, auto&& change) {
    models.push_back({name, base_model()});
    models.back().config.mtp.depth = 1;
    change(models.back().config);
  };
  add("mla_moe", [](ModelConfig&) {});
  add("tied_dense_two_depths", [](ModelConfig& c) {
    c.attention = PartKind::kGqa;
    c.moe.num_experts = 0;
    c.tied_head = true;
    c.mtp.depth = 2;
  });
  add("shared_by_three_depths", [](ModelConfig& c) {
    c.mtp.depth = 3;
    c.mtp.shared = true;
    c.moe.balance_loss = 0.3;
  });
  add("layers_of_one_part", [](ModelConfig& c) {
    c.layers = "mla/dense, gqa, moe";
    c.mtp.layers = "gqa, moe:4";
    c.mtp.depth = 2;
  });
  return models;
}

class EveryPrediction : public ::testing::TestWithParam<SmallModel> {};

TEST_P(EveryPrediction, GradientsMatchFiniteDifferences) {
  PredictingModel test(GetParam().config);
  test.backward();
  std::vector<Tensor> grads;
  for (Weight& weight : test.weights().all()) {
    grads.push_back(weight.grad.defined() ? test.pool().clone(weight.grad) : Tensor());
  }
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    Weight& weight = test.weights().all()[i];
    EXPECT_TRUE(near(grads[i], numeric_gradient([&] { return test.loss(); }, weight.value, 1e-5), 1e-5))
        << weight.spec.name;
  }
}

TEST_P(EveryPrediction, SameBitsWhateverIsComputedAgain) {
  PredictingModel keeps_all(GetParam().config);
  keeps_all.backward();
  for (const Recompute level : {Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks}) {
    PredictingModel test(GetParam().config, level);
    test.backward();
    test.backward();
    EXPECT_EQ(test.grads(), keeps_all.grads()) << static_cast<int>(level);
    EXPECT_EQ(values(test.losses()), values(keeps_all.losses())) << static_cast<int>(level);
    EXPECT_EQ(test.activations().used(), 0);
  }
}

TEST_P(EveryPrediction, MicrobatchesAddUpToTheWholeBatch) {
  PredictingModel test(GetParam().config);
  test.backward();
  const auto whole = test.grads();
  test.backward_by_sequence();
  const auto parts = test.grads();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(near(parts[i], whole[i], 1e-9)) << "gradient " << i;
}

TEST_P(EveryPrediction, GradientsThatAreReadyStayAsTheyAre) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kBlocks}) {
    PredictingModel test(GetParam().config, recompute);
    const auto& weights = test.weights().all();
    size_t end = weights.size();
    bool early = false;  // some of a module's were ready before all of them
    std::vector<std::vector<double>> when_ready(weights.size());
    test.backward([&](size_t first) {
      ASSERT_LE(first, end);
      early = early || (first > test.weights().index_of("final_norm") && first < weights.size());
      for (size_t i = first; i < end; ++i) {
        if (weights[i].grad.defined()) when_ready[i] = values(weights[i].grad);
      }
      end = first;
    });
    EXPECT_EQ(end, 0u);
    EXPECT_TRUE(early);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i].grad.defined()) continue;
      EXPECT_EQ(when_ready[i], values(weights[i].grad)) << weights[i].spec.name;
    }
  }
}

TEST_P(EveryPrediction, TheModelItselfIsAsWithout) {
  ModelConfig without = GetParam().config;
  without.mtp = {};
  PredictingModel plain(without), test(GetParam().config);
  plain.backward();
  test.backward();
  EXPECT_EQ(values(plain.losses()[0]), values(test.losses()[0]));
  EXPECT_EQ(plain.model().states().size(), test.model().states().size());
}

// Only modules learn, and as much as before.
TEST_P(EveryPrediction, DetachedLossesLeaveTheModelAlone) {
  ModelConfig config = GetParam().config;
  PredictingModel attached(config);
  config.mtp.detach = true;
  PredictingModel test(config);
  attached.backward();
  test.backward();
  config.mtp = {};
  PredictingModel plain(config);
  plain.backward();
  for (const Weight& weight : test.weights().all()) {
    if (!weight.grad.defined()) continue;
    const bool is_module = weight.spec.name.starts_with("mtp.");
    PredictingModel& same = is_module ? attached : plain;
    EXPECT_EQ(values(weight.grad), values(same.weights().at(weight.spec.name).grad)) << weight.spec.name;
  }
}

TEST_P(EveryPrediction, PredictionsAreTheLikeliestTokens) {
  PredictingModel test(GetParam().config);
  const int64_t depth = GetParam().config.mtp.depth;
  const Tensor predictions = test.pool().zeros(DType::kI32, {depth, kTokens});
  test.backward({}, predictions);
  // The token with the least loss of all, each the target in turn.
  std::vector<std::vector<double>> best(static_cast<size_t>(depth), std::vector<double>(kTokens, INFINITY));
  std::vector<std::vector<int32_t>> likeliest(static_cast<size_t>(depth), std::vector<int32_t>(kTokens));
  for (int32_t token = 0; token < GetParam().config.vocab_size; ++token) {
    for (const AheadRows& rows : test.ahead()) std::fill_n(rows.targets.data<int32_t>(), kTokens, token);
    test.backward();
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t i = 0; i < kTokens; ++i) {
        double& least = best[static_cast<size_t>(k)][static_cast<size_t>(i)];
        if (const double loss = get(test.losses()[k + 1], i); loss < least) {
          least = loss, likeliest[static_cast<size_t>(k)][static_cast<size_t>(i)] = token;
        }
      }
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const auto of_depth = predictions[k].span<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(of_depth.begin(), of_depth.end()), likeliest[static_cast<size_t>(k)]);
  }
}

// In generation, of the first depth, from the states that the model's own cached pass leaves.
TEST_P(EveryPrediction, CachedPredictionsAreThoseOfTraining) {
  PredictingModel test(GetParam().config);
  const ModelConfig& config = GetParam().config;
  const Tensor predictions = test.pool().zeros(DType::kI32, {config.mtp.depth, kTokens});
  test.backward({}, predictions);
  Model& model = test.model();
  Ops& ops = model.ops();
  Arena arena("states"), activations("activations");
  for (Arena* each : {&arena, &activations}) each->reserve(ops.device().memory(), 4 << 20);
  const StateSizes sizes{.num_slots = kSeqs, .capacity = kLen};
  const ModelStates states = make_states(model.states(), ops, arena, sizes),
                    module_states = make_states(model.prediction_states(), ops, arena, sizes);
  const std::vector<int32_t> pages = own_pages(sizes);
  for (const ModelStates* each : {&states, &module_states}) ops.device().upload(each->pages, pages.data());
  const Tensor hidden = test.pool().zeros({2 * kTokens, config.dim});
  const Tensor logits = test.pool().zeros({kTokens, config.vocab_size});
  const Tensor all = test.pool().ints({kTokens}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
               slots = test.pool().ints({kTokens}, {0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
  const Batch batch = test.batch();
  model.keep_cached_states(hidden.rows(0, kTokens));
  model.cached_logits({.tokens = batch.tokens, .slots = slots, .positions = batch.positions}, states, activations, all,
                      logits);
  model.cached_predictions({.rows = {.tokens = test.ahead()[0].tokens, .slots = slots, .positions = batch.positions},
                            .sources = all,
                            .hidden = hidden,
                            .made = hidden.rows(kTokens, 2 * kTokens)},
                           module_states, activations, all, logits);
  for (int64_t i = 0; i < kTokens; ++i) {
    const std::vector<double> row = values(logits[i]);
    EXPECT_EQ(std::ranges::max_element(row) - row.begin(), predictions[0].span<int32_t>()[static_cast<size_t>(i)]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Predictions, EveryPrediction, ::testing::ValuesIn(predicting_models()),
                         [](const auto& info) { return info.param.name; });

// h^1 of the last position that has a target depends on the token one further, and on none behind that.
TEST(PredictionTest, ADepthSeesItsTokenAndNoLaterOne) {
  PredictingModel test(predicting_models().front().config);
  test.backward();
  const auto before = values(test.losses()[1]);
  int32_t& token = test.ahead()[0].tokens.data<int32_t>()[2];
  token = (token + 1) % 11;
  test.backward();
  const auto after = values(test.losses()[1]);
  for (size_t i = 0; i < kTokens; ++i) {
    const bool sees = i >= 2 && i < 4;  // of the first sequence; its last position has no target
    EXPECT_EQ(before[i] != after[i], sees) << i;
  }
}

// By plain loops, with layers that add nothing: the head of final_norm(A norm(e) + B norm(h)), h behind the model's own
// final norm.
TEST(PredictionTest, AModuleIsItsFormula) {
  ModelConfig config = base_model();
  config.moe.num_experts = 0;
  config.mtp.depth = 1;
  PredictingModel test(config);
  WeightSet& weights = test.weights();
  for (Weight& weight : weights.all()) {
    if (weight.spec.shape.rank() > 1) continue;
    for (int64_t i = 0; i < weight.spec.shape[0]; ++i) set(weight.value, i, 0.7 + 0.1 * static_cast<double>(i));
  }
  for (const char* name : {"mtp.0.layers.0.attention.out", "mtp.0.layers.0.mlp.out"}) {
    test.ops().fill({weights.at(name).value, 0.0});
  }
  std::vector<double> states;
  test.model().begin_step();
  test.model().forward_backward(test.batch(), test.scale(), test.activations(), test.losses(),
                                {.inspect = [&](Intermediate what, int64_t layer, Tensor value, Tensor) {
                                  if (what == Intermediate::kFinalNormOut && layer == kNoLayer) states = values(value);
                                }});
  const int64_t D = config.dim;
  const auto norm = [&](std::vector<double> x, const std::string& name) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (int64_t i = 0; i < D; ++i) {
      x[static_cast<size_t>(i)] *=
          get(weights.at(name).value, i) / std::sqrt(squares / static_cast<double>(D) + config.norm_eps);
    }
    return x;
  };
  const auto add_product = [&](const std::string& name, const std::vector<double>& x, std::vector<double>& y) {
    for (size_t row = 0; row < y.size(); ++row) {
      for (size_t i = 0; i < x.size(); ++i)
        y[row] += get(weights.at(name).value, static_cast<int64_t>(row * x.size() + i)) * x[i];
    }
  };
  const AheadRows& rows = test.ahead()[0];
  for (int64_t t = 0; t < kTokens; ++t) {
    const int32_t target = rows.targets.data<int32_t>()[t];
    if (target < 0) continue;
    std::vector<double> embedded, hidden, u(static_cast<size_t>(D)), logits(static_cast<size_t>(config.vocab_size));
    for (int64_t i = 0; i < D; ++i) {
      embedded.push_back(get(weights.at("embedding").value, rows.tokens.data<int32_t>()[t] * D + i));
      hidden.push_back(states[static_cast<size_t>(t * D + i)]);
    }
    add_product("mtp.0.projection_embedding", norm(embedded, "mtp.0.embedding_norm"), u);
    add_product("mtp.0.projection_hidden", norm(hidden, "mtp.0.hidden_norm"), u);
    add_product("head", norm(u, "mtp.0.final_norm"), logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    EXPECT_NEAR(get(test.losses()[1], t), std::log(sum) - logits[static_cast<size_t>(target)], 1e-12) << t;
  }
}

TEST(PredictionTest, CostsAreThoseOfTheBlockTheProjectionsAndTheHeadAgain) {
  ModelConfig config = base_model();
  const ModelCost without = model_cost(config);
  config.mtp.depth = 1;
  const ModelCost one = model_cost(config);
  config.mtp = {.depth = 3, .shared = true};
  const ModelCost shared = model_cost(config);
  const int64_t dim = config.dim, head = config.vocab_size * dim;
  int64_t block = 0, active = 0;
  for (const WeightSpec& weight : describe_model(base_model()).weights) {
    if (weight.layer != 1 || weight.shape.rank() < 2) continue;
    block += weight.shape.num_elements();
    active += weight.group == WeightGroup::kExperts ? weight.shape.num_elements() / 5 * 2 : weight.shape.num_elements();
  }
  const int64_t more = active + 2 * dim * dim + head;
  EXPECT_EQ(one.active_matrix_parameters - without.active_matrix_parameters, more);
  EXPECT_EQ(shared.active_matrix_parameters - without.active_matrix_parameters, 3 * more);
  EXPECT_EQ(shared.parameters, one.parameters);
  EXPECT_GE(one.parameters - without.parameters, block + 2 * dim * dim);
  EXPECT_DOUBLE_EQ(one.attention[0].flops_per_pair, without.attention[0].flops_per_pair * 1.5);
  EXPECT_DOUBLE_EQ(shared.attention[0].flops_per_pair, without.attention[0].flops_per_pair * 2.5);
}

TEST(PredictionTest, OneDepthOfPublishedShapesCosts) {
  for (const auto& [name, share] : {std::pair("moonlet", 1.32), {"moonlight", 1.166}}) {
    ModelConfig config =
        load_config(std::filesystem::path(NMOE_SOURCE_DIR) / "configs/speedrun" / fmt::format("{}.toml", name)).model;
    config.vocab_size = 163840;
    const auto without = static_cast<double>(model_cost(config).active_matrix_parameters);
    config.mtp.depth = 1;
    EXPECT_NEAR(static_cast<double>(model_cost(config).active_matrix_parameters) / without, share, 5e-3) << name;
  }
}

TEST(PredictionTest, BatchesWithoutRowsOfDepthsAreRefused) {
  PredictingModel test(predicting_models().front().config);
  Batch batch = test.batch();
  batch.ahead.clear();
  test.model().begin_step();
  EXPECT_THROW(test.model().forward_backward(batch, test.scale(), test.activations(), test.losses()), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
