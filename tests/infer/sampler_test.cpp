#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace nmoe {
namespace {

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

std::set<int32_t> support(const std::vector<double>& probabilities, double top_p) {
  std::set<int32_t> tokens;
  for (uint64_t position = 0; position < 2000; ++position) {
    tokens.insert(sample_token(logits_of(probabilities), {.top_p = top_p}, position));
  }
  return tokens;
}

using Tokens = std::set<int32_t>;

TEST(SamplerTest, TemperatureZeroTakesTheLargestLogit) {
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample_token(std::vector<float>{-1, 2, 1.999f, -5}, {.temperature = 0}, position), 1);
  }
}

TEST(SamplerTest, TiesGoToTheLowerId) {
  EXPECT_EQ(sample_token(std::vector<float>{0, 3, 3, 3}, {.temperature = 0}, 0), 1);
  // A nucleus that has room for one of two equals.
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(sample_token(std::vector<float>{0, 3, 3}, {.top_p = 0.3}, position), 1);
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
  EXPECT_EQ(support(probabilities, 0.0), (Tokens{1}));  // never none
  EXPECT_EQ(support(probabilities, 0.49), (Tokens{1}));
  EXPECT_EQ(support(probabilities, 0.51), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, 0.79), (Tokens{1, 3}));
  EXPECT_EQ(support(probabilities, 0.81), (Tokens{0, 1, 3}));
  EXPECT_EQ(support(probabilities, 0.95), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(support(probabilities, 1.0), (Tokens{0, 1, 2, 3, 4}));
}

TEST(SamplerTest, InsideTheNucleusProportionsStay) {
  constexpr uint64_t kSamples = 20'000;
  const auto shares = frequencies(logits_of({0.1, 0.5, 0.06, 0.3, 0.04}), {.top_p = 0.7, .seed = 5}, kSamples);
  expect_frequencies(shares, {0, 5.0 / 8, 0, 3.0 / 8, 0}, kSamples);
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
  EXPECT_EQ(sample_token(std::vector<float>{-kHuge, kHuge, 0}, {}, 0), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-1e30f, -1e20f, -1e30f}, {.temperature = 0.1}, 0), 1);
  EXPECT_EQ(sample_token(std::vector<float>{7}, {}, 0), 0);
  // A token that is ruled out.
  const std::vector<float> barred = {-std::numeric_limits<float>::infinity(), 0, 0};
  for (uint64_t position = 0; position < 500; ++position) {
    EXPECT_NE(sample_token(barred, {.temperature = 5}, position), 0);
  }
}

}  // namespace
}  // namespace nmoe
