// Values rounded to BF16 at random (ops/moment_rounding.h): as they are packed and stored.
#pragma once

#include "ops/cuda/primitives/elements.cuh"
#include "ops/moment_rounding.h"

namespace nmoe::cuda {

// A value by 16 random bits.
__device__ inline __nv_bfloat16 round_at_random(float x, uint32_t random) {
  return __ushort_as_bfloat16(static_cast<uint16_t>(moments::to_bf16(x, random) >> 16));
}

// Eight values by their group's random bits, the first in the lowest bits; kSecond: by those of second moments.
template <bool kSecond = false>
__device__ inline uint4 pack8_at_random(const float (&v)[8], const random::Words& words) {
  constexpr unsigned kUpperHalves = 0x7632;
  const auto bits = [&](int j) {
    const uint32_t first = moments::first_bits(words, j);
    return kSecond ? moments::second_bits(first) : first;
  };
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    pairs[j] = __byte_perm(moments::to_bf16(v[2 * j], bits(2 * j)), moments::to_bf16(v[2 * j + 1], bits(2 * j + 1)),
                           kUpperHalves);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// Which random bits elements take: of those that are numbered `index` on in the whole tensor.
struct RandomBits {
  uint64_t key;
  uint64_t stream;
  int64_t index;

  __device__ random::Words words(int64_t ahead = 0) const {
    return moments::rounding_words(key, stream, (index + ahead) / 8);
  }
};

// store8 of elements [i, i + 8) of a row of `width`, rounded at random. `vector`: `index` is a multiple of 8, too.
__device__ inline void store8_at_random(__nv_bfloat16* row, int64_t i, int64_t width, bool vector,
                                        const RandomBits& bits, const float (&v)[8]) {
  if (vector) {
    __stwb(reinterpret_cast<uint4*>(row + i), pack8_at_random(v, bits.words()));
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (i + j >= width) return;
    row[i + j] = round_at_random(v[j], moments::first_bits(bits.words(j), static_cast<int>((bits.index + j) % 8)));
  }
}

}  // namespace nmoe::cuda
