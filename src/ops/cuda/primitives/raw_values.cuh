// Eight values as they lie in memory. Converting them waits for their load: who has several loads under way at once
// keeps values so until their turn comes.
#pragma once

#include "ops/cuda/primitives/elements.cuh"

namespace nmoe::cuda {

template <class T>
struct RawValues {
  static constexpr int kWords = 8 * sizeof(T) / sizeof(uint4);

  // Elements [i, i + 8) of a row, as load8() has them.
  __device__ void load(const T* row, int64_t i, int64_t width, bool vector) {
    if (vector) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = reinterpret_cast<const uint4*>(row + i)[w];
    } else {
      float v[8];
      load8(row, i, width, false, v);
      if constexpr (sizeof(T) == 2) {
        words[0] = pack8(v);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[w] = make_uint4(__float_as_uint(v[4 * w]), __float_as_uint(v[4 * w + 1]), __float_as_uint(v[4 * w + 2]),
                                __float_as_uint(v[4 * w + 3]));
        }
      }
    }
  }
  __device__ void to_floats(float (&v)[8]) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const unsigned parts[4] = {words[w].x, words[w].y, words[w].z, words[w].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) {
          v[2 * j] = __uint_as_float(parts[j] << 16);
          v[2 * j + 1] = __uint_as_float(parts[j] & 0xFFFF0000U);
        } else {
          v[4 * w + j] = __uint_as_float(parts[j]);
        }
      }
    }
  }

  uint4 words[kWords];
};

}  // namespace nmoe::cuda
