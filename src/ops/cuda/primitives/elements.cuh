// Elements of tensors as kernels see them: their types, conversion to and from fp32, access by 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "tensor/tensor.h"

namespace nmoe {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kI16;
};

}  // namespace nmoe

namespace nmoe::cuda {

// Calls fn with a value of an act tensor's element type.
template <class Fn>
void dispatch_act(DType dtype, const Fn& fn) {
  if (dtype == DType::kBF16) {
    fn(__nv_bfloat16{});
  } else {
    NMOE_CHECK(dtype == DType::kF32, "CUDA computes in F32 or BF16, not {}", dtype_name(dtype));
    fn(float{});
  }
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Whether load8 and store8 may take 16 bytes at a time: every `width` elements, one after another from the tensor's
// start, or from that of each of its rows where those lie apart, begin at a multiple of 16 bytes.
template <class... Tensors>
bool can_vectorise(int64_t width, const Tensors&... tensors) {
  const auto aligned = [](const Tensor& x) {
    return std::bit_cast<uintptr_t>(x.rows_raw()) % 16 == 0 && (x.dense() || x.stride() % 8 == 0);
  };
  return width % 8 == 0 && (aligned(tensors) && ...);
}

// Eight values at `source`, which is aligned to 16 bytes.
__device__ inline void load8(const float* source, float (&v)[8]) {
  const float4 low = reinterpret_cast<const float4*>(source)[0], high = reinterpret_cast<const float4*>(source)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
__device__ inline void load8(const __nv_bfloat16* source, float (&v)[8]) {
  const uint4 packed = *reinterpret_cast<const uint4*>(source);
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[2 * j] = __uint_as_float(words[j] << 16);
    v[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000U);
  }
}
// Two and eight values as BF16, the first in the lowest bits.
__device__ inline uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint4 pack8(const float (&v)[8]) {
  return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}
// To `target`, aligned to 16 bytes.
__device__ inline void store8(float* target, const float (&v)[8]) {
  reinterpret_cast<float4*>(target)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(target)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
// To global memory.
//
// NOTE: by __stwb(), st.global. The compiler takes the assignment of a uint4 apart and does not always find together
// again what it took apart: four stores of four bytes each wrote SwiGLU's gradients and what activations make.
__device__ inline void store8(__nv_bfloat16* target, const float (&v)[8]) {
  __stwb(reinterpret_cast<uint4*>(target), pack8(v));
}

// One value, or 8, 16 or 32 bytes of them at a pointer that is aligned to 16, or to 8.
template <class T>
__device__ inline void load_values(const T* source, float (&v)[1]) {
  v[0] = to_float(*source);
}
__device__ inline void load_values(const float* source, float (&v)[4]) {
  const float4 packed = *reinterpret_cast<const float4*>(source);
  v[0] = packed.x, v[1] = packed.y, v[2] = packed.z, v[3] = packed.w;
}
__device__ inline void load_values(const __nv_bfloat16* source, float (&v)[4]) {
  const uint2 packed = *reinterpret_cast<const uint2*>(source);
  v[0] = __uint_as_float(packed.x << 16), v[1] = __uint_as_float(packed.x & 0xFFFF0000U);
  v[2] = __uint_as_float(packed.y << 16), v[3] = __uint_as_float(packed.y & 0xFFFF0000U);
}
__device__ inline void load_values(const float* source, float (&v)[8]) { load8(source, v); }
__device__ inline void load_values(const __nv_bfloat16* source, float (&v)[8]) { load8(source, v); }
template <class T>
__device__ inline void store_values(T* target, const float (&v)[1]) {
  *target = from_float<T>(v[0]);
}
__device__ inline void store_values(float* target, const float (&v)[4]) {
  *reinterpret_cast<float4*>(target) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ inline void store_values(float* target, const float (&v)[8]) { store8(target, v); }
__device__ inline void store_values(__nv_bfloat16* target, const float (&v)[4]) {
  __stwb(reinterpret_cast<uint2*>(target), make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3])));
}
__device__ inline void store_values(__nv_bfloat16* target, const float (&v)[8]) { store8(target, v); }

// Two values at `target`, which is aligned to their size.
__device__ inline void store2(float* target, float first, float second) {
  *reinterpret_cast<float2*>(target) = make_float2(first, second);
}
__device__ inline void store2(__nv_bfloat16* target, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(target) = __floats2bfloat162_rn(first, second);
}

// Elements [i, i + 8) of a row of `width`, as floats; 0 past its end. `vector`: as can_vectorise says; i is a multiple
// of 8.
__device__ inline void load8(const float* row, int64_t i, int64_t width, bool vector, float (&v)[8]) {
  if (vector) {
    load8(row + i, v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = i + j < width ? row[i + j] : 0.0F;
  }
}
__device__ inline void load8(const __nv_bfloat16* row, int64_t i, int64_t width, bool vector, float (&v)[8]) {
  if (vector) {
    load8(row + i, v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = i + j < width ? to_float(row[i + j]) : 0.0F;
  }
}

// The other way; nothing past the end.
__device__ inline void store8(float* row, int64_t i, int64_t width, bool vector, const float (&v)[8]) {
  if (vector) {
    store8(row + i, v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j < width) row[i + j] = v[j];
    }
  }
}
__device__ inline void store8(__nv_bfloat16* row, int64_t i, int64_t width, bool vector, const float (&v)[8]) {
  if (vector) {
    store8(row + i, v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j < width) row[i + j] = __float2bfloat16_rn(v[j]);
    }
  }
}

}  // namespace nmoe::cuda
