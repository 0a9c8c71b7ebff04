// Laws of loss against ones that are known, and what a ladder's file and stored prediction mean.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "research/ladder/ladder_file.h"
#include "research/ladder/ladder_report.h"
#include "research/ladder/scaling_law.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe::test {
namespace {

// Chinchilla's numbers, of models from 1 M parameters on.
double known_loss(double parameters, double tokens) {
  return 1.69 + 406.4 * std::pow(parameters, -0.34) + 410.7 * std::pow(tokens, -0.28);
}
ScalingRun run_of(double parameters, double tokens, double noise = 0.0) {
  return {parameters, tokens, 6.0 * parameters * tokens, known_loss(parameters, tokens) * (1.0 + noise)};
}
// Normal, by Box and Muller.
double normal(const Philox& random, uint64_t index) {
  return std::sqrt(-2.0 * std::log(1.0 - random.uniform(2 * index))) *
         std::cos(2.0 * M_PI * random.uniform(2 * index + 1));
}

TEST(ScalingLaw, FindsAKnownLawOfBoth) {
  std::vector<ScalingRun> runs;
  for (const double parameters : {1e6, 3e6, 1e7, 3e7}) {
    for (const double ratio : {5.0, 20.0, 80.0}) runs.push_back(run_of(parameters, ratio * parameters));
  }
  const ScalingLaw law(LawOf::kParametersAndTokens, runs);
  EXPECT_NEAR(law.floor().value, 1.69, 0.01);
  EXPECT_NEAR(law.terms()[0].exponent.value, 0.34, 1e-3);
  EXPECT_NEAR(law.terms()[1].exponent.value, 0.28, 1e-3);
  EXPECT_NEAR(law.terms()[0].coefficient.value, 406.4 * std::pow(law.terms()[0].unit, -0.34), 0.02);
  EXPECT_LT(law.scatter(), 1e-5);
  EXPECT_NEAR(law.predict(run_of(1e9, 2e10), 1).value, known_loss(1e9, 2e10), 0.01);
  // The best split of 1e21 FLOPs, by trying.
  double best = 0.0, least = 1e9;
  for (double log = std::log(1e7); log < std::log(1e11); log += 1e-3) {
    const double parameters = std::exp(log), loss = known_loss(parameters, 1e21 / 6.0 / parameters);
    if (loss < least) least = loss, best = parameters;
  }
  EXPECT_NEAR(law.optimal_parameters(1e21)->value / best, 1.0, 0.05);
}

TEST(ScalingLaw, FindsAKnownLawOfOne) {
  std::vector<ScalingRun> runs;
  for (const double flops : {1e12, 4e12, 16e12, 64e12}) {
    runs.push_back({flops, flops, flops, 2.0 + 3.0 * std::pow(flops / 1e12, -0.2)});
  }
  const ScalingLaw law(LawOf::kFlops, runs);
  EXPECT_NEAR(law.floor().value, 2.0, 1e-4);
  EXPECT_NEAR(law.terms()[0].exponent.value, 0.2, 1e-4);
  EXPECT_NEAR(law.predict({.flops = 1024e12}, 1).value, 2.0 + 3.0 * std::pow(1024.0, -0.2), 1e-4);
  EXPECT_LT(*law.predict({.flops = 1024e12}, 1).half_width, 1e-3);
  EXPECT_LT(naive_prediction(runs, 1024e12), law.predict({.flops = 1024e12}, 1).value - 0.05) << "no floor";
  // Without one, it is 0, and its number is not among those that have an interval.
  for (ScalingRun& run : runs) run.loss = 3.0 * std::pow(run.flops / 1e12, -0.2) * (run.flops > 2e13 ? 0.999 : 1.0);
  const ScalingLaw straight(LawOf::kFlops, runs);
  EXPECT_EQ(straight.floor().value, 0.0);
  EXPECT_FALSE(straight.floor().half_width.has_value());
  EXPECT_EQ(straight.degrees(), 2);
}

// How often 95 % intervals have what they should: the law's own mean and a new run's, four times beyond the runs.
TEST(ScalingLaw, IntervalsHaveTheTruthAsOftenAsTheySay) {
  constexpr int kTries = 300;
  int inside = 0, exponents = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Philox random(static_cast<uint64_t>(attempt), "noise of a ladder");
    std::vector<ScalingRun> runs;
    uint64_t drawn = 0;
    const auto loss = [&](double flops) {
      return (2.0 + 1.5 * std::pow(flops, -0.3)) * (1.0 + 0.003 * normal(random, drawn++));
    };
    for (const double flops : {1.0, 4.0, 16.0, 64.0, 256.0}) {
      for (int seed = 0; seed < 3; ++seed) runs.push_back({flops, flops, flops, loss(flops)});
    }
    const ScalingLaw law(LawOf::kFlops, runs);
    const Estimate predicted = law.predict({.flops = 1024.0}, 1);
    ASSERT_TRUE(predicted.half_width.has_value());
    inside += std::abs(loss(1024.0) - predicted.value) <= *predicted.half_width;
    const Estimate& exponent = law.terms()[0].exponent;
    exponents += std::abs(exponent.value - 0.3) <= *exponent.half_width;
  }
  EXPECT_GE(inside, 270) << "of 300, 285 expected";
  EXPECT_LE(inside, 297);
  EXPECT_GE(exponents, 265);
}

// Of both, with noise: what it is for is the best number of parameters.
TEST(ScalingLaw, TheOptimumHasAnInterval) {
  int inside = 0;
  constexpr int kTries = 20;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Philox random(static_cast<uint64_t>(attempt), "noise of a grid");
    std::vector<ScalingRun> runs;
    for (const double parameters : {1e6, 3e6, 1e7, 3e7, 1e8}) {
      for (const double ratio : {3.0, 10.0, 30.0, 100.0}) {
        runs.push_back(run_of(parameters, ratio * parameters, 0.002 * normal(random, runs.size())));
      }
    }
    const ScalingLaw law(LawOf::kParametersAndTokens, runs);
    // By the exact law: alpha A N^-alpha = beta B (C / 6 N)^-beta.
    const double log = (std::log(0.34 * 406.4) - std::log(0.28 * 410.7) + 0.28 * std::log(1e19 / 6.0)) / 0.62;
    const Estimate best = *law.optimal_parameters(1e19);
    ASSERT_TRUE(best.half_width.has_value());
    inside += std::abs(std::log(best.value) - log) <= std::log1p(*best.half_width);
  }
  EXPECT_GE(inside, 16);
}

TEST(ScalingLaw, OneRunThatWentWrongDoesNotBendIt) {
  std::vector<ScalingRun> runs;
  for (const double parameters : {1e6, 2e6, 4e6, 8e6, 16e6}) {
    for (int seed = 0; seed < 2; ++seed)
      runs.push_back(run_of(parameters, 20.0 * parameters, seed == 0 ? 1e-3 : -1e-3));
  }
  const double before = ScalingLaw(LawOf::kFlops, runs).predict(run_of(64e6, 1280e6), 1).value;
  EXPECT_NEAR(before, known_loss(64e6, 1280e6), 0.02);
  runs[4].loss *= 1.2;
  EXPECT_NEAR(ScalingLaw(LawOf::kFlops, runs).predict(run_of(64e6, 1280e6), 1).value, before, 0.05);
}

TEST(ScalingLaw, WhatIsNotDeterminedIsRefusedOrHasNoInterval) {
  std::vector<ScalingRun> runs = {run_of(1e6, 2e7), run_of(2e6, 4e7)};
  EXPECT_TRUE(contains(error_of([&] { ScalingLaw(LawOf::kFlops, runs); }).what(), "needs runs of 3 sizes, and 2"));
  runs.push_back(run_of(4e6, 8e7));
  const Estimate exact = ScalingLaw(LawOf::kFlops, runs).predict(run_of(8e6, 16e7), 1);
  EXPECT_NEAR(exact.value, known_loss(8e6, 16e7), 0.02);
  EXPECT_FALSE(exact.half_width.has_value()) << "three runs, three numbers";
  for (const double parameters : {8e6, 16e6}) runs.push_back(run_of(parameters, 20.0 * parameters));
  const Error error = error_of([&] { ScalingLaw(LawOf::kParametersAndTokens, runs); });
  EXPECT_TRUE(contains(error.what(), "grow together"));
  EXPECT_TRUE(contains(error.remedy(), "ladder.flops"));
}

constexpr const char* kLadder = R"([sweep]
base = "tiny.toml"
[sweep.keys]
model.dim = [16, 24, 32]
model.dense_dim = "= 2 * model.dim"
)";

LadderFile ladder_of(const std::string& ladder, const std::string& sweep = kLadder) {
  return parse_ladder(sweep + ladder, "some/sizes.toml");
}

TEST(LadderFile, SaysTargetsAndLaws) {
  const LadderFile file = ladder_of(
      "[ladder]\ntargets = [48]\ntokens_per_parameter = 20\n[ladder.laws]\nrate = \"1\"\n[train]\nlog_every = 2");
  EXPECT_EQ(file.targets, std::vector<Value>{int64_t{48}});
  EXPECT_EQ(file.tokens_per_parameter, std::vector{20.0});
  EXPECT_EQ(file.target_tokens_per_parameter, 20.0);
  EXPECT_EQ(file.rate_law, "1");
  EXPECT_EQ(file.decay_law, "sqrt(batch) / tokens");
  EXPECT_EQ(file.sweep.overrides, std::vector<std::string>{"train.log_every=2"});
  EXPECT_EQ(ladder_of("[ladder]\nflops = [1e9, 2e9]").flops, (std::vector{1e9, 2e9}));
}

TEST(LadderFile, FaultsHavePlaceAndRemedy) {
  const auto expect = [](const std::string& ladder, const char* what, const char* remedy,
                         const std::string& sweep = kLadder) {
    const Error error = error_of([&] { ladder_of(ladder, sweep); });
    EXPECT_TRUE(contains(error.what(), what));
    EXPECT_TRUE(contains(error.remedy(), remedy));
    EXPECT_EQ(error.exit_code(), 2);
  };
  expect("", "there is no [ladder]", "n research sweep");
  expect("[ladder]\ntargets = [48]", "needs either tokens_per_parameter or flops", "set one");
  expect("[ladder]\nflops = 1e9\ntokens_per_parameter = 1", "needs either", "set one");
  expect("[ladder]\ntarget = [48]", "some/sizes.toml:7: ladder has no key 'target'", "did you mean 'targets'?");
  expect("[ladder]\nflops = 1e9\ntargets = [48]", "how many tokens the targets get", "target_tokens_per_parameter");
  expect("[ladder]\nflops = 0", "must be above 0", "correct");
  expect("[ladder]\nflops = [1e9, 1e9]", "twice", "remove");
  expect("[ladder]\ntokens_per_parameter = 1\ntargets = [32]", "both a size and a target", "remove one");
  expect("[ladder]\ntokens_per_parameter = 1\ntargets = [32.5]", "no whole number", "correct");
  expect("[ladder]\ntokens_per_parameter = 1\n[ladder.laws]\nrate = 1", "an expression in quotes", "\"1\"");
  expect("[ladder]\ntokens_per_parameter = 1\n[ladder.laws]\nrates = \"1\"", "no key 'rates'", "'rate'");
  const std::string more = std::string(kLadder) + "model.num_layers = [2, 3]\n";
  expect("[ladder]\ntokens_per_parameter = 1", "one dial", "follow from it", more);
  const std::string halved = std::string(kLadder) + "[sweep.halving]\nat = [0.5]\n";
  expect("[ladder]\ntokens_per_parameter = 1", "sweep.halving", "remove", halved);
  expect("[ladder]\ntokens_per_parameter = 1", "sweep.goal is valid/bpb", "valid/loss",
         "[sweep]\nbase = \"tiny.toml\"\ngoal = \"valid/bpb\"\n[sweep.keys]\nmodel.dim = [16, 24, 32]\n");
}

class LadderTest : public TempDirTest {};

TEST_F(LadderTest, APredictionIsStoredOnce) {
  StoredPrediction prediction{.law = LawOf::kFlops, .runs = {"a", "b"}};
  prediction.targets.push_back({.point = 4,
                                .values = "model.dim=48",
                                .dial = 48.0,
                                .size = {1e6, 2e7, 1.2e14, 3.5},
                                .half_width = 0.1,
                                .naive = 3.4,
                                .seeds = 2});
  prediction.targets.push_back({.point = 5});
  EXPECT_FALSE(read_prediction(dir_).has_value());
  write_prediction(dir_, prediction);
  const StoredPrediction read = *read_prediction(dir_);
  EXPECT_EQ(read.law, LawOf::kFlops);
  EXPECT_EQ(read.runs, prediction.runs);
  EXPECT_EQ(read.targets[0].size.loss, 3.5);
  EXPECT_EQ(read.targets[0].half_width, 0.1);
  EXPECT_EQ(read.targets[0].seeds, 2);
  EXPECT_FALSE(read.targets[1].half_width.has_value());
  EXPECT_TRUE(contains(error_of([&] { write_prediction(dir_, prediction); }).what(), "a prediction is made once"));
  write_file_atomically(prediction_path(dir_), "{}");
  EXPECT_TRUE(contains(error_of([&] { read_prediction(dir_); }).what(), "is no ladder's prediction"));
}

}  // namespace
}  // namespace nmoe::test
