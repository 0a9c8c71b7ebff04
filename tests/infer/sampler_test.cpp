#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "infer/seen_ids.h"
#include "support/errors.h"

namespace nmoe {
namespace {

int32_t sample_token(const std::vector<float>& logits, const SamplingOptions& options, uint64_t position,
                     const std::vector<int32_t>& seen = {}) {
  Sampler sampler;
  return sampler.sample(logits, options, position, seen);
}

// Logits whose softmax is `probabilities`, up to a constant that must not matter.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

// The share of each token in samples at positions 0, 1, 2, ...
std::vector<double> frequencies(const std::vector<float>& logits, const SamplingOptions& options,
                                uint64_t num_samples) {
  std::vector<double> shares(logits.size());
  for (uint64_t position = 0; position < num_samples; ++position) {
    shares[static_cast<size_t>(sample_token(logits, options, position))] += 1.0 / static_cast<double>(num_samples);
  }
  return shares;
}

// Within five standard deviations of what independent samples would show.
void expect_frequencies(const std::vector<double>& shares, const std::vector<double>& expected, uint64_t num_samples) {
  for (size_t id = 0; id < expected.size(); ++id) {
    const double p = expected[id];
    const double deviation = std::sqrt(p * (1 - p) / static_cast<double>(num_samples));
    EXPECT_LE(std::abs(shares[id] - p), 5 * deviation + 1e-9) << "token " << id;
  }
}

std::set<int32_t> support(const std::vector<double>& probabilities, const SamplingOptions& options) {
  std::set<int32_t> tokens;
  for (uint64_t position = 0; position < 2000; ++position) {
    tokens.insert(sample_token(logits_of(probabilities), options, position));
  }
  return tokens;
}

using Tokens = std::set<int32_t>;

TEST(SamplerTest, TemperatureZeroTakesTheLargestLogit) {
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample_token({-1, 2, 1.999f, -5}, {.temperature = 0}, position), 1);
  }
}

TEST(SamplerTest, TiesGoToTheLowerId) {
  EXPECT_EQ(sample_token({0, 3, 3, 3}, {.temperature = 0}, 0), 1);
  // A nucleus that has room for one of two equals.
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(sample_token({0, 3, 3}, {.top_p = 0.3}, position), 1);
  }
}

TEST(SamplerTest, FrequenciesAreTheProbabilities) {
  const std::vector<double> probabilities = {0.4, 0.05, 0.3, 0.2, 0.05};
  constexpr uint64_t kSamples = 20'000;
  expect_frequencies(frequencies(logits_of(probabilities), {.seed = 3}, kSamples), probabilities, kSamples);
}

TEST(SamplerTest, TemperatureDividesTheLogits) {
  const std::vector<double> probabilities = {0.6, 0.3, 0.1};
  constexpr uint64_t kSamples = 20'000;
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> expected;
    double sum = 0;
    for (const double p : probabilities) {
      expected.push_back(std::pow(p, 1 / temperature));
      sum += expected.back();
    }
    for (double& p : expected) p /= sum;
    const SamplingOptions options = {.temperature = temperature, .seed = 4};
    expect_frequencies(frequencies(logits_of(probabilities), options, kSamples), expected, kSamples);
  }
}

// The likeliest tokens whose probabilities just reach top_p.
TEST(SamplerTest, NucleusByHand) {
  const std::vector<double> probabilities = {0.1, 0.5, 0.06, 0.3, 0.04};
  EXPECT_EQ(support(probabilities, {.top_p = 0.0}), (Tokens{1}));  // never none
  EXPECT_EQ(support(probabilities, {.top_p = 0.49}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.top_p = 0.51}), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, {.top_p = 0.79}), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, {.top_p = 0.81}), (Tokens{0, 1, 3}));
  EXPECT_EQ(support(probabilities, {.top_p = 0.95}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(support(probabilities, {.top_p = 1.0}), (Tokens{0, 1, 2, 3, 4}));
}

TEST(SamplerTest, InsideTheNucleusProportionsStay) {
  constexpr uint64_t kSamples = 20'000;
  const auto shares = frequencies(logits_of({0.1, 0.5, 0.06, 0.3, 0.04}), {.top_p = 0.7, .seed = 5}, kSamples);
  expect_frequencies(shares, {0, 5.0 / 8, 0, 3.0 / 8, 0}, kSamples);
}

TEST(SamplerTest, TopKByHand) {
  const std::vector<double> probabilities = {0.1, 0.5, 0.06, 0.3, 0.04};
  EXPECT_EQ(support(probabilities, {.top_k = 1}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.top_k = 3}), (Tokens{0, 1, 3}));
  EXPECT_EQ(support(probabilities, {.top_k = 5}), (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(probabilities, {.top_k = 900}), (Tokens{0, 1, 2, 3, 4}));
  for (uint64_t position = 0; position < 200; ++position) {  // one of two equals: the lower id
    EXPECT_EQ(sample_token({0, 3, 3}, {.top_k = 1}, position), 1);
  }
}

TEST(SamplerTest, MinPByHand) {
  const std::vector<double> probabilities = {0.1, 0.5, 0.06, 0.3, 0.04};
  EXPECT_EQ(support(probabilities, {.min_p = 1.0}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.min_p = 0.61}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.min_p = 0.59}), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, {.min_p = 0.15}), (Tokens{0, 1, 3}));
}

// Each step sees what the one before left, renormalised: of the three likeliest, 0.5 / 0.9 is more than top_p, where
// 0.5 of all is less; and temperature comes before them all.
TEST(SamplerTest, StepsApplyInOrder) {
  const std::vector<double> probabilities = {0.1, 0.5, 0.06, 0.3, 0.04};
  EXPECT_EQ(support(probabilities, {.top_p = 0.54}), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, {.top_k = 3, .top_p = 0.54}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.top_k = 3, .top_p = 0.6, .min_p = 0.5}), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, {.temperature = 0.5, .top_p = 0.7}), (Tokens{1}));
  EXPECT_EQ(support(probabilities, {.temperature = 0.5, .min_p = 0.5}), (Tokens{1}));
  constexpr uint64_t kSamples = 20'000;
  const auto shares = frequencies(logits_of(probabilities), {.top_k = 3, .min_p = 0.5, .seed = 6}, kSamples);
  expect_frequencies(shares, {0, 5.0 / 8, 0, 3.0 / 8, 0}, kSamples);
}

// As transformers does: positive logits are divided, negative ones multiplied, once however often the id was seen.
TEST(SamplerTest, RepetitionPenalty) {
  const SamplingOptions greedy = {.repetition_penalty = 2.0, .temperature = 0};
  EXPECT_EQ(sample_token({3, 2, 1}, greedy, 0, {}), 0);
  EXPECT_EQ(sample_token({3, 2, 1}, greedy, 0, {0}), 1);
  EXPECT_EQ(sample_token({3.9f, 1.9f, 1}, greedy, 0, {0, 0, 0}), 0);  // 1.95 and not 0.4875
  EXPECT_EQ(sample_token({-1, -1.5f, -9}, greedy, 0, {0}), 1);
  EXPECT_EQ(sample_token({3, 2, 1}, greedy, 0, {0, 1, 700}), 0);
  constexpr uint64_t kSamples = 20'000;
  std::vector<double> shares(2);
  for (uint64_t position = 0; position < kSamples; ++position) {
    shares[static_cast<size_t>(sample_token({2, -1}, {.repetition_penalty = 4.0}, position, {1, 0, 1}))] +=
        1.0 / kSamples;
  }
  const double p = 1 / (1 + std::exp(-4.0 - 0.5));
  expect_frequencies(shares, {p, 1 - p}, kSamples);
}

TEST(SamplerTest, OptionsOutOfRangeAreNamed) {
  const auto fault = [](const SamplingOptions& options) {
    return std::string(test::error_of([&] { check_sampling(options); }).what());
  };
  EXPECT_NO_THROW(check_sampling({}));
  EXPECT_NO_THROW(check_sampling({.temperature = 0, .top_p = 0, .min_p = 1}));
  EXPECT_EQ(fault({.repetition_penalty = 0}), "repetition_penalty is 0");
  EXPECT_EQ(fault({.temperature = -1}), "temperature is -1");
  EXPECT_EQ(fault({.temperature = NAN}), "temperature is nan");
  EXPECT_EQ(fault({.top_k = -2}), "top_k is -2");
  EXPECT_EQ(fault({.top_p = 1.5}), "top_p is 1.5");
  EXPECT_EQ(fault({.min_p = NAN}), "min_p is nan");
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreAnError) {
  const std::string fault = test::error_of([] { sample_token({NAN, 1}, {}, 3); }).what();
  EXPECT_EQ(fault, "the largest logit of an output's token 3 is not finite");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_THROW(sample_token({-kInfinity, -kInfinity}, {.temperature = 0}, 0), Error);
}

TEST(SamplerTest, SeedAndPositionDecideAlone) {
  const std::vector<float> even(64, 0.0f);
  std::vector<int32_t> first, again, other;
  for (uint64_t position = 0; position < 100; ++position) {
    first.push_back(sample_token(even, {.seed = 1}, position));
    other.push_back(sample_token(even, {.seed = 2}, position));
  }
  for (uint64_t position = 100; position-- > 0;) {
    again.insert(again.begin(), sample_token(even, {.seed = 1}, position));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  EXPECT_GT(std::set(first.begin(), first.end()).size(), 32u);
}

TEST(SamplerTest, LogitsOfAnySize) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  EXPECT_EQ(sample_token({-kHuge, kHuge, 0}, {}, 0), 1);
  EXPECT_EQ(sample_token({-1e30f, -1e20f, -1e30f}, {.temperature = 0.1}, 0), 1);
  EXPECT_EQ(sample_token({7}, {}, 0), 0);
  // A token that is ruled out.
  const std::vector<float> barred = {-std::numeric_limits<float>::infinity(), 0, 0};
  for (uint64_t position = 0; position < 500; ++position) {
    EXPECT_NE(sample_token(barred, {.temperature = 5}, position), 0);
  }
}

// However often an id comes, it is kept once: what a token costs does not grow with the text.
TEST(SeenIdsTest, KeepEachOnceInTheirOrder) {
  SeenIds seen;
  for (int round = 0; round < 1000; ++round) {
    for (const int32_t id : {7, 3, 7, 1'000'000, 3}) seen.add(id);
  }
  EXPECT_EQ(std::vector<int32_t>(seen.ids().begin(), seen.ids().end()), (std::vector<int32_t>{7, 3, 1'000'000}));
}

}  // namespace
}  // namespace nmoe
