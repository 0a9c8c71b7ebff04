// Several ranks train what one does, end as one, and go on as any other number.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "parallel/thread_group.h"
#include "support/tensors.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::near;
using test::random_step;
using test::ReadyEngine;
using test::snapshot;
using Bytes = std::map<std::string, std::string>;

constexpr auto kTimeout = std::chrono::minutes(1);

// Batches of 8 sequences in microbatches of 2.
Config config_of(int64_t ranks) {
  return test::tiny_config("/nowhere", {"model.vocab_size=50", "model.moe.num_experts=8", "train.microbatch_seqs=2",
                                        "model.moe.balance_loss=1e-3", fmt::format("parallel.ranks={}", ranks)});
}

// Runs `drive` on an engine a rank.
void run_engines(const Config& config, const std::function<void(ReadyEngine&)>& drive) {
  run_ranks(config.parallel.ranks, kTimeout, [&](Communicator& communicator) {
    ReadyEngine ready(config, 1, communicator);
    drive(ready);
  });
}

Weight& weight(Engine& engine, const std::string& name) { return engine.model().weights().at(name); }

// The bytes of a rank's weights; on the CPU these are their masters.
Bytes weight_bytes(Engine& engine) {
  Bytes bytes;
  for (const Weight& weight : engine.model().weights().all()) {
    bytes[weight.spec.name].assign(static_cast<const char*>(weight.value.raw()),
                                   static_cast<size_t>(weight.value.num_bytes()));
  }
  return bytes;
}

// Only the order of sums over tokens differs, as it does between microbatches.
TEST(RankEngines, AddUpToTheBatch) {
  const Config whole = config_of(1);
  ReadyEngine one(whole);
  const StepResult expected = random_step(one.engine, whole, 1);
  const RouterHealth expected_health = one.engine.router_health().at(0);
  for (const int64_t ranks : {2, 4}) {
    const Config config = config_of(ranks);
    run_engines(config, [&](ReadyEngine& ready) {
      ASSERT_EQ(ready.engine.num_microbatches(), 4 / ranks);
      const StepResult result = random_step(ready.engine, config, 1);
      EXPECT_LE(std::abs(result.loss - expected.loss), 1e-6 * expected.loss);
      EXPECT_LE(std::abs(result.grad_norm - expected.grad_norm), 1e-5 * expected.grad_norm);
      auto other = one.engine.model().weights().all().begin();
      for (const Weight& mine : ready.engine.model().weights().all()) {
        if (mine.grad.defined()) {
          const int64_t first = mine.offset + mine.updated.offset, n = mine.updated.extent;
          const Tensor theirs = other->grad.reshape({other->grad.num_elements()}).rows(first, first + n);
          EXPECT_TRUE(near(mine.updated_of(mine.grad).reshape({n}), theirs, 2e-3)) << mine.spec.name;
        }
        ++other;
      }
      const RouterHealth health = ready.engine.router_health().at(0);
      EXPECT_EQ(health.counts, expected_health.counts);
      EXPECT_EQ(health.bias_range, expected_health.bias_range);
      EXPECT_NEAR(health.entropy, expected_health.entropy, 1e-6);
      EXPECT_NEAR(health.balance_loss, expected_health.balance_loss, 1e-9);
    });
  }
}

TEST(RankEngines, KeepTheSameBitsOnEveryRankAndEveryTime) {
  for (const int64_t ranks : {2, 4}) {
    const Config config = config_of(ranks);
    std::array<std::vector<Bytes>, 2> states;
    for (auto& of_ranks : states) {
      of_ranks.resize(static_cast<size_t>(ranks));
      run_engines(config, [&](ReadyEngine& ready) {
        for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
        of_ranks[static_cast<size_t>(ready.engine.rank().index())] = weight_bytes(ready.engine);
      });
    }
    EXPECT_EQ(states[0], states[1]);
    for (const Bytes& state : states[0]) {
      for (const auto& [name, bytes] : state) {
        if (!contains(name, "experts_")) {
          EXPECT_EQ(bytes, states[0][0].at(name)) << name;
        }
      }
    }
  }
}

// An embedding and a head of several chunks, so that ranks update parts of them.
TEST(RankEngines, UpdatePartsOfWhatAllHave) {
  const auto wide = [](int64_t ranks) {
    return test::tiny_config("/nowhere",
                             {"model.vocab_size=6000", "model.dim=64", "model.moe.num_experts=8", "train.batch_seqs=4",
                              "train.microbatch_seqs=1", "run.seed=3", fmt::format("parallel.ranks={}", ranks)});
  };
  constexpr int64_t kSteps = 2;
  const Config whole = wide(1);
  ReadyEngine one(whole);
  for (int64_t step = 1; step <= kSteps; ++step) random_step(one.engine, whole, step);
  one.engine.stage();
  one.engine.wait_staged();
  std::map<std::string, Tensor> expected;
  for (const auto* parts : {&one.engine.staging().model, &one.engine.staging().optimizer}) {
    for (const NamedPart& part : *parts) expected[part.name] = part.tensor.reshape({part.tensor.num_elements()});
  }
  for (const int64_t ranks : {2, 4}) {
    const Config config = wide(ranks);
    std::mutex mutex;
    std::map<std::string, std::map<int64_t, int64_t>> parts;  // of each tensor: [begin, end) that are written
    std::set<int64_t> cuts;                                   // of the head
    run_engines(config, [&](ReadyEngine& ready) {
      for (int64_t step = 1; step <= kSteps; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
      ready.engine.stage();
      ready.engine.wait_staged();
      const StateTensors& state = ready.engine.staging();
      const std::scoped_lock lock(mutex);
      size_t i = 0;
      for (const auto* of_kind : {&state.model, &state.optimizer}) {
        for (const NamedPart& part : *of_kind) {
          if (state.is_written[i++] == 0) continue;
          const int64_t begin = part.offset, end = begin + part.tensor.num_elements();
          EXPECT_TRUE(parts[part.name].emplace(begin, end).second) << part.name << " has two writers";
          EXPECT_TRUE(near(part.tensor.reshape({end - begin}), expected.at(part.name).rows(begin, end), 2e-2))
              << part.name;
          if (part.name == "head") cuts.insert(begin);
        }
      }
    });
    EXPECT_EQ(cuts.size(), ranks == 2 ? 1U : 2U);  // two ranks have one of the two large weights each
    for (const auto& [name, tensor] : expected) {
      int64_t end = 0;
      for (const auto& [begin, part_end] : parts[name]) {
        EXPECT_EQ(begin, end) << name;
        end = part_end;
      }
      EXPECT_EQ(end, tensor.num_elements()) << name;
    }
  }
}

// What a checkpoint would hold, put together from what each rank writes of it.
Bytes whole_state(const Config& config, int64_t steps) {
  Bytes whole;
  std::mutex mutex;
  run_engines(config, [&](ReadyEngine& ready) {
    for (int64_t step = 1; step <= steps; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
    ready.engine.stage();
    ready.engine.wait_staged();
    const StateTensors& state = ready.engine.staging();
    const std::scoped_lock lock(mutex);
    size_t i = 0;
    for (const auto* of_kind : {&state.model, &state.optimizer}) {
      for (const NamedPart& part : *of_kind) {
        if (state.is_written[i++] == 0) continue;
        const size_t element = dtype_bytes(part.tensor.dtype());
        std::string& bytes = whole[part.name];
        bytes.resize(static_cast<size_t>(part.shape.num_elements()) * element);
        std::memcpy(bytes.data() + static_cast<size_t>(part.offset) * element, part.tensor.raw(),
                    static_cast<size_t>(part.tensor.num_bytes()));
      }
    }
  });
  return whole;
}

// Under routing that gives experts few rows of a shard, or none; with a weight that is cut, and with Muon.
TEST(RankEngines, WithLogicalShardsTheBitsAreThoseOfOneRank) {
  for (const char* experts : {"muon", "adamw"}) {
    const auto with = [&](int64_t ranks) {
      return test::tiny_config(
          "/nowhere", {"model.vocab_size=5000", "model.dim=64", "model.moe.num_experts=16",
                       "model.moe.balance_loss=1e-3", "train.microbatch_seqs=1", "parallel.logical_shards=8",
                       fmt::format("parallel.ranks={}", ranks), fmt::format("optim.experts.optimizer={}", experts)});
    };
    const Bytes expected = whole_state(with(1), 3);
    for (const int64_t ranks : {2, 4, 8}) {
      EXPECT_EQ(test::differences(whole_state(with(ranks), 3), expected), std::vector<std::string>()) << ranks;
    }
  }
}

TEST(RankEngines, WhatIsNotFiniteOnOneStopsAll) {
  const Config config = config_of(2);
  std::array<int64_t, 2> places{};
  run_engines(config, [&](ReadyEngine& ready) {
    ASSERT_TRUE(random_step(ready.engine, config, 1).finite);
    const bool is_bad = ready.engine.rank().index() == 1;
    if (is_bad) ready.ops().fill({weight(ready.engine, "layers.1.moe.experts_in").value, 3e38});
    const Bytes before = snapshot(ready.engine);
    EXPECT_FALSE(random_step(ready.engine, config, 2).finite);
    EXPECT_EQ(test::differences(before, snapshot(ready.engine)), std::vector<std::string>());
    const NonFinite first = ready.engine.find_non_finite();
    places[is_bad ? 1 : 0] = first.place;
    if (is_bad) {
      EXPECT_TRUE(contains(first.name, "layers.1.moe.expert_hidden"));
    } else {  // which gets it back for its tokens
      EXPECT_TRUE(contains(first.name, "layers.1.mlp_out"));
    }
  });
  EXPECT_LT(places[1], places[0]);
}

// Experts that no token goes to, and one rank whose experts all tokens go to.
TEST(RankEngines, ComputeTheSameUnderAnyRouting) {
  for (const int64_t chosen : {0, 3}) {
    const auto skew = [&](ReadyEngine& ready) {
      const Tensor bias = weight(ready.engine, "layers.1.moe.router_bias").value;
      ready.ops().fill({bias, -1e3});
      ready.ops().fill({bias.rows(chosen, chosen + 2), 1e3});
    };
    const Config whole = config_of(1);
    ReadyEngine one(whole);
    skew(one);
    const StepResult expected = random_step(one.engine, whole, 1);
    const auto expected_counts = one.engine.router_health().at(0).counts;
    for (const int64_t ranks : {2, 4}) {
      const Config config = config_of(ranks);
      run_engines(config, [&](ReadyEngine& ready) {
        skew(ready);
        const StepResult result = random_step(ready.engine, config, 1);
        EXPECT_LE(std::abs(result.loss - expected.loss), 1e-6 * expected.loss);
        EXPECT_LE(std::abs(result.grad_norm - expected.grad_norm), 1e-5 * expected.grad_norm);
        const auto counts = ready.engine.router_health().at(0).counts;
        EXPECT_EQ(counts[static_cast<size_t>(chosen)], whole.train.batch_seqs * whole.data.seq_len);
        EXPECT_EQ(counts, expected_counts);
      });
    }
  }
}

TEST(RankEngines, OneThatFailsEndsTheStepsOfAll) {
  const Config config = config_of(4);
  const Error error = error_of([&] {
    run_engines(config, [&](ReadyEngine& ready) {
      for (int64_t step = 1;; ++step) {
        if (ready.engine.rank().index() == 2 && step == 3) throw runtime_error("no more", "");
        random_step(ready.engine, config, step);
        EXPECT_LE(step, 2);
      }
    });
  });
  EXPECT_EQ(std::string(error.what()), "no more");
}

class RankTrainingTest : public TrainerTest {
 protected:
  static std::vector<std::string> on(int64_t ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"model.moe.num_experts=8", "train.microbatch_seqs=2", fmt::format("parallel.ranks={}", ranks)});
    return overrides;
  }

  // Training amplifies differences in the last bits: 2e-4 of a loss after these few steps.
  void expect_same_curve(const std::string& name, const std::string& expected_name) const {
    for (const char* tag : {"train/loss", "train/bpb", "train/grad_norm", "valid/loss", "router/layer_00/entropy"}) {
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
    return on(ranks, {fmt::format("train.steps={}", steps), "train.batch_seqs=12", "train.microbatch_seqs=1",
                      "model.moe.num_experts=12"});
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
  EXPECT_TRUE(contains(error.what(), "step 1: the router of MoE layer 0 has collapsed"));
  EXPECT_EQ(row("collapse").status, RunStatus::kFailedCollapse);
  // The step that was on its way is saved with it.
  EXPECT_EQ(CheckpointReader::open(checkpoints("collapse")).info().step, 2);
}

TEST_F(RankTrainingTest, WhatRankZeroCannotRecordEndsAll) {
  make_directories(dir_ / "runs");
  write_file_atomically(dir_ / "runs/metrics", "a file where a folder should be");
  const Error error = error_of([&] { run("lost", on(4, {"train.steps=3"})); });
  EXPECT_TRUE(contains(error.what(), "runs/metrics"));
}

}  // namespace
}  // namespace nmoe
