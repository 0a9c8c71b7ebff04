// Factors of [model.scaling] against the formulas written out by hand.
#include "model/spec/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "config/load.h"
#include "config/scaling.h"
#include "model/small_models.h"
#include "model/spec/spec.h"
#include "ops/ops.h"
#include "support/errors.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

ModelConfig model_of(const std::string& text) {
  Config config = parse_config(text, "scaled.toml");
  config.model.vocab_size = 100;
  return config.model;
}

// Four times as wide with twice the depth, heads of twice the size, other widths by other ratios.
constexpr const char* kLarge = R"(
    [model]
    dim = 64
    num_layers = 4
    num_heads = 8
    dense_dim = 96
    [model.mla]
    q_lora_rank = 0
    kv_lora_rank = 32
    qk_nope_head_dim = 12
    qk_rope_head_dim = 4
    v_head_dim = 8
    [model.moe]
    num_experts = 12
    expert_dim = 24
    [model.scaling]
    rule = "completep"
    [model.scaling.base]
    dim = 16
    num_layers = 2
    num_heads = 4
    dense_dim = 32
    mla = { kv_lora_rank = 16, qk_nope_head_dim = 4, qk_rope_head_dim = 4 }
    moe = { num_experts = 4, expert_dim = 12 })";

std::map<std::string, WeightSpec> weights_of(const ModelConfig& config) {
  std::map<std::string, WeightSpec> weights;
  for (const WeightSpec& weight : describe_model(config).weights) weights.emplace(weight.name, weight);
  return weights;
}

struct Expected {
  std::string name;
  double spread, adamw, muon, eps;
};

// m = 4; l = 2; attention's logits are times sqrt(8 / 16).
TEST(Scaling, FactorsAreThoseOfTheFormulas) {
  const double q = std::sqrt(0.5);
  const std::vector<Expected> expected = {
      {"embedding", 1, 1, 1, 1.0 / 4},
      {"head", 1.0 / 4, 1.0 / 4, 1, 1},
      {"final_norm", 1, 1, 1, 1.0 / 4},
      {"layers.1.attention_norm", 1, 1, 1, 1.0 / 8},
      {"layers.1.attention.kv_norm", 1, 1, 1, 1.0 / 4},  // 32 of 16, and l
      // [128, 64] of [32, 16]: Muon's scale is 1 / sqrt(in) where out > in
      {"layers.1.attention.q", q / 2, q / 4, q / 2, 1.0 / 8 / q},
      // [32, 64] of [16, 16]: sqrt(out) / in = sqrt(32) / 64 over sqrt(16) / 16
      {"layers.1.attention.kv_down", 1.0 / 2, 1.0 / 4, (std::sqrt(32.0) / 64) / (std::sqrt(16.0) / 16), 1.0 / 4},
      // [64, 64] of [16, 32], to the residual stream
      {"layers.1.attention.out", 1 / std::sqrt(2.0) / 2, 1.0 / 2 / 2, (1.0 / 8) / (4.0 / 32) / 2, 1.0 / 4},
      // gate | up of [96, 64] each, of [32, 16]
      {"layers.0.mlp.in", 1.0 / 2, 1.0 / 4, 1.0 / 2, 1.0 / 3 / 2},
      {"layers.0.mlp.out", 1 / std::sqrt(3.0) / 2, 1.0 / 3 / 2, (8.0 / 96) / (4.0 / 32) / 2, 1.0 / 4},
      {"layers.1.moe.router", 1.0 / 4, 1.0 / 4, 1, 1.0 / 3 / 2},
      // 12 of 4 experts; gate | up of [24, 64] each, of [12, 16]
      {"layers.1.moe.experts_in", 1.0 / 2, 1.0 / 4, (std::sqrt(24.0) / 64) / (std::sqrt(12.0) / 16), 1.0 / 2 / 3 / 2},
      // [64, 24] of [16, 12]
      {"layers.1.moe.experts_out", 1 / std::sqrt(2.0) / 2, 1.0 / 2 / 2, std::sqrt(12.0 / 24) / 2, 1.0 / 4 / 3},
      {"layers.1.moe.shared.out", 1 / std::sqrt(2.0) / 2, 1.0 / 2 / 2, std::sqrt(12.0 / 24) / 2, 1.0 / 4},
  };
  const ModelConfig config = model_of(kLarge);
  const auto weights = weights_of(config);
  for (const auto& [name, spread, adamw, muon, eps] : expected) {
    const WeightScaling& scaling = weights.at(name).scaling;
    EXPECT_NEAR(scaling.spread, spread, 1e-12) << name;
    EXPECT_NEAR(scaling.adamw_rate, adamw, 1e-12) << name;
    EXPECT_NEAR(scaling.eps, eps, 1e-12) << name;
    const WeightGroup group = weights.at(name).group;
    const bool is_muons = group == WeightGroup::kMatrices || group == WeightGroup::kExperts;
    if (is_muons) {
      EXPECT_NEAR(scaling.muon_rate, muon, 1e-12) << name;
    }
    EXPECT_NEAR(scaling.decay(OptimizerKind::kAdamW), 1 / adamw, 1e-9) << name;
  }
  // Spread has the depth of the base, 4 parts.
  EXPECT_NEAR(weights.at("layers.1.attention.out").init_std, 0.02 / std::sqrt(4.0) / std::sqrt(2.0) / 2, 1e-15);
  EXPECT_NEAR(weights.at("layers.1.attention.q").init_std, 0.02 * q / 2, 1e-15);
}

TEST(Scaling, MupLeavesDepthAlone) {
  ModelConfig config = model_of(kLarge);
  config.scaling.rule = ScalingRule::kMup;
  const auto weights = weights_of(config);
  EXPECT_NEAR(weights.at("layers.1.attention.out").scaling.adamw_rate, 1.0 / 2, 1e-12);
  EXPECT_NEAR(weights.at("layers.1.mlp_norm").scaling.eps, 1.0 / 4, 1e-12);
  EXPECT_NEAR(weights.at("layers.1.moe.router").scaling.eps, 1.0 / 3, 1e-12);
}

TEST(Scaling, ATiedHeadsLogitsAreScaledByTheFinalNorm) {
  ModelConfig config = model_of(kLarge);
  config.tied_head = true;
  const auto weights = weights_of(config);
  EXPECT_NEAR(weights.at("final_norm").scaling.spread, 1.0 / 4, 1e-12);
  EXPECT_NEAR(weights.at("final_norm").scaling.adamw_rate, 1.0 / 4, 1e-12);
  EXPECT_NEAR(weights.at("final_norm").scaling.eps, 1.0, 1e-12);
  EXPECT_EQ(weights.at("embedding").scaling.adamw_rate, 1.0);
}

TEST(Scaling, TheLatentOfExpertsIsAWidthAndItsWayBackTheirs) {
  ModelConfig config = model_of(kLarge);
  config.moe.latent_dim = 32;
  config.scaling.base.sizes["moe.latent_dim"] = 16;
  const auto weights = weights_of(config);
  EXPECT_NEAR(weights.at("layers.1.moe.latent_down").scaling.adamw_rate, 1.0 / 4, 1e-12);
  EXPECT_NEAR(weights.at("layers.1.moe.latent_up").scaling.adamw_rate, 1.0 / 2 / 2, 1e-12);  // l
  EXPECT_NEAR(weights.at("layers.1.moe.experts_out").scaling.adamw_rate, 1.0 / 2, 1e-12);    // no l
  EXPECT_NEAR(weights.at("layers.1.moe.experts_out").scaling.eps, 1.0 / 2 / 3 / 2, 1e-12);
}

TEST(Scaling, QueryNormsScaleLogitsWhereThereAre) {
  ModelConfig config = model_of(kLarge);
  config.attention = PartKind::kGqa;
  config.gqa = {.num_kv_heads = 2, .head_dim = 16, .qk_norm = true};
  config.scaling.base.sizes = {{"dim", 16}, {"num_heads", 4}, {"gqa.head_dim", 4}};
  const auto weights = weights_of(config);
  EXPECT_NEAR(weights.at("layers.1.attention.q_norm").scaling.spread, 0.5, 1e-12);
  EXPECT_NEAR(weights.at("layers.1.attention.k_norm").scaling.spread, 1.0, 1e-12);
  EXPECT_NEAR(weights.at("layers.1.attention.q").scaling.spread, 0.5, 1e-12);  // of its inputs
  config.gqa.qk_norm = false;
  EXPECT_NEAR(weights_of(config).at("layers.1.attention.q").scaling.spread, 0.25, 1e-12);
  config.gqa.bias = AttentionBias::kQkv;
  EXPECT_TRUE(contains(error_of([&] { describe_model(config); }).what(), "queries have a bias"));
}

TEST(Scaling, AtTheBaseNothingChanges) {
  for (const SmallModel& small : small_models()) {
    ModelConfig config = small.config;
    const std::vector<WeightSpec> plain = describe_model(config).weights;
    for (const ScalingRule rule : {ScalingRule::kMup, ScalingRule::kCompleteP}) {
      config.scaling.rule = rule;
      const std::vector<WeightSpec> scaled = describe_model(config).weights;
      ASSERT_EQ(scaled.size(), plain.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(scaled[i].scaling, WeightScaling()) << small.name << " " << plain[i].name;
        EXPECT_EQ(scaled[i].init_std, plain[i].init_std) << small.name << " " << plain[i].name;
      }
    }
  }
}

TEST(Scaling, RefusesABaseOfAnotherKind) {
  ModelConfig config = model_of(kLarge);
  config.scaling.base.sizes["mla.q_lora_rank"] = 8;
  EXPECT_TRUE(contains(error_of([&] { describe_model(config); }).what(),
                       "it has layers.*.attention.q_down, which the model has not"));
  config = model_of(kLarge);
  config.scaling.base.layers = "mla/dense, mla/dense";
  EXPECT_TRUE(contains(error_of([&] { describe_model(config); }).what(), "it has no layers.*.moe.router"));
}

TEST(Scaling, SaysWhereGranularityDiffers) {
  ModelConfig config = model_of(kLarge);
  EXPECT_TRUE(contains(note_on_scaling(config), "model.dim / model.moe.expert_dim is 2.667, the base's 1.333"));
  EXPECT_TRUE(contains(note_on_scaling(config), "top_k / num_experts is 0.1667, the base's 0.5"));
  config.scaling.base.sizes = {};
  EXPECT_EQ(note_on_scaling(config), "");
}

TEST(Scaling, RowsHaveEveryWeightOnce) {
  const ModelConfig config = model_of(kLarge);
  const std::vector<WeightSpec> weights = describe_model(config).weights;
  int64_t count = 0;
  for (const ScalingRow& row : scaling_rows(config, describe_model(scaling_base(config)).weights, weights)) {
    count += row.count;
  }
  int64_t trained = 0;
  for (const WeightSpec& weight : weights) trained += weight.is_trained() ? 1 : 0;
  EXPECT_EQ(count, trained);
}

TEST(Scaling, SourcesAreOfTheRuleAndTheOptimizer) {
  const ModelConfig config = model_of(kLarge);
  const std::vector<WeightSpec> weights = describe_model(config).weights;
  const auto sources = [&](std::string_view name, ScalingRule rule, OptimizerKind optimizer) {
    const auto weight =
        std::ranges::find_if(weights, [&](const WeightSpec& each) { return each.name.ends_with(name); });
    return sources_of_scaling(*weight, rule, optimizer);
  };
  using enum ScalingRule;
  using enum OptimizerKind;
  EXPECT_EQ(sources("attention.out", kMup, kMuon), "2203.03466 table 3, rate: 2310.17813, 2602.20937");
  EXPECT_EQ(sources("attention.out", kCompleteP, kMuon),
            "2203.03466 table 3, rate: 2310.17813, 2602.20937, depth: 2505.01618 table 1");
  EXPECT_EQ(sources("attention.out", kMup, kAdamW), "2203.03466 table 3, eps: 2505.01618 table 1");
  EXPECT_EQ(sources("moe.router", kCompleteP, kAdamW), "2508.09752 (routers are outputs), eps: 2505.01618 table 1");
}

// Steps of c W with c h, d / c and e / c from gradients / c are the steps of W with h, d and e, times c: what keeps
// multipliers out of products.
TEST(Scaling, AStepOfStoredMultiplesIsTheStepOfWhatIsMultiplied) {
  constexpr double c = 0.3, rate = 0.01, decay = 0.1, eps = 1e-3;
  const ReadyDevice ops(cpu_device(DType::kF64));
  for (const bool is_muon : {false, true}) {
    TensorPool pool;
    const Tensor plain = pool.normal({6, 4}), times_c = pool.zeros(DType::kF64, {6, 4});
    for (int64_t i = 0; i < 24; ++i) set(times_c, i, c * values(plain)[static_cast<size_t>(i)]);
    const Tensor scale = pool.zeros(DType::kF64, {1});
    set(scale, 0, 1.0);
    const auto stepper = [&](double factor) {
      const Tensor m = pool.zeros(DType::kF64, {6, 4}), v = pool.zeros(DType::kF64, {6, 4}),
                   rates = pool.zeros(DType::kF64, {3});
      return [=, &ops](const Tensor& w, const Tensor& grad, double step) {
        set(rates, 0, rate * factor);
        set(rates, 1, 1 / (1 - std::pow(0.9, step)));
        set(rates, 2, 1 / (1 - std::pow(0.95, step)));
        if (is_muon) {
          ops->muon_step({.w = w,
                          .grad = grad,
                          .momentum = m,
                          .grad_scale = scale,
                          .rates = rates,
                          .weight_decay = decay / factor});
          return;
        }
        ops->adamw_steps({{{.w = w,
                            .grad = grad,
                            .m = m,
                            .v = v,
                            .grad_scale = scale,
                            .rates = rates,
                            .eps = eps / factor,
                            .weight_decay = decay / factor}}});
      };
    };
    const auto of_plain = stepper(1.0), of_times_c = stepper(c);
    for (int step = 1; step <= 5; ++step) {
      const Tensor grad = pool.normal({6, 4});  // of c W
      const Tensor grad_of_plain = pool.zeros(DType::kF64, {6, 4});
      for (int64_t i = 0; i < 24; ++i) set(grad_of_plain, i, c * values(grad)[static_cast<size_t>(i)]);
      of_plain(plain, grad_of_plain, step);
      of_times_c(times_c, grad, step);
    }
    // Muon adds 1e-7 to a norm, which is no multiple.
    const double tolerance = is_muon ? 1e-7 : 1e-13;
    for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(values(times_c)[i], c * values(plain)[i], tolerance) << i;
  }
}

}  // namespace
}  // namespace nmoe::test
