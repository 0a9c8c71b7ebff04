// Rounds matrices to blocks of low precision, and finds their largest magnitudes: the arithmetic of
// tensor/low_precision.h, which the CPU runs too, so the same bits. Memory-bound.
//
// BF16 by whole 16 bytes goes to FP8 in quantize_fp8.cu. Elsewhere, along rows a block of 128, 32 or 16 values is 32, 8
// or 4 neighbouring lanes with four values each. A tile is a thread block's, which reads it twice; the second time from
// L2.
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLane = 4;
constexpr int64_t kElementsPerBlock = int64_t{kThreads} * 32;  // of abs_max
constexpr int64_t kMostTilesAcross = 65535;

struct Matrices {
  int64_t count, rows, cols;
  const int32_t* num_rows;  // null: `rows`

  __device__ int64_t rows_there() const { return num_rows == nullptr ? rows : *num_rows; }
};

template <class T>
__global__ void __launch_bounds__(kThreads) abs_max_kernel(const T* x, Matrices m, unsigned* amax) {
  __shared__ unsigned largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const int64_t size = m.rows_there() * m.cols, first = blockIdx.x * kElementsPerBlock;
  const int64_t end = min(size, first + kElementsPerBlock);
  x += static_cast<int64_t>(blockIdx.y) * m.rows * m.cols;
  unsigned bits = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) bits = max(bits, magnitude_bits(to_float(x[i])));
  atomicMax(&largest, bits);
  __syncthreads();
  // Integers: a maximum has no order.
  if (threadIdx.x == 0 && first < size) atomicMax(amax + blockIdx.y, __float_as_uint(amax_of_bits(largest)));
}

struct Target {
  uint8_t* values;
  uint8_t* scales;
  int64_t stride;  // bytes of a row of values
  const float* amax;
  const int64_t* key;  // null: to nearest
  uint64_t stream, first_block;
};

// The scale of a block, and the factor from its values to its elements.
struct Scale {
  uint8_t code;
  float factor;
};
template <bool kE2M1>
__device__ Scale scale_of(unsigned largest, const Target& target, int64_t matrix) {
  const float amax = amax_of_bits(largest);
  if constexpr (kE2M1) {
    const float tensor_factor = nvfp4_tensor_factor(amax_of_bits(magnitude_bits(target.amax[matrix])));
    const uint8_t code = nvfp4_scale(amax, tensor_factor);
    return {code, nvfp4_block_factor(code, tensor_factor)};
  } else {
    const uint8_t code = e8m0_scale(amax);
    return {code, e8m0_to_inverse(code)};
  }
}

template <class T, int kBlock, bool kE2M1>
__global__ void __launch_bounds__(kThreads) rows_kernel(const T* x, Matrices m, Target target) {
  constexpr int kLanes = kBlock / kPerLane;
  const int64_t across = ceil_div(m.cols, int64_t{kBlock});
  const int64_t number = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;  // of the block
  const int64_t row = number / across, col = number % across * kBlock;  // rows of all matrices count on
  const int lane = static_cast<int>(threadIdx.x) % kLanes * kPerLane;
  const bool is_there = row < m.count * m.rows && row % m.rows < m.rows_there();
  float values[kPerLane] = {};
  unsigned largest = 0;
  for (int i = 0; i < kPerLane && is_there; ++i) {
    if (col + lane + i < m.cols) values[i] = to_float(x[row * m.cols + col + lane + i]);
    largest = max(largest, magnitude_bits(values[i]));
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  if (!is_there) return;
  const Scale scale = scale_of<kE2M1>(largest, target, row / m.rows);
  if (lane == 0) target.scales[number] = scale.code;
  uint8_t* const out = target.values + row * target.stride;
  if constexpr (kE2M1) {
    random::Words words{};
    if (target.key != nullptr) {
      words = rounding_bytes(static_cast<uint64_t>(*target.key), target.stream, target.first_block + number);
    }
    for (int i = 0; i < kPerLane; i += 2) {
      uint8_t pair = 0;
      for (int j = i; j < i + 2; ++j) {
        const float value = values[j] * scale.factor;  // past the end a zero, whose code is 0
        const uint8_t code =
            target.key == nullptr ? float_to_e2m1(value) : float_to_e2m1(value, byte_of(words, lane + j));
        if (col + lane + j < m.cols) pair |= static_cast<uint8_t>(code << (j % 2 * 4));
      }
      if (col + lane + i < m.cols) out[(col + lane + i) / 2] = pair;
    }
  } else {
    for (int i = 0; i < kPerLane; ++i) {
      if (col + lane + i < m.cols) out[col + lane + i] = float_to_e4m3(values[i] * scale.factor);
    }
  }
}

template <class T, int kBlock, bool kE2M1>
__global__ void __launch_bounds__(kThreads) tiles_kernel(const T* x, Matrices m, Target target) {
  __shared__ unsigned largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const int64_t down = ceil_div(m.rows, int64_t{kBlock}), across = gridDim.y;
  const int64_t matrix = blockIdx.x / down, row = blockIdx.x % down * kBlock,
                col = static_cast<int64_t>(blockIdx.y) * kBlock;
  const int rows = static_cast<int>(min(int64_t{kBlock}, m.rows - row)),
            cols = static_cast<int>(min(int64_t{kBlock}, m.cols - col));
  const T* const tile = x + (matrix * m.rows + row) * m.cols + col;
  unsigned bits = 0;
  for (int i = static_cast<int>(threadIdx.x); i < rows * cols; i += kThreads) {
    bits = max(bits, magnitude_bits(to_float(tile[i / cols * m.cols + i % cols])));
  }
  atomicMax(&largest, bits);
  __syncthreads();
  const Scale scale = scale_of<kE2M1>(largest, target, matrix);
  if (threadIdx.x == 0) target.scales[blockIdx.x * across + blockIdx.y] = scale.code;
  constexpr int kPerByte = kE2M1 ? 2 : 1;
  const int bytes = ceil_div(cols, kPerByte);
  uint8_t* const out = target.values + (matrix * m.rows + row) * target.stride + col / kPerByte;
  for (int i = static_cast<int>(threadIdx.x); i < rows * bytes; i += kThreads) {
    const int64_t at = i / bytes;
    const int first = i % bytes * kPerByte;
    const float value = to_float(tile[at * m.cols + first]) * scale.factor;
    uint8_t code = 0;
    if constexpr (kE2M1) {
      code = float_to_e2m1(value);
      if (first + 1 < cols) code |= float_to_e2m1(to_float(tile[at * m.cols + first + 1]) * scale.factor) << 4;
    } else {
      code = float_to_e4m3(value);
    }
    out[at * target.stride + i % bytes] = code;
  }
}

// kVectors: a thread has eight values.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(CodedValues codes, T* x, const int32_t* num_rows, int64_t size) {
  constexpr int kAtOnce = kVectors ? 8 : 1;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kAtOnce;
  if (at >= size) return;
  const int64_t row = at / codes.width, i = at % codes.width;
  if (num_rows != nullptr && row >= *num_rows) return;
  float values[kAtOnce];
  if constexpr (kVectors) {
    codes.load8(row, i, values);
  } else {
    values[0] = codes.at(row, i);
  }
  store_values(x + at, values);
}

template <class T, int kBlock, bool kE2M1>
void launch(Context& ctx, const Quantize& args, const Matrices& m, const Target& target) {
  const T* const x = args.x.data<T>();
  const int64_t across = ceil_div(m.cols, int64_t{kBlock});
  if (args.blocks == BlockShape::kTiles) {
    NMOE_CHECK(across <= kMostTilesAcross, "{} tiles across", across);
    const dim3 grid(grid_size(m.count * ceil_div(m.rows, int64_t{kBlock})), short_grid_size(across));
    tiles_kernel<T, kBlock, kE2M1><<<grid, kThreads, 0, ctx.stream>>>(x, m, target);
  } else {
    const int64_t threads = m.count * m.rows * across * (kBlock / kPerLane);
    rows_kernel<T, kBlock, kE2M1><<<grid_size(ceil_div(threads, kThreads)), kThreads, 0, ctx.stream>>>(x, m, target);
  }
}

Matrices matrices_of(const Tensor& x, const Tensor& num_rows) {
  return {x.dim(0), x.dim(1), x.dim(2), num_rows.data_or_null<int32_t>()};
}

}  // namespace

void abs_max(Context& ctx, const AbsMax& args) {
  if (args.x.dim(0) == 0) return;
  NMOE_CUDA_CHECK(cudaMemsetAsync(args.amax.raw(), 0, static_cast<size_t>(args.amax.num_bytes()), ctx.stream));
  const int64_t size = args.x.dim(1) * args.x.dim(2);
  if (size == 0) return;
  const dim3 grid(grid_size(ceil_div(size, kElementsPerBlock)), short_grid_size(args.x.dim(0)));
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    abs_max_kernel<<<grid, kThreads, 0, ctx.stream>>>(args.x.data<T>(), matrices_of(args.x, args.num_rows),
                                                      reinterpret_cast<unsigned*>(args.amax.data<float>()));
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void widen_rows(Context& ctx, const WidenRows& args) {
  const int64_t size = args.x.num_elements();
  if (size == 0) return;
  dispatch_act(args.x.dtype(), [&]<class T>(T) {
    const bool eights = in_eights(args.codes, args.x);
    const auto kernel = eights ? widen_kernel<T, true> : widen_kernel<T, false>;
    kernel<<<grid_size(ceil_div<int64_t>(eights ? size / 8 : size, kThreads)), kThreads, 0, ctx.stream>>>(
        coded_values(args.codes), args.x.data<T>(), args.num_rows.data_or_null<int32_t>(), size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void quantize(Context& ctx, const Quantize& args) {
  if (args.x.num_elements() == 0) return;
  if (args.format == OperandFormat::kFp8 && takes_fp8(args.x, args.values)) {
    if (args.blocks == BlockShape::kTiles) return quantize_fp8_tiles(ctx, args);
    const auto as_rows = [](const Tensor& x) { return x.reshape({x.dim(0) * x.dim(1), x.dim(2)}); };
    return quantize_fp8_rows(ctx, as_rows(args.x), args.num_rows,
                             {.values = as_rows(args.values), .scales = as_rows(args.scales)});
  }
  NMOE_CHECK(!args.transposed_values.defined(), "transposed codes of {} {}", dtype_name(args.x.dtype()),
             args.x.shape());
  const Matrices m = matrices_of(args.x, args.num_rows);
  const Target target{.values = args.values.data<uint8_t>(),
                      .scales = args.scales.data<uint8_t>(),
                      .stride = args.values.dim(2),
                      .amax = args.amax.data_or_null<float>(),
                      .key = args.random.key.data_or_null<int64_t>(),
                      .stream = args.random.stream,
                      .first_block = args.random.first_block};
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    switch (args.format) {
      case OperandFormat::kFp8:
        return launch<T, block_size(OperandFormat::kFp8), false>(ctx, args, m, target);
      case OperandFormat::kMxFp8:
        return launch<T, block_size(OperandFormat::kMxFp8), false>(ctx, args, m, target);
      case OperandFormat::kNvFp4:
        return launch<T, block_size(OperandFormat::kNvFp4), true>(ctx, args, m, target);
      case OperandFormat::kAct:
        break;
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
