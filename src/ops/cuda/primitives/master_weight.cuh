// Weights as optimizers see them: F32 values, kept as such or as a BF16 value and what it lacks (`low`, ops/ops.h).
#pragma once

#include <type_traits>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

// The halves of a master's bits. The upper one is rounded to nearest, halves away from zero, so that the lower is in
// [-2^15, 2^15). Like every rounding to BF16, it makes an infinity of magnitudes from 0x1.ffp127 on; together they are
// still the finite value. Of a NaN only that it is one is kept: its bits would round to those of a number.
struct WeightHalves {
  uint16_t w;
  int16_t low;
};
__device__ inline WeightHalves split_master(float master) {
  const unsigned bits = __float_as_uint(master);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<uint16_t>(bits >> 16 | 0x40U), 0};
  const unsigned high = (bits + 0x8000U) >> 16;
  return {static_cast<uint16_t>(high), static_cast<int16_t>(static_cast<int>(bits - (high << 16)))};
}
__device__ inline float join_master(WeightHalves halves) {
  return __uint_as_float((static_cast<unsigned>(halves.w) << 16) + static_cast<unsigned>(static_cast<int>(halves.low)));
}

// One weight at index i, or four or eight, where aligned() and i is a multiple of as many.
struct WholeWeights {
  float* w;
  bool aligned() const { return aligned16(w); }
  template <int kValues>
  __device__ void load(int64_t i, float (&master)[kValues]) const {
    load_values(w + i, master);
  }
  template <int kValues>
  __device__ void store(int64_t i, const float (&master)[kValues]) const {
    store_values(w + i, master);
  }
};
struct HalvedWeights {
  uint16_t* w;
  int16_t* low;
  bool aligned() const { return aligned16(w) && aligned16(low); }
  __device__ void load(int64_t i, float (&master)[1]) const { master[0] = join_master({w[i], low[i]}); }
  __device__ void load(int64_t i, float (&master)[4]) const {
    const auto high = *reinterpret_cast<const ushort4*>(w + i);
    const auto rest = *reinterpret_cast<const short4*>(low + i);
    master[0] = join_master({high.x, rest.x});
    master[1] = join_master({high.y, rest.y});
    master[2] = join_master({high.z, rest.z});
    master[3] = join_master({high.w, rest.w});
  }
  __device__ void load(int64_t i, float (&master)[8]) const {
    const uint4 high = *reinterpret_cast<const uint4*>(w + i), rest = *reinterpret_cast<const uint4*>(low + i);
    const unsigned highs[4] = {high.x, high.y, high.z, high.w}, lows[4] = {rest.x, rest.y, rest.z, rest.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      master[2 * j] = join_master({static_cast<uint16_t>(highs[j]), static_cast<int16_t>(lows[j])});
      master[2 * j + 1] = join_master({static_cast<uint16_t>(highs[j] >> 16), static_cast<int16_t>(lows[j] >> 16)});
    }
  }
  __device__ void store(int64_t i, const float (&master)[1]) const {
    const WeightHalves halves = split_master(master[0]);
    w[i] = halves.w;
    low[i] = halves.low;
  }
  __device__ void store(int64_t i, const float (&master)[4]) const {
    const WeightHalves a = split_master(master[0]), b = split_master(master[1]), c = split_master(master[2]),
                       d = split_master(master[3]);
    *reinterpret_cast<ushort4*>(w + i) = make_ushort4(a.w, b.w, c.w, d.w);
    *reinterpret_cast<short4*>(low + i) = make_short4(a.low, b.low, c.low, d.low);
  }
  __device__ void store(int64_t i, const float (&master)[8]) const {
    unsigned highs[4], lows[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const WeightHalves first = split_master(master[2 * j]), second = split_master(master[2 * j + 1]);
      highs[j] = first.w | static_cast<unsigned>(second.w) << 16;
      lows[j] = static_cast<uint16_t>(first.low) | static_cast<unsigned>(static_cast<uint16_t>(second.low)) << 16;
    }
    *reinterpret_cast<uint4*>(w + i) = make_uint4(highs[0], highs[1], highs[2], highs[3]);
    *reinterpret_cast<uint4*>(low + i) = make_uint4(lows[0], lows[1], lows[2], lows[3]);
  }
};

// Calls fn with the weights of w and low. Checks that low is there where it has to be, and only there.
template <class Fn>
void dispatch_weights(Tensor w, Tensor low, const Fn& fn) {
  if (w.dtype() == DType::kF32) {
    NMOE_CHECK(!low.defined(), "weights of F32 have no low part, this one is {}", low.shape());
    fn(WholeWeights{w.data<float>()});
    return;
  }
  NMOE_CHECK(low.defined() && low.num_elements() == w.num_elements(), "weights {} with a low part {}", w.shape(),
             low.shape());
  fn(HalvedWeights{reinterpret_cast<uint16_t*>(w.data<__nv_bfloat16>()), low.data<int16_t>()});
}

}  // namespace nmoe::cuda
