// Multi-token prediction in training: what depths read, what their losses are and count, that they do not depend on how
// a step is divided, and that they learn.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "config/validate.h"
#include "train/loop/training_run.h"
#include "train/rank_engines.h"
#include "train/step/look_ahead.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using namespace test;

constexpr int64_t kNumIds = 50;

Config predicting_config(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {fmt::format("model.vocab_size={}", kNumIds), "model.mtp.depth=2"});
  return tiny_config("/nowhere", overrides);
}

struct Ahead {
  std::vector<int32_t> tokens, targets;
};

Ahead ahead_of(const Microbatch& microbatch, int64_t seq_len, int64_t depth) {
  Ahead ahead{.tokens = std::vector<int32_t>(microbatch.tokens.size(), 99),
              .targets = std::vector<int32_t>(microbatch.tokens.size(), 99)};
  look_ahead(microbatch, seq_len, depth, ahead.tokens, ahead.targets);
  return ahead;
}

TEST(LookAhead, StaysInTheSequence) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8}, targets = {2, 3, 4, 5, 6, -1, 8, 9};
  const Microbatch microbatch = microbatch_of(tokens, targets, {});
  const Ahead one = ahead_of(microbatch, 4, 1), two = ahead_of(microbatch, 4, 2);
  EXPECT_EQ(one.tokens, (std::vector<int32_t>{2, 3, 4, 0, 6, 7, 8, 0}));
  EXPECT_EQ(one.targets, (std::vector<int32_t>{3, 4, 5, -1, -1, 8, 9, -1}));
  EXPECT_EQ(two.tokens, (std::vector<int32_t>{3, 4, 0, 0, 7, 8, 0, 0}));
  EXPECT_EQ(two.targets, (std::vector<int32_t>{4, 5, -1, -1, 8, 9, -1, -1}));
  EXPECT_EQ(count_targets_ahead(microbatch, 4, 2), (std::vector<int64_t>{5, 4}));
}

// Documents of 3, 1 and 4 tokens.
TEST(LookAhead, StaysInTheDocument) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8}, targets = {2, 3, 4, 5, 6, 7, 8, 9};
  const Documents documents{.cu_seqlens = {0, 3, 4, 8}, .positions = {0, 1, 2, 0, 0, 1, 2, 3}, .padding = {}};
  const Microbatch microbatch = microbatch_of(tokens, targets, documents);
  const Ahead one = ahead_of(microbatch, 8, 1), three = ahead_of(microbatch, 8, 3);
  EXPECT_EQ(one.tokens, (std::vector<int32_t>{2, 3, 0, 0, 6, 7, 8, 0}));
  EXPECT_EQ(one.targets, (std::vector<int32_t>{3, -1, -1, -1, 7, 8, 9, -1}));
  EXPECT_EQ(three.targets, (std::vector<int32_t>{-1, -1, -1, -1, 9, -1, -1, -1}));
  EXPECT_EQ(count_targets_ahead(microbatch, 8, 3), (std::vector<int64_t>{4, 2, 1}));
}

TEST(MultiToken, WeightsFollowTheSchedule) {
  Config config = predicting_config({"model.mtp.loss_weight=0.3"});
  const auto after = [&](int64_t steps) {
    return depth_weight(config, {.steps = steps, .tokens = steps * step_tokens(config)});
  };
  EXPECT_DOUBLE_EQ(after(1), 0.15);
  EXPECT_DOUBLE_EQ(after(1'000'000), 0.15);
  config.model.mtp.later_from = 10, config.model.mtp.later_loss_weight = 0.1;
  EXPECT_DOUBLE_EQ(after(10), 0.15);
  EXPECT_DOUBLE_EQ(after(11), 0.05);
  config.optim.schedule.unit = ScheduleUnit::kTokens;
  config.model.mtp.later_from = 10 * step_tokens(config);
  EXPECT_DOUBLE_EQ(after(10), 0.15);
  EXPECT_DOUBLE_EQ(after(11), 0.05);
}

TEST(MultiToken, KeysAreNotInTheFingerprintOfAModelWithout) {
  const Config plain = tiny_config("/nowhere");
  EXPECT_EQ(config_fingerprint(tiny_config("/nowhere", {"model.mtp.depth=0"})), config_fingerprint(plain));
  EXPECT_NE(config_fingerprint(tiny_config("/nowhere", {"model.mtp.depth=1"})), config_fingerprint(plain));
  EXPECT_NE(config_fingerprint(tiny_config("/nowhere", {"model.mtp.depth=1", "model.mtp.loss_weight=0.2"})),
            config_fingerprint(tiny_config("/nowhere", {"model.mtp.depth=1"})));
}

TEST(MultiToken, WhatHasNoModuleIsRefused) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return std::string(error_of([&] { tiny_config("/nowhere", overrides); }).what());
  };
  EXPECT_TRUE(contains(refusal({"model.mtp.shared=true"}), "model.mtp.depth"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=1", "model.mtp.shared=true"}), "model.mtp.depth > 1"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=16"}), "so far ahead"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=1", "model.mtp.layers=gqa/moe"}), "kind"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=1", "model.mtp.layers=mla/mo"}), "character 5"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=1", "model.mtp.layers=moe"}), "positions"));
  EXPECT_TRUE(contains(refusal({"model.mtp.depth=2", "model.mtp.shared=true", "parallel.logical_shards=2"}),
                       "an order that depends on the ranks"));
}

// Of one microbatch and of several, the same sums, losses and acceptance; predictions are those of the losses.
TEST(MultiToken, LossesAreMeansOverTheTargetsOfTheirDepth) {
  std::vector<std::vector<double>> losses;
  for (const char* microbatch : {"train.microbatch_seqs=8", "train.microbatch_seqs=2"}) {
    const Config config = predicting_config({microbatch});
    ReadyEngine ready(config);
    enqueue_random(ready.engine, config, 1, /*in_detail=*/true);
    const StepResult result = ready.engine.result();
    ASSERT_EQ(result.depths.size(), 2u);
    std::vector<double>& of_config = losses.emplace_back();
    for (size_t k = 0; k < 2; ++k) {
      const DepthResult& depth = result.depths[k];
      EXPECT_EQ(depth.num_targets, 8 * (15 - static_cast<int64_t>(k)));
      EXPECT_NEAR(depth.loss, std::log(kNumIds), 0.2);  // of random weights
      EXPECT_GE(depth.num_right, 0);
      EXPECT_LT(depth.num_right, depth.num_targets / 4);
      of_config.push_back(depth.loss);
    }
  }
  for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(losses[0][k], losses[1][k], 1e-6);
}

// Of the same step again and again, depths learn what comes; acceptance says so.
TEST(MultiToken, AcceptanceRisesWithWhatIsLearned) {
  const Config config = predicting_config({"optim.schedule.hold=1000"});
  ReadyEngine ready(config);
  StepResult result;
  for (int64_t step = 1; step <= 60; ++step) {
    load_random(ready.engine, config, 1);
    const int64_t tokens = step_tokens(config);
    ready.engine.step({.steps = step, .tokens = step * tokens}, {tokens, {tokens - 8, tokens - 16}}, step == 60);
    result = ready.engine.result();
  }
  for (const DepthResult& depth : result.depths) {
    EXPECT_LT(depth.loss, 2.0);
    EXPECT_GT(depth.num_right, depth.num_targets / 2);
  }
}

TEST(MultiToken, WithLogicalShardsTheStateDoesNotDependOnTheRanks) {
  std::vector<Bytes> of_ranks;
  for (const int64_t ranks : {1, 2}) {
    of_ranks.push_back(
        whole_state(predicting_config({"train.microbatch_seqs=2", "parallel.logical_shards=4",
                                       "data.mask_documents=true", fmt::format("parallel.ranks={}", ranks)}),
                    3));
  }
  EXPECT_EQ(of_ranks[0], of_ranks[1]);
}

// Of any number of ranks, sums apart; a module that two depths share.
TEST(MultiToken, RanksShareTheExpertsOfModules) {
  std::vector<double> losses;
  for (const int64_t ranks : {1, 2}) {
    const Config config = predicting_config(
        {"train.microbatch_seqs=2", "model.mtp.shared=true", fmt::format("parallel.ranks={}", ranks)});
    std::mutex mutex;
    run_engines(config, [&](ReadyEngine& ready) {
      StepResult result;
      for (int64_t step = 1; step <= 3; ++step) result = random_step(ready.engine, config, step);
      const std::scoped_lock lock(mutex);
      for (const DepthResult& depth : result.depths) losses.push_back(depth.loss);
    });
  }
  ASSERT_EQ(losses.size(), 6u);  // of two depths on one rank, and on each of two
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], losses[i % 2], 1e-4) << i;
}

TEST(MultiToken, WhatIsComputedAgainChangesNoBit) {
  std::vector<Bytes> all;
  for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
    all.push_back(whole_state(predicting_config({fmt::format("train.recompute={}", recompute)}), 2));
  }
  for (const Bytes& bytes : all) EXPECT_EQ(bytes, all[0]);
}

// In FP8, with gradients of experts in BF16 that one module adds to twice; the plan's memory is what steps take.
TEST(MultiToken, TrainsInLowPrecision) {
  for (const char* precision : {"fp8", "mxfp8", "nvfp4"}) {
    const Config config = predicting_config({fmt::format("run.precision={}", precision), "model.mtp.shared=true",
                                             "train.gradients=bf16", "train.microbatch_seqs=8"});
    ReadyEngine ready(config);
    const auto format_of = [&](const std::string& name) { return weight_of(ready.engine, name).copies.format; };
    EXPECT_NE(format_of("mtp.0.layers.0.moe.experts_in"), OperandFormat::kAct);
    EXPECT_EQ(format_of("mtp.0.projection_hidden"), OperandFormat::kAct);
    for (int64_t step = 1; step <= 3; ++step) EXPECT_TRUE(random_step(ready.engine, config, step).finite);
  }
}

TEST(MultiToken, ALossOfADepthThatIsNotFiniteStopsTheStep) {
  const Config config = predicting_config({});
  ReadyEngine ready(config);
  ready.ops().fill({weight_of(ready.engine, "mtp.1.final_norm").value, std::numeric_limits<double>::quiet_NaN()});
  const StepResult result = random_step(ready.engine, config, 1);
  EXPECT_FALSE(result.finite);
  EXPECT_TRUE(std::isfinite(result.loss(kNextToken)));
  EXPECT_TRUE(contains(ready.engine.find_non_finite().name, "mtp.1.final_norm"));
}

class MultiTokenTraining : public TrainerTest {};

TEST_F(MultiTokenTraining, LearnsGoesOnAndGenerates) {
  const std::vector<std::string> keys = {"model.mtp.depth=1", "train.sample_prompts=[\"the cat\"]",
                                         "train.valid_every=20", "data.mask_documents=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), keys.begin(), keys.end());
    return more;
  };
  run("straight", with({"train.steps=40"}));
  run("halves", with({"train.steps=20"}));
  resume("halves", with({"train.steps=40"}));
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  for (const char* tag : {"train/loss", "mtp/depth_1/loss"}) {
    const auto losses = series("straight", tag);
    ASSERT_EQ(losses.size(), 40u) << tag;
    EXPECT_LT(losses.at(40), losses.at(1) - 0.5) << tag;
    EXPECT_EQ(series("halves", tag), losses);
  }
  const auto acceptance = series("straight", "mtp/depth_1/acceptance");
  EXPECT_LT(acceptance.at(1), 0.1);
  EXPECT_GT(acceptance.at(40), 0.1);
}

TEST_F(MultiTokenTraining, RanksReportTheAcceptanceOfAll) {
  for (const int64_t ranks : {1, 2}) {
    run(fmt::format("ranks{}", ranks), {"model.mtp.depth=1", "train.microbatch_seqs=2", "parallel.logical_shards=4",
                                        "train.steps=6", fmt::format("parallel.ranks={}", ranks)});
  }
  for (const char* tag : {"mtp/depth_1/loss", "mtp/depth_1/acceptance", "train/loss"}) {
    EXPECT_EQ(series("ranks1", tag).size(), 6u) << tag;
    EXPECT_EQ(series("ranks1", tag), series("ranks2", tag)) << tag;
  }
  EXPECT_EQ(weights_of(checkpoints("ranks1")), weights_of(checkpoints("ranks2")));
}

}  // namespace
}  // namespace nmoe
