#include "train/plan/step_time.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"

namespace nmoe {
namespace {

struct MeasuredStep {
  const char* part;
  const char* file;
  std::vector<std::string> overrides;
  double ms;
  double host_state_gb = 0.0;
};

StepTime predict(const MeasuredStep& step) {
  const Config config =
      load_config(fmt::format("{}/configs/speedrun/{}.toml", NMOE_SOURCE_DIR, step.file), step.overrides);
  return predict_step_time(config, *find_device_rates(step.part), static_cast<int64_t>(1e9 * step.host_state_gb));
}

// Steps that docs/ has: results.md, log/memory.md, log/kernels.md and log/steps.md.
const std::vector<MeasuredStep> kMeasured = {
    {"h200-141g", "super", {"train.batch_seqs=32"}, 173.4},
    {"h200-141g", "moonlet", {}, 1089.3},
    {"h200-141g", "moonlet", {"optim.adamw.state=bf16", "train.recompute=none"}, 1072.2},
    {"h200-141g", "moonlet", {"train.batch_seqs=4", "train.microbatch_seqs=4", "train.recompute=none"}, 309.9},
    {"h200-141g",
     "moonlet",
     {"optim.adamw.state=bf16", "train.recompute=none", "run.precision=fp8", "precision.fp8_weight_gradients=true"},
     944.9},
    {"h200-141g",
     "moonlet",
     {"optim.adamw.state=bf16", "train.recompute=none", "run.precision=fp8", "precision.fp8_weight_gradients=true",
      "precision.saved=fp8"},
     951.9},
    {"h200-141g", "qwen3-30b-a3b", {"model.num_layers=4", "train.batch_seqs=16", "train.microbatch_seqs=16"}, 440.6},
    {"h200-141g",
     "dsv3",
     {"model.num_layers=2", "model.num_dense_layers=1", "model.moe.num_experts=32", "train.batch_seqs=4",
      "train.microbatch_seqs=4"},
     392.5},
    {"h200-141g", "super", {}, 1321.0},
    {"h200-141g", "super", {"optim.offload=state"}, 1870.0, 28.4},
    {"h200-141g", "moonlet", {"train.batch_seqs=128"}, 8535.0},
    {"h100-80g", "super", {}, 1398.5},
    {"h100-80g", "super", {"train.recompute=blocks"}, 1774.8},
    {"h100-80g", "super", {"train.batch_seqs=32"}, 197.9},
    {"h100-80g",
     "moonlet",
     {"model.num_layers=6", "run.precision=fp8", "precision.fp8_weight_gradients=true", "precision.saved=fp8"},
     629.9},
};

TEST(StepTimeTest, IsWithinATenthOfMeasuredSteps) {
  for (const MeasuredStep& step : kMeasured) {
    const double predicted = 1e3 * predict(step).total();
    EXPECT_NEAR(predicted / step.ms, 1.0, 0.1)
        << fmt::format("{} {} {}: {:.1f} ms", step.part, step.file, fmt::join(step.overrides, " "), predicted);
  }
}

// docs/results.md and docs/scale.md: steps of several H200s beside those of one in the same call, as many tokens each.
TEST(StepTimeTest, RanksTakeLongerAsMeasured) {
  const auto ms = [](const char* file, int64_t batch, int64_t ranks) {
    const std::vector<std::string> overrides = {fmt::format("train.batch_seqs={}", ranks * batch),
                                                fmt::format("parallel.ranks={}", ranks)};
    return 1e3 * predict({"h200-141g", file, overrides, 0.0}).total();
  };
  EXPECT_NEAR(ms("super", 32, 2) / ms("super", 32, 1), 201.4 / 194.9, 0.1);
  EXPECT_NEAR(ms("super", 32, 4) / ms("super", 32, 1), 224.2 / 202.3, 0.1);
  EXPECT_NEAR(ms("moonlet", 16, 2) / ms("moonlet", 16, 1), 1248.2 / 1189.6, 0.1);
  EXPECT_NEAR(ms("moonlet", 16, 4) / ms("moonlet", 16, 1), 1323.2 / 1189.6, 0.1);
}

// What a choice costs, all else equal: more work is never predicted to take less time.
TEST(StepTimeTest, MoreWorkTakesLonger) {
  const auto ms = [](std::vector<std::string> overrides, double host_state_gb = 0.0) {
    return 1e3 * predict({"h200-141g", "moonlet", std::move(overrides), 0.0, host_state_gb}).total();
  };
  const double none = ms({"train.recompute=none"}), norms = ms({"train.recompute=norms"}),
               experts = ms({"train.recompute=experts"}), blocks = ms({"train.recompute=blocks"});
  EXPECT_LT(none, norms);
  EXPECT_LT(norms, experts);
  EXPECT_LT(experts, blocks);
  EXPECT_LT(blocks, 4.0 / 3.0 * none);  // all of forward, which is a third of the products, is repeated
  EXPECT_LT(ms({"train.microbatch_seqs=8"}), ms({"train.microbatch_seqs=2"}));
  EXPECT_LT(ms({"optim.adamw.state=bf16"}), ms({}));
  EXPECT_LT(ms({"optim.adamw.state=fp8"}), ms({"optim.adamw.state=bf16"}));
  EXPECT_LT(ms({}), ms({"train.gradients=bf16"}));
  EXPECT_LT(ms({"run.precision=fp8"}), ms({}));
  EXPECT_LT(ms({}), ms({"optim.experts.optimizer=muon"}));
  EXPECT_LT(ms({"optim.experts.optimizer=muon", "optim.muon.products=bf16"}), ms({"optim.experts.optimizer=muon"}));
  // State that travels bounds the update by the link; little of it lies under the update.
  EXPECT_EQ(ms({}), ms({}, 0.1));
  EXPECT_NEAR(ms({}, 72.0) - ms({}, 36.0), 36e3 / 50.0, 1e-6);
  // The first of two forwards hides what it can.
  const StepTime time = predict({"h200-141g", "moonlet", {}, 0.0});
  const double forward = 1e3 * (time.products + time.attention + time.memory) / 3.0 / 2.0;
  EXPECT_NEAR(ms({}, 72.0) - ms({}), 72e3 / 50.0 - 1e3 * time.update - forward, 1e-6);
}

TEST(StepTimeTest, KnowsPartsByTheirNamesAndDevicesByTheirs) {
  ASSERT_NE(find_device_rates("h200-141g"), nullptr);
  EXPECT_EQ(find_device_rates("NVIDIA H200, 132 SMs"), find_device_rates("h200-141g"));
  EXPECT_EQ(find_device_rates("NVIDIA H100 80GB HBM3"), find_device_rates("h100-80g"));
  for (const char* other : {"80GiB", "NVIDIA GH200 480GB", "NVIDIA H200 NVL, 132 SMs", "NVIDIA H100 PCIe"}) {
    EXPECT_EQ(find_device_rates(other), nullptr) << other;
  }
  EXPECT_EQ(find_device_rates("CPU, 2 threads, fp32, AVX2"), nullptr);
}

}  // namespace
}  // namespace nmoe
