// Attention for any head sizes, F32 and BF16: a warp a query or key, F32 arithmetic, no reuse of what is read. Slow.
// Only ops/cuda/attention*.cu use this.
//
// Kernels count tokens from 0 to T across sequences. Who sees whom is in one table, into which sequences, documents
// and the window have gone: query i sees the keys [sees[i].x, i], key j is seen by the queries [j, sees[j].y).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/backend.h"

namespace nmoe::cuda {

// Letters as in ops/backend.h.
struct AttentionGeometry {
  int T, S, H, G, Dk, Dv;
  float scale;
  const int2* sees;  // [T]
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
