// Rounds BF16 to blocks of MXFP8 and NVFP4, in the layouts of plans/block_operands.h: the arithmetic of
// tensor/low_precision.h, which the CPU runs too, so the same bits. Memory-bound.
//
// A thread has one block, and a thread block a part of a tile of 128 rows of one group. Along rows, lanes 0 to 15 have
// the blocks of 16 rows below each other, so that each reads whole sectors and NVFP4's tiles are half a warp. Along
// columns, the lanes have columns side by side. Tensors' largest magnitudes are found by the same kernels before.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm100/block_operands.h"
#include "ops/cuda/sm100/descriptors.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm100 {
namespace {

constexpr int kTile = static_cast<int>(kBlockTile);
constexpr int kTileLanes = 16;  // rows, or columns, of an NVFP4 tile
constexpr int kRowThreads = 256, kRowsAtOnce = kTile, kBlocksAtOnce = kRowThreads / kRowsAtOnce;
constexpr int kBlocksEach = 16;  // along a row, of a thread block
constexpr int kCountThreads = kWarp;
constexpr uint64_t kExpertBlocks = first_block_of(1);
static_assert(kTile == kScaleRows && kBlocksEach % kBlocksAtOnce == 0);

// What a kernel does with a block.
enum class Pass { kMeasure, kEncode };
// How NVFP4's blocks come about; MXFP8 has kPlain alone.
enum class Blocks { kPlain, kTiles, kTransformed };

template <OperandFormat kOf, Blocks kShape, Pass kPassOf>
struct Way {
  static constexpr OperandFormat kFormat = kOf;
  static constexpr Blocks kBlocks = kShape;
  static constexpr bool kMeasures = kPassOf == Pass::kMeasure;
  static constexpr bool kE2M1 = kFormat == OperandFormat::kNvFp4;
  static constexpr int kValues = static_cast<int>(block_size(kFormat));  // of a block
  static_assert(kE2M1 || (kBlocks == Blocks::kPlain && !kMeasures));
};

template <class W>
constexpr int kCodeBytes = W::kE2M1 ? W::kValues / 2 : W::kValues;  // of a block

struct Source {
  const __nv_bfloat16* x;
  const int32_t* index;  // may be null
  int64_t width;
  int num_groups;
  bool vector;  // rows are whole 16 bytes

  __device__ const __nv_bfloat16* row(int64_t at) const { return x + (index == nullptr ? at : index[at]) * width; }
};

struct Target {
  uint8_t* values;
  uint8_t* scales;
  int64_t row_bytes, scales_across;  // of values; blocks of scales along k
  float* amax;                       // of groups
  const int64_t* key;                // null: to nearest
  uint64_t stream;
  const int32_t* experts;  // RandomRounding::experts, or null
};

template <class W>
__device__ unsigned largest_of(const float (&values)[W::kValues]) {
  unsigned largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, magnitude_bits(value));
  if constexpr (W::kBlocks == Blocks::kTiles) {
#pragma unroll
    for (int offset = kTileLanes / 2; offset > 0; offset /= 2) {
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
  }
  return largest;
}

// Of all threads of a block. Integers: a maximum has no order.
__device__ void add_to_amax(unsigned largest, float* amax) {
  __shared__ unsigned shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  atomicMax(&shared, largest);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(amax_of_bits(shared)));
}

// The scale of a block whose largest magnitude has these bits; codes = its codes, of which block `number` of the
// group's is rounded at random where there is a key.
template <class W>
__device__ uint8_t encode(const float (&values)[W::kValues], unsigned largest, const Target& to, int group,
                          int64_t number, uint32_t (&codes)[kCodeBytes<W> / 4]) {
  if constexpr (W::kE2M1) {
    const float tensor_factor = nvfp4_tensor_factor(amax_of_bits(magnitude_bits(to.amax[group])));
    const uint8_t scale = nvfp4_scale(amax_of_bits(largest), tensor_factor);
    const float factor = nvfp4_block_factor(scale, tensor_factor);
    random::Words words{};
    if (to.key != nullptr) {
      const uint64_t first_block = kExpertBlocks * (to.experts == nullptr ? group : to.experts[group]);
      words = rounding_bytes(static_cast<uint64_t>(*to.key), to.stream, first_block + number);
    }
#pragma unroll
    for (int i = 0; i < W::kValues; ++i) {
      const float value = values[i] * factor;
      const uint32_t code = to.key == nullptr ? float_to_e2m1(value) : float_to_e2m1(value, byte_of(words, i));
      codes[i / 8] = (i % 8 == 0 ? 0U : codes[i / 8]) | code << (i % 8 * 4);
    }
    return scale;
  } else {
    const uint8_t scale = e8m0_scale(amax_of_bits(largest));
    const float factor = e8m0_to_inverse(scale);
#pragma unroll
    for (int i = 0; i < W::kValues; i += 4) {
      codes[i / 4] =
          e4m3_four(values[i] * factor, values[i + 1] * factor, values[i + 2] * factor, values[i + 3] * factor);
    }
    return scale;
  }
}

// To an address that is a multiple of 8.
template <int kWords>
__device__ void store_codes(const uint32_t (&codes)[kWords], uint8_t* target) {
#pragma unroll
  for (int i = 0; i < kWords; i += 2) reinterpret_cast<uint2*>(target)[i / 2] = make_uint2(codes[i], codes[i + 1]);
}

// Grid (tiles of all groups, parts of their rows).
template <class W>
__global__ void __launch_bounds__(kRowThreads) rows_kernel(Source from, GroupBounds bounds, Target to) {
  GroupTileCursor<kTile> cursor(bounds, from.num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int thread = static_cast<int>(threadIdx.x), row_in_tile = thread % kRowsAtOnce;
  const int row_in_group = cursor.row_tile() * kTile + row_in_tile;
  const bool row_is_there = row_in_group < cursor.num_rows();
  const int64_t row = cursor.row_begin() + row_in_group;
  const __nv_bfloat16* const source = row_is_there ? from.row(row) : nullptr;
  const int64_t across = ceil_div(from.width, int64_t{W::kValues});
  const int64_t end = to.scales_across * kScalesAcross, value_blocks = to.row_bytes / kCodeBytes<W>;
  unsigned most = 0;
  for (int i = 0; i < kBlocksEach; i += kBlocksAtOnce) {  // all lanes together
    const int64_t block = static_cast<int64_t>(blockIdx.y) * kBlocksEach + i + thread / kRowsAtOnce;
    if (block >= end) break;
    float values[W::kValues] = {};
#pragma unroll
    for (int first = 0; first < W::kValues; first += 8) {
      const int64_t col = block * W::kValues + first;
      float eight[8] = {};
      if (row_is_there && col < from.width) load8(source, col, from.width, from.vector, eight);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[first + j] = eight[j];
    }
    const unsigned largest = largest_of<W>(values);
    if constexpr (W::kMeasures) {
      most = max(most, largest);
    } else {
      if (!row_is_there) continue;
      uint32_t codes[kCodeBytes<W> / 4];
      const uint8_t scale = encode<W>(values, largest, to, cursor.expert(), row_in_group * across + block, codes);
      to.scales[scale_offset(static_cast<int64_t>(blockIdx.x) * kTile + row_in_tile, block, to.scales_across)] = scale;
      if (block < value_blocks) store_codes(codes, to.values + row * to.row_bytes + block * kCodeBytes<W>);
    }
  }
  if constexpr (W::kMeasures) add_to_amax(most, to.amax + cursor.expert());
}

template <class W>
constexpr int kColumnThreads = kTile / W::kValues* kWarp;

// Grid (tiles of all groups, columns in warps): a warp has a block of each of 32 columns.
template <class W>
__global__ void __launch_bounds__(kColumnThreads<W>) columns_kernel(Source from, GroupBounds bounds, Target to) {
  GroupTileCursor<kTile> cursor(bounds, from.num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kWarp + threadIdx.x % kWarp;
  const int first = cursor.row_tile() * kTile + warp * W::kValues;
  float values[W::kValues];
#pragma unroll
  for (int i = 0; i < W::kValues; ++i) {
    const bool is_there = first + i < cursor.num_rows() && col < from.width;
    values[i] = is_there ? to_float(from.row(cursor.row_begin() + first + i)[col]) : 0.0F;
  }
  if constexpr (W::kBlocks == Blocks::kTransformed) random_hadamard(values);
  const unsigned largest = largest_of<W>(values);
  if constexpr (W::kMeasures) {
    add_to_amax(largest, to.amax + cursor.expert());
  } else {
    if (col >= from.width) return;
    uint32_t codes[kCodeBytes<W> / 4];
    const int64_t number = first / W::kValues * from.width + col;
    const uint8_t scale = encode<W>(values, largest, to, cursor.expert(), number, codes);
    const int64_t block = static_cast<int64_t>(blockIdx.x) * (kTile / W::kValues) + warp;
    to.scales[scale_offset(col, block, to.scales_across)] = scale;
    store_codes(codes, to.values + col * to.row_bytes + block * kCodeBytes<W>);
  }
}

// One warp.
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const int32_t* offsets, int num_groups, int32_t* tile_offsets) {
  const int lane = static_cast<int>(threadIdx.x);
  int before = 0;
  if (lane == 0) tile_offsets[0] = 0;
  for (int first = 0; first < num_groups; first += kWarp) {
    const int group = first + lane;
    int end = group < num_groups ? ceil_div(offsets[group + 1] - offsets[group], kTile) : 0;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end, offset);
      if (lane >= offset) end += below;
    }
    end += before;
    if (group < num_groups) tile_offsets[group + 1] = end;
    before = __shfl_sync(kAllLanes, end, kWarp - 1);
  }
}

// Groups of rows, and the tiles that they can have.
struct Groups {
  GroupBounds bounds;
  int64_t count, most_tiles;
};

Groups groups_of(const OperandRows& x, const Tensor& offsets) {
  const int64_t rows = x.num_rows();
  if (!offsets.defined()) {
    return {GroupBounds(static_cast<int>(rows), static_cast<int>(rows)), 1, block_tiles(rows)};
  }
  const int64_t count = offsets.dim(0) - 1;
  return {GroupBounds(offsets.data<int32_t>()), count, most_block_tiles(rows, count)};
}
// Of weights [E * out, in].
Groups groups_of_weights(const Tensor& w, int64_t num_experts) {
  const int64_t out = w.dim(0) / num_experts;
  return {GroupBounds(static_cast<int>(w.dim(0)), static_cast<int>(out)), num_experts, num_experts * block_tiles(out)};
}

Source source_of(const OperandRows& x, const Groups& groups) {
  NMOE_CHECK(x.source.dtype() == DType::kBF16, "{} is not rounded on Blackwell", dtype_name(x.source.dtype()));
  return {.x = x.source.data<__nv_bfloat16>(),
          .index = x.index.data_or_null<int32_t>(),
          .width = x.width(),
          .num_groups = static_cast<int>(groups.count),
          .vector = can_vectorise(x.width(), x.source)};
}

Target target_of(const BlockOperand& to, const RandomRounding& random) {
  return {.values = to.values.data<uint8_t>(),
          .scales = to.scales.data<uint8_t>(),
          .row_bytes = to.values.dim(1),
          .scales_across = to.scales.dim(1),
          .amax = to.amax.data_or_null<float>(),
          .key = random.key.data_or_null<int64_t>(),
          .stream = random.stream,
          .experts = random.experts.data_or_null<int32_t>()};
}

template <class W>
void launch_rows(Context& ctx, const Source& from, const Groups& groups, const Target& to) {
  const dim3 grid(grid_size(groups.most_tiles),
                  short_grid_size(ceil_div(to.scales_across * kScalesAcross, int64_t{kBlocksEach})));
  rows_kernel<W><<<grid, kRowThreads, 0, ctx.stream>>>(from, groups.bounds, to);
  NMOE_CUDA_CHECK(cudaGetLastError());
}
template <class W>
void launch_columns(Context& ctx, const Source& from, const Groups& groups, const Target& to) {
  const dim3 grid(grid_size(groups.most_tiles), short_grid_size(ceil_div(from.width, int64_t{kWarp})));
  columns_kernel<W><<<grid, kColumnThreads<W>, 0, ctx.stream>>>(from, groups.bounds, to);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void clear(Context& ctx, const Tensor& amax) {
  NMOE_CUDA_CHECK(cudaMemsetAsync(amax.raw(), 0, static_cast<size_t>(amax.num_bytes()), ctx.stream));
}

Tensor as_rows(const Tensor& w) { return w.reshape({w.num_elements() / w.dim(-1), w.dim(-1)}); }
int64_t num_experts(const Tensor& w) { return w.shape().rank() == 3 ? w.dim(0) : 1; }
void measure_weights(Context& ctx, const Tensor& w, const Tensor& amax) {
  abs_max(ctx, {.x = w.reshape({num_experts(w), w.dim(-2), w.dim(-1)}), .amax = amax});
}

constexpr auto kMxFp8 = OperandFormat::kMxFp8, kNvFp4 = OperandFormat::kNvFp4;

}  // namespace

void count_tiles(Context& ctx, Tensor offsets, Tensor tile_offsets) {
  count_kernel<<<1, kCountThreads, 0, ctx.stream>>>(offsets.data<int32_t>(), static_cast<int>(offsets.dim(0)) - 1,
                                                    tile_offsets.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void encode_rows(Context& ctx, const OperandRows& x, Tensor offsets, const RandomRounding& random,
                 const BlockOperand& to) {
  const Groups groups = groups_of(x, offsets);
  const Source from = source_of(x, groups);
  const Target target = target_of(to, random);
  if (to.format == kMxFp8) return launch_rows<Way<kMxFp8, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
  clear(ctx, to.amax);
  launch_rows<Way<kNvFp4, Blocks::kPlain, Pass::kMeasure>>(ctx, from, groups, target);
  launch_rows<Way<kNvFp4, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
}

void encode_columns(Context& ctx, const OperandRows& x, Tensor offsets, bool transform, const RandomRounding& random,
                    const BlockOperand& to) {
  const Groups groups = groups_of(x, offsets);
  const Source from = source_of(x, groups);
  const Target target = target_of(to, random);
  if (to.format == kMxFp8) {
    return launch_columns<Way<kMxFp8, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
  }
  clear(ctx, to.amax);
  if (transform) {
    launch_columns<Way<kNvFp4, Blocks::kTransformed, Pass::kMeasure>>(ctx, from, groups, target);
    launch_columns<Way<kNvFp4, Blocks::kTransformed, Pass::kEncode>>(ctx, from, groups, target);
  } else {
    launch_columns<Way<kNvFp4, Blocks::kPlain, Pass::kMeasure>>(ctx, from, groups, target);
    launch_columns<Way<kNvFp4, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
  }
}

void encode_weights(Context& ctx, Tensor w, const BlockOperand& to) {
  const Tensor rows = as_rows(w);
  const Groups groups = groups_of_weights(rows, num_experts(w));
  const Source from = source_of(rows, groups);
  const Target target = target_of(to, {});
  if (to.format == kMxFp8) return launch_rows<Way<kMxFp8, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
  measure_weights(ctx, w, to.amax);
  launch_rows<Way<kNvFp4, Blocks::kTiles, Pass::kEncode>>(ctx, from, groups, target);
}

void encode_weight_columns(Context& ctx, Tensor w, const BlockOperand& to) {
  const Tensor rows = as_rows(w);
  const Groups groups = groups_of_weights(rows, num_experts(w));
  const Source from = source_of(rows, groups);
  const Target target = target_of(to, {});
  if (to.format == kMxFp8) {
    return launch_columns<Way<kMxFp8, Blocks::kPlain, Pass::kEncode>>(ctx, from, groups, target);
  }
  measure_weights(ctx, w, to.amax);
  launch_columns<Way<kNvFp4, Blocks::kTiles, Pass::kEncode>>(ctx, from, groups, target);
}

}  // namespace nmoe::cuda::sm100
