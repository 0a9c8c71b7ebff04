// RoPE's inverse on gradients of heads, where a kernel has them in F32 (Rope of ops/contracts/attention.h; the kernel
// that does nothing else is kernels/attention/rope.cu): the transposed matrix (c, s; -s, c) of each pair.
#pragma once

#include <math_constants.h>

#include <cstdint>

namespace nmoe::cuda::sm90 {

// What the last 2 num_pairs values of each head are rotated by.
struct GradientRotation {
  const int32_t* positions;  // [T], or null: none
  const float *cos, *sin;    // [positions, num_pairs]
  int64_t num_positions;
  bool halves;  // a pair is value i of one half and of the other; else side by side
};
// cos and sin of a token's pairs, kCount (1, 2 or a multiple of 4) from `pair` on; NaN where the tables have none.
template <int kCount>
__device__ void load_angles(const GradientRotation& rotation, int64_t token, int num_pairs, int pair,
                            float (&c)[kCount], float (&s)[kCount]) {
  constexpr int kVector = kCount < 4 ? kCount : 4;
  struct alignas(kVector * 4) Vector {
    float values[kVector];
  };
  const int64_t position = rotation.positions[token];
  const bool known = position >= 0 && position < rotation.num_positions;
  const int64_t at = (known ? position : 0) * num_pairs + pair;
#pragma unroll
  for (int i = 0; i < kCount; i += kVector) {
    const auto cosines = *reinterpret_cast<const Vector*>(rotation.cos + at + i);
    const auto sines = *reinterpret_cast<const Vector*>(rotation.sin + at + i);
#pragma unroll
    for (int n = 0; n < kVector; ++n) {
      c[i + n] = known ? cosines.values[n] : CUDART_NAN_F;
      s[i + n] = known ? sines.values[n] : CUDART_NAN_F;
    }
  }
}
__device__ inline void rotate_back(float& a, float& b, float c, float s) {
  const float first = a * c + b * s;
  b = b * c - a * s;
  a = first;
}

}  // namespace nmoe::cuda::sm90
