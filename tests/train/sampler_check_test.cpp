// What the self test finds in a sampler of tokens.
#include "train/proof/sampler_check.h"

#include <gtest/gtest.h>

#include "ops/checked/checked_device.h"
#include "support/tensors.h"

namespace nmoe {
namespace {

// The CPU's, with a fault.
SampleBatch sampler_with(const std::function<void(SamplerBatch& batch)>& fault,
                         const std::function<void(std::vector<int32_t>& tokens)>& spoil = {}) {
  return [fault, spoil](const SamplerBatch& given) {
    SamplerBatch batch = given;
    if (fault) fault(batch);
    Sampler sampler;
    std::vector<int32_t> tokens;
    for (size_t row = 0; row < batch.options.size(); ++row) {
      const auto logits =
          std::span(batch.logits).subspan(row * static_cast<size_t>(batch.width), static_cast<size_t>(batch.vocab));
      try {
        tokens.push_back(
            sampler.sample(logits, batch.options[row], static_cast<uint64_t>(batch.position), batch.seen[row]));
      } catch (const Error&) {
        tokens.push_back(-1);
      }
    }
    if (spoil) spoil(tokens);
    return tokens;
  };
}

TEST(SamplerCheck, TheCpusPasses) {
  const auto counts = check_token_sampler(sampler_with({}));
  EXPECT_GT(counts.at("sample_tokens"), 30);
  EXPECT_GT(counts.at("penalise_logits"), 30);
}

TEST(SamplerCheck, EveryFaultIsFound) {
  const auto expect_found = [](const char* what, const SampleBatch& sample) {
    SCOPED_TRACE(what);
    EXPECT_THROW(check_token_sampler(sample), checked::MismatchError);
  };
  const auto without = [](auto SamplingOptions::*option, auto value) {
    return sampler_with([option, value](SamplerBatch& batch) {
      for (SamplingOptions& options : batch.options) options.*option = value;
    });
  };
  expect_found("penalty", without(&SamplingOptions::repetition_penalty, 1.0));
  expect_found("top_k", without(&SamplingOptions::top_k, int64_t{0}));
  expect_found("top_p", without(&SamplingOptions::top_p, 1.0));
  expect_found("min_p", without(&SamplingOptions::min_p, 0.0));
  expect_found("temperature", without(&SamplingOptions::temperature, 1.0));
  expect_found("position", sampler_with([](SamplerBatch& batch) { ++batch.position; }));
  expect_found("vocabulary", sampler_with([](SamplerBatch& batch) { batch.vocab = batch.width; }));
  expect_found("not finite", sampler_with({}, [](std::vector<int32_t>& tokens) { tokens.back() = 0; }));
  expect_found("greedy", sampler_with({}, [](std::vector<int32_t>& tokens) { tokens.front() ^= 1; }));
}

// A GPU has random numbers of its own edges: a single draw may be another.
TEST(SamplerCheck, ASingleDrawBesideAnEdgeIsLetPass) {
  int64_t batches = 0;
  EXPECT_NO_THROW(check_token_sampler(sampler_with({}, [&](std::vector<int32_t>& tokens) {
    if (batches++ == 5) tokens[1] ^= 1;
  })));
}

}  // namespace
}  // namespace nmoe
