// The losses that steps are trained on: which a run has, what they are, and that they do not depend on how a step is
// divided.
#include "model/heads/objectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "config/load.h"
#include "support/tiny_corpus.h"
#include "train/rank_engines.h"

namespace nmoe {
namespace {

using namespace test;

constexpr int64_t kWords = 50;

Config objectives_config(std::vector<std::string> overrides) {
  overrides.push_back(fmt::format("model.vocab_size={}", kWords));
  return tiny_config("/nowhere", overrides);
}

TEST(Objectives, ARunHasThoseThatCount) {
  const Objectives plain = objectives_of(objectives_config({}).train);
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].objective, &kNextToken);
  EXPECT_EQ(plain[0].coefficient, 1.0);
  const Objectives both = objectives_of(objectives_config({"train.logit_z_loss=1e-4"}).train);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[1].objective, &kLogitZ);
  EXPECT_EQ(both[1].coefficient, 1e-4);
}

TEST(Objectives, ALossThatIsOffIsNotInTheFingerprint) {
  const std::string plain = config_fingerprint(objectives_config({}));
  EXPECT_EQ(config_fingerprint(objectives_config({"train.logit_z_loss=0"})), plain);
  EXPECT_NE(config_fingerprint(objectives_config({"train.logit_z_loss=1e-4"})), plain);
}

// Two microbatches, some targets without a loss.
TEST(Objectives, LogitZLossIsItsDefinition) {
  const Config config = objectives_config({"train.microbatch_seqs=4", "train.logit_z_loss=0.01"});
  const int64_t tokens = config.train.batch_seqs * config.data.seq_len;
  const auto inputs = random_ids(tokens, kWords, 1);
  auto targets = random_ids(tokens, kWords, 2);
  for (size_t i = 0; i < targets.size(); i += 3) targets[i] = -1;
  ReadyEngine ready(config);
  const size_t size = targets.size() / 2;
  std::vector<int32_t> rows(size);
  std::iota(rows.begin(), rows.end(), 0);
  double squares = 0.0, nats = 0.0;
  int64_t num_targets = 0;
  for (const size_t first : {size_t{0}, size}) {
    std::vector<float> logits;
    ready.engine.next_logits(std::span(inputs).subspan(first, size), rows, logits);
    for (size_t i = 0; i < size; ++i) {
      if (targets[first + i] < 0) continue;
      double sum = 0.0;
      for (int64_t v = 0; v < kWords; ++v)
        sum += std::exp(static_cast<double>(logits[i * kWords + static_cast<size_t>(v)]));
      squares += std::pow(std::log(sum), 2);
      nats += std::log(sum) - static_cast<double>(logits[i * kWords + static_cast<size_t>(targets[first + i])]);
      ++num_targets;
    }
  }
  for (const size_t i : {0, 1}) {
    ready.engine.load(static_cast<int64_t>(i), microbatch_of(std::span(inputs).subspan(i * size, size),
                                                             std::span(targets).subspan(i * size, size), {}));
  }
  ready.engine.step({.steps = 1, .tokens = tokens}, num_targets, /*in_detail=*/true);
  const StepResult result = ready.engine.result();
  EXPECT_NEAR(result.loss(kLogitZ), 0.01 * squares / static_cast<double>(num_targets), 1e-6);
  EXPECT_NEAR(result.loss(kNextToken), nats / static_cast<double>(num_targets), 1e-5);
  // Of the next-token loss alone, token by token.
  ASSERT_EQ(result.token_losses.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) EXPECT_EQ(result.token_losses[i] == 0.0f, targets[i] < 0) << i;
  const double sum = std::accumulate(result.token_losses.begin(), result.token_losses.end(), 0.0);
  EXPECT_NEAR(sum, nats, 1e-3);
}

TEST(Objectives, LogitZLossPullsTheLogitsTowardsZero) {
  double with = 0.0, without = 0.0;
  for (const char* coefficient : {"1", "1e-9"}) {
    const Config config = objectives_config({fmt::format("train.logit_z_loss={}", coefficient)});
    ReadyEngine ready(config);
    StepResult result;
    for (int64_t step = 1; step <= 20; ++step) result = random_step(ready.engine, config, 1);
    (coefficient == std::string_view("1") ? with : without) = result.loss(kLogitZ) / std::stod(coefficient);
  }
  EXPECT_LT(with, 0.9 * without);
}

// With logical shards, to the bit.
TEST(Objectives, LossesDoNotDependOnTheRanks) {
  std::vector<std::vector<double>> of_ranks;
  for (const int64_t ranks : {1, 2}) {
    const Config config = objectives_config({"train.microbatch_seqs=2", "train.logit_z_loss=0.01",
                                             "parallel.logical_shards=4", fmt::format("parallel.ranks={}", ranks)});
    std::mutex mutex;
    run_engines(config, [&](ReadyEngine& ready) {
      std::vector<double> losses;
      for (int64_t step = 1; step <= 3; ++step) {
        for (const StepLoss& loss : random_step(ready.engine, config, step).losses) losses.push_back(loss.value);
      }
      const std::scoped_lock lock(mutex);
      of_ranks.push_back(losses);
    });
  }
  ASSERT_EQ(of_ranks.size(), 3u);
  EXPECT_EQ(of_ranks[0].size(), 6u);
  EXPECT_EQ(of_ranks[1], of_ranks[0]);
  EXPECT_EQ(of_ranks[2], of_ranks[0]);
}

}  // namespace
}  // namespace nmoe
