// Attention for any head sizes, F32 and BF16: a warp a query or key, F32 arithmetic, no reuse of what is read. Slow.
// Only attention.cu and attention_plain.cu in this folder use this.
//
// Kernels count tokens from 0 to T across sequences. One table says what attends to what, with sequences, documents
// and the window worked in: query i attends to the keys [spans[i].x, i], so that key j is attended to by the queries
// [j, spans[j].y).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/contracts/attention.h"

namespace nmoe::cuda {

// Letters as in ops/ops.h.
struct AttentionGeometry {
  int T, S, H, G, Dk, Dv;
  int64_t q_stride, k_stride, v_stride;     // from a token's to the next's
  int64_t dq_stride, dk_stride, dv_stride;  // backward
  float scale;
  const int2* spans;   // [T]
  const float* sinks;  // [H], or null: forward
};

// Into lse, and delta below: [B, H, S].
__host__ __device__ inline int64_t statistic_index(const AttentionGeometry& g, int token, int head) {
  return (static_cast<int64_t>(token / g.S) * g.H + head) * g.S + token % g.S;
}

void plain_attention_forward(const AttentionGeometry& g, const AttentionForward& args, cudaStream_t stream);
// delta [B, H, S] F32: the sum of dout * out over a head.
void plain_attention_backward(const AttentionGeometry& g, const AttentionBackward& args, const float* delta,
                              cudaStream_t stream);

}  // namespace nmoe::cuda
