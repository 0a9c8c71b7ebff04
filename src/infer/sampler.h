// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace nmoe {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the most likely token, always
  double top_p = 1.0;        // nucleus: the likeliest tokens whose probabilities just reach top_p; 1: all
  uint64_t seed = 1;
};

// The token at `position` of a sequence. The same logits, options and position give the same token. Ties go to the
// lower id. Nucleus: arXiv 1904.09751, section 3.1.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position);

}  // namespace nmoe
