// Several ranks train what one does, end as one, and go on as any other number.
#include <gtest/gtest.h>

#include <cmath>

#include "train/report/exchange_report.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class RankTrainingTest : public TrainerTest {
 protected:
  static std::vector<std::string> on(int64_t ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"model.moe.num_experts=8", "train.microbatch_seqs=2", fmt::format("parallel.ranks={}", ranks)});
    return overrides;
  }

  // Training amplifies differences in the last bits: 2e-4 of a loss after these few steps.
  void expect_same_curve(const std::string& name, const std::string& expected_name) const {
    for (const char* tag : {"train/loss", "train/bpb", "train/grad_norm", "valid/loss", "router/layer_01/entropy"}) {
      const auto curve = series(name, tag), expected = series(expected_name, tag);
      ASSERT_EQ(curve.size(), expected.size()) << tag;
      for (const auto& [step, value] : expected) {
        EXPECT_NEAR(curve.at(step), value, 2e-4 * std::abs(value)) << tag << " of step " << step;
      }
    }
    EXPECT_EQ(series(name, "train/tokens_seen"), series(expected_name, "train/tokens_seen"));
    EXPECT_EQ(series(name, "valid/tokens"), series(expected_name, "valid/tokens"));
    EXPECT_EQ(series(name, "valid/bytes"), series(expected_name, "valid/bytes"));
  }
};

TEST_F(RankTrainingTest, LearnsWhatOneRankDoes) {
  run("one", on(1, {"train.steps=12", "train.valid_every=5"}));
  for (const int64_t ranks : {2, 4}) {
    const std::string name = fmt::format("ranks{}", ranks), again = name + "again";
    const TrainSummary summary = run(name, on(ranks, {"train.steps=12", "train.valid_every=5"}));
    EXPECT_EQ(summary.steps, 12);
    EXPECT_EQ(summary.checkpoint.filename(), "step_00000012");
    EXPECT_TRUE(summary.valid.has_value());
    expect_same_curve(name, "one");
    EXPECT_EQ(row(name).status, RunStatus::kCompleted);
    // Cadences, threads and time change nothing.
    run(again, on(ranks, {"train.steps=12", "checkpoint.every=3", "train.log_every=5", "run.threads=5"}));
    expect_same_state(checkpoints(name), checkpoints(again));
    const auto stops = series(again, "checkpoint/stop_s"), writes = series(again, "checkpoint/write_s");
    for (const int64_t step : {3, 6, 9, 12}) {
      EXPECT_GT(stops.at(step), 0.0);
      EXPECT_GT(writes.at(step), 0.0);
    }
    EXPECT_EQ(stops.size(), 4U);
    EXPECT_EQ(writes.size(), 4U);
  }
}

TEST_F(RankTrainingTest, ResumesWithAnotherNumberOfRanks) {
  run("straight", on(1, {"train.steps=12", "train.valid_every=5"}));
  run("straight2", on(2, {"train.steps=12", "train.valid_every=5"}));
  for (const auto& [before, after] : {std::pair<int64_t, int64_t>{2, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    const std::string name = fmt::format("from{}to{}", before, after);
    run(name, on(before, {"train.steps=5", "train.valid_every=5"}));
    resume(name, on(after, {"train.steps=12", "train.valid_every=5"}));
    expect_same_curve(name, "straight");
    EXPECT_EQ(CheckpointReader::open(checkpoints(name)).info().cursor,
              CheckpointReader::open(checkpoints("straight")).info().cursor);
  }
  expect_same_state(checkpoints("from2to2"), checkpoints("straight2"));
}

TEST_F(RankTrainingTest, GoesOnWithEveryNumberOfRanksInTurn) {
  const auto part = [](int64_t ranks, int64_t steps) {
    std::vector<std::string> overrides = {fmt::format("train.steps={}", steps), "train.batch_seqs=12",
                                          "train.microbatch_seqs=1", "model.moe.num_experts=12"};
    if (ranks > 1) overrides.push_back(fmt::format("parallel.bucket_bytes={}", 2000 * ranks));
    return on(ranks, overrides);
  };
  run("straight", part(1, 8));
  run("turns", part(4, 2));
  for (const auto& [ranks, steps] : {std::pair<int64_t, int64_t>{2, 4}, {1, 6}, {3, 8}}) {
    resume("turns", part(ranks, steps));
  }
  for (const char* tag : {"train/loss", "train/grad_norm"}) {
    const auto curve = series("turns", tag), expected = series("straight", tag);
    ASSERT_EQ(curve.size(), 8U);
    for (const auto& [step, value] : expected) EXPECT_NEAR(curve.at(step), value, 2e-4 * std::abs(value)) << step;
  }
}

TEST_F(RankTrainingTest, WithLogicalShardsEveryNumberOfRanksEndsWithTheSameHash) {
  const auto sharded = [](int64_t ranks, int64_t steps) {
    return on(ranks, {"parallel.logical_shards=8", "train.microbatch_seqs=1", "train.valid_every=0",
                      fmt::format("train.steps={}", steps)});
  };
  run("one", sharded(1, 20));
  for (const int64_t ranks : {2, 4, 8}) {
    const std::string name = fmt::format("shards{}", ranks);
    run(name, sharded(ranks, 20));
    expect_same_state(checkpoints(name), checkpoints("one"));
  }
  run("turns", sharded(4, 7));
  resume("turns", sharded(1, 13));
  resume("turns", sharded(8, 20));
  expect_same_state(checkpoints("turns"), checkpoints("one"));
}

// Sums of experts' gradients in bf16 do not depend on ranks, on what is computed again, or on where state lives.
TEST_F(RankTrainingTest, GradientsInBf16AreTheSameOnEveryNumberOfRanks) {
  const auto halves = [](int64_t ranks, int64_t steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"parallel.logical_shards=8", "train.microbatch_seqs=1", "train.valid_every=0",
                             "train.gradients=bf16", fmt::format("train.steps={}", steps)});
    if (ranks > 1) more.emplace_back("parallel.rebalance_every=0");
    return on(ranks, more);
  };
  run("one", halves(1, 12));
  run("two", halves(2, 12));
  run("four", halves(4, 12, {"train.recompute=blocks", "optim.offload=state"}));
  run("turns", halves(2, 5));
  resume("turns", halves(1, 12));
  for (const char* name : {"two", "four", "turns"}) expect_same_state(checkpoints(name), checkpoints("one"));
  // Another run than that with gradients in fp32, and close to it.
  run("fp32", on(1, {"parallel.logical_shards=8", "train.microbatch_seqs=1", "train.valid_every=0", "train.steps=12"}));
  EXPECT_NE(weights_of(checkpoints("one")), weights_of(checkpoints("fp32")));
  for (const auto& [step, loss] : series("fp32", "train/loss")) {
    EXPECT_NEAR(series("one", "train/loss").at(step), loss, 2e-3 * loss) << step;
  }
  EXPECT_TRUE(contains(error_of([&] { resume("fp32", halves(1, 13)); }).what(), "train.gradients: unused != \"bf16\""));
}

TEST_F(RankTrainingTest, GradientsInBf16OfExpertsThatMoveAreRefused) {
  EXPECT_TRUE(contains(error_of([&] {
                         run("moving", on(2, {"train.gradients=bf16", "train.steps=2"}));
                       }).what(),
                       "train.gradients = \"bf16\" with parallel.rebalance_every = 100, parallel.ranks = 2"));
}

// Where state lives is no part of what a run is: it goes on from either, on any number of ranks.
TEST_F(RankTrainingTest, GoesOnWithStateInEitherMemory) {
  const auto with = [](const std::string& offload, int64_t ranks, int64_t steps) {
    return on(ranks, {"parallel.logical_shards=8", "train.microbatch_seqs=1", "train.valid_every=3",
                      "checkpoint.every=4", "optim.experts.optimizer=adamw", "optim.adamw.state=bf16",
                      "optim.muon.state=bf16", "optim.offload=" + offload, fmt::format("train.steps={}", steps)});
  };
  run("device", with("none", 1, 12));
  run("host", with("state", 1, 12));
  run("two", with("state", 2, 12));
  for (const char* name : {"host", "two"}) expect_same_state(checkpoints(name), checkpoints("device"));
  run("turns", with("state", 2, 3));
  resume("turns", with("none", 2, 5));
  resume("turns", with("state", 1, 9));
  resume("turns", with("fit", 1, 12));  // where all fits
  expect_same_state(checkpoints("turns"), checkpoints("device"));
}

// Runs of 16 experts, which move behind every fourth step.
class MovingExpertsTest : public RankTrainingTest {
 protected:
  static std::vector<std::string> moving(int64_t ranks, int64_t steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"model.moe.num_experts=16", fmt::format("train.steps={}", steps)});
    if (ranks > 1) more.emplace_back("parallel.rebalance_every=4");
    return on(ranks, more);
  }
  void expect_near(const std::string& name, const std::string& expected_name) const {
    for (const char* tag : {"train/loss", "train/grad_norm", "router/layer_01/entropy"}) {
      const auto curve = series(name, tag), expected = series(expected_name, tag);
      ASSERT_EQ(curve.size(), expected.size()) << tag;
      for (const auto& [step, value] : expected) EXPECT_NEAR(curve.at(step), value, 2e-4 * std::abs(value)) << step;
    }
  }
};

TEST_F(MovingExpertsTest, LearnTheSameAndGoOnFromWhereTheyAre) {
  run("one", moving(1, 10));
  for (const int64_t ranks : {2, 4}) {
    const std::string name = fmt::format("moving{}", ranks);
    run(name, moving(ranks, 10));
    expect_near(name, "one");
    const auto moves = series(name, "parallel/expert_moves"),
               before = series(name, "parallel/layer_01/load_before_moves"),
               after = series(name, "parallel/layer_01/load_after_moves");
    ASSERT_EQ(moves.size(), 2U);
    EXPECT_GT(moves.at(5), 0);
    EXPECT_GT(before.at(5), kBalancedLoad);
    EXPECT_LE(after.at(5), kBalancedLoad);
    EXPECT_LE(after.at(9), before.at(9));
  }
  for (const int64_t stop : {6, 8}) {  // in the middle between moves, and where they are due
    const std::string name = fmt::format("stopped{}", stop);
    run(name, moving(2, stop, {"checkpoint.every=3"}));
    const ExpertState experts = CheckpointReader::open(checkpoints(name)).info().experts;
    ASSERT_EQ(experts.places.size(), 1U);
    EXPECT_NE(experts.places[0], places_in_order(16));
    const int64_t rows = std::reduce(experts.rows.at(0).begin(), experts.rows.at(0).end());
    EXPECT_EQ(rows, (stop - 4) * 8 * 16 * 2);  // of sequences, positions, choices
    resume(name, moving(2, 10));
    expect_same_state(checkpoints(name), checkpoints("moving2"));
    EXPECT_EQ(series(name, "parallel/layer_01/load_before_moves"),
              series("moving2", "parallel/layer_01/load_before_moves"));
  }
}

TEST_F(MovingExpertsTest, GoOnWithAnotherNumberOfRanks) {
  run("straight", moving(1, 9));
  run("turns", moving(4, 5));
  EXPECT_EQ(verify_checkpoint(checkpoints("turns")), std::nullopt);
  resume("turns", moving(2, 7));
  resume("turns", moving(1, 8));
  resume("turns", moving(4, 9));
  expect_near("turns", "straight");
}

TEST_F(MovingExpertsTest, WithLogicalShardsEndWithTheHashOfOneRank) {
  // In nvfp4 rows of experts have scales and random bits, which are those of the expert wherever it is.
  for (const std::string precision : {"fp32", "nvfp4"}) {
    const auto sharded = [&](int64_t ranks, int64_t steps) {
      return moving(ranks, steps,
                    {"parallel.logical_shards=8", "train.microbatch_seqs=1", "run.precision=" + precision});
    };
    const std::string one = precision + "_one", four = precision + "_four", turns = precision + "_turns";
    run(one, sharded(1, 9));
    run(four, sharded(4, 9));
    EXPECT_GT(series(four, "parallel/expert_moves").at(5), 0);
    expect_same_state(checkpoints(four), checkpoints(one));
    run(turns, sharded(4, 6));
    resume(turns, sharded(2, 9));
    expect_same_state(checkpoints(turns), checkpoints(one));
  }
}

// Without logical shards the tokens of all ranks are one tensor to an expert.
TEST_F(RankTrainingTest, LearnsInNvFp4) {
  const auto low = [](int64_t ranks) {
    return on(ranks, {"train.steps=4", "run.precision=nvfp4", "model.dim=48", "model.moe.expert_dim=40"});
  };
  run("one", low(1));
  run("two", low(2));
  run("again", low(2));
  expect_same_state(checkpoints("again"), checkpoints("two"));
  EXPECT_NEAR(series("two", "train/loss").at(4), series("one", "train/loss").at(4),
              0.01 * series("one", "train/loss").at(4));
}

TEST_F(RankTrainingTest, StartsFromTheWeightsOfACheckpoint) {
  run("first", on(1, {"train.steps=4"}));
  run("second",
      on(2, {"train.steps=1", fmt::format("model.init.from={}", checkpoints("first").string()), "model.moe.bias_rate=0",
             "optim.matrices.lr=0", "optim.experts.lr=0", "optim.router.lr=0", "optim.rest.lr=0"}));
  EXPECT_EQ(weights_of(checkpoints("second")), weights_of(checkpoints("first")));
}

TEST_F(RankTrainingTest, DocumentsAreMaskedOnEveryRank) {
  run("one", on(1, {"data.mask_documents=true", "train.steps=3"}));
  run("two", on(2, {"data.mask_documents=true", "train.steps=3"}));
  expect_same_curve("two", "one");
}

TEST_F(RankTrainingTest, ALossThatIsNotFiniteStopsAllWithTheirLastGoodWeights) {
  const std::vector<std::string> absurd = {"optim.rest.lr=1e30", "optim.schedule.warmup=0"};
  std::vector<std::string> nine = absurd, one = absurd;
  nine.emplace_back("train.steps=9");
  one.emplace_back("train.steps=1");
  const Error error = error_of([&] { run("nan", on(2, nine)); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), "step 2: loss "));
  EXPECT_TRUE(contains(error.what(), "first bad tensor: layers.0."));
  EXPECT_TRUE(contains(error.what(), "on rank 1"));
  EXPECT_EQ(row("nan").status, RunStatus::kFailedNan);
  EXPECT_EQ(row("nan").reason, error.what());
  run("one", on(2, one));
  expect_same_state(checkpoints("nan"), checkpoints("one"));
}

TEST_F(RankTrainingTest, ACollapsedRouterStopsAll) {
  const Error error = error_of([&] {
    run("collapse", on(2, {"model.init.router_std=0", "model.moe.bias_rate=0", "train.steps=9", "optim.router.lr=0"}));
  });
  EXPECT_TRUE(contains(error.what(), "step 1: the router of layer 1 has collapsed"));
  EXPECT_EQ(row("collapse").status, RunStatus::kFailedCollapse);
  // Of the first steps, none is enqueued before the one in front of it has its result (Pace).
  EXPECT_EQ(CheckpointReader::open(checkpoints("collapse")).info().step, 1);
}

TEST_F(RankTrainingTest, WhatRankZeroCannotRecordEndsAll) {
  make_directories(dir_ / "runs");
  write_file_atomically(dir_ / "runs/metrics", "a file where a folder should be");
  const Error error = error_of([&] { run("lost", on(4, {"train.steps=3"})); });
  EXPECT_TRUE(contains(error.what(), "runs/metrics"));
}

}  // namespace
}  // namespace nmoe
