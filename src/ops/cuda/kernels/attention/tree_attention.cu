// Attention to documents that have common beginnings once (contracts/attention.h), forward only:
//
//   out = softmax(scale * q k^T) v over what a row sees, by an online softmax (FlashAttention-2, arXiv 2307.08691,
//   algorithm 1)
//
// BF16, heads of up to 256 and 128, multiples of 8: a block has 64 rows, 16 a warp, and goes through keys in blocks of
// 64 that begin at multiples of 64 of a document's positions. Pieces of rows with the same parent go through what is
// whole blocks before them together, then each through what is left. A block of keys that a row does not see weighs
// nothing there, to the bit: its probabilities are zeros, and what was summed is multiplied by one. So a row's sums are
// those of its document, however it lies. Products are mma.m16n8k16, keys and values come by asynchronous copies into
// two buffers. Anything else: a warp a row, 32 keys at a time.
//
// Matrix-bound: 2 (Dk + Dv) FLOP a pair; softmax and ldmatrix take as long as the products. One H200, 2026-11-22,
// 32,768 rows in documents of 800 and 1,900, TFLOP/s: 12 heads of 64 have 97 and 115 where ends share a beginning, 108
// and 132 where none do; 16 heads of 192 and 128 have 96 and 106 with 800.
#include <algorithm>
#include <climits>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/row_softmax.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kTile = 16 * kWarps;  // rows of a block, and keys at a time
constexpr int kPad = 8;  // of rows in shared memory: the eight that ldmatrix reads then fall in different banks
static_assert(kTile == 64);

struct Pieces {
  const int32_t* bounds;
  const int32_t* parents;
  const int32_t* positions;
  int num_rows, num_bounds;
  int window;  // INT_MAX: none

  __device__ int first_seen(int position) const { return window > position ? 0 : position - window + 1; }

  // The piece that has a row: the last whose bound is not behind it. All lanes ask for the same one.
  __device__ int piece_of(int row) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int first = 0, count = num_bounds;  // it is one of these
    while (count > 1) {
      const int step = ceil_div(count, kWarp), offset = lane * step;
      const bool reached = offset < count && bounds[first + offset] <= row;
      const int last = max(0, __popc(__ballot_sync(kAllLanes, reached)) - 1) * step;
      first += last;
      count = min(step, count - last);
    }
    return first;
  }

  // The row of a position of the documents through `piece` that is not behind it.
  __device__ int row_of(int piece, int position) const {
    for (;;) {
      const int row = bounds[piece], first = positions[row];
      if (position >= first || parents[piece] < 0) return row + position - first;
      piece = parents[piece];
    }
  }
};

// Keys at positions [key, key + kTile), less those from `end` on, of the documents through a piece: for rows
// [begin_row, end_row).
struct Step {
  int piece, key, end;
  int first_row, first_position;  // of the piece
  int begin_row, end_row;

  __device__ bool exists() const { return piece >= 0; }
};

// The steps of a tile's rows, each key that a row sees in one of them, in order. All threads of a block go along.
class Steps {
 public:
  __device__ Steps(const Pieces& pieces, int begin_row, int end_row)
      : pieces_(pieces), row_(begin_row), run_end_(begin_row), end_row_(end_row), piece_(pieces.piece_of(begin_row)) {}

  __device__ Step next() {
    while (step_.key >= step_.end) {
      if (row_ >= end_row_) return {-1, 0, 0, 0, 0, 0, 0};
      if (row_ >= run_end_) {
        begin_siblings();
      } else {
        begin_piece();
      }
    }
    const Step step = step_;
    step_.key += kTile;
    return step;
  }

 private:
  __device__ void begin_keys(int piece, int begin, int end) {
    step_.piece = piece;
    step_.key = begin / kTile * kTile;
    step_.end = end;
    if (begin >= end) return;
    step_.first_row = pieces_.bounds[piece];
    step_.first_position = pieces_.positions[step_.first_row];
  }
  // Pieces with one parent, next to each other: what is before all of them.
  __device__ void begin_siblings() {
    while (pieces_.bounds[piece_ + 1] <= row_) ++piece_;
    const int parent = pieces_.parents[piece_];
    int last = piece_;
    while (parent >= 0 && pieces_.bounds[last + 1] < end_row_ && pieces_.parents[last + 1] == parent) ++last;
    run_end_ = min(pieces_.bounds[last + 1], end_row_);
    const int first = pieces_.positions[pieces_.bounds[piece_]];
    shared_end_ = parent >= 0 ? first / kTile * kTile : 0;
    step_.begin_row = row_, step_.end_row = run_end_;
    begin_keys(parent, pieces_.first_seen(first), shared_end_);
  }
  // What is left of the keys of the rows of one piece.
  __device__ void begin_piece() {
    while (pieces_.bounds[piece_ + 1] <= row_) ++piece_;
    step_.begin_row = row_, step_.end_row = min(pieces_.bounds[piece_ + 1], end_row_);
    begin_keys(piece_, max(shared_end_, pieces_.first_seen(pieces_.positions[row_])),
               pieces_.positions[step_.end_row - 1] + 1);
    row_ = step_.end_row;
  }

  const Pieces& pieces_;
  int row_;      // the first whose piece was not begun
  int run_end_;  // of the rows of siblings
  int end_row_;
  int piece_;
  int shared_end_ = 0;  // keys before this are done for all siblings
  Step step_{-1, 0, 0, 0, 0, 0, 0};
};

struct Heads {
  Pieces pieces;
  const void *q, *k, *v;
  void* out;                                // [T, num_heads, value]
  int64_t q_stride, k_stride, v_stride;     // from a row's to the next's
  int num_heads, num_kv_heads, key, value;  // heads and their sizes
  float scale;
  const float* sinks;  // of heads, or null
};

// What sums of values are divided by. highest: of scores times the scale.
__device__ float divisor(const Heads& p, float highest, float total, int head) {
  return p.sinks == nullptr ? total : 1.0F / end_with_sink(highest, total, p.sinks[head]).factor;
}

// Row r of a [T, heads, size] tensor's head.
template <class T>
__device__ const T* head_row(const void* x, int64_t row, int64_t stride, int head, int size) {
  return static_cast<const T*>(x) + row * stride + head * size;
}

// kTile rows of kWidth values, of which the first `width` are there, row r from source(r) on where exists(r); else
// zeros.
template <int kWidth, class Source, class Exists>
__device__ void load_tile(Bf16* target, int width, const Source& source, const Exists& exists) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kThreads) {
    const int row = i / kPieces, column = i % kPieces * 8;
    const bool there = column < width && exists(row);
    copy_async16(target + row * (kWidth + kPad) + column, there ? source(row) + column : source(0), there);
  }
}

// kKey, kValue: sizes of heads, filled up with zeros.
template <int kKey, int kValue>
__global__ void __launch_bounds__(kThreads, kKey == 64    ? 4
                                            : kKey <= 192 ? 2
                                                          : 1) tile_kernel(Heads p) {
  constexpr int kKeyPitch = kKey + kPad, kValuePitch = kValue + kPad;
  constexpr float kLog2E = 1.44269504F;
  extern __shared__ uint4 shared[];
  auto* const queries = reinterpret_cast<Bf16*>(shared);  // [kTile, kKeyPitch]
  Bf16* const keys = queries + kTile * kKeyPitch;         // [2, kTile, kKeyPitch]
  Bf16* const values = keys + 2 * kTile * kKeyPitch;      // [2, kTile, kValuePitch]

  const int head = static_cast<int>(blockIdx.x), kv_head = head / (p.num_heads / p.num_kv_heads);
  const int tile_begin = static_cast<int>(blockIdx.y) * kTile, tile_end = min(tile_begin + kTile, p.pieces.num_rows);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;               // of results: rows g and g + 8, columns 2 q and 2 q + 1
  const int in_matrix = lane % 8, matrix = lane / 8;  // as ldmatrix takes addresses
  const int warp_row = tile_begin + warp * 16;
  const int rows[2] = {warp_row + g, warp_row + g + 8};
  int position[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) position[h] = rows[h] < tile_end ? p.pieces.positions[rows[h]] : -1;

  load_tile<kKey>(
      queries, p.key, [&](int row) { return head_row<Bf16>(p.q, tile_begin + row, p.q_stride, head, p.key); },
      [&](int row) { return tile_begin + row < tile_end; });
  const auto load = [&](const Step& step, int buffer) {
    const auto row_of = [&](int row) {
      const int at = min(step.key + row, step.end - 1);
      return at >= step.first_position ? step.first_row + at - step.first_position : p.pieces.row_of(step.piece, at);
    };
    const auto exists = [&](int row) { return step.key + row < step.end; };
    load_tile<kKey>(
        keys + buffer * kTile * kKeyPitch, p.key,
        [&](int row) { return head_row<Bf16>(p.k, row_of(row), p.k_stride, kv_head, p.key); }, exists);
    load_tile<kValue>(
        values + buffer * kTile * kValuePitch, p.value,
        [&](int row) { return head_row<Bf16>(p.v, row_of(row), p.v_stride, kv_head, p.value); }, exists);
  };

  float sums[kValue / 8][4] = {};
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // total: of the lane's columns
  const float scale = p.scale * kLog2E;
  Steps steps(p.pieces, tile_begin, tile_end);
  Step step = steps.next();
  load(step, 0);
  commit_copies();
  for (int buffer = 0; step.exists(); buffer ^= 1) {
    const Step then = steps.next();
    if (then.exists()) load(then, buffer ^ 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    if (warp_row < step.end_row && warp_row + 16 > step.begin_row) {
      const Bf16* const query_row = queries + (warp * 16 + matrix % 2 * 8 + in_matrix) * kKeyPitch + matrix / 2 * 8;
      const Bf16* const key_row = keys + (buffer * kTile + in_matrix) * kKeyPitch + matrix * 8;
      float scores[kTile / 8][4] = {};
#pragma unroll
      for (int k = 0; k < kKey; k += 32) {
        unsigned first[4], second[4];
        load_matrices<false>(query_row + k, first);
        load_matrices<false>(query_row + k + 16, second);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          unsigned b[4];
          load_matrices<false>(key_row + n * 8 * kKeyPitch + k, b);
          gemm::multiply_add(scores[n], first, b[0], b[1]);
          gemm::multiply_add(scores[n], second, b[2], b[3]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool takes_part = rows[h] >= step.begin_row && rows[h] < step.end_row;
        const int begin = takes_part ? p.pieces.first_seen(position[h]) - step.key : kTile;
        const int end = takes_part ? position[h] + 1 - step.key : 0;
        float new_highest = highest[h];
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int column = n * 8 + q * 2 + c;
            float& score = scores[n][2 * h + c];
            score = column >= begin && column < end ? score * scale : -INFINITY;
            new_highest = fmaxf(new_highest, score);
          }
        }
        new_highest = fmaxf(new_highest, __shfl_xor_sync(kAllLanes, new_highest, 1));
        new_highest = fmaxf(new_highest, __shfl_xor_sync(kAllLanes, new_highest, 2));
        const float reference = new_highest == -INFINITY ? 0.0F : new_highest;  // nothing seen yet
        const float fade = flushed_exp2(highest[h] - reference);
        highest[h] = new_highest;
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& score = scores[n][2 * h + c];
            score = flushed_exp2(score - reference);
            sum += score;
          }
        }
        total[h] = total[h] * fade + sum;
#pragma unroll
        for (int i = 0; i < kValue / 8; ++i) {
          sums[i][2 * h] *= fade;
          sums[i][2 * h + 1] *= fade;
        }
      }
      const Bf16* const value_row = values + (buffer * kTile + lane) * kValuePitch;
#pragma unroll
      for (int k = 0; k < kTile; k += 32) {
        unsigned weights[2][4];  // 16 keys each
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&low)[4] = scores[k / 8 + 2 * half], (&high)[4] = scores[k / 8 + 2 * half + 1];
          weights[half][0] = bf16_pair(low[0], low[1]);
          weights[half][1] = bf16_pair(low[2], low[3]);
          weights[half][2] = bf16_pair(high[0], high[1]);
          weights[half][3] = bf16_pair(high[2], high[3]);
        }
#pragma unroll
        for (int i = 0; i < kValue / 8; ++i) {
          unsigned b[4];
          load_matrices<true>(value_row + k * kValuePitch + i * 8, b);
          gemm::multiply_add(sums[i], weights[0], b[0], b[1]);
          gemm::multiply_add(sums[i], weights[1], b[2], b[3]);
        }
      }
    }
    __syncthreads();  // the buffer may be overwritten
    step = then;
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 1);
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 2);
    total[h] = divisor(p, highest[h] / kLog2E, total[h], head);
    if (rows[h] >= tile_end) continue;
    Bf16* const out = static_cast<Bf16*>(p.out) + (static_cast<int64_t>(rows[h]) * p.num_heads + head) * p.value;
#pragma unroll
    for (int i = 0; i < kValue / 8; ++i) {
      if (i * 8 >= p.value) continue;
      *reinterpret_cast<__nv_bfloat162*>(out + i * 8 + q * 2) =
          __floats2bfloat162_rn(sums[i][2 * h] / total[h], sums[i][2 * h + 1] / total[h]);
    }
  }
}

// A warp a head of a row; 32 keys at a time, from multiples of 32 positions on.
template <class T>
__global__ void __launch_bounds__(kThreads) row_kernel(Heads p) {
  extern __shared__ float row_shared[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  float* const query = row_shared + warp * (p.key + p.value + 2 * kWarp);  // [key]
  float* const sums = query + p.key;                                       // [value]
  float* const weights = sums + p.value;                                   // [kWarp]
  auto* const seen_rows = reinterpret_cast<int*>(weights + kWarp);         // [kWarp]
  const int64_t index = blockIdx.x * static_cast<int64_t>(kWarps) + warp;
  if (index >= static_cast<int64_t>(p.pieces.num_rows) * p.num_heads) return;
  const int row = static_cast<int>(index / p.num_heads), head = static_cast<int>(index % p.num_heads);
  const int kv_head = head / (p.num_heads / p.num_kv_heads);
  const T* const own = head_row<T>(p.q, row, p.q_stride, head, p.key);
  for (int d = lane; d < p.key; d += kWarp) query[d] = to_float(own[d]);
  for (int d = lane; d < p.value; d += kWarp) sums[d] = 0.0F;

  const int piece = p.pieces.piece_of(row), position = p.pieces.positions[row];
  const int first_seen = p.pieces.first_seen(position);
  float highest = -INFINITY, total = 0.0F;
  for (int first = first_seen / kWarp * kWarp; first <= position; first += kWarp) {
    const int at = first + lane;
    const bool sees = at >= first_seen && at <= position;
    const int key_row = p.pieces.row_of(piece, sees ? at : position);
    seen_rows[lane] = key_row;
    __syncwarp();  // the query is there, too
    float score = 0.0F;
    const T* const key = head_row<T>(p.k, key_row, p.k_stride, kv_head, p.key);
    for (int d = 0; d < p.key; ++d) score += query[d] * to_float(key[d]);
    score = sees ? score * p.scale : -INFINITY;
    const float before = highest;
    highest = fmaxf(highest, warp_max(score));  // finite: each 32 have one that is seen
    const float weight = expf(score - highest), fade = expf(before - highest);
    total = total * fade + warp_sum(weight);
    weights[lane] = weight;
    __syncwarp();
    for (int d = lane; d < p.value; d += kWarp) {
      float sum = sums[d] * fade;
      for (int i = 0; i < kWarp; ++i) {
        sum += weights[i] * to_float(head_row<T>(p.v, seen_rows[i], p.v_stride, kv_head, p.value)[d]);
      }
      sums[d] = sum;
    }
    __syncwarp();
  }
  total = divisor(p, highest, total, head);
  T* const out = static_cast<T*>(p.out) + index * p.value;
  for (int d = lane; d < p.value; d += kWarp) out[d] = from_float<T>(sums[d] / total);
}

template <int kKey, int kValue>
void launch_tiles(Context& ctx, const Heads& heads) {
  constexpr int kElements = 3 * kTile * (kKey + kPad) + 2 * kTile * (kValue + kPad);
  constexpr int kBytes = kElements * static_cast<int>(sizeof(Bf16));
  const auto kernel = tile_kernel<kKey, kValue>;
  allow_dynamic_shared(kernel, kBytes);
  const dim3 grid(grid_size(heads.num_heads), short_grid_size(ceil_div(heads.pieces.num_rows, kTile)));
  kernel<<<grid, kThreads, kBytes, ctx.stream>>>(heads);
}

template <class T>
void launch_rows(Context& ctx, const Heads& heads) {
  const int64_t bytes = int64_t{kWarps} * (heads.key + heads.value + 2 * kWarp) * static_cast<int64_t>(sizeof(float));
  NMOE_CHECK(bytes <= kDefaultSharedBytes, "attention with heads of {} and {}", heads.key, heads.value);
  const int64_t blocks = ceil_div(static_cast<int64_t>(heads.pieces.num_rows) * heads.num_heads, int64_t{kWarps});
  row_kernel<T><<<grid_size(blocks), kThreads, static_cast<size_t>(bytes), ctx.stream>>>(heads);
}

bool takes_tiles(const TreeAttention& args) {
  const auto fits = [](const Tensor& x) {
    return x.dtype() == DType::kBF16 && aligned16(x.rows_raw()) && x.stride() % 8 == 0 && x.dim(2) % 8 == 0;
  };
  return fits(args.q) && fits(args.k) && fits(args.v) && aligned16(args.out.raw()) && args.q.dim(2) <= 256 &&
         args.v.dim(2) <= 128;
}

}  // namespace

void tree_attention(Context& ctx, const TreeAttention& args) {
  const int64_t T = args.q.dim(0);
  NMOE_CHECK(T <= INT_MAX / 2 && args.bounds.dim(0) <= INT_MAX, "{} rows in {} pieces", T, args.bounds.dim(0));
  if (T == 0) return;
  const Heads heads = {
      .pieces = {.bounds = args.bounds.data<int32_t>(),
                 .parents = args.parents.data<int32_t>(),
                 .positions = args.positions.data<int32_t>(),
                 .num_rows = static_cast<int>(T),
                 .num_bounds = static_cast<int>(args.bounds.dim(0)),
                 .window = args.window > 0 ? static_cast<int>(std::min<int64_t>(args.window, INT_MAX)) : INT_MAX},
      .q = args.q.rows_raw(),
      .k = args.k.rows_raw(),
      .v = args.v.rows_raw(),
      .out = args.out.raw(),
      .q_stride = args.q.stride(),
      .k_stride = args.k.stride(),
      .v_stride = args.v.stride(),
      .num_heads = static_cast<int>(args.q.dim(1)),
      .num_kv_heads = static_cast<int>(args.k.dim(1)),
      .key = static_cast<int>(args.q.dim(2)),
      .value = static_cast<int>(args.v.dim(2)),
      .scale = static_cast<float>(args.scale),
      .sinks = args.sinks.data_or_null<float>()};
  if (!takes_tiles(args)) {
    dispatch_act(args.q.dtype(), [&](auto element) { launch_rows<decltype(element)>(ctx, heads); });
  } else if (heads.key <= 64 && heads.value <= 64) {
    launch_tiles<64, 64>(ctx, heads);
  } else if (heads.key <= 128) {
    launch_tiles<128, 128>(ctx, heads);
  } else if (heads.key <= 192) {
    launch_tiles<192, 128>(ctx, heads);
  } else {
    launch_tiles<256, 128>(ctx, heads);
  }
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
