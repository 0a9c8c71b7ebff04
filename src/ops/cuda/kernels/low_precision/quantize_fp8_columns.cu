// Rounds BF16 to FP8 in blocks of 128 x 1, transposed: what sums over rows takes. Memory-bound: two bytes are read for
// each that is written; where an activation makes the values, four, or two of codes.
//
// A thread block has 128 rows of a strip of columns. Tiles of those rows come to shared memory by asynchronous copies,
// the next one while codes of one are made. From there a thread takes eight columns of eight rows, one below the other,
// and half a warp all 128 rows of its columns: the largest magnitudes go round by shuffles, a conversion to FP8 packs
// rows, not columns, so that nothing has to be turned over, and sixteen threads write a column's 128 bytes at once. Few
// instructions a value: a training step is at the limit of power, where time alone is not all that counts.
#include <cuda_bf16.h>

#include "base/kinds.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8_columns.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kFp8));
constexpr int kRows = 8, kRowGroups = kBlock / kRows;  // of a thread; of half a warp
constexpr int kStages = 2, kBlocksAtOnce = 3;
static_assert(kWarp == 2 * kRowGroups);

// Where values come from: rows that are kParts * width wide, eight values of which are a Vector; values(row weight,
// scales, parts) makes eight of what codes are made of. kCols: of a tile. kScaled: a Vector has codes, and a row's
// values in a tile a scale.
struct PickedRows {
  static constexpr int kParts = 1, kCols = 128, kStripTiles = 4;
  static constexpr bool kScaled = false;
  using Vector = uint4;
  const __nv_bfloat16* x;
  const int32_t* index;  // null: row r is x's
  int64_t width;

  __device__ const Vector* vectors() const { return reinterpret_cast<const Vector*>(x); }
  __device__ int source(int row) const { return index == nullptr ? row : index[row]; }
  __device__ float weight(int /*row*/) const { return 1.0F; }
  __device__ static uint4 values(float /*weight*/, const float (&)[1], const Vector (&parts)[1]) { return parts[0]; }
};
// What an activation makes of eight pre-activations.
template <class A>
__device__ uint4 activated_eight(float weight, const float (&pre)[A::kParts][8]) {
  float h[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) h[j] = activated<__nv_bfloat16, A>(pre, j) * weight;
  return pack8(h);
}
// What an activation makes of rows of pre-activations, as ActivationForward (contracts/activation.h) says.
template <class A>
struct ActivatedRows {
  static constexpr int kParts = A::kParts, kCols = 128 / kParts, kStripTiles = 8;
  static constexpr bool kScaled = false;
  using Vector = uint4;
  const __nv_bfloat16* x;  // pre-activations
  const float* weights;    // null: 1
  int64_t width;           // of a row of h

  __device__ const Vector* vectors() const { return reinterpret_cast<const Vector*>(x); }
  __device__ int source(int row) const { return row; }
  __device__ float weight(int row) const { return weights != nullptr ? weights[row] : 1.0F; }
  __device__ static uint4 values(float weight, const float (&)[kParts], const Vector (&parts)[kParts]) {
    float all[kParts][8];
#pragma unroll
    for (int part = 0; part < kParts; ++part) load8(reinterpret_cast<const __nv_bfloat16*>(&parts[part]), all[part]);
    return activated_eight<A>(weight, all);
  }
};
// The same of pre-activations that wait as codes, of whose blocks a tile is as wide as one.
template <class A>
struct ActivatedCodes {
  static constexpr int kParts = A::kParts, kCols = kBlock, kStripTiles = 4;
  static constexpr bool kScaled = true;
  using Vector = uint2;
  const uint8_t* codes;
  const uint8_t* scales;
  const float* weights;  // null: 1
  int64_t width;         // of a row of h

  __device__ const Vector* vectors() const { return reinterpret_cast<const Vector*>(codes); }
  __device__ int source(int row) const { return row; }
  __device__ float weight(int row) const { return weights != nullptr ? weights[row] : 1.0F; }
  __device__ uint8_t scale(int row, int part, int64_t col) const {
    const int64_t across = width / kBlock;
    return scales[(int64_t{row} * kParts + part) * across + col / kBlock];
  }
  __device__ static uint4 values(float weight, const float (&scales)[kParts], const Vector (&parts)[kParts]) {
    float all[kParts][8];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float(&v)[8] = all[part];
      e4m3_values(parts[part].x, scales[part], v[0], v[1], v[2], v[3]);
      e4m3_values(parts[part].y, scales[part], v[4], v[5], v[6], v[7]);
    }
    return activated_eight<A>(weight, all);
  }
};

struct Columns {
  const int32_t* offsets;
  int num_groups;
  int64_t cols;
  uint8_t* values;
  uint8_t* scales;
};

// The rows of a block.
struct BlockRows {
  int first, count;
};

// By all threads. None: no group has that block.
template <int kThreads>
__device__ BlockRows find_rows(const Columns& p, int block) {
  __shared__ BlockRows found;
  if (threadIdx.x == 0) found.count = 0;
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < p.num_groups; group += kThreads) {
    const int begin = p.offsets[group], rows = p.offsets[group + 1] - begin;
    const int before = (block - begin / kBlock - group) * kBlock;
    if (before >= 0 && before < rows) found = {begin + before, min(kBlock, rows - before)};
  }
  __syncthreads();
  return found;
}

__device__ uint32_t word_of(const uint4& vector, int i) {
  return i == 0 ? vector.x : (i == 1 ? vector.y : (i == 2 ? vector.z : vector.w));
}
// Pairs of BF16. The larger magnitudes, NaN where one is NaN, with any sign.
__device__ uint32_t larger_pair(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
__device__ uint32_t times_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

template <class Source>
struct Shared {
  static constexpr int kChunks = Source::kCols / 8;  // of a row, of eight values

  // A row's chunks change places with the row's group, so that threads that read rows of all groups meet no bank twice.
  typename Source::Vector stages[kStages][Source::kParts][kBlock][kChunks];
  int sources[kBlock];
  float weights[kBlock];
  uint8_t scales[Source::kStripTiles][Source::kParts][Source::kScaled ? kBlock : 1];

  __device__ static int place(int row, int chunk) { return (chunk ^ (row / kRows)) % kChunks; }
};
template <class Source>
constexpr int kThreadsOf = kRowGroups* Shared<Source>::kChunks;

// Grid (blocks of rows, strips of columns). Columns are counted from the strip's first.
template <class Source>
__global__ void __launch_bounds__(kThreadsOf<Source>, kBlocksAtOnce) columns_kernel(Source source, Columns p) {
  constexpr int kThreads = kThreadsOf<Source>, kChunks = Shared<Source>::kChunks, kCols = Source::kCols;
  constexpr int kCopies = kBlock / kRowGroups;  // of a thread, in a tile
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Source>*>(memory);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const BlockRows rows = find_rows<kThreads>(p, block);
  if (rows.count == 0) return;
  if (thread < kBlock) {
    const bool exists = thread < rows.count;
    shared.sources[thread] = exists ? source.source(rows.first + thread) : 0;
    shared.weights[thread] = exists ? source.weight(rows.first + thread) : 0.0F;
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * Source::kStripTiles * kCols;
  const int cols = static_cast<int>(min(p.cols - begin, int64_t{Source::kStripTiles} * kCols));
  if constexpr (Source::kScaled) {
    static_assert(kThreads % kBlock == 0);
    const int row = thread % kBlock;
    for (int i = thread / kBlock; i < cols / kCols * Source::kParts; i += kThreads / kBlock) {
      const int tile = i / Source::kParts, part = i % Source::kParts;
      shared.scales[tile][part][row] =
          row < rows.count ? source.scale(rows.first + row, part, begin + tile * kCols) : uint8_t{0};
    }
  }
  __syncthreads();

  // A thread copies a chunk of every sixteenth row.
  const int first_row = thread / kChunks, own_chunk = thread % kChunks;
  const auto vectors_of_part = static_cast<uint32_t>(source.width / 8);
  using Vector = typename Source::Vector;
  const Vector* const columns = source.vectors() + begin / 8 + own_chunk;
  uint32_t row_begins[kCopies];  // in vectors
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    row_begins[i] =
        static_cast<uint32_t>(shared.sources[first_row + i * kRowGroups]) * Source::kParts * vectors_of_part;
  }
  const auto start = [&](int stage, int first_col) {
    if (first_col < cols) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = first_row + i * kRowGroups;
        const bool exists = row < rows.count && first_col + own_chunk * 8 < cols;
        const Vector* const from = columns + first_col / 8 + (exists ? row_begins[i] : 0U);
#pragma unroll
        for (int part = 0; part < Source::kParts; ++part) {
          Vector* const to = &shared.stages[stage][part][row][Shared<Source>::place(row, own_chunk)];
          const Vector* const vector = exists ? from + part * vectors_of_part : source.vectors();
          if constexpr (sizeof(Vector) == 16) {
            copy_async16(to, vector, exists);
          } else {
            copy_async8(to, vector, exists);
          }
        }
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) start(stage, stage * kCols);

  const int group = thread % kRowGroups, chunk = thread / kRowGroups;
  uint8_t* to = p.values + (block * p.cols + begin + chunk * 8) * kBlock + group * kRows;
  uint8_t* const scales = p.scales + block * p.cols + begin;
  int stage = 0;
#pragma unroll 1
  for (int first_col = 0; first_col < cols; first_col += kCols, to += kCols * kBlock) {
    wait_copies<kStages - 2>();
    __syncthreads();  // all have their copies, and nobody reads what was in the stage that is filled next
    start((stage + kStages - 1) % kStages, first_col + (kStages - 1) * kCols);
    uint4 vectors[kRows];
    uint32_t largest[4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group * kRows + i;
      Vector parts[Source::kParts];
      float scales_of_row[Source::kParts];
#pragma unroll
      for (int part = 0; part < Source::kParts; ++part) {
        parts[part] = shared.stages[stage][part][row][Shared<Source>::place(row, chunk)];
        scales_of_row[part] = Source::kScaled ? e8m0_to_float(shared.scales[first_col / kCols][part][row]) : 1.0F;
      }
      vectors[i] = Source::values(shared.weights[row], scales_of_row, parts);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t pair = word_of(vectors[i], j);
        largest[j] = i == 0 ? pair : larger_pair(largest[j], pair);
      }
    }
    stage = (stage + 1) % kStages;

    // Each four threads next to each other get the pairs of columns 0, 2, 1 and 3, and make their scales.
    const bool upper = group % 2 != 0, odd = group / 2 % 2 != 0;
    uint32_t half[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t others = __shfl_xor_sync(kAllLanes, upper ? largest[j] : largest[j + 2], 1);
      half[j] = larger_pair(upper ? largest[j + 2] : largest[j], others);
    }
    uint32_t pair = larger_pair(odd ? half[1] : half[0], __shfl_xor_sync(kAllLanes, odd ? half[0] : half[1], 2));
    pair = larger_pair(pair, __shfl_xor_sync(kAllLanes, pair, 4));
    pair = larger_pair(pair, __shfl_xor_sync(kAllLanes, pair, 8)) & 0x7FFF7FFFU;
    const uint8_t low_code = e8m0_scale(amax_of_bits(pair << 16)),
                  high_code = e8m0_scale(amax_of_bits(pair & 0xFFFF0000U));
    const int col = first_col + chunk * 8;
    const bool exists = col < cols;
    if (group < 4 && exists) {
      *reinterpret_cast<uint16_t*>(scales + col + (upper ? 4 : 0) + (odd ? 2 : 0)) =
          static_cast<uint16_t>(low_code | high_code << 8);
    }
    // Powers of two, and products with them but for those that FP8 has no bits for, are exact in BF16.
    const uint32_t factors =
        __float_as_uint(e8m0_to_inverse(low_code)) >> 16 | (__float_as_uint(e8m0_to_inverse(high_code)) & 0xFFFF0000U);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t factor = __shfl_sync(kAllLanes, factors, j / 2 + j % 2 * 2, kRowGroups);
      uint32_t scaled[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) scaled[i] = times_pair(word_of(vectors[i], j), factor);
      if (!exists) continue;
      const auto low = [&](int i) { return __uint_as_float(scaled[i] << 16); };
      const auto high = [&](int i) { return __uint_as_float(scaled[i] & 0xFFFF0000U); };
      const auto codes_of = [](const auto& value) {
        return make_uint2(e4m3_four(value(0), value(1), value(2), value(3)),
                          e4m3_four(value(4), value(5), value(6), value(7)));
      };
      // They make room in L2 first: rows that several groups pick are to stay there.
      __stcs(reinterpret_cast<uint2*>(to + 2 * j * kBlock), codes_of(low));
      __stcs(reinterpret_cast<uint2*>(to + (2 * j + 1) * kBlock), codes_of(high));
    }
  }
}

void check_columns(const ColumnCodes& columns, int64_t num_rows, int64_t width, int64_t num_groups) {
  const int64_t blocks = num_rows / kBlock + num_groups;
  NMOE_CHECK(columns.values.shape() == Shape({blocks, width, kBlock}) &&
                 columns.scales.shape() == Shape({blocks, width}) && width % 16 == 0 && width <= INT32_MAX / 2 &&
                 num_rows <= INT32_MAX - kBlock && blocks <= INT32_MAX && aligned16(columns.values.raw()) &&
                 aligned16(columns.scales.raw()),
             "FP8 columns {} and scales {} of {} rows of {} in {} groups", columns.values.shape(),
             columns.scales.shape(), num_rows, width, num_groups);
}

template <class Source>
void launch(Context& ctx, const Source& source, int64_t num_values, Tensor offsets, const ColumnCodes& columns) {
  const int64_t cols = columns.values.dim(1);
  NMOE_CHECK(num_values / 8 <= UINT32_MAX, "FP8 columns of {} values", num_values);
  const Columns args{.offsets = offsets.data<int32_t>(),
                     .num_groups = static_cast<int>(offsets.dim(0)) - 1,
                     .cols = cols,
                     .values = columns.values.data<uint8_t>(),
                     .scales = columns.scales.data<uint8_t>()};
  constexpr int kBytes = sizeof(Shared<Source>);
  allow_dynamic_shared(columns_kernel<Source>, kBytes);
  const dim3 grid(grid_size(columns.values.dim(0)),
                  short_grid_size(ceil_div<int64_t>(cols, Source::kStripTiles * Source::kCols)));
  columns_kernel<<<grid, kThreadsOf<Source>, kBytes, ctx.stream>>>(source, args);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void quantize_fp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, const ColumnCodes& columns) {
  const int64_t R = x.num_rows(), C = x.width();
  check_columns(columns, R, C, offsets.dim(0) - 1);
  NMOE_CHECK(takes_fp8(x.source, columns.values), "FP8 columns of {} {}", dtype_name(x.source.dtype()),
             x.source.shape());
  if (R * C == 0) return;
  const PickedRows source{.x = x.source.data<__nv_bfloat16>(), .index = x.index.data_or_null<int32_t>(), .width = C};
  launch(ctx, source, x.source.num_elements(), offsets, columns);
}

void activation_fp8_columns(Context& ctx, const ActivatedColumns& args) {
  const Tensor pre = args.pre, row_weight = args.row_weight;
  const int64_t R = pre.dim(0), width = args.columns.values.dim(1);
  check_columns(args.columns, R, width, args.offsets.dim(0) - 1);
  NMOE_CHECK(pre.dtype() == DType::kBF16 && aligned16(pre.raw()), "FP8 columns of an activation of {} {}",
             dtype_name(pre.dtype()), pre.shape());
  const bool reads_codes = args.pre_codes.defined();
  if (reads_codes) {
    NMOE_CHECK(width % kBlock == 0 && aligned16(args.pre_codes.values.raw()), "codes of pre-activations {}",
               pre.shape());
  }
  if (R * width == 0) return;
  const float* const weights = row_weight.data_or_null<float>();
  dispatch_activation(args.kind, [&]<class A>(A) {
    if (reads_codes) {
      const ActivatedCodes<A> source{.codes = args.pre_codes.values.data<uint8_t>(),
                                     .scales = args.pre_codes.scales.data<uint8_t>(),
                                     .weights = weights,
                                     .width = width};
      return launch(ctx, source, pre.num_elements(), args.offsets, args.columns);
    }
    const ActivatedRows<A> source{.x = pre.data<__nv_bfloat16>(), .weights = weights, .width = width};
    launch(ctx, source, pre.num_elements(), args.offsets, args.columns);
  });
}

}  // namespace nmoe::cuda
