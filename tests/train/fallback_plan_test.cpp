// Plans of runs whose parts of layers may leave their formats: enough for every state that checks can bring about, and
// for a state that some checkpoint may have. On a device that only counts.
#include <gtest/gtest.h>

#include "support/tiny_corpus.h"
#include "train/plan/engine_plan.h"

namespace nmoe {
namespace {

const GpuPart kHopper{.name = "Hopper", .memory_bytes = int64_t{64} << 30, .compute_major = 9};

Config with_fallback(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(),
                   {"model.vocab_size=50", "run.device=cuda", "run.precision=fp8", "precision.fallback=act",
                    "precision.fp8_weight_gradients=true", "precision.keep_first=0", "precision.keep_last=0",
                    "model.dim=256", "model.dense_dim=272", "model.moe.num_experts=4", "model.moe.expert_dim=128",
                    "model.mla.kv_lora_rank=32", "model.mla.qk_nope_head_dim=16", "model.mla.qk_rope_head_dim=16",
                    "model.mla.v_head_dim=16", "train.batch_seqs=64", "train.microbatch_seqs=32", "data.seq_len=64"});
  return test::tiny_config("/nowhere", overrides);
}

// Every role in its format; in the order of the weights.
std::vector<PrecisionRole> roles_of(const std::vector<std::pair<int64_t, std::string>>& parts) {
  std::vector<PrecisionRole> roles;
  for (const auto& [layer, part] : parts) roles.push_back({.layer = layer, .part = part, .in_act = false, .votes = {}});
  return roles;
}

// The most that any of all states needs, and the most of those in which all roles are alike.
struct Needs {
  StoragePlan any, uniform;
};
Needs needs_of(const Config& config, std::vector<PrecisionRole> roles) {
  Needs needs;
  const uint32_t all = (uint32_t{1} << roles.size()) - 1;
  for (uint32_t left = 0; left <= all; ++left) {
    for (size_t i = 0; i < roles.size(); ++i) roles[i].in_act = (left >> i & 1) != 0;
    const StoragePlan plan = plan_rank_storage(config, roles, /*rank=*/0, /*in_domain=*/0, kHopper);
    needs.any = needs.any.max(plan);
    if (left == 0 || left == all) needs.uniform = needs.uniform.max(plan);
  }
  return needs;
}

void expect_enough(const Config& config, const StoragePlan& any) {
  const StoragePlan plan = plan_engine_storage(config, /*in_domain=*/0, kHopper);
  for (const ArenaDescription& arena : arena_table()) EXPECT_GE(plan[arena.kind], any[arena.kind]) << arena.name;
  EXPECT_EQ(plan[ArenaKind::kActivations], any[ArenaKind::kActivations]);  // other arenas may be another rank's
}

// Experts keep FP8 codes of columns for their weight gradient, or values where they have left, which take twice as
// much; backward works with more in FP8. So the most is needed where all have left but the last.
TEST(FallbackPlan, IsEnoughForEveryMixtureOfStates) {
  const std::vector<PrecisionRole> roles =
      roles_of({{0, "dense"}, {1, "experts"}, {2, "experts"}, {3, "experts"}, {4, "experts"}});
  bool mixed_needs_more = false;
  for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
    for (const char* saved : {"device", "fp8"}) {
      for (const char* ranks : {"1", "2"}) {
        SCOPED_TRACE(::testing::Message() << recompute << ", saved " << saved << ", ranks " << ranks);
        const Config config =
            with_fallback({"model.num_layers=5", "precision.mixer=device", "precision.shared=device",
                           std::string("train.recompute=") + recompute, std::string("precision.saved=") + saved,
                           std::string("parallel.ranks=") + ranks});
        const Needs needs = needs_of(config, roles);
        expect_enough(config, needs.any);
        mixed_needs_more |= needs.any[ArenaKind::kActivations] > needs.uniform[ArenaKind::kActivations];
      }
    }
  }
  EXPECT_TRUE(mixed_needs_more);
}

// Parts of one layer differ as well, in layers of two kinds.
TEST(FallbackPlan, IsEnoughWhateverPartsOfALayerHaveLeft) {
  const std::vector<PrecisionRole> roles = roles_of({{0, "mixer"},
                                                     {0, "dense"},
                                                     {1, "mixer"},
                                                     {1, "experts"},
                                                     {1, "shared"},
                                                     {2, "mixer"},
                                                     {2, "experts"},
                                                     {2, "shared"}});
  for (const char* recompute : {"none", "norms"}) {
    SCOPED_TRACE(recompute);
    const Config config = with_fallback({"model.num_layers=3", std::string("train.recompute=") + recompute});
    expect_enough(config, needs_of(config, roles).any);
  }
}

}  // namespace
}  // namespace nmoe
