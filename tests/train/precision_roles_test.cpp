// Each part of a layer in each format, in an engine alone: what is injected into one trips it and no other, what is
// sound trips none, and what is not finite changes nothing that a checkpoint would hold. Built for each device,
// NMOE_TEST_DEVICE.
#include <gtest/gtest.h>

#include <limits>

#include "support/tiny_corpus.h"
#include "train/tiny_engine.h"
#include "train/weight_outlier.h"

namespace nmoe {
namespace {

struct Role {
  int64_t layer;
  const char *part, *norm, *weight;  // the part's first weight behind a norm
};
constexpr Role kRoles[] = {{0, "mixer", "layers.0.attention_norm", "layers.0.attention.q"},
                           {0, "dense", "layers.0.mlp_norm", "layers.0.mlp.in"},
                           {1, "mixer", "layers.1.attention_norm", "layers.1.attention.q"},
                           {1, "shared", "layers.1.mlp_norm", "layers.1.moe.shared.in"},
                           {1, "experts", "layers.1.mlp_norm", "layers.1.moe.experts_in"}};

constexpr const char* kPrecisions[] = {"fp8", "fp8_weights", "mxfp8", "nvfp4"};

// Blocks that are whole and short, in sizes that the device's products take; checked every second step. "fp8_weights":
// fp8 with gradients of weights in FP8.
Config config_of(const std::string& precision) {
  const bool in_weights = precision == "fp8_weights", on_cpu = std::string_view(NMOE_TEST_DEVICE) == "cpu";
  std::vector<std::string> overrides = {
      "run.device=" NMOE_TEST_DEVICE, "run.precision=" + (in_weights ? "fp8" : precision),
      "model.vocab_size=50",          "precision.fallback=act",
      "precision.check_every=2",      "optim.clip_norm=0",
      "optim.schedule.warmup=0"};
  const std::vector<std::string> sizes =
      on_cpu ? std::vector<std::string>{"model.dim=40", "model.dense_dim=72", "model.moe.expert_dim=24",
                                        "model.mla.kv_lora_rank=16"}
             : std::vector<std::string>{"model.dim=144",
                                        "model.dense_dim=272",
                                        "model.moe.expert_dim=128",
                                        "model.mla.kv_lora_rank=32",
                                        "model.mla.qk_nope_head_dim=16",
                                        "model.mla.qk_rope_head_dim=16",
                                        "model.mla.v_head_dim=16"};
  overrides.insert(overrides.end(), sizes.begin(), sizes.end());
  Config config = test::tiny_config("/nowhere", overrides);
  config.precision.fp8_weight_gradients = in_weights;
  return config;
}

Tensor value_at(Engine& engine, const std::string& name, int64_t at) {
  const Tensor value = engine.model().weights().at(name).value;
  return value.reshape({value.num_elements()}).rows(at, at + 1);
}
// What a weight, of several its first matrix, multiplies channel 0 of the norm with.
void fill_channel(test::ReadyEngine& ready, const std::string& name, double value) {
  const Shape& shape = ready.engine.model().weights().at(name).shard.shape;
  const int64_t width = shape[shape.rank() - 1], rows = shape[shape.rank() - 2];
  for (int64_t row = 0; row < rows; ++row) ready.ops().fill({value_at(ready.engine, name, row * width), value});
}

class PrecisionRoles : public ::testing::TestWithParam<std::tuple<const char*, Role>> {};

// Huge weights behind a gain of 0 change no product. They are there from step 3 on: the checks of steps 4, 6 and 8 see
// them.
TEST_P(PrecisionRoles, AnOutlierTripsItsRoleWithinAWindowAndNoOther) {
  const auto& [precision, role] = GetParam();
  const Config config = config_of(precision);
  test::ReadyEngine ready(config);
  for (int64_t step = 1; step <= 10; ++step) {
    ready.ops().fill({value_at(ready.engine, role.norm, 0), 0.0});
    if (step >= 3) fill_channel(ready, role.weight, 0x1p30);
    ASSERT_TRUE(test::random_step(ready.engine, config, step).finite) << "step " << step;
    EXPECT_EQ(test::parts_in_act(ready.engine.precision()),
              step < 8 ? "" : fmt::format("{} {};", role.layer, role.part))
        << "step " << step;
  }
  EXPECT_EQ(ready.engine.precision().size(), std::size(kRoles));
}

// A value of the part that is not finite, with which its products are not either: the step says so, and neither it nor
// the next changes a weight, a moment or a bias.
TEST_P(PrecisionRoles, AValueThatIsNotFiniteReachesNothingElse) {
  const auto& [precision, role] = GetParam();
  const Config config = config_of(precision);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    test::ReadyEngine ready(config);
    for (int64_t step = 1; step <= 2; ++step) ASSERT_TRUE(test::random_step(ready.engine, config, step).finite);
    const Tensor all = ready.engine.model().weights().at(role.weight).value;
    ready.ops().fill({all.reshape({all.num_elements()}), bad});  // every expert's: not each has tokens
    const auto before = test::snapshot(ready.engine);
    for (int64_t step = 3; step <= 4; ++step) {
      EXPECT_FALSE(test::random_step(ready.engine, config, step).finite) << bad;
    }
    EXPECT_TRUE(test::differences(before, test::snapshot(ready.engine)).empty()) << bad;
  }
}

std::string role_name(const ::testing::TestParamInfo<PrecisionRoles::ParamType>& param) {
  const Role& role = std::get<1>(param.param);
  return fmt::format("{}_{}{}", std::get<0>(param.param), role.part, role.layer);
}
INSTANTIATE_TEST_SUITE_P(Each, PrecisionRoles,
                         ::testing::Combine(::testing::ValuesIn(kPrecisions), ::testing::ValuesIn(kRoles)), role_name);

class PrecisionFormats : public ::testing::TestWithParam<const char*> {};

// Nor does it matter to any bit how many threads there are, and whether anybody looks.
TEST_P(PrecisionFormats, AHealthyRunTripsNoneAndRepeats) {
  const Config config = config_of(GetParam());
  Config unchecked = config;
  unchecked.precision.fallback = PrecisionFallback::kOff;
  test::ReadyEngine first(config), again(config, /*num_threads=*/2), off(unchecked);
  for (int64_t step = 1; step <= 16; ++step) {
    const double loss = test::random_step(first.engine, config, step).loss(kNextToken);
    EXPECT_EQ(test::random_step(again.engine, config, step).loss(kNextToken), loss);
    EXPECT_EQ(test::random_step(off.engine, unchecked, step).loss(kNextToken), loss);
    EXPECT_EQ(test::parts_in_act(first.engine.precision()), "") << "step " << step;
  }
  const auto state = test::snapshot(first.engine);
  EXPECT_TRUE(test::differences(state, test::snapshot(again.engine)).empty());
  EXPECT_TRUE(test::differences(state, test::snapshot(off.engine)).empty());
}

// An outlier among the inputs, of a channel whose weights are 0, trips all parts that read them and no other.
TEST_P(PrecisionFormats, AnOutlierOfInputsTripsThoseThatReadThem) {
  struct Reading {
    const char *norm, *parts;
    std::vector<std::string> weights;
  };
  const std::vector<Reading> cases = {
      {"layers.0.attention_norm", "0 mixer;", {"0.attention.q", "0.attention.kv_down", "0.attention.k_rope"}},
      {"layers.0.mlp_norm", "0 dense;", {"0.mlp.in"}},
      {"layers.1.mlp_norm", "1 experts;1 shared;", {"1.moe.shared.in", "1.moe.experts_in", "1.moe.router"}}};
  const Config config = config_of(GetParam());
  for (const Reading& reading : cases) {
    test::ReadyEngine ready(config);
    for (int64_t step = 1; step <= 10; ++step) {
      for (const std::string& name : reading.weights) {
        const Tensor w = ready.engine.model().weights().at("layers." + name).value;
        const int64_t width = w.dim(-1);
        for (int64_t at = 0; at < w.num_elements(); at += width) {
          ready.ops().fill({w.reshape({w.num_elements()}).rows(at, at + 1), 0.0});
        }
      }
      if (step >= 3) ready.ops().fill({value_at(ready.engine, reading.norm, 0), 0x1p30});
      ASSERT_TRUE(test::random_step(ready.engine, config, step).finite) << reading.parts << " step " << step;
      EXPECT_EQ(test::parts_in_act(ready.engine.precision()), step < 8 ? "" : reading.parts) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, PrecisionFormats, ::testing::ValuesIn(kPrecisions),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace nmoe
