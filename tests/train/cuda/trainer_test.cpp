// Whole runs on the GPU.
#include "train/loop/trainer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/reader.h"
#include "support/errors.h"
#include "support/shared_gpu.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/finite_checkpoints.h"
#include "train/weight_outlier.h"

namespace nmoe::test {
namespace {

constexpr const char* kLowPrecisions[] = {"fp8", "fp8_weights", "mxfp8", "nvfp4"};

// Sizes that products of FP8 operands take, with blocks that are whole and short. "fp8_weights": fp8 with gradients of
// weights in FP8.
std::vector<std::string> fp8(const std::string& precision, int64_t steps) {
  const bool in_weights = precision == "fp8_weights";
  std::vector<std::string> overrides = {"run.precision=" + (in_weights ? "fp8" : precision),
                                        "train.steps=" + std::to_string(steps),
                                        "model.dim=144",
                                        "model.dense_dim=272",
                                        "model.moe.expert_dim=128",
                                        "model.mla.kv_lora_rank=32",
                                        "model.mla.qk_nope_head_dim=16",
                                        "model.mla.qk_rope_head_dim=16",
                                        "model.mla.v_head_dim=16",
                                        "train.valid_every=4"};
  if (in_weights) overrides.emplace_back("precision.fp8_weight_gradients=true");
  return overrides;
}

class CudaTrainer : public TempDirTest {
 protected:
  CudaTrainer() { write_tiny_corpus(dir_ / "data"); }

  TrainSummary run(const std::string& name, std::vector<std::string> overrides, bool resume = false) {
    overrides.insert(overrides.end(), {"run.device=cuda", "run.name=" + name});
    return train(tiny_config(dir_, overrides), {.resume = resume});
  }
  // With checks that take parts of layers out of their format, and with weights that make one of them do so; goes on
  // where there is a checkpoint.
  TrainSummary run_checked(const std::string& precision, int64_t steps, const std::string& name, bool outlier) {
    std::vector<std::string> overrides = fp8(precision, steps);
    overrides.insert(overrides.end(),
                     {"precision.fallback=act", "precision.check_every=2", "optim.clip_norm=0",
                      "optim.experts.optimizer=adamw", "optim.experts.lr=1e-2", "run.device=cuda", "run.name=" + name});
    const bool resume = fs::exists(dir_ / "runs/checkpoints" / name);
    return train(tiny_config(dir_, overrides),
                 {.resume = resume, .before_step = outlier_from(outlier ? 3 : steps + 1)});
  }
  CheckpointReader checkpoint(const std::string& name) const {
    return CheckpointReader::open(dir_ / "runs/checkpoints" / name);
  }
  void expect_same_state(const std::string& a, const std::string& b) const {
    const CheckpointReader first = checkpoint(a), second = checkpoint(b);
    EXPECT_EQ(first.weights_sha256(), second.weights_sha256());
    EXPECT_EQ(first.info().cursor, second.info().cursor);
    ASSERT_EQ(first.optimizer().size(), second.optimizer().size());
    for (size_t i = 0; i < first.optimizer().size(); ++i) {
      EXPECT_EQ(first.optimizer()[i].sha256, second.optimizer()[i].sha256) << first.optimizer()[i].name;
    }
  }
};

TEST_F(CudaTrainer, ResumesToTheBit) {
  run("straight", {"train.steps=12"});
  run("again", {"train.steps=12", "train.valid_every=1", "checkpoint.every=4", "train.log_every=5"});
  run("halves", {"train.steps=6"});
  EXPECT_EQ(run("halves", {"train.steps=12"}, /*resume=*/true).steps_now, 6);
  expect_same_state("straight", "again");
  expect_same_state("straight", "halves");
}

// Lower halves of masters, moments of AdamW and Muon's momentum, in either format. Runs go on with state in the other
// memory.
TEST_F(CudaTrainer, WhereStateLivesChangesNoBit) {
  for (const std::string experts : {"muon", "adamw"}) {
    for (const std::string format : {"fp32", "bf16"}) {
      const auto settings = [&](const std::string& offload, int64_t steps) {
        return std::vector<std::string>{
            "optim.experts.optimizer=" + experts, "optim.adamw.state=" + format, "optim.muon.state=" + format,
            "optim.offload=" + offload,           "train.valid_every=4",         fmt::format("train.steps={}", steps)};
      };
      const std::string name = experts + "_" + format;
      run(name + "_device", settings("none", 12));
      run(name + "_host", settings("state", 12));
      expect_same_state(name + "_device", name + "_host");
      run(name + "_turns", settings("state", 5));
      run(name + "_turns", settings("fit", 9), /*resume=*/true);  // all of it does
      run(name + "_turns", settings("state", 12), /*resume=*/true);
      expect_same_state(name + "_device", name + "_turns");
    }
  }
}

// Inputs of blocks wait on the device or in host memory, in the whole model or some layers; beside state that lies
// there, in one recording with it.
TEST_F(CudaTrainer, WhereBlockInputsWaitChangesNoBit) {
  for (const std::string microbatch : {"2", "8"}) {
    const auto settings = [&](const std::string& levels, int64_t steps, const std::string& offload = "none") {
      return std::vector<std::string>{
          "model.num_layers=6",        "train.batch_seqs=8",       "train.microbatch_seqs=" + microbatch,
          "train.recompute=" + levels, "optim.offload=" + offload, fmt::format("train.steps={}", steps)};
    };
    const std::string name = "of_" + microbatch + "_";
    run(name + "none", settings("none", 8));
    run(name + "host", settings("host", 8));
    run(name + "list", settings("norms, 4 x host, none", 8));
    run(name + "state", settings("host", 8, "state"));
    run(name + "turns", settings("host", 3));
    run(name + "turns", settings("3 x none, 3 x blocks", 8), /*resume=*/true);
    for (const char* other : {"host", "list", "state", "turns"}) expect_same_state(name + "none", name + other);
  }
}

// Of several microbatches a step, and of one; masters and state pass through gradients half as large.
TEST_F(CudaTrainer, GradientsInBf16AreSummedToTheBit) {
  for (const std::string microbatch : {"2", "8"}) {
    const auto settings = [&](int64_t steps, std::vector<std::string> more = {}) {
      more.insert(more.end(),
                  {"train.batch_seqs=8", "train.microbatch_seqs=" + microbatch, fmt::format("train.steps={}", steps)});
      return more;
    };
    const auto halves = [&](int64_t steps, std::vector<std::string> more = {}) {
      more.emplace_back("train.gradients=bf16");
      return settings(steps, more);
    };
    const std::string name = "of_" + microbatch + "_";
    run(name + "straight", halves(12));
    run(name + "again", halves(12, {"train.recompute=blocks", "optim.offload=state"}));
    run(name + "turns", halves(5, {"optim.offload=state"}));
    run(name + "turns", halves(12), /*resume=*/true);
    for (const char* other : {"again", "turns"}) expect_same_state(name + "straight", name + other);
    run(name + "fp32", settings(12));
    EXPECT_NE(checkpoint(name + "straight").weights_sha256(), checkpoint(name + "fp32").weights_sha256());
  }
}

TEST_F(CudaTrainer, TellsWhereItGoesOnWithOtherProducts) {
  run("run", {"train.steps=2"});
  const fs::path path = checkpoint("run").path() / "manifest.json";
  const std::string text = read_file(path);
  CheckpointManifest manifest = parse_manifest(std::string_view(text), path);
  const std::string own = manifest.info.product_identity;
  EXPECT_TRUE(contains(own, "cuBLASLt ")) << own;
  const auto told_at_resume = [&](const std::string& before, int64_t steps) {
    manifest.info.product_identity = before;
    write_file_atomically(path, print_manifest(manifest));
    testing::internal::CaptureStderr();
    run("run", {fmt::format("train.steps={}", steps), "checkpoint.keep_last=0"}, /*resume=*/true);
    fs::remove_all(checkpoint("run").path());
    return testing::internal::GetCapturedStderr();
  };
  const std::string warned = told_at_resume("cuBLASLt 1.2.3 on nothing", 4);
  EXPECT_TRUE(contains(warned, "other algorithms until here (cuBLASLt 1.2.3 on nothing; now " + own)) << warned;
  EXPECT_FALSE(contains(told_at_resume(own, 6), "other algorithms"));
}

TEST_F(CudaTrainer, Fp8ResumesToTheBitWhateverIsKept) {
  for (const std::string gradients : {"false", "true"}) {
    const auto settings = [&](int64_t steps, const std::string& recompute) {
      std::vector<std::string> overrides = fp8("fp8", steps);
      overrides.insert(overrides.end(),
                       {"precision.fp8_weight_gradients=" + gradients, "train.recompute=" + recompute});
      return overrides;
    };
    const auto name = [&](const std::string& what) { return what + "_" + gradients; };
    run(name("straight"), settings(12, "none"));
    run(name("halves"), settings(6, "none"));
    run(name("halves"), settings(12, "none"), /*resume=*/true);
    expect_same_state(name("straight"), name("halves"));
    for (const char* recompute : {"norms", "experts", "blocks"}) {
      run(name(recompute), settings(12, recompute));
      expect_same_state(name("straight"), name(recompute));
    }
  }
  run("bf16", fp8("bf16", 12));
  for (const char* other : {"bf16", "straight_true"}) {
    EXPECT_NE(checkpoint(other).weights_sha256(), checkpoint("straight_false").weights_sha256());
  }
}

// The same formats, but for bf16 between operations, which takes runs apart: at these rates by 0.8 % in a dozen steps.
// So in the first ones.
TEST_F(CudaTrainer, Fp8LearnsWhatTheCpuDoes) {
  for (const std::string gradients : {"false", "true"}) {
    std::vector<std::string> overrides = fp8("fp8", 3);
    overrides.push_back("precision.fp8_weight_gradients=" + gradients);
    const double gpu = run("gpu_" + gradients, overrides).valid->loss();
    overrides.insert(overrides.end(), {"run.device=cpu", "run.name=cpu_" + gradients});
    const double cpu = train(tiny_config(dir_, overrides), {}).valid->loss();
    EXPECT_NEAR(gpu, cpu, 5e-3 * cpu) << gradients;
  }
  const double long_run = run("long", fp8("fp8", 12)).valid->loss(), bf16 = run("bf16", fp8("bf16", 12)).valid->loss();
  EXPECT_NEAR(long_run, bf16, 1.5e-2 * bf16);
}

// As FallbackTest (tests/train/precision_test.cpp): an outlier among weights that no product depends on, seen by checks
// of steps 4, 6 and 8, takes that part of that layer out of its format, and without it nothing leaves any.
TEST_F(CudaTrainer, AnOutlierTakesItsPartOfALayerOutOfItsFormat) {
  const auto in_act = [&](const std::string& name) {
    const std::vector<PrecisionRole> roles = checkpoint(name).info().precision;
    EXPECT_EQ(roles.size(), 5U) << name;  // mixer and dense of layer 0, mixer, shared and routed experts of layer 1
    return parts_in_act(roles);
  };
  for (const std::string precision : kLowPrecisions) {
    SCOPED_TRACE(precision);
    const std::string straight = precision + "_straight", healthy = precision + "_healthy";
    run_checked(precision, 12, straight, true);
    EXPECT_EQ(in_act(straight), "1 experts;");
    for (const int64_t half : {6, 9}) {
      const std::string name = fmt::format("{}_{}", precision, half);
      run_checked(precision, half, name, true);
      EXPECT_EQ(in_act(name), half < 8 ? "" : "1 experts;");
      run_checked(precision, 12, name, true);
      expect_same_state(straight, name);
      EXPECT_EQ(checkpoint(straight).info().precision, checkpoint(name).info().precision);
    }
    run_checked(precision, 12, healthy, false);
    EXPECT_EQ(in_act(healthy), "");
  }
}

// Planned and used memory are the whole GPU's, so that they differ by what other processes take in between, too.
TEST_F(CudaTrainer, UsesThePlannedMemory) {
  std::string different;
  bool is_shared = false;
  const auto compare = [&](const std::string& name, const TrainSummary& summary) {
    const auto planned = static_cast<double>(summary.device_bytes_planned);
    if (std::abs(static_cast<double>(summary.device_bytes_used) - planned) <= 0.01 * planned) return;
    is_shared = is_shared || gpu_is_shared();
    different +=
        fmt::format("{}: {} used, {} planned\n", name, summary.device_bytes_used, summary.device_bytes_planned);
  };
  compare("bf16", run("memory", {"train.steps=4"}));
  compare("state in host memory", run("host", {"train.steps=4", "optim.offload=state"}));
  for (const std::string precision : {"fp8", "nvfp4"}) compare(precision, run(precision, fp8(precision, 12)));
  for (const std::string precision : kLowPrecisions) {
    compare(precision + ", experts in bf16", run_checked(precision, 12, precision + "_left", /*outlier=*/true));
  }
  for (const std::string precision : {"bf16", "fp8", "fp8_weights"}) {
    for (const std::string width : {"128", "48"}) {
      std::vector<std::string> overrides = fp8(precision, 4);
      overrides.insert(overrides.end(), {"model.moe.expert_dim=" + width, "precision.saved=fp8"});
      const std::string name = fmt::format("{}_saved_{}", precision, width);
      compare(name, run(name, overrides));
    }
  }
  if (!different.empty() && is_shared) GTEST_SKIP() << "another process has a GPU open: " << different;
  EXPECT_EQ(different, "");
}

// Emulated: blocks that are whole and short, and experts whose random bits begin anew. What is kept changes nothing.
TEST_F(CudaTrainer, NvFp4ResumesToTheBitAndLearns) {
  const TrainSummary straight = run("straight", fp8("nvfp4", 12));
  run("halves", fp8("nvfp4", 6));
  run("halves", fp8("nvfp4", 12), /*resume=*/true);
  expect_same_state("straight", "halves");
  for (const char* recompute : {"norms", "experts", "blocks"}) {
    std::vector<std::string> overrides = fp8("nvfp4", 12);
    overrides.push_back(fmt::format("train.recompute={}", recompute));
    run(recompute, overrides);
    expect_same_state("straight", recompute);
  }
  const double bf16 = run("bf16", fp8("bf16", 12)).valid->loss();
  EXPECT_NE(straight.valid->loss(), bf16);
  EXPECT_NEAR(straight.valid->loss(), bf16, 3e-2 * bf16);
}

TEST_F(CudaTrainer, EveryPrecisionRepeatsAndGoesOnToTheBit) {
  for (const std::string precision : kLowPrecisions) {
    run(precision, fp8(precision, 8));
    run(precision + "_again", fp8(precision, 8));
    run(precision + "_halves", fp8(precision, 5));
    run(precision + "_halves", fp8(precision, 8), /*resume=*/true);
    expect_same_state(precision, precision + "_again");
    expect_same_state(precision, precision + "_halves");
  }
}

// Pre-activations that wait for backward as codes: the same bits whatever else is kept, in epilogues of products (of
// experts that are 128 wide) and behind them.
TEST_F(CudaTrainer, SavedCodesDoNotDependOnWhatIsKept) {
  for (const std::string precision : {"bf16", "fp8", "fp8_weights"}) {
    for (const char* width : {"model.moe.expert_dim=128", "model.moe.expert_dim=48"}) {
      const auto with = [&](const std::string& key) {
        std::vector<std::string> overrides = fp8(precision, 4);
        overrides.insert(overrides.end(), {width, key});
        return overrides;
      };
      run("plain", with("precision.saved=device"));
      const auto saved = [&](const std::string& name, const std::string& recompute) {
        std::vector<std::string> overrides = with("precision.saved=fp8");
        overrides.push_back("train.recompute=" + recompute);
        run(name, overrides);
      };
      saved("none", "none");
      for (const char* recompute : {"norms", "experts", "blocks"}) {
        saved(recompute, recompute);
        expect_same_state("none", recompute);
      }
      EXPECT_NE(checkpoint("none").weights_sha256(), checkpoint("plain").weights_sha256());
      for (const char* name : {"plain", "none", "norms", "experts", "blocks"}) fs::remove_all(checkpoint(name).path());
    }
  }
}

TEST_F(CudaTrainer, NvFp4LearnsWhatTheCpuDoes) {
  const double gpu = run("gpu", fp8("nvfp4", 3)).valid->loss();
  std::vector<std::string> on_cpu = fp8("nvfp4", 3);
  on_cpu.insert(on_cpu.end(), {"run.device=cpu", "run.name=cpu"});
  const double cpu = train(tiny_config(dir_, on_cpu), {}).valid->loss();
  EXPECT_NEAR(gpu, cpu, 5e-3 * cpu);
}

TEST_F(CudaTrainer, AStepThatIsNotFiniteStopsTheRunWithTheWeightsBeforeIt) {
  const std::vector<std::string> absurd = {"optim.rest.lr=1e30", "optim.schedule.warmup=0"};
  const auto with_steps = [&](const char* steps) {
    std::vector<std::string> overrides = absurd;
    overrides.emplace_back(steps);
    return overrides;
  };
  const Error error = error_of([&] { run("nan", with_steps("train.steps=9")); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), "step 2: loss ")) << error.what();
  EXPECT_TRUE(contains(error.what(), "first bad tensor: layers.0.")) << error.what();
  run("one", with_steps("train.steps=1"));
  expect_same_state("nan", "one");
  for (const std::string precision : kLowPrecisions) {
    const auto low = [&](int64_t steps) {
      std::vector<std::string> overrides = fp8(precision, steps);
      overrides.insert(overrides.end(), absurd.begin(), absurd.end());
      overrides.insert(overrides.end(), {"checkpoint.every=1", "checkpoint.keep_last=0"});
      return overrides;
    };
    EXPECT_EQ(error_of([&] { run(precision, low(9)); }).exit_code(), 1);
    run(precision + "_one", low(1));
    expect_same_state(precision, precision + "_one");
    EXPECT_TRUE(checkpoints_are_finite(dir_ / "runs/checkpoints" / precision)) << precision;
  }
}

TEST_F(CudaTrainer, ACollapsedRouterStopsTheRun) {
  const Error error = error_of([&] {
    run("collapse", {"model.init.router_std=0", "model.moe.bias_rate=0", "train.steps=9", "optim.router.lr=0"});
  });
  EXPECT_TRUE(contains(error.what(), "step 1: the router of layer 1 has collapsed")) << error.what();
  // Steps that were enqueued meanwhile are part of the run.
  EXPECT_LE(checkpoint("collapse").info().step, 1 + Engine::kMaxPending);
}

}  // namespace
}  // namespace nmoe::test
