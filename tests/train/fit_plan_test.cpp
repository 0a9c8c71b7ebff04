#include "train/plan/fit_plan.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "config/load.h"
#include "config/validate.h"
#include "support/errors.h"
#include "train/loop/fit_choice.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

// A model on a GPU that is not here, of which the plan for "none" and all sequences at once takes about 200 MiB beside
// the context.
Config gpu_config(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(),
                   {"model.vocab_size=512", "run.device=cuda", "model.dim=256", "model.dense_dim=512",
                    "model.moe.num_experts=8", "model.moe.expert_dim=256", "model.mla.kv_lora_rank=64",
                    "model.mla.qk_nope_head_dim=16", "model.mla.qk_rope_head_dim=16", "model.mla.v_head_dim=32",
                    "model.num_layers=4", "data.seq_len=1024", "train.batch_seqs=64", "train.microbatch_seqs=4"});
  return test::tiny_config("/nowhere", overrides);
}
GpuPart part_of(int64_t mebibytes, std::string name = "h200-141g") {
  return {.name = std::move(name), .memory_bytes = kGpuContextBytes + (mebibytes << 20), .compute_major = 9};
}
MemoryPlanner planner_of(const Config& config, const GpuPart& part) { return {config, 0, /*ranks=*/1, part}; }

bool is_sorted(const std::vector<FitChoice>& choices) {
  return std::ranges::is_sorted(choices, {}, [](const FitChoice& choice) { return choice.time.total(); });
}

TEST(FitPlanTest, OfMoonletOnAnH200ItPutsFirstWhatWasMeasuredToBeFastest) {
  const Config config = load_config(fmt::format("{}/configs/speedrun/moonlet.toml", NMOE_SOURCE_DIR));
  const GpuPart h200 = parse_gpu_part("h200-141g", "part");
  const MemoryPlanner planner(config, 0, 1, h200);
  const FitPlan plan = plan_fit(config, planner);
  ASSERT_FALSE(plan.choices.empty());
  EXPECT_EQ(plan.timed_as, "h200-141g");
  // docs/log/steps.md, "Larger microbatches": 8 with norms made again beside 4 with all kept.
  const FitChoice& first = plan.choices[0];
  const std::vector<LayerRun<Recompute>>& runs = first.config.train.recompute.runs();
  ASSERT_EQ(runs.size(), 1u) << fit_keys(first.config);  // the norms of no layer leave a hundredth to spare
  EXPECT_EQ(runs[0].value, Recompute::kNorms);
  EXPECT_EQ(first.config.train.microbatch_seqs, 8);
  EXPECT_EQ(first.config.optim.offload, Offload::kNone);
  EXPECT_FALSE(first.reorders_sums);
  EXPECT_EQ(first.memory.device_bytes, plan_memory(first.config, 0, 1, h200).device_bytes);
  // docs/results.md: with bf16 moments nothing need be computed again. Predicted to be as fast at least: more
  // sequences at once with state in host memory, whose way is hidden in part.
  const auto bf16 =
      std::ranges::find(plan.rounding, std::vector<std::string>{"optim.adamw.state = \"bf16\""}, &FitChoice::rounds);
  ASSERT_NE(bf16, plan.rounding.end());
  Config none = config;
  none.optim.adamw.state = MomentFormat::kBf16;
  none.train.recompute = Recompute::kNone;
  EXPECT_TRUE(fits_memory(planner.plan(none), none, Spare::kHundredth));
  EXPECT_LE(bf16->time.total(), predict_step_time(none, *find_device_rates("h200-141g"), 0).total())
      << fit_keys(bf16->config);
  EXPECT_LT(bf16->time.total(), first.time.total());
}

TEST(FitPlanTest, ChoicesFitExactlyAndNoLargerMicrobatchDoes) {
  std::set<std::pair<Recompute, int64_t>> seen;
  for (const int64_t mebibytes : {110, 180, 300}) {
    const Config config = gpu_config();
    const MemoryPlanner planner = planner_of(config, part_of(mebibytes));
    const FitPlan plan = plan_fit(config, planner);
    ASSERT_FALSE(plan.choices.empty()) << mebibytes;
    EXPECT_TRUE(is_sorted(plan.choices));
    for (const FitChoice& choice : plan.choices) {
      EXPECT_TRUE(choice.rounds.empty());
      EXPECT_EQ(choice.reorders_sums, choice.config.train.microbatch_seqs != 4);
      const MemoryPlan again = planner.plan(choice.config);
      EXPECT_EQ(choice.memory.device_bytes, again.device_bytes);
      EXPECT_LE(again.device_bytes, again.device_limit - again.device_limit / 100);  // the plan may be off by it
      seen.emplace(choice.config.train.recompute.of(0), choice.config.train.microbatch_seqs);
      Config larger = choice.config;
      larger.train.microbatch_seqs *= 2;
      if (!choice.reorders_sums || larger.train.microbatch_seqs > config.train.batch_seqs) continue;
      EXPECT_FALSE(fits_memory(planner.plan(larger), larger, Spare::kHundredth)) << fit_keys(larger);
    }
    // The first is not beaten by any like choice that fits.
    for (const Recompute level :
         {Recompute::kNone, Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks, Recompute::kHost}) {
      for (int64_t size = 1; size <= 64; size *= 2) {
        Config other = config;
        other.train.recompute = level;
        other.train.microbatch_seqs = size;
        if (!fits_memory(planner.plan(other), other, Spare::kHundredth)) continue;
        EXPECT_LE(plan.choices[0].time.total(),
                  predict_step_time(other, *find_device_rates("h200-141g"), 0).total() + 1e-12)
            << fit_keys(other);
      }
    }
  }
  EXPECT_GE(seen.size(), 4u);  // else the sizes above are not what tells choices apart
}

TEST(FitPlanTest, RecomputesInNoMoreLayersThanItTakes) {
  std::set<Recompute> levels;
  for (const int64_t mebibytes : {110, 180, 250}) {
    const Config config = gpu_config({"model.num_layers=8"});
    const MemoryPlanner planner = planner_of(config, part_of(mebibytes));
    for (const FitChoice& choice : plan_fit(config, planner).choices) {
      const std::vector<LayerRun<Recompute>>& runs = choice.config.train.recompute.runs();
      if (runs.size() == 1) continue;
      ASSERT_EQ(runs.size(), 2u);
      EXPECT_EQ(choice.config.train.recompute.num_layers(), 8);
      EXPECT_GT(runs[0].value, runs[1].value);
      EXPECT_TRUE(find_issues(choice.config).empty()) << fit_keys(choice.config);
      levels.insert(runs[0].value);
      Config other = choice.config;
      other.train.recompute = runs[0].value;
      EXPECT_LT(choice.time.total(),
                predict_step_time(other, *find_device_rates("h200-141g"), choice.memory.storage[ArenaKind::kHostState])
                    .total());
      if (choice.config.optim.offload != Offload::kNone || runs[0].count == 1) continue;
      other.train.recompute = PerLayer(
          std::vector<LayerRun<Recompute>>{{runs[0].count - 1, runs[0].value}, {runs[1].count + 1, runs[1].value}});
      if (!find_issues(other).empty()) continue;  // too few inputs that could travel
      EXPECT_FALSE(fits_memory(planner.plan(other), other, Spare::kHundredth)) << fit_keys(other);
    }
  }
  EXPECT_FALSE(levels.empty());
}

TEST(FitPlanTest, StateMovesWhereItMakesRoom) {
  const Config config = gpu_config();
  const int64_t least = [&] {
    Config smallest = config;
    smallest.train.recompute = Recompute::kBlocks;
    smallest.train.microbatch_seqs = 1;
    return planner_of(config, part_of(1000)).plan(smallest).device_bytes - kGpuContextBytes;
  }();
  const MemoryPlanner planner = planner_of(config, part_of((least >> 20) - 4));
  const FitPlan plan = plan_fit(config, planner);
  ASSERT_FALSE(plan.choices.empty());
  for (const FitChoice& choice : plan.choices) {
    EXPECT_EQ(choice.config.optim.offload, Offload::kFit);
    EXPECT_GT(choice.memory.storage[ArenaKind::kHostState], 0);
    EXPECT_LE(choice.memory.device_bytes, choice.memory.device_limit);
  }
}

TEST(FitPlanTest, OnlyBlockInputsInTheHostMayFit) {
  const Config config = gpu_config({"model.num_layers=16", "data.seq_len=4096", "train.batch_seqs=4"});
  const auto least = [&](Recompute level) {
    Config smallest = config;
    smallest.train.recompute = level;
    smallest.train.microbatch_seqs = 1;
    smallest.optim.offload = Offload::kState;
    return planner_of(config, part_of(1000)).plan(smallest).device_bytes - kGpuContextBytes;
  };
  const int64_t host = least(Recompute::kHost), blocks = least(Recompute::kBlocks);
  ASSERT_LT(host + (int64_t{4} << 20), blocks);
  const FitPlan plan = plan_fit(config, planner_of(config, part_of((host + blocks) / 2 >> 20)));
  ASSERT_FALSE(plan.choices.empty());
  for (const FitChoice& choice : plan.choices) {
    EXPECT_EQ(choice.config.train.recompute.of(0), Recompute::kHost) << fit_keys(choice.config);
    EXPECT_TRUE(find_issues(choice.config).empty()) << fit_keys(choice.config);
  }
}

TEST(FitPlanTest, AConfiguredListIsAChoice) {
  const Config config = gpu_config({"train.recompute=1 x blocks, 3 x none"});
  const FitPlan plan = plan_fit(config, planner_of(config, part_of(180)));
  EXPECT_TRUE(is_sorted(plan.choices));
  EXPECT_TRUE(std::ranges::any_of(
      plan.choices, [&](const FitChoice& choice) { return choice.config.train.recompute == config.train.recompute; }));
}

TEST(FitPlanTest, GradientsOfRanksAreRoundedWhereExpertsStay) {
  const Config config = gpu_config({"parallel.ranks=2"});
  ASSERT_GT(config.parallel.rebalance_every, 0);
  const auto planner = [&](int64_t mebibytes) { return MemoryPlanner(config, 0, /*ranks=*/2, part_of(mebibytes)); };
  Config smallest = config;
  smallest.train.recompute = Recompute::kHost;
  smallest.train.microbatch_seqs = 1;
  smallest.optim.offload = Offload::kState;
  const int64_t least = planner(1000).plan(smallest).device_bytes * 100 / 99 - kGpuContextBytes;  // and a hundredth
  const FitPlan plan = plan_fit(config, planner((least >> 20) - 1));
  EXPECT_TRUE(plan.choices.empty());
  const std::vector<std::string> keys = {"train.gradients = \"bf16\"", "parallel.rebalance_every = 0"};
  const auto found = std::ranges::find(plan.rounding, keys, &FitChoice::rounds);
  ASSERT_NE(found, plan.rounding.end());
  EXPECT_TRUE(find_issues(found->config).empty());
}

TEST(FitPlanTest, KeysThatRoundAreApartAndWorthIt) {
  const Config config = gpu_config();
  const FitPlan plan = plan_fit(config, planner_of(config, part_of(180)));
  ASSERT_FALSE(plan.rounding.empty());
  EXPECT_TRUE(is_sorted(plan.rounding));
  for (const FitChoice& choice : plan.rounding) {
    EXPECT_FALSE(choice.rounds.empty());
    EXPECT_NE(config_fingerprint(choice.config), config_fingerprint(config));
    EXPECT_LT(choice.time.total(), plan.choices[0].time.total());
    EXPECT_LE(choice.memory.device_bytes, choice.memory.device_limit);
    const std::set<std::string> keys(choice.rounds.begin(), choice.rounds.end());
    for (const FitChoice& other : plan.rounding) {
      const std::set<std::string> part(other.rounds.begin(), other.rounds.end());
      if (part.size() >= keys.size() || !std::ranges::includes(keys, part)) continue;
      EXPECT_LT(choice.time.total(), other.time.total()) << fmt::format("{}", fmt::join(keys, ", "));
    }
  }
  for (const FitChoice& choice : plan.choices) {
    EXPECT_EQ(config_fingerprint(choice.config), config_fingerprint(config));
  }
}

TEST(FitPlanTest, LogicalShardsKeepTheSizeOfMicrobatches) {
  const Config config = gpu_config({"parallel.logical_shards=16"});
  for (const FitChoice& choice : plan_fit(config, planner_of(config, part_of(180))).choices) {
    EXPECT_EQ(choice.config.train.microbatch_seqs, 4);
    EXPECT_FALSE(choice.reorders_sums);
  }
}

TEST(FitPlanTest, WhereNothingFitsItSaysWhatMight) {
  const Config config = gpu_config();
  const FitPlan none = plan_fit(config, planner_of(config, part_of(20)));
  EXPECT_TRUE(none.choices.empty());
  EXPECT_TRUE(none.rounding.empty());
  EXPECT_TRUE(contains(nothing_fits(none, config).remedy(), "raise parallel.ranks, or make the model smaller"));
  FitPlan rounding;
  rounding.rounding.push_back({.config = config, .memory = {}, .time = {}, .rounds = {"train.gradients = \"bf16\""}});
  EXPECT_TRUE(contains(nothing_fits(rounding, config).remedy(), "set train.gradients = \"bf16\", which rounds more"));
}

TEST(FitPlanTest, AnUnknownDeviceIsNotTimed) {
  const Config config = gpu_config();
  EXPECT_EQ(plan_fit(config, planner_of(config, part_of(300, "80GiB"))).timed_as, "");
}

TEST(FitPlanTest, RefusalsSayWhatEachKeyBrings) {
  const Config config = gpu_config();
  const GpuPart part = part_of(90);
  const MemoryPlan plan = planner_of(config, part).plan(config);
  ASSERT_FALSE(fits_memory(plan, config));
  const std::string remedy =
      error_of([&] { check_memory(plan, config, [&] { return describe_savings(config, plan, part); }); }).remedy();
  const auto saves = [&](const std::string& override, const std::string& text) {
    int64_t saved = 0;
    const StoragePlan other = plan_engine_storage(gpu_config({override}), 0, part);
    for (const ArenaDescription& arena : arena_table()) {
      if (arena.placement == Placement::kDevice) saved += plan.storage[arena.kind] - other[arena.kind];
    }
    ASSERT_GT(saved, 0) << override;
    EXPECT_TRUE(contains(remedy, fmt::format("{} takes {} less", text, human_bytes(saved)))) << remedy;
  };
  saves("train.recompute=norms", "train.recompute = \"norms\"");
  saves("train.recompute=blocks", "train.recompute = \"blocks\"");
  saves("train.recompute=host", "train.recompute = \"host\"");
  saves("optim.offload=state", "optim.offload = \"state\"");
  saves("train.microbatch_seqs=2", "train.microbatch_seqs = 2");
  saves("train.gradients=bf16", "train.gradients = \"bf16\", which rounds,");
  saves("precision.saved=fp8", "precision.saved = \"fp8\", which rounds,");
  EXPECT_TRUE(contains(remedy, "n plan --fit tries them together"));
}

using FitChoiceTest = TrainerTest;

TEST_F(FitChoiceTest, ARunThatGoesOnKeepsItsChoice) {
  const auto config = [&](const std::string& limit) {
    return test::tiny_config(dir_, {"run.name=fitted", "train.steps=2", "train.batch_seqs=64", "data.seq_len=32",
                                    "train.memory_limit=" + limit});
  };
  const Config roomy = choose_fit(config("64 GiB"), /*resume=*/true);  // there is nothing to go on from
  EXPECT_EQ(roomy.train.recompute, PerLayer(Recompute::kNone));
  EXPECT_EQ(roomy.train.microbatch_seqs, 64);
  EXPECT_EQ(roomy.optim.offload, Offload::kNone);
  Config recorded = roomy;
  recorded.train.microbatch_seqs = 16;
  recorded.train.recompute = Recompute::kExperts;
  train(recorded, {.version = "0.0.0", .commit = "abc"});
  const Config resumed = choose_fit(config("64 GiB"), /*resume=*/true);
  EXPECT_EQ(resumed.train.recompute, PerLayer(Recompute::kExperts));
  EXPECT_EQ(resumed.train.microbatch_seqs, 16);
  EXPECT_EQ(choose_fit(config("64 GiB"), /*resume=*/false).train.microbatch_seqs, 64);
}

TEST_F(FitChoiceTest, ARunThatGoesOnWithOtherRanksChoosesAnew) {
  const auto config = [&](int64_t ranks) {
    return test::tiny_config(dir_, {"run.name=fitted", "train.steps=2", "train.batch_seqs=16", "data.seq_len=32",
                                    fmt::format("parallel.ranks={}", ranks)});
  };
  const Config alone = choose_fit(config(1), /*resume=*/false);
  ASSERT_EQ(alone.train.microbatch_seqs, 16);
  train(alone, {.version = "0.0.0", .commit = "abc"});
  const Config shared = choose_fit(config(2), /*resume=*/true);
  EXPECT_EQ(shared.train.microbatch_seqs, 8);
  EXPECT_EQ(parse_config(print_config(shared), "printed").train.microbatch_seqs, 8);
  EXPECT_EQ(choose_fit(config(1), /*resume=*/true).train.microbatch_seqs, 16);
}

TEST_F(FitChoiceTest, WhatFitsNowhereIsRefused) {
  const Config config = test::tiny_config(dir_, {"train.memory_limit=1 KiB"});
  const Error error = error_of([&] { choose_fit(config, false); });
  EXPECT_TRUE(contains(error.what(), "no choice of train.recompute, train.microbatch_seqs and optim.offload"));
}

}  // namespace
}  // namespace nmoe
