// Choosing tokens on a device whose memory is not the host's: the logits of a batch need not travel.
#pragma once

#include <cstdint>

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
// Ids that a token is sampled from: with weights up to 2^40 their sums are below 2^60.
constexpr int64_t kMostSampledIds = int64_t{1} << 20;
struct SampleTokens {
  Tensor logits;      // [N, V] F32
  int64_t vocab = 0;  // ids below it, at most V and kMostSampledIds
  Tensor draws;       // as above
  Tensor tokens;      // = [N] i32; -1 where the largest logit is not finite
};
struct PickLogits {
  Tensor logits;  // [N, V] F32
  Tensor ids;     // [M, 2] i32: a row and an id of it
  Tensor picked;  // = [M] F32
};

// Of a device (Device::token_sampler), on its compute lane. Weights are integers, multiples of 2^-40 of the likeliest
// token's: their sums have no order, and a row's token depends on the row alone. The CPU has none: infer/sampler.h
// reads its logits as they are.
class TokenSampler {
 public:
  virtual ~TokenSampler() = default;
  virtual void sample_tokens(const SampleTokens& args) = 0;
  virtual void penalise_logits(const PenaliseLogits& args) = 0;
  virtual void pick_logits(const PickLogits& args) = 0;
};

}  // namespace nmoe
