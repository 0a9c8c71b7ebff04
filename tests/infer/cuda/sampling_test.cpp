// Sampling on a GPU gives the tokens that the CPU's sampler gives. Needs a GPU.
#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "infer/sampler.h"
#include "ops/factory.h"

namespace nmoe {
namespace {

class CudaSampling : public testing::Test {
 protected:
  CudaSampling() : device_(make_device({.kind = "cuda", .compute_dtype = DType::kF32})) {
    for (const Lane lane : kLanes) device_->scratch(lane).reserve(device_->memory(), 1 << 20);
    arena_.reserve(device_->memory(), int64_t{256} << 20);
  }

  // Rows of `logits` [N, width], of which ids below vocab count.
  std::vector<int32_t> sample(const std::vector<float>& logits, int64_t width, int64_t vocab,
                              const std::vector<SamplingOptions>& options, int64_t position,
                              const std::vector<std::vector<int32_t>>& seen = {}) {
    const ArenaScope scope(arena_);
    const auto N = static_cast<int64_t>(options.size());
    const Tensor device_logits = arena_.allocate(DType::kF32, {N, width});
    const Tensor draws = arena_.allocate(DType::kU8, {N * static_cast<int64_t>(sizeof(TokenDraw))});
    const Tensor tokens = arena_.allocate(DType::kI32, {N});
    device_->upload(device_logits, logits.data());
    std::vector<TokenDraw> host_draws;
    for (const SamplingOptions& one : options) {
      host_draws.push_back({.temperature = one.temperature,
                            .top_p = one.top_p,
                            .min_p = one.min_p,
                            .uniform = sampling_uniform(one, position),
                            .top_k = one.top_k,
                            .penalty = one.repetition_penalty});
    }
    device_->upload(draws, host_draws.data());
    std::vector<int32_t> pairs;
    for (size_t row = 0; row < seen.size(); ++row) {
      for (const int32_t id : seen[row]) pairs.insert(pairs.end(), {static_cast<int32_t>(row), id});
    }
    if (!pairs.empty()) {
      const Tensor device_seen = arena_.allocate(DType::kI32, {static_cast<int64_t>(pairs.size()) / 2, 2});
      device_->upload(device_seen, pairs.data());
      device_->token_sampler()->penalise_logits({.logits = device_logits, .draws = draws, .seen = device_seen});
    }
    device_->token_sampler()->sample_tokens(
        {.logits = device_logits, .vocab = vocab, .draws = draws, .tokens = tokens});
    std::vector<int32_t> result(static_cast<size_t>(N));
    device_->download(result.data(), tokens);
    return result;
  }

  std::unique_ptr<Device> device_;
  Arena arena_{"tensors"};
};

std::vector<float> normal_logits(int64_t count, double scale, uint64_t seed) {
  const Philox random(seed, "logits");
  std::vector<float> logits;
  for (int64_t i = 0; i < count; ++i) {
    const double u = random.uniform(static_cast<uint64_t>(2 * i)), v = random.uniform(static_cast<uint64_t>(2 * i + 1));
    logits.push_back(static_cast<float>(scale * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v)));
  }
  return logits;
}

const std::vector<SamplingOptions> kOptions = {
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.3},
    {.temperature = 2.5, .top_k = 40},
    {.temperature = 1, .top_k = 1},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 0.8, .top_p = 0.95},
    {.temperature = 1, .top_p = 0},
    {.temperature = 1, .min_p = 0.1},
    {.temperature = 1.2, .top_k = 100, .top_p = 0.7, .min_p = 0.05},
};

// Weights are rounded to 2^-40 and exponentials are fp32's, so that a random number next to an edge may fall on its
// other side: one in some 100,000 draws.
TEST_F(CudaSampling, TokensAreTheCpus) {
  Sampler sampler;
  for (const auto& [width, vocab] : {std::pair<int64_t, int64_t>{7, 7}, {320, 257}, {50304, 50257}, {163840, 163840}}) {
    int64_t others = 0;
    for (const double scale : {0.5, 3.0}) {
      std::vector<float> logits;
      for (size_t row = 0; row < kOptions.size(); ++row) {
        const std::vector<float> more = normal_logits(width, scale, row + 1);
        logits.insert(logits.end(), more.begin(), more.end());
      }
      for (int64_t position = 0; position < 20; ++position) {
        const std::vector<int32_t> tokens = sample(logits, width, vocab, kOptions, position);
        for (size_t row = 0; row < kOptions.size(); ++row) {
          const auto own = std::span(logits).subspan(row * static_cast<size_t>(width), static_cast<size_t>(vocab));
          if (tokens[row] == sampler.sample(own, kOptions[row], static_cast<uint64_t>(position))) continue;
          ++others;
          if (kOptions[row].temperature == 0) ADD_FAILURE() << "greedy: " << tokens[row];
        }
      }
    }
    EXPECT_LE(others, 1) << width;
  }
}

TEST_F(CudaSampling, PicksLogitsByRowAndId) {
  constexpr int64_t kRows = 3, kWidth = 50304;
  const std::vector<float> logits = normal_logits(kRows * kWidth, 1.0, 5);
  std::vector<int32_t> pairs;
  for (int32_t i = 0; i < 2000; ++i) pairs.insert(pairs.end(), {i % 3, i * 7919 % static_cast<int32_t>(kWidth)});
  const auto count = static_cast<int64_t>(pairs.size()) / 2;
  const ArenaScope scope(arena_);
  const Tensor device_logits = arena_.allocate(DType::kF32, {kRows, kWidth});
  const Tensor ids = arena_.allocate(DType::kI32, {count, 2}), picked = arena_.allocate(DType::kF32, {count});
  device_->upload(device_logits, logits.data());
  device_->upload(ids, pairs.data());
  device_->token_sampler()->pick_logits({.logits = device_logits, .ids = ids, .picked = picked});
  std::vector<float> values(static_cast<size_t>(count));
  device_->download(values.data(), picked);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], logits[static_cast<size_t>(pairs[2 * i] * kWidth + pairs[2 * i + 1])]) << i;
  }
}

// Equal logits are in the order of their ids, in every search.
TEST_F(CudaSampling, Ties) {
  Sampler sampler;
  const int64_t vocab = 5000;
  std::vector<float> logits;
  for (size_t row = 0; row < kOptions.size(); ++row) {
    for (int64_t id = 0; id < vocab; ++id) logits.push_back(static_cast<float>((id * 7) % 3));
  }
  for (int64_t position = 0; position < 30; ++position) {
    const std::vector<int32_t> tokens = sample(logits, vocab, vocab, kOptions, position);
    for (size_t row = 0; row < kOptions.size(); ++row) {
      EXPECT_EQ(tokens[row],
                sampler.sample(std::span(logits).first(vocab), kOptions[row], static_cast<uint64_t>(position)))
          << "options " << row;
    }
  }
}

TEST_F(CudaSampling, PenaltiesCountOnce) {
  Sampler sampler;
  const int64_t vocab = 400;
  const std::vector<SamplingOptions> options = {{.repetition_penalty = 1.5, .temperature = 0},
                                                {.repetition_penalty = 3, .temperature = 1, .seed = 4},
                                                {.temperature = 1}};
  std::vector<float> logits;
  for (size_t row = 0; row < options.size(); ++row) {
    const std::vector<float> more = normal_logits(vocab, 2, row + 40);
    logits.insert(logits.end(), more.begin(), more.end());
  }
  const std::vector<std::vector<int32_t>> seen = {{3, 5, 100, 399}, {0, 1, 2}, {}};
  for (int64_t position = 0; position < 20; ++position) {
    const std::vector<int32_t> tokens = sample(logits, vocab, vocab, options, position, seen);
    for (size_t row = 0; row < options.size(); ++row) {
      const auto own = std::span(logits).subspan(row * vocab, vocab);
      EXPECT_EQ(tokens[row], sampler.sample(own, options[row], static_cast<uint64_t>(position), seen[row])) << row;
    }
  }
}

// Few rows have several blocks each, many one.
TEST_F(CudaSampling, ManyRowsAreSampledAsFewAre) {
  const int64_t vocab = 9000;
  const auto few = static_cast<int64_t>(kOptions.size());
  std::vector<float> logits, many_logits;
  for (int64_t row = 0; row < few; ++row) {
    const std::vector<float> more = normal_logits(vocab, 2, static_cast<uint64_t>(row) + 90);
    logits.insert(logits.end(), more.begin(), more.end());
  }
  std::vector<SamplingOptions> many_options;
  for (int copy = 0; copy < 5; ++copy) {
    many_logits.insert(many_logits.end(), logits.begin(), logits.end());
    many_options.insert(many_options.end(), kOptions.begin(), kOptions.end());
  }
  for (int64_t position = 0; position < 20; ++position) {
    const std::vector<int32_t> tokens = sample(logits, vocab, vocab, kOptions, position);
    const std::vector<int32_t> many = sample(many_logits, vocab, vocab, many_options, position);
    for (size_t row = 0; row < many.size(); ++row) EXPECT_EQ(many[row], tokens[row % tokens.size()]) << row;
  }
}

TEST_F(CudaSampling, WhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const SamplingOptions greedy{.temperature = 0}, warm{.temperature = 1};
  const std::vector<float> logits = {-infinity, 1,         -infinity,  // fine
                                     1,         infinity,  0,          //
                                     -infinity, -infinity, -infinity};
  EXPECT_EQ(sample(logits, 3, 3, {warm, greedy, warm}, 0), (std::vector<int32_t>{1, -1, -1}));
}

}  // namespace
}  // namespace nmoe
