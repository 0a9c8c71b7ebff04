// Values fetched ahead of their use.
#pragma once

#include "ops/cuda/primitives/elements.cuh"

namespace nmoe::cuda {

// Eight values as they are stored: what is fetched ahead of its use takes no more registers than that.
template <class T>
struct Packed8 {
  uint4 words[sizeof(T) / 2];
};
// Elements [i, i + 8) of a row of `width`, as load8 has them.
template <class T>
__device__ inline Packed8<T> fetch8(const T* row, int64_t i, int64_t width, bool vector) {
  Packed8<T> packed;
  if (vector) {
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof(T) / 2); ++j) {
      packed.words[j] = reinterpret_cast<const uint4*>(row + i)[j];
    }
  } else {
    float values[8];
    load8(row, i, width, vector, values);
    if constexpr (sizeof(T) == 2) {
      packed.words[0] = pack8(values);
    } else {
      store8(reinterpret_cast<float*>(packed.words), values);
    }
  }
  return packed;
}
template <class T>
__device__ inline void unpack8(const Packed8<T>& packed, float (&v)[8]) {
  load8(reinterpret_cast<const T*>(packed.words), v);
}

}  // namespace nmoe::cuda
