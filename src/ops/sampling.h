// Choosing tokens on a device whose memory is not the host's: the logits of a batch need not travel.
#pragma once

#include <cstdint>

#include "ops/device.h"
#include "tensor/tensor.h"

namespace nmoe {

// What one row's token depends on beside its logits. The rule is that of infer/sampler.h, with `uniform` in [0, 1) as
// its random number.
struct TokenDraw {
  double temperature = 1.0, top_p = 1.0, min_p = 0.0, uniform = 0.0;
  int64_t top_k = 0;
  double penalty = 1.0;
};

struct PenaliseLogits {
  Tensor logits;  // [N, V] F32, changed in place
  Tensor draws;   // [N * sizeof(TokenDraw)] u8: a TokenDraw a row
  Tensor seen;    // [M, 2] i32: the rows and ids that are penalised, each pair once
};
struct SampleTokens {
  Tensor logits;      // [N, V] F32
  int64_t vocab = 0;  // ids below it, at most V
  Tensor draws;       // as above
  Tensor tokens;      // = [N] i32; -1 where the largest logit is not finite
};

// Whether the following can be called for it. Not on the CPU, where infer/sampler.h reads the logits as they are.
bool has_token_sampler(const Device& device);
// On the compute lane. Weights are integers, multiples of 2^-40 of the likeliest token's: their sums have no order, and
// a row's token depends on the row alone.
void sample_tokens(Device& device, const SampleTokens& args);
void penalise_logits(Device& device, const PenaliseLogits& args);

}  // namespace nmoe
