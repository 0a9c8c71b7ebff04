#include "train/proof/sampler_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "base/rng.h"
#include "ops/checked/checked_device.h"
#include "ops/sampling.h"

namespace nmoe {
namespace {

constexpr const char* kOperation = "sample_tokens";

// The last has no token.
SamplerBatch make_batch(int64_t width, int64_t vocab) {
  SamplerBatch batch{.width = width,
                     .vocab = vocab,
                     .logits = {},
                     .options = {{.temperature = 0},
                                 {.temperature = 1},
                                 {.temperature = 2.5, .top_k = 4},
                                 {.temperature = 0.8, .top_p = 0.9},
                                 {.temperature = 1, .min_p = 0.1},
                                 {.repetition_penalty = 3, .temperature = 0},
                                 {.repetition_penalty = 1.5, .temperature = 1.2, .top_k = 100, .top_p = 0.7},
                                 {.temperature = 1}},
                     .seen = {},
                     .position = 0};
  const size_t num_rows = batch.options.size();
  batch.seen.resize(num_rows);
  for (size_t row = 0; row < num_rows; ++row) {
    const Philox random(row + 1, "logits of the self test");
    for (int64_t id = 0; id < width; ++id) {
      // Of a few ids each is about as likely as all others together.
      const double u = random.uniform(static_cast<uint64_t>(id));
      batch.logits.push_back(row + 1 == num_rows ? -std::numeric_limits<float>::infinity()
                                                 : static_cast<float>(6 * u * u - 3 + (id % 5 == 0 ? 1 : 0)));
    }
    if (batch.options[row].repetition_penalty == 1.0) continue;
    const auto own = std::span(batch.logits).last(static_cast<size_t>(width)).first(static_cast<size_t>(vocab));
    const auto likeliest = std::max_element(own.begin(), own.end()) - own.begin();
    batch.seen[row] = {static_cast<int32_t>(likeliest)};
    if (likeliest != 0) batch.seen[row].push_back(0);
  }
  return batch;
}

std::vector<int32_t> on_cpu(const SamplerBatch& batch) {
  Sampler sampler;
  std::vector<int32_t> tokens;
  for (size_t row = 0; row + 1 < batch.options.size(); ++row) {
    const auto logits =
        std::span(batch.logits).subspan(row * static_cast<size_t>(batch.width), static_cast<size_t>(batch.vocab));
    tokens.push_back(
        sampler.sample(logits, batch.options[row], static_cast<uint64_t>(batch.position), batch.seen[row]));
  }
  tokens.push_back(-1);
  return tokens;
}

}  // namespace

SampleBatch token_sampler_of(Device& device, Arena& arena) {
  return [&device, &arena](const SamplerBatch& batch) {
    const ArenaScope scope(arena);
    const auto num_rows = static_cast<int64_t>(batch.options.size());
    const Tensor logits = arena.allocate(DType::kF32, {num_rows, batch.width}),
                 draws = arena.allocate(DType::kU8, {num_rows * static_cast<int64_t>(sizeof(TokenDraw))}),
                 tokens = arena.allocate(DType::kI32, {num_rows});
    std::vector<TokenDraw> host_draws;
    std::vector<int32_t> pairs;
    for (size_t row = 0; row < batch.options.size(); ++row) {
      const SamplingOptions& options = batch.options[row];
      host_draws.push_back({.temperature = options.temperature,
                            .top_p = options.top_p,
                            .min_p = options.min_p,
                            .uniform = sampling_uniform(options, batch.position),
                            .top_k = options.top_k,
                            .penalty = options.repetition_penalty});
      for (const int32_t id : batch.seen[row]) pairs.insert(pairs.end(), {static_cast<int32_t>(row), id});
    }
    device.upload(logits, batch.logits.data());
    device.upload(draws, host_draws.data());
    const Tensor seen = arena.allocate(DType::kI32, {std::ssize(pairs) / 2, 2});
    device.upload(seen, pairs.data());
    device.token_sampler()->penalise_logits({.logits = logits, .draws = draws, .seen = seen});
    device.token_sampler()->sample_tokens({.logits = logits, .vocab = batch.vocab, .draws = draws, .tokens = tokens});
    std::vector<int32_t> chosen(static_cast<size_t>(num_rows));
    device.download(chosen.data(), tokens);
    return chosen;
  };
}

std::map<std::string, int64_t> check_token_sampler(const SampleBatch& sample) {
  constexpr int64_t kSizes[][2] = {{7, 7}, {320, 257}, {50'304, 50'257}};
  constexpr int64_t kPositions = 12, kLetPass = 1;
  int64_t batches = 0, others = 0;
  for (const auto& [width, vocab] : kSizes) {
    SamplerBatch batch = make_batch(width, vocab);
    for (batch.position = 0; batch.position < kPositions; ++batch.position) {
      const std::vector<int32_t> chosen = sample(batch), expected = on_cpu(batch);
      ++batches;
      for (size_t row = 0; row < expected.size(); ++row) {
        if (chosen[row] == expected[row]) continue;
        const bool is_drawn = batch.options[row].temperature > 0 && expected[row] >= 0;
        if (is_drawn && ++others <= kLetPass) continue;
        throw checked::MismatchError({kOperation, fmt::format("token {} of row {} of {} ids is {}, not {}",
                                                              batch.position, row, vocab, chosen[row], expected[row])});
      }
    }
  }
  return {{"penalise_logits", batches}, {kOperation, batches}};
}

}  // namespace nmoe
