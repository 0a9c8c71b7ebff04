// What is planned for a GPU without one is what counting on that GPU says.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/files.h"
#include "config/load.h"
#include "support/shared_gpu.h"
#include "train/plan/memory_plan.h"
#include "train/plan/rehearsal.h"

namespace nmoe {
namespace {

GpuPart this_part() {
  const auto use = make_device({.kind = "cuda", .compute_dtype = DType::kBF16})->memory_use();
  return {.name = "this", .memory_bytes = use->used_bytes + use->free_bytes, .compute_major = 9};
}

void expect_same_plan(const std::string& file, std::vector<std::string> overrides) {
  SCOPED_TRACE(file);
  overrides.emplace_back("run.device=cuda");
  Config config = load_config(fs::path(NMOE_SOURCE_DIR) / "configs" / file, overrides);
  if (config.model.vocab_size == 0) config.model.vocab_size = 8192;
  const StoragePlan counted = plan_engine_storage(config), planned = plan_engine_storage(config, 0, this_part());
  for (const ArenaDescription& arena : arena_table()) {
    EXPECT_EQ(planned[arena.kind], counted[arena.kind]) << arena.name;
  }
}

TEST(PlannedTest, ArenasAreThoseOfTheDevice) {
  const std::vector<std::string> four = {"train.batch_seqs=4", "train.microbatch_seqs=4"};
  expect_same_plan("quickstart.toml", {});
  expect_same_plan("quickstart.toml", {"run.precision=fp32", "data.mask_documents=true"});
  expect_same_plan("quickstart.toml", {"data.mask_documents=true", "train.recompute=blocks"});
  expect_same_plan("quickstart.toml", {"run.precision=fp8"});
  expect_same_plan("quickstart.toml", {"run.precision=fp8", "precision.fallback=act"});
  expect_same_plan("quickstart.toml", {"run.precision=mxfp8", "precision.fallback=act"});
  expect_same_plan("quickstart.toml", {"run.precision=nvfp4", "precision.mixer=fp8", "precision.fallback=act"});
  expect_same_plan("speedrun/super.toml", {"run.precision=nvfp4", "train.batch_seqs=4", "train.microbatch_seqs=4"});
  expect_same_plan("quickstart.toml", {"run.precision=fp8", "precision.fp8_weight_gradients=true"});
  expect_same_plan("quickstart.toml",
                   {"run.precision=fp8", "precision.fp8_weight_gradients=true", "train.recompute=norms"});
  expect_same_plan("quickstart.toml", {"precision.saved=fp8"});
  expect_same_plan("speedrun/super.toml", {"run.precision=fp8", "precision.fp8_weight_gradients=true",
                                           "precision.saved=fp8", "train.batch_seqs=4", "train.microbatch_seqs=4"});
  expect_same_plan("speedrun/moonlet.toml", {"run.precision=fp8", "train.batch_seqs=4", "train.microbatch_seqs=4"});
  expect_same_plan("speedrun/moonlet.toml", {"run.precision=fp8", "precision.fp8_weight_gradients=true",
                                             "precision.saved=fp8", "train.batch_seqs=4", "train.microbatch_seqs=4"});
  expect_same_plan("quickstart.toml", {"run.precision=mxfp8", "precision.saved=fp8", "train.recompute=experts"});
  expect_same_plan("examples/mla_moe.toml", {});
  expect_same_plan("examples/gqa_dense.toml", {});
  expect_same_plan("examples/gqa_dense.toml", {"data.seq_len=130", "model.gqa.head_dim=36"});
  expect_same_plan("examples/layer_pattern.toml", {"model.moe.balance_loss=1e-3", "model.moe.z_loss=1e-3"});
  for (const char* precision : {"bf16", "fp32"}) {
    expect_same_plan("examples/layer_pattern.toml",
                     {"model.layers=2 x (mamba2, moe), gqa:64/moe, mla/moe", "data.mask_documents=true",
                      "run.precision=" + std::string(precision)});
    expect_same_plan(
        "examples/layer_pattern.toml",
        {"model.layers=3 x gated_deltanet/moe, gqa/moe", "model.gqa.output_gate=true", "model.zero_centred_norms=true",
         "data.mask_documents=true", "run.precision=" + std::string(precision)});
  }
  expect_same_plan("speedrun/super.toml", {});
  expect_same_plan("speedrun/super.toml", {"optim.offload=state"});
  expect_same_plan("speedrun/super.toml", {"train.recompute=host"});
  for (const char* file : {"super", "ultra", "moonlet", "moonlight", "dsv2-lite", "qwen3-30b-a3b"}) {
    expect_same_plan(fmt::format("speedrun/{}.toml", file), four);
  }
}

TEST(PlannedTest, SoIsTheTotalButForTheContext) {
  Config config = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/speedrun/super.toml",
                              std::vector<std::string>{"train.batch_seqs=8", "train.microbatch_seqs=8"});
  const MemoryPlan counted = plan_memory(config, 0, 1), planned = plan_memory(config, 0, 1, this_part());
  const auto context = [](const MemoryPlan& plan) {
    const auto line = std::ranges::find(plan.lines, "context", &MemoryLine::owner);
    return static_cast<double>(line->bytes);
  };
  EXPECT_EQ(static_cast<double>(planned.device_bytes) - context(planned),
            static_cast<double>(counted.device_bytes) - context(counted));
  EXPECT_EQ(planned.device_limit, counted.device_limit);
  EXPECT_EQ(planned.device_flops, counted.device_flops);
  // What is counted is the memory of all processes on the GPU.
  const double share = context(planned) / context(counted);
  if (std::abs(share - 1.0) > 0.25 && test::gpu_is_shared()) {
    GTEST_SKIP() << "another process has a GPU open: " << context(counted) << " bytes are in use";
  }
  EXPECT_NEAR(share, 1.0, 0.25) << "counted " << context(counted);
}

// As those of a sweep are.
TEST(RehearsalTest, OfARunThatIsNamedFromOutside) {
  const std::vector<std::string> on_gpu = {"run.device=cuda"};
  Config config = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/quickstart.toml", on_gpu);
  config.model.vocab_size = 8192;
  ::setenv("NMOE_RUN", "named", 1);
  EXPECT_GT(rehearsed_process_bytes(config, config.run, 1), 0);
  ::unsetenv("NMOE_RUN");
}

}  // namespace
}  // namespace nmoe
