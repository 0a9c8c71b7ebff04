// Training with operands in low precision, on the CPU.
#include <gtest/gtest.h>

#include "model/operand_formats.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

using PrecisionTest = TrainerTest;

// A model wide enough for several blocks, the last of them short.
std::vector<std::string> settings(const std::string& precision, int64_t steps) {
  return {"run.precision=" + precision,
          "train.steps=" + std::to_string(steps),
          "model.dim=40",
          "model.dense_dim=72",
          "model.moe.expert_dim=24",
          "model.mla.kv_lora_rank=16"};
}

double mean_of_last(const std::map<int64_t, double>& losses, int64_t count) {
  double sum = 0;
  for (auto point = losses.rbegin(); count-- > 0; ++point) sum += point->second;
  return sum;
}

// Each format learns what fp32 learns, repeats its bits, and goes on with them.
TEST_F(PrecisionTest, LearnsRepeatsAndGoesOn) {
  run("fp32", settings("fp32", 50));
  const auto exact = series("fp32", "train/loss");
  EXPECT_LT(exact.at(50), exact.at(1) - 0.5);
  for (const char* precision : {"fp8", "mxfp8", "nvfp4"}) {
    const std::string name = precision;
    run(name, settings(precision, 50));
    run(name + "_halves", settings(precision, 20));
    resume(name + "_halves", settings(precision, 50));
    expect_same_state(checkpoints(name), checkpoints(name + "_halves"));
    EXPECT_NE(weights_of(checkpoints(name)), weights_of(checkpoints("fp32")));
    const auto losses = series(name, "train/loss");
    EXPECT_NE(losses.at(1), exact.at(1));
    EXPECT_NEAR(mean_of_last(losses, 5), mean_of_last(exact, 5),
                (name == "nvfp4" ? 0.06 : 0.015) * mean_of_last(exact, 5))
        << name;
  }
}

TEST_F(PrecisionTest, LowPrecisionDefinesTheRun) {
  run("low", settings("mxfp8", 2));
  const auto goes_on = [&](const std::string& key) {
    std::vector<std::string> overrides = settings("mxfp8", 4);
    overrides.push_back(key);
    return error_of([&] { resume("low", overrides); });
  };
  EXPECT_TRUE(contains(goes_on("run.precision=device").what(), "run.precision: \"mxfp8\" != \"device\""));
  EXPECT_TRUE(contains(goes_on("run.precision=fp8").what(), "run.precision: \"mxfp8\" != \"fp8\""));
  EXPECT_TRUE(contains(goes_on("precision.keep_last=1").what(), "precision.keep_last: 0 != 1"));
  EXPECT_EQ(resume("low", settings("mxfp8", 3)).steps, 3);
  // Between what a device computes in and another, runs may go on as ever.
  run("plain", settings("device", 2));
  EXPECT_EQ(resume("plain", settings("fp32", 3)).steps, 3);
  EXPECT_TRUE(contains(error_of([&] { resume("plain", settings("nvfp4", 4)); }).what(),
                       "run.precision: \"fp32\" != \"nvfp4\""));
}

Config config_of(const std::string& toml) { return parse_config(toml, "precision.toml"); }

// Formats by weight: its own and that of its gradient.
std::map<std::string, std::pair<OperandFormat, OperandFormat>> formats_of(Config config) {
  config.model.vocab_size = 32;
  WeightSet weights(describe_model(config.model).weights);
  set_operand_formats(weights, config, {});
  std::map<std::string, std::pair<OperandFormat, OperandFormat>> formats;
  for (const Weight& weight : weights.all()) formats[weight.spec.name] = {weight.format, weight.grad_format};
  return formats;
}

TEST(OperandFormats, FollowPartsAndLayers) {
  constexpr auto kAct = OperandFormat::kAct, kFp8 = OperandFormat::kFp8, kMxFp8 = OperandFormat::kMxFp8,
                 kNvFp4 = OperandFormat::kNvFp4;
  const std::string model = "model.num_layers = 4\nmodel.num_dense_layers = 2\nmodel.moe.num_experts = 4\n";
  for (const auto& [name, formats] : formats_of(config_of(model))) EXPECT_EQ(formats, (std::pair{kAct, kAct})) << name;

  auto formats = formats_of(config_of(model + "run.precision = \"nvfp4\"\nprecision.keep_first = 1\n"
                                              "precision.mixer = \"mxfp8\"\nprecision.shared = \"device\""));
  for (const char* name : {"embedding", "head", "final_norm", "layers.0.attention.q", "layers.0.mlp.in",
                           "layers.1.attention_norm", "layers.2.moe.router", "layers.2.moe.router_bias",
                           "layers.2.moe.shared.in", "layers.3.moe.shared.out", "layers.3.attention.kv_norm"}) {
    ASSERT_TRUE(formats.contains(name)) << name;
    EXPECT_EQ(formats[name], (std::pair{kAct, kAct})) << name;
  }
  for (const char* name : {"layers.1.attention.q", "layers.3.attention.out", "layers.2.attention.kv_up"}) {
    EXPECT_EQ(formats[name], (std::pair{kMxFp8, kMxFp8})) << name;
  }
  for (const char* name :
       {"layers.1.mlp.in", "layers.1.mlp.out", "layers.2.moe.experts_in", "layers.3.moe.experts_out"}) {
    EXPECT_EQ(formats[name], (std::pair{kNvFp4, kNvFp4})) << name;
  }

  formats = formats_of(config_of(model + "run.precision = \"fp8\"\nprecision.keep_last = 2"));
  EXPECT_EQ(formats["layers.1.mlp.in"], (std::pair{kFp8, kAct}));
  EXPECT_EQ(formats["layers.2.moe.experts_in"], (std::pair{kAct, kAct}));
  formats = formats_of(config_of(model + "run.precision = \"fp8\"\nprecision.fp8_weight_gradients = true"));
  EXPECT_EQ(formats["layers.2.moe.experts_in"], (std::pair{kFp8, kFp8}));
}

// Planned for a part that is not here.
StoragePlan plan_on(const std::string& part, std::vector<std::string> overrides) {
  overrides.insert(overrides.end(), {"run.device=cuda", "run.precision=fp8"});
  Config config = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/quickstart.toml", overrides);
  config.model.vocab_size = 512;
  return plan_engine_storage(config, 0, cuda::parse_part(part, "part"));
}

// A byte a value and a byte a tile of those weights that are rounded, twice.
TEST(OperandFormats, ThePlanHasTheCodesOfWeights) {
  const StoragePlan plan = plan_on("h200-141g", {"precision.mixer=device", "precision.keep_first=1"});
  const int64_t experts = int64_t{17} * (192 * 128 + 128 * 96), tiles = int64_t{17} * (2 + 1);  // 3 layers, 1 shared
  const int64_t room = plan[ArenaKind::kWeightCodes], codes = int64_t{3} * 2 * (experts + tiles);
  EXPECT_GE(room, codes);
  EXPECT_LE(room, codes + int64_t{3} * 16 * Arena::kAlignment);
  EXPECT_EQ(plan_on("h200-141g", {"precision.keep_first=3", "precision.keep_last=0", "precision.mixer=device",
                                  "precision.shared=device", "precision.experts=device"})[ArenaKind::kWeightCodes],
            0);
}

TEST(OperandFormats, WhatADeviceDoesNotMultiplyIsRefused) {
  const Error blackwell = error_of([] { plan_on("b200-192g", {}); });
  EXPECT_EQ(blackwell.exit_code(), 2);
  EXPECT_TRUE(contains(blackwell.what(), "run.precision: b200-192g, planned has no products in the format of layers.0"))
      << blackwell.what();
  const Error narrow = error_of([] { plan_on("h200-141g", {"model.moe.expert_dim=100"}); });
  EXPECT_EQ(narrow.exit_code(), 2);
  EXPECT_TRUE(contains(narrow.what(), "layers.1.moe.experts_in has 200 outputs of 128 inputs")) << narrow.what();
}

// Random bits do not depend on what is kept for backward, nor on threads.
TEST(OperandFormats, RandomRoundingRepeatsWithoutWhatWasKept) {
  Config config = config_of(
      "run.precision = \"nvfp4\"\nmodel.dim = 32\nmodel.num_layers = 2\nmodel.num_heads = 2\nmodel.moe.num_experts = "
      "4\nmodel.moe.expert_dim = 32\nmodel.dense_dim = 32\ndata.seq_len = 16\ntrain.batch_seqs = 4\n"
      "train.microbatch_seqs = 2");
  config.model.vocab_size = 32;
  test::ReadyEngine kept(config);
  const double loss = test::random_step(kept.engine, config, 1).loss;
  test::random_step(kept.engine, config, 2);
  config.train.recompute = Recompute::kBlocks;
  test::ReadyEngine again(config, /*num_threads=*/2);
  EXPECT_EQ(test::random_step(again.engine, config, 1).loss, loss);
  test::random_step(again.engine, config, 2);
  EXPECT_TRUE(test::differences(test::snapshot(kept.engine), test::snapshot(again.engine)).empty());
}

}  // namespace
}  // namespace nmoe
