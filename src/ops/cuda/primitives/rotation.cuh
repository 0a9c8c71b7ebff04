// Rotations of pairs of values (RoPE), eight pairs a thread. Pair i is multiplied by the matrix (c, -s; s, c) with
// c = cos[i], s = direction * sin[i]. With YaRN's magnitude in the tables the matrix is not a pure rotation, and its
// backward is the transpose: direction -1.
#pragma once

#include "ops/contracts/attention.h"
#include "ops/cuda/primitives/elements.cuh"

namespace nmoe::cuda {

// Angles of positions: cos and sin [num_positions, num_pairs].
struct RotationTables {
  const int32_t* positions;  // [T]
  const float *cos, *sin;
  int64_t num_pairs, num_positions;
  RopeLayout layout;

  explicit RotationTables(const Rope& rope)
      : positions(rope.positions.data<int32_t>()),
        cos(rope.cos.data<float>()),
        sin(rope.sin.data<float>()),
        num_pairs(rope.cos.dim(1)),
        num_positions(rope.cos.dim(0)),
        layout(rope.layout) {}
};

// A pair, as contracts/attention.h rounds it: which product is fused, the compiler would decide kernel by kernel.
__device__ inline float2 rotate(float first, float second, float c, float s) {
  return {__fmaf_rn(first, c, -__fmul_rn(second, s)), __fmaf_rn(second, c, __fmul_rn(first, s))};
}

// The eight pairs from `pair` on, as rotated at a token's position. `vector`: whether all of it lies as can_vectorise
// asks.
struct PairRotation {
  float c[8], s[8];  // NaN where the tables do not have the position

  __device__ PairRotation(const RotationTables& tables, int64_t token, int64_t pair, float direction, bool vector) {
    const int64_t position = tables.positions[token];
    if (position >= 0 && position < tables.num_positions) {
      load8(tables.cos + position * tables.num_pairs, pair, tables.num_pairs, vector, c);
      load8(tables.sin + position * tables.num_pairs, pair, tables.num_pairs, vector, s);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) c[j] = s[j] = __int_as_float(0x7FC00000);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) s[j] *= direction;
  }

  // first, second: of each pair.
  __device__ void apply(float (&first)[8], float (&second)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 rotated = rotate(first[j], second[j], c[j], s[j]);
      first[j] = rotated.x, second[j] = rotated.y;
    }
  }
};

// Where those pairs lie in a head's rotated part: two runs of eight values.
struct PairColumns {
  int64_t low, high;
  int64_t low_end, high_end;  // nothing of a run lies at or past these
  bool interleaved;

  __device__ PairColumns(int64_t pair, int64_t num_pairs, RopeLayout layout)
      : interleaved(layout == RopeLayout::kInterleaved) {
    low = interleaved ? 2 * pair : pair;
    high = interleaved ? 2 * pair + 8 : pair + num_pairs;
    low_end = interleaved ? 2 * num_pairs : num_pairs;
    high_end = 2 * num_pairs;
  }
  // From the runs to the first and second of each pair.
  __device__ void to_pairs(float (&low_values)[8], float (&high_values)[8]) const {
    if (!interleaved) return;
    float first[8], second[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first[j] = low_values[2 * j], second[j] = low_values[2 * j + 1];
      first[j + 4] = high_values[2 * j], second[j + 4] = high_values[2 * j + 1];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) low_values[j] = first[j], high_values[j] = second[j];
  }
  // And back.
  __device__ void to_runs(float (&first)[8], float (&second)[8]) const {
    if (!interleaved) return;
    float low_values[8], high_values[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low_values[2 * j] = first[j], low_values[2 * j + 1] = second[j];
      high_values[2 * j] = first[j + 4], high_values[2 * j + 1] = second[j + 4];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) first[j] = low_values[j], second[j] = high_values[j];
  }
};

}  // namespace nmoe::cuda
