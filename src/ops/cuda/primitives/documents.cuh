// Documents of a batch of sequences, as AttentionShape (ops/contracts/attention.h) has them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

// The document [x, y) of token t, of sequences of S: a search in cu_seqlens [capacity]; null: every sequence is one.
// What that says is cut to the token's sequence.
__device__ inline int2 document_of(int t, int S, const int32_t* cu_seqlens, int capacity) {
  int2 document = make_int2(t / S * S, t / S * S + S);
  if (cu_seqlens == nullptr) return document;
  int low = 0, high = capacity;  // to the first entry beyond t
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle] <= t) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low > 0) document.x = max(document.x, cu_seqlens[low - 1]);
  if (low < capacity) document.y = min(document.y, cu_seqlens[low]);
  return document;
}

}  // namespace nmoe::cuda
