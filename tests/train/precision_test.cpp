// Training with operands in low precision, on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "model/weight_formats.h"
#include "train/finite_checkpoints.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"
#include "train/weight_outlier.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

using PrecisionTest = TrainerTest;

// "fp8_weights": fp8 with gradients of weights in FP8.
constexpr const char* kLowPrecisions[] = {"fp8", "fp8_weights", "mxfp8", "nvfp4"};
std::vector<std::string> format_of(const std::string& precision) {
  if (precision == "fp8_weights") return {"run.precision=fp8", "precision.fp8_weight_gradients=true"};
  return {"run.precision=" + precision};
}

// A model wide enough for several blocks, the last of them short.
std::vector<std::string> settings(const std::string& precision, int64_t steps) {
  std::vector<std::string> overrides = format_of(precision);
  overrides.insert(overrides.end(), {"train.steps=" + std::to_string(steps), "model.dim=40", "model.dense_dim=72",
                                     "model.moe.expert_dim=24", "model.mla.kv_lora_rank=16"});
  return overrides;
}

double mean_of_last(const std::map<int64_t, double>& losses, int64_t count) {
  double sum = 0;
  for (auto point = losses.rbegin(); count-- > 0; ++point) sum += point->second;
  return sum;
}

// Each format learns what fp32 learns, repeats its bits, and goes on with them. All bear theirs.
TEST_F(PrecisionTest, LearnsRepeatsAndGoesOn) {
  run("fp32", settings("fp32", 50));
  const auto exact = series("fp32", "train/loss");
  EXPECT_LT(exact.at(50), exact.at(1) - 0.5);
  for (const char* precision : kLowPrecisions) {
    const std::string name = precision;
    const auto checked = [&](int64_t steps) {
      std::vector<std::string> overrides = settings(precision, steps);
      overrides.insert(overrides.end(), {"precision.fallback=act", "precision.check_every=3"});
      return overrides;
    };
    run(name, checked(50));
    run(name + "_halves", checked(20));
    resume(name + "_halves", checked(50));
    const auto left = series(name, "precision/roles_left"), lowest = series(name, "precision/lowest_snr_db");
    EXPECT_EQ(left.size(), 16U);
    for (const auto& [step, count] : left) EXPECT_EQ(count, 0) << name << " at step " << step;
    for (const auto& [step, snr_db] : lowest) {
      // With other roundings of sums elsewhere NVFP4 was at 9.9 once: a single check may be below the threshold of 10.
      EXPECT_GT(snr_db, name == "nvfp4" ? 9.0 : 30.0) << name << " at step " << step;
    }
    expect_same_state(checkpoints(name), checkpoints(name + "_halves"));
    EXPECT_NE(weights_of(checkpoints(name)), weights_of(checkpoints("fp32")));
    const auto losses = series(name, "train/loss");
    EXPECT_NE(losses.at(1), exact.at(1));
    EXPECT_NEAR(mean_of_last(losses, 5), mean_of_last(exact, 5),
                (name == "nvfp4" ? 0.06 : 0.015) * mean_of_last(exact, 5))
        << name;
  }
}

// A block with what is not finite is NaN, however few bits its values have: the step before it is what is kept, though
// every step would be.
TEST_F(PrecisionTest, AValueThatIsNotFiniteReachesNoCheckpoint) {
  for (const std::string precision : kLowPrecisions) {
    const auto absurd = [&](int64_t steps) {
      std::vector<std::string> overrides = settings(precision, steps);
      overrides.insert(overrides.end(), {"optim.rest.lr=1e30", "optim.schedule.warmup=0", "checkpoint.every=1",
                                         "checkpoint.keep_last=0"});
      return overrides;
    };
    EXPECT_TRUE(contains(error_of([&] { run(precision, absurd(9)); }).what(), "step 2: loss "));
    run(precision + "_one", absurd(1));
    expect_same_state(checkpoints(precision), checkpoints(precision + "_one"));
    EXPECT_TRUE(test::checkpoints_are_finite(checkpoints(precision)));
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

class RowCodesTest : public PrecisionTest {
 protected:
  static std::vector<std::string> with(const std::string& precision, const std::string& rows, int64_t steps) {
    std::vector<std::string> overrides = settings(precision, steps);
    overrides.push_back(rows);
    return overrides;
  }
  // Runs with rows as codes go on to the bit, learn what those without learn, by other gradients, and are not gone on
  // with without. Returns whether the loss before the first update is the same.
  bool has_the_same_forward(const std::string& precision, const std::string& key) {
    const auto name = [&](const std::string& what) { return precision + "_" + what; };
    run(name("plain"), with(precision, key + "=device", 6));
    run(name("coded"), with(precision, key + "=fp8", 6));
    run(name("again"), with(precision, key + "=fp8", 3));
    resume(name("again"), with(precision, key + "=fp8", 6));
    expect_same_state(checkpoints(name("again")), checkpoints(name("coded")));
    EXPECT_NE(weights_of(checkpoints(name("coded"))), weights_of(checkpoints(name("plain"))));
    const auto plain = series(name("plain"), "train/loss"), coded = series(name("coded"), "train/loss");
    EXPECT_NEAR(coded.at(6), plain.at(6), 0.01 * plain.at(6));
    for (const auto& [run, rows] : {std::pair{"coded", "=device"}, {"plain", "=fp8"}}) {
      const Error error = error_of([&] { resume(name(run), with(precision, key + rows, 9)); });
      EXPECT_TRUE(contains(error.what(), key + ": ")) << error.what();
    }
    return coded.at(1) == plain.at(1);
  }
};

// What experts in fp8 would round for their first product is rounded for its way instead: forward is the same to the
// bit. It is gradients of weights that see it, which take what travelled.
TEST_F(RowCodesTest, ThatTravelAreThoseOfTheFirstProduct) {
  EXPECT_TRUE(has_the_same_forward("fp8", "precision.wire"));
  EXPECT_FALSE(has_the_same_forward("fp32", "precision.wire"));
}

TEST_F(RowCodesTest, ThatWaitForBackwardLeaveForwardAsItIs) {
  EXPECT_TRUE(has_the_same_forward("fp8", "precision.saved"));
  EXPECT_TRUE(has_the_same_forward("fp32", "precision.saved"));
}

class FallbackTest : public PrecisionTest {
 protected:
  TrainSummary run(const std::string& name, int64_t steps, std::vector<std::string> more, int64_t outlier,
                   bool resume = false) {
    std::vector<std::string> overrides = settings("fp8", steps);
    overrides.insert(overrides.end(), {"optim.clip_norm=0", "run.name=" + name, "optim.experts.optimizer=adamw",
                                       "optim.experts.lr=1e-2"});
    overrides.insert(overrides.end(), more.begin(), more.end());
    return train(test::tiny_config(dir_, overrides),
                 {.resume = resume, .version = "0.0.0", .commit = "abc", .before_step = test::outlier_from(outlier)});
  }
  std::vector<PrecisionRole> roles(const std::string& name) const {
    return CheckpointReader::open(checkpoints(name)).info().precision;
  }
  // What is measured of every part of every layer, by tag and step.
  std::map<std::string, std::map<int64_t, double>> ratios(const std::string& name) const {
    std::map<std::string, std::map<int64_t, double>> all;
    for (const char* part : {"00/mixer", "00/dense", "01/mixer", "01/shared", "01/experts"}) {
      for (const char* what : {"inputs", "weights", "gradients", "outputs", "input_gradients"}) {
        const std::string tag = fmt::format("precision/layer_{}_{}/snr_db", part, what);
        all[tag] = series(name, tag);
      }
    }
    return all;
  }
  std::string in_act(const std::string& name) const { return test::parts_in_act(roles(name)); }
};

// Looked at in steps 2, 4, 6 and 8, there from step 3 on: in the third check that sees it, that part alone goes.
TEST_F(FallbackTest, AnOutlierTripsItsPartOfItsLayerWithinAWindow) {
  const std::vector<std::string> act = {"precision.fallback=act", "precision.check_every=2"};
  run("outlier", 10, act, 3);
  EXPECT_EQ(roles("outlier").size(), 5U);  // mixer and dense of layer 0, mixer, shared and routed experts of layer 1
  EXPECT_EQ(in_act("outlier"), "1 experts;");
  const auto count = series("outlier", "precision/roles_left");
  EXPECT_EQ(count, (std::map<int64_t, double>{{2, 0}, {4, 0}, {6, 0}, {8, 1}, {10, 1}}));
  EXPECT_GT(series("outlier", "precision/layer_01/experts_weights/snr_db").at(2), 31.0);
  EXPECT_LT(series("outlier", "precision/layer_01/experts_weights/snr_db").at(4), 15.0);
  EXPECT_GT(series("outlier", "precision/layer_01/shared_weights/snr_db").at(10), 31.0);

  // It is the format that changes what is computed: reported alone, and not looked at, are the same to the bit.
  run("reported", 10, {"precision.fallback=report", "precision.check_every=2"}, 3);
  run("off", 10, {"precision.fallback=off"}, 3);
  EXPECT_EQ(in_act("reported"), "1 experts;");  // would have
  EXPECT_TRUE(roles("off").empty());
  expect_same_state(checkpoints("reported"), checkpoints("off"));
  EXPECT_NE(weights_of(checkpoints("reported")), weights_of(checkpoints("outlier")));
}

// Who only looks on may begin to, or stop, at any checkpoint: the run is the same to the bit. What was reported before
// is forgotten where nobody looked in between.
TEST_F(FallbackTest, LookingOnMayBeginAndEndAtAnyCheckpoint) {
  const std::vector<std::string> report = {"precision.fallback=report", "precision.check_every=2"},
                                 off = {"precision.fallback=off"};
  run("off", 10, off, 3);
  run("changing", 4, report, 3);
  EXPECT_EQ(roles("changing").size(), 5U);
  run("changing", 6, off, 3, /*resume=*/true);
  EXPECT_TRUE(roles("changing").empty());
  run("changing", 10, report, 3, /*resume=*/true);
  EXPECT_EQ(roles("changing").size(), 5U);
  EXPECT_EQ(roles("changing").front().votes.size(), 2U);  // of steps 8 and 10
  expect_same_state(checkpoints("changing"), checkpoints("off"));
}

// In every format; and gives the same hashes again.
TEST_F(FallbackTest, RepeatsAndGoesOnToTheBitBeforeAndBehindADecision) {
  for (const std::string precision : kLowPrecisions) {
    std::vector<std::string> act = format_of(precision);
    act.insert(act.end(), {"precision.fallback=act", "precision.check_every=2"});
    const std::string straight = precision + "_straight", again = precision + "_again";
    SCOPED_TRACE(precision);
    run(straight, 10, act, 3);
    run(again, 10, act, 3);
    expect_same_state(checkpoints(straight), checkpoints(again));
    EXPECT_EQ(in_act(straight), "1 experts;");
    for (const int64_t half : {6, 9}) {
      const std::string name = fmt::format("{}_half_{}", precision, half);
      run(name, half, act, 3);
      EXPECT_EQ(in_act(name), half < 8 ? "" : "1 experts;");
      run(name, 10, act, 3, /*resume=*/true);
      expect_same_state(checkpoints(straight), checkpoints(name));
      EXPECT_EQ(roles(straight), roles(name));
    }
  }
}

// The experts are shared, and what each rank counts is summed.
TEST_F(FallbackTest, RanksDecideAlike) {
  run("two", 8, {"precision.fallback=act", "precision.check_every=2", "parallel.ranks=2"}, 3);
  EXPECT_EQ(in_act("two"), "1 experts;");
  EXPECT_EQ(series("two", "precision/roles_left").at(6), 0);
  EXPECT_EQ(series("two", "precision/roles_left").at(8), 1);
}

// In every format, of which NVFP4 has scales of experts' rows: with logical shards what is found does not depend on the
// number of ranks, to the bit, nor what follows.
TEST_F(FallbackTest, WithLogicalShardsSoDoAnyNumberOfRanks) {
  for (const std::string precision : {"fp8", "mxfp8", "nvfp4"}) {
    for (const std::string ranks : {"1", "2", "4"}) {
      run(precision + ranks, 8,
          {"run.precision=" + precision, "precision.fallback=act", "precision.check_every=2", "train.microbatch_seqs=2",
           "model.moe.num_experts=8", "parallel.logical_shards=4", "parallel.ranks=" + ranks},
          3);
    }
    EXPECT_EQ(in_act(precision + "1"), "1 experts;");
    const auto found = ratios(precision + "1");
    for (const auto& [tag, points] : found) EXPECT_EQ(points.size(), 4U) << tag;
    for (const char* ranks : {"2", "4"}) {
      expect_same_state(checkpoints(precision + "1"), checkpoints(precision + ranks));
      EXPECT_EQ(roles(precision + "1"), roles(precision + ranks));
      EXPECT_EQ(found, ratios(precision + ranks)) << precision << " on " << ranks;
    }
  }
}

Config parsed_config(const std::string& toml) { return parse_config(toml, "precision.toml"); }

// Formats by weight: its own and that of its gradient.
std::map<std::string, std::pair<OperandFormat, OperandFormat>> formats_of(Config config) {
  config.model.vocab_size = 32;
  WeightSet weights(describe_model(config.model).weights);
  set_operand_formats(weights, config, {});
  std::map<std::string, std::pair<OperandFormat, OperandFormat>> formats;
  for (const Weight& weight : weights.all())
    formats[weight.spec.name] = {weight.copies.format, weight.copies.grad_format};
  return formats;
}

TEST(OperandFormats, FollowPartsAndLayers) {
  constexpr auto kAct = OperandFormat::kAct, kFp8 = OperandFormat::kFp8, kMxFp8 = OperandFormat::kMxFp8,
                 kNvFp4 = OperandFormat::kNvFp4;
  const std::string model = "model.num_layers = 4\nmodel.num_dense_layers = 2\nmodel.moe.num_experts = 4\n";
  for (const auto& [name, formats] : formats_of(parsed_config(model)))
    EXPECT_EQ(formats, (std::pair{kAct, kAct})) << name;

  auto formats = formats_of(parsed_config(model + "run.precision = \"nvfp4\"\nprecision.keep_first = 1\n"
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

  formats = formats_of(parsed_config(model + "run.precision = \"fp8\"\nprecision.keep_last = 2"));
  EXPECT_EQ(formats["layers.1.mlp.in"], (std::pair{kFp8, kAct}));
  EXPECT_EQ(formats["layers.2.moe.experts_in"], (std::pair{kAct, kAct}));
  formats = formats_of(parsed_config(model + "run.precision = \"fp8\"\nprecision.fp8_weight_gradients = true"));
  EXPECT_EQ(formats["layers.2.moe.experts_in"], (std::pair{kFp8, kFp8}));
  EXPECT_EQ(formats["layers.2.moe.shared.in"], (std::pair{kFp8, kAct}));
}

// What NVFP4 does beyond rounding can be left out, alone.
TEST(OperandFormats, NvFp4GoesWithoutItsParts) {
  const Tensor key(nullptr, DType::kI64, {1});
  const auto gradient = [&](const std::string& keys) {
    Config config = parsed_config("model.num_layers = 2\nrun.precision = \"nvfp4\"\n" + keys);
    config.model.vocab_size = 32;
    WeightSet weights(describe_model(config.model).weights);
    set_operand_formats(weights, config, key);
    return weights.at("layers.1.mlp.in").weight_gradient_rounding();
  };
  const OperandRounding all = gradient(""), plain = gradient("precision.nvfp4_transform = false"),
                        nearest = gradient("precision.nvfp4_random_rounding = false");
  EXPECT_TRUE(all.transform && all.random.key.defined());
  EXPECT_TRUE(!plain.transform && plain.random.key.defined());
  EXPECT_TRUE(nearest.transform && !nearest.random.key.defined());
}

// Planned for a part that is not here.
StoragePlan plan_on(const std::string& part, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"run.device=cuda", "run.precision=fp8"});
  Config config = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/quickstart.toml", overrides);
  config.model.vocab_size = 512;
  return plan_engine_storage(config, 0, parse_gpu_part(part, "part"));
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
  for (const char* format : {"mxfp8", "nvfp4"}) {  // in blocks that products make: no codes are kept
    EXPECT_EQ(plan_on("b200-192g", {"run.precision=" + std::string(format)})[ArenaKind::kWeightCodes], 0);
  }
  const Error narrow = error_of([] { plan_on("h200-141g", {"model.moe.expert_dim=100"}); });
  EXPECT_EQ(narrow.exit_code(), 2);
  EXPECT_TRUE(contains(narrow.what(), "layers.1.moe.experts_in has 200 outputs of 128 inputs")) << narrow.what();
}

// Random bits do not depend on what is kept for backward, nor on threads.
TEST(OperandFormats, RandomRoundingRepeatsWithoutWhatWasKept) {
  Config config = parsed_config(
      "run.precision = \"nvfp4\"\nmodel.dim = 32\nmodel.num_layers = 2\nmodel.num_heads = 2\nmodel.moe.num_experts = "
      "4\nmodel.moe.expert_dim = 32\nmodel.dense_dim = 32\ndata.seq_len = 16\ntrain.batch_seqs = 4\n"
      "train.microbatch_seqs = 2");
  config.model.vocab_size = 32;
  test::ReadyEngine kept(config);
  const double loss = test::random_step(kept.engine, config, 1).loss(kNextToken);
  test::random_step(kept.engine, config, 2);
  config.train.recompute = Recompute::kBlocks;
  test::ReadyEngine again(config, /*num_threads=*/2);
  EXPECT_EQ(test::random_step(again.engine, config, 1).loss(kNextToken), loss);
  test::random_step(again.engine, config, 2);
  EXPECT_TRUE(test::differences(test::snapshot(kept.engine), test::snapshot(again.engine)).empty());
}

}  // namespace
}  // namespace nmoe
