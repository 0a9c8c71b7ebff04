// Plans of runs whose parts of layers may leave their formats: enough for every state that checks can bring about, and
// for a state that some checkpoint may have. On a device that only counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

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

// Where layers differ in what waits, the most may be needed with some of them in their formats and others not.
TEST(FallbackPlan, IsEnoughWhereLayersDifferInWhatWaits) {
  const std::vector<PrecisionRole> roles =
      roles_of({{0, "dense"}, {1, "experts"}, {2, "experts"}, {3, "experts"}, {4, "experts"}});
  for (const auto& [recompute, saved] : {std::pair{"2 x none, 3 x norms", "device"},
                                         {"norms, none, norms, blocks, none", "device"},
                                         {"none", "2 x fp8, 3 x device"},
                                         {"3 x norms, 2 x none", "device, fp8, device, 2 x fp8"}}) {
    SCOPED_TRACE(::testing::Message() << recompute << ", saved " << saved);
    const Config config =
        with_fallback({"model.num_layers=5", "precision.mixer=device", "precision.shared=device",
                       std::string("train.recompute=") + recompute, std::string("precision.saved=") + saved});
    expect_enough(config, needs_of(config, roles).any);
  }
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

// Experts that have left FP8 make pre-activations as values before these wait in FP8: where they made them without
// precision.saved, in activations, not in scratch beside them.
TEST(FallbackPlan, WhatWaitsInFp8TakesNoScratch) {
  const auto scratch = [](const std::string& saved, const std::string& recompute, bool in_act) {
    std::vector<PrecisionRole> roles = roles_of({{0, "dense"}, {1, "experts"}});
    for (PrecisionRole& role : roles) role.in_act = in_act;
    const Config config =
        with_fallback({"model.num_layers=2", "precision.mixer=device", "precision.shared=device",
                       "model.moe.expert_dim=512", "train.batch_seqs=512", "train.microbatch_seqs=512",
                       "train.recompute=" + recompute, "precision.saved=" + saved});
    return plan_rank_storage(config, roles, /*rank=*/0, /*in_domain=*/0, kHopper)[ArenaKind::kScratch];
  };
  for (const std::string recompute : {"none", "norms", "experts", "blocks"}) {
    for (const bool in_act : {false, true}) {
      EXPECT_LE(scratch("fp8", recompute, in_act), scratch("device", recompute, in_act)) << recompute << in_act;
    }
  }
}

// Every operation that Hopper would be asked for is one that it takes, whatever waits for backward and in which form,
// and with chunks of overflow.
TEST(FallbackPlan, HopperTakesWhatEveryFormOfRowsAsksFor) {
  using Settings = std::vector<std::string>;
  const std::vector<Settings> choices[] = {
      {{}, {"model.moe.expert_dim=144"}, {"model.activation=relu_squared"}},  // a tile is a block of units, or is not
      {{}, {"precision.fp8_weight_gradients=false"}},
      {{"precision.saved=fp8"}, {"precision.saved=fp8", "precision.wire=fp8"}, {}},
      {{}, {"train.recompute=norms"}, {"train.recompute=experts"}, {"train.recompute=blocks"}},
      {{}, {"parallel.ranks=2", "parallel.capacity_factor=1"}}};
  std::vector<Settings> all = {{"model.num_layers=2"}};
  for (const std::vector<Settings>& choice : choices) {
    std::vector<Settings> longer;
    for (const Settings& before : all) {
      for (const Settings& one : choice) {
        longer.push_back(before);
        longer.back().insert(longer.back().end(), one.begin(), one.end());
      }
    }
    all = std::move(longer);
  }
  for (const Settings& settings : all) {
    EXPECT_NO_THROW(plan_engine_storage(with_fallback(settings), /*in_domain=*/0, kHopper))
        << fmt::format("{}", fmt::join(settings, " "));
  }
}

}  // namespace
}  // namespace nmoe
