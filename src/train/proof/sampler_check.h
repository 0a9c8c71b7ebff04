// Whether a device's choice of tokens (ops/sampling.h) is that of the CPU (infer/sampler.h): a part of the self test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "infer/sampler.h"
#include "ops/device.h"
#include "tensor/arena.h"

namespace nmoe {

// N rows, for each of which a token is chosen.
struct SamplerBatch {
  int64_t width = 0, vocab = 0;            // ids below vocab count
  std::vector<float> logits;               // [N, width]
  std::vector<SamplingOptions> options;    // [N]
  std::vector<std::vector<int32_t>> seen;  // [N]: the ids that each row's penalty is for, each once
  int64_t position = 0;                    // of the tokens in their outputs
};
// The tokens [N]; -1 where the largest logit is not finite.
using SampleBatch = std::function<std::vector<int32_t>(const SamplerBatch&)>;

// By a device that has a TokenSampler. Both outlive it.
SampleBatch token_sampler_of(Device& device, Arena& arena);

// Draws with every option, over vocabularies of several sizes, some with fewer ids than logits. Returns how many
// batches each operation had; throws checked::MismatchError if `sample` chooses otherwise. A random number beside the
// edge between two tokens may fall on its other side, where exponentials are rounded otherwise: one in all is let pass.
std::map<std::string, int64_t> check_token_sampler(const SampleBatch& sample);

}  // namespace nmoe
