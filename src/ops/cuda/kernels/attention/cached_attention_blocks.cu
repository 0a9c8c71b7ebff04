// Attention to a cache with the sums of sm90/attention_forward.cuh, in their order (ops/contracts/attention.h).
//
// What that order leaves free is who computes what, and when. A block has 16 rows of mma.m16n8k16: the query heads of a
// key/value head, of one token or of as many tokens as there is room for.
//
//   scores_kernel   Tiles of 64 keys are shared out among blocks, eight keys a warp: scores, -inf where a row does not
//                   see the key, go to scratch, and the highest of a row and tile.
//   values_kernel   Each block has some columns of the values, and goes from a row's last block of keys to its first.
//                   From the highest scores of eight blocks follow those that p is relative to, so that eight warps
//                   make the p of eight blocks side by side; then each warp sums its columns by them, one after
//                   another.
//
// p lies in shared memory as the instruction takes it. A score and p need the bits of wgmma from mma.sync: an
// instruction of either sums the same 16 products, with the same result.
//
// MLA's heads have keys and values of their own in one cache; what they share of a key lies in another.
//
// Of many tokens, neighbours are most often of one slot: they share what is read of it. Finite keys and values that one
// of them does not see weigh nothing there, to the bit (zero times what is not finite is NaN).
//
// Bound by reading the cache when there are rows enough to fill the device; of a single one, whose values are summed
// by few blocks, by the chain of instructions: some 200 cycles for 64 positions.
#include <algorithm>
#include <numbers>

#include "ops/cuda/kernels/attention/cached_attention_blocks.h"
#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/primitives/attention_sums.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/row_softmax.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kRows = kBlockRows;
constexpr int kTile = kScoreTile;        // keys, eight a warp
constexpr int kAlign = kScoreAlignment;  // of the first position that a row has scores of
constexpr int kPad = 8;                  // of rows in shared memory: the eight that ldmatrix reads then fall in
                                         // different banks
constexpr int kStages = 4;               // of keys or values
constexpr int kNarrowColumns = 32;       // of values, where tokens are few
static_assert(kTile == 8 * kWarps && kAlign % kTile == 0 && kAlign == kPagePositions);

// What a cache [P, kPagePositions, width] has of heads: so many elements from one to the next.
struct CachedHeads {
  const Bf16* data;  // of the first head
  int width, head_step;

  // Of a row of the cache.
  __device__ const Bf16* of(int64_t row, int head) const { return data + row * width + head * head_step; }
};

struct CachedBlocks {
  const Bf16* q;  // [T, H, key], apart
  CachePlaces places;
  CachedHeads keys, shared_keys;  // of each head the first own_key elements, and those behind them
  CachedHeads values;
  int own_key;
  float* scores;   // [T, H, span]: from the multiple of kAlign on before what a row sees
  float* highest;  // [T, H, span / kTile]
  Bf16* out;       // [T, H, value]
  int num_heads, num_kv_heads;
  int head_tiles;                // of a key/value head's query heads, kRows each
  int num_tokens, block_tokens;  // of all, of a block
  int span;
  int64_t query_stride;  // from a token's queries to the next's
  int64_t window;
  float scale;
  const float* sinks;  // of query heads, or null

  __device__ float scale_log2() const { return scale * std::numbers::log2e_v<float>; }
};

// A row of a block.
struct BlockRow {
  int at = 0;              // among all tokens' heads
  int begin = 0, end = 0;  // the positions that it sees; none where there is no row
  int first_tile = 0;      // where the tile of position 0 would lie in scratch

  __device__ bool exists() const { return end > 0; }
  __device__ bool sees(int position) const { return position >= begin && position < end; }
  __device__ bool sees_some(int tile) const { return begin < (tile + 1) * kTile && end > tile * kTile; }
};

// Query heads of a key/value head.
struct BlockHeads {
  int kv_head, first, count;  // first: among all

  __device__ explicit BlockHeads(const CachedBlocks& p) {
    const int block = static_cast<int>(blockIdx.y);
    const int heads = p.num_heads / p.num_kv_heads, tile = block % p.head_tiles;
    kv_head = block / p.head_tiles;
    first = kv_head * heads + tile * kRows;
    count = min(heads - tile * kRows, kRows);
  }
};

// Neighbouring tokens of one slot, and what they see together.
struct TokenRun {
  int first, end;
  Seen seen;

  // The next one of [., end_token), behind `end`.
  __device__ bool next(const CachedBlocks& p, int end_token) {
    if (end >= end_token) return false;
    first = end++;
    seen = seen_by(p.places, first, p.window);
    for (; end < end_token; ++end) {
      const Seen other = seen_by(p.places, end, p.window);
      if (other.slot != seen.slot || !other.exists() || !seen.exists()) break;
      seen.begin = min(seen.begin, other.begin), seen.end = max(seen.end, other.end);
    }
    return true;
  }
  __device__ int num_rows(const BlockHeads& heads) const { return (end - first) * heads.count; }
  __device__ BlockRow row(const CachedBlocks& p, const BlockHeads& heads, int row) const {
    if (row >= num_rows(heads)) return {};
    const int token = first + row / heads.count, at = token * p.num_heads + heads.first + row % heads.count;
    const Seen own = seen_by(p.places, token, p.window);
    const auto begin = static_cast<int>(own.begin);
    return {at, begin, static_cast<int>(own.end), at * (p.span / kTile) - begin / kAlign * (kAlign / kTile)};
  }
};

// The tokens of a block.
__device__ TokenRun first_run(const CachedBlocks& p) { return {0, static_cast<int>(blockIdx.x) * p.block_tokens, {}}; }
__device__ int end_token(const CachedBlocks& p) {
  return min((static_cast<int>(blockIdx.x) + 1) * p.block_tokens, p.num_tokens);
}

// Where a run's tiles or blocks lie in the cache: each is in one page, which is looked up before it is needed.
struct PageAhead {
  const CachePlaces& places;
  int first;  // of the slot's blocks, among all
  int page;

  __device__ PageAhead(const CachePlaces& all, const Seen& seen, unsigned position)
      : places(all), first(static_cast<int>(seen.slot * all.num_blocks)) {
    look_up(position);
  }
  __device__ void look_up(unsigned position) { page = places.pages[first + position / unsigned{kPagePositions}]; }
  // Of a position in the page that was looked up.
  __device__ int64_t row_of(unsigned position) const {
    return int64_t{page} * kPagePositions + position % unsigned{kPagePositions};
  }
};

// kCount rows of kWidth values, eight of row r from source(r, column) on; zeros where that is null.
template <int kCount, int kWidth, class Source>
__device__ void load_rows(Bf16* target, const Bf16* any, const Source& source) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll
  for (int first = 0; first < kCount * kPieces; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kPieces, column = i % kPieces * 8;
    if (kCount * kPieces % kThreads != 0 && i >= kCount * kPieces) break;
    const Bf16* const from = source(row, column);
    copy_async16(target + row * (kWidth + kPad) + column, from == nullptr ? any : from, from != nullptr);
  }
}

// --- scores

template <int kKey>
struct ScoreShared {
  Bf16 queries[kRows][kKey + kPad];
  Bf16 keys[kStages][kTile][kKey + kPad];
  float highest[2][kWarps][kRows];  // of a warp's keys, of one tile and the next
};

// s of a warp's eight keys: rows g and g + 8, columns 2 q and 2 q + 1. One chain of instructions.
template <int kKey>
__device__ __forceinline__ void multiply_keys(const unsigned (&queries)[kKey / 16][4], const Bf16* key_row,
                                              float (&s)[4]) {
#pragma unroll
  for (float& x : s) x = 0.0F;
#pragma unroll
  for (int k = 0; k < kKey; k += 32) {
    unsigned b[4];
    load_matrices<false>(key_row + k, b);
    gemm::multiply_add(s, queries[k / 16], b[0], b[1]);
    gemm::multiply_add(s, queries[k / 16 + 1], b[2], b[3]);
  }
}

// kParts: the last of a key's elements are those of shared_keys.
template <int kKey, bool kParts>
__device__ void score_run(const CachedBlocks& p, const BlockHeads& heads, const TokenRun& run,
                          ScoreShared<kKey>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4, in_matrix = lane % 8, matrix = lane / 8;
  const auto begin = static_cast<int>(run.seen.begin), end = static_cast<int>(run.seen.end);
  const int first_tile = begin / kTile + static_cast<int>(blockIdx.z), end_tile = ceil_div(end, kTile);
  const auto step = static_cast<int>(gridDim.z);
  if (first_tile >= end_tile) return;
  const int num_rows = run.num_rows(heads);
  const BlockRow rows[2] = {run.row(p, heads, g), run.row(p, heads, g + 8)};
  const BlockRow own = run.row(p, heads, static_cast<int>(threadIdx.x) % kRows);  // whose highest this thread stores

  PageAhead page(p.places, run.seen, first_tile * kTile);
  const auto load = [&](int tile, int stage) {
    if (tile < end_tile) {
      const int64_t first_row = page.row_of(tile * kTile);
      const Bf16* const own_keys = p.keys.of(first_row, heads.kv_head);
      const Bf16* const shared_keys = kParts ? p.shared_keys.of(first_row, heads.kv_head) - p.own_key : nullptr;
      load_rows<kTile, kKey>(shared.keys[stage][0], p.keys.data, [&](int row, int column) -> const Bf16* {
        const int position = tile * kTile + row;
        if (position < begin || position >= end) return nullptr;
        if (kParts && column >= p.own_key) return shared_keys + row * p.shared_keys.width + column;
        return own_keys + row * p.keys.width + column;
      });
    }
    commit_copies();
    if (tile + step < end_tile) page.look_up((tile + step) * kTile);
  };
  const auto store_highest = [&](int tile, int parity) {
    if (threadIdx.x >= kRows || !own.sees_some(tile)) return;
    float highest = shared.highest[parity][0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) highest = fmaxf(highest, shared.highest[parity][i][threadIdx.x]);
    p.highest[own.first_tile + tile] = highest;
  };

  load_rows<kRows, kKey>(shared.queries[0], p.q, [&](int row, int column) {
    const Bf16* const token = p.q + (run.first + row / heads.count) * p.query_stride;
    return row < num_rows ? token + static_cast<int64_t>(heads.first + row % heads.count) * kKey + column : nullptr;
  });
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(first_tile + i * step, i);
  wait_copies<kStages - 2>();
  __syncthreads();
  unsigned queries[kKey / 16][4];
#pragma unroll
  for (int k = 0; k < kKey / 16; ++k) {
    load_matrices<false>(&shared.queries[matrix % 2 * 8 + in_matrix][k * 16 + matrix / 2 * 8], queries[k]);
  }
  int turn = 0;
  for (int tile = first_tile; tile < end_tile; tile += step, ++turn) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there for all, and nobody reads the one before it any more
    load(tile + (kStages - 1) * step, (turn + kStages - 1) % kStages);
    if (turn > 0) store_highest(tile - step, (turn - 1) % 2);
    float s[4];
    multiply_keys<kKey>(queries, &shared.keys[turn % kStages][warp * 8 + in_matrix][matrix * 8], s);
    const int column = warp * 8 + 2 * q, position = tile * kTile + column;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float first = rows[h].sees(position) ? s[2 * h] : -INFINITY;
      const float second = rows[h].sees(position + 1) ? s[2 * h + 1] : -INFINITY;
      if (rows[h].sees_some(tile)) {
        store2(p.scores + (rows[h].first_tile + tile) * kTile + column, first, second);
      }
      float highest = fmaxf(first, second);
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
      if (q == 0) shared.highest[turn % 2][warp][g + 8 * h] = highest;
    }
  }
  wait_copies<0>();
  __syncthreads();
  store_highest(first_tile + (turn - 1) * step, (turn - 1) % 2);
  __syncthreads();  // all of it may be overwritten
}

template <int kKey, bool kParts>
__global__ void __launch_bounds__(kThreads, 2) scores_kernel(CachedBlocks p) {
  extern __shared__ uint4 shared[];
  begin_behind_work_before();
  const BlockHeads heads(p);
  TokenRun run = first_run(p);
  while (run.next(p, end_token(p))) {
    if (run.seen.exists()) score_run<kKey, kParts>(p, heads, run, *reinterpret_cast<ScoreShared<kKey>*>(shared));
  }
}

// --- values

template <int kValue, int kColumns_>
struct ValueLayout {
  static constexpr int kColumns = kColumns_;  // of a block
  static constexpr int kKeys = attention_block_keys(kValue);
  static constexpr bool kLags = attention_lags(kValue);
  static constexpr int kWarpTiles = kColumns > 8 * kWarps ? kColumns / (8 * kWarps) : 1;  // of 8 columns
  static constexpr int kSummingWarps = kColumns / (8 * kWarpTiles);
  static_assert(kKeys % kTile == 0 && kKeys <= kAlign && kValue % kColumns == 0 && kSummingWarps <= kWarps);
};
template <class L>
struct ValueShared {
  Bf16 values[kStages][L::kKeys][L::kColumns + kPad];
  uint4 p[kWarps][L::kKeys / 16][kWarp];  // of eight blocks, as a lane gives it to the instruction
  float4 sums[kWarps][kWarp];             // a lane's two rows: what sums before a block are multiplied by, its p's sum
};

// The two rows of a lane.
struct Sums {
  float highest[2] = {-INFINITY, -INFINITY};  // -inf: nothing seen yet
  float sum[2] = {};                          // of p, of this lane's columns
};

// A lane's scores of 16 rows and a tile.
__device__ __forceinline__ void load_scores(const CachedBlocks& p, const BlockRow (&rows)[2], int tile,
                                            float (&s)[kTile / 2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool sees = rows[h].sees_some(tile);
    const float* const source =
        p.scores + (sees ? (rows[h].first_tile + tile) * kTile : 0) + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
      float2 pair = make_float2(-INFINITY, -INFINITY);
      if (sees) pair = *reinterpret_cast<const float2*>(source + 8 * j);
      s[4 * j + 2 * h] = pair.x, s[4 * j + 2 * h + 1] = pair.y;
    }
  }
}

// p of a block, and its sums. s: the scores of its first tile.
template <class L>
__device__ __forceinline__ void make_p(const CachedBlocks& p, const BlockRow (&rows)[2], int block,
                                       const float (&highest)[2], const float (&factor)[2], int turn,
                                       float (&s)[kTile / 2], ValueShared<L>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float scale_log2 = p.scale_log2();
  float sums[2][2] = {};
#pragma unroll
  for (int part = 0; part < L::kKeys / kTile; ++part) {
    if (part > 0) {
      __syncwarp();  // not both tiles at once: they would take too many registers
      load_scores(p, rows, block * (L::kKeys / kTile) + part, s);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float offset = highest[h] == -INFINITY ? 0.0F : highest[h] * scale_log2;
      add_exponentials(scale_log2, offset, h, s, sums[h]);
    }
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      shared.p[turn][part * (kTile / 16) + i][lane] =
          make_uint4(bf16_pair(s[8 * i], s[8 * i + 1]), bf16_pair(s[8 * i + 2], s[8 * i + 3]),
                     bf16_pair(s[8 * i + 4], s[8 * i + 5]), bf16_pair(s[8 * i + 6], s[8 * i + 7]));
    }
  }
  shared.sums[turn][lane] = make_float4(factor[0], factor[1], sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]);
}

// From `last` on, down to `first` at most, eight blocks: a warp makes the p of one.
template <class L>
__device__ __forceinline__ void follow_blocks(const CachedBlocks& p, const BlockRow (&rows)[2], int last, int first,
                                              Sums& sums, ValueShared<L>& shared) {
  constexpr int kParts = L::kKeys / kTile;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const float scale_log2 = p.scale_log2();
  float s[kTile / 2];  // under way while the highest scores are found
  load_scores(p, rows, (last - warp) * kParts, s);
  float highest[2] = {}, factor[2] = {};  // of the warp's block
#pragma unroll kWarps / kParts            // as many loads under way at a time as registers allow
  for (int i = 0; i < kWarps; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float block = -INFINITY, follows = 1.0F;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int tile = (last - i) * kParts + part;
        if (rows[h].sees_some(tile)) block = fmaxf(block, p.highest[rows[h].first_tile + tile]);
      }
      if (sums.highest[h] == -INFINITY) {
        sums.highest[h] = block;
      } else {
        follows = follow_highest<L::kLags>(scale_log2, block, sums.highest[h]);
      }
      if (i == warp) highest[h] = sums.highest[h], factor[h] = follows;
    }
  }
  if (last - warp >= first) make_p<L>(p, rows, last - warp, highest, factor, warp, s, shared);
}

// o += p v of a block, a warp's columns.
template <class L>
__device__ __forceinline__ void multiply_values(const ValueShared<L>& shared, int turn, int stage,
                                                float (&o)[L::kWarpTiles][4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < L::kKeys; k += 32) {
    const uint4 low = shared.p[turn][k / 16][lane], high = shared.p[turn][k / 16 + 1][lane];
    const unsigned first[4] = {low.x, low.y, low.z, low.w}, second[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < L::kWarpTiles; ++i) {
      unsigned b[4];
      load_matrices<true>(&shared.values[stage][k + lane][(warp * L::kWarpTiles + i) * 8], b);
      gemm::multiply_add(o[i], first, b[0], b[1]);
      gemm::multiply_add(o[i], second, b[2], b[3]);
    }
  }
}

template <int kValue, class L>
__device__ void store_rows(const CachedBlocks& p, const BlockRow (&rows)[2], const Sums& sums,
                           const float (&o)[L::kWarpTiles][4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = static_cast<int>(blockIdx.z) * L::kColumns + warp * L::kWarpTiles * 8 + 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_sum(sums.sum[h]);
    float factor = 1.0F / sum;
    if (!rows[h].exists()) continue;
    if (p.sinks != nullptr) {
      factor = end_with_sink(__fmul_rn(sums.highest[h], p.scale), sum, p.sinks[rows[h].at % p.num_heads]).factor;
    }
#pragma unroll
    for (int i = 0; i < L::kWarpTiles; ++i) {
      store2(p.out + rows[h].at * kValue + column + 8 * i, o[i][2 * h] * factor, o[i][2 * h + 1] * factor);
    }
  }
}

template <int kValue, class L>
__device__ void sum_run(const CachedBlocks& p, const BlockHeads& heads, const TokenRun& run, ValueShared<L>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto begin = static_cast<int>(run.seen.begin), end = static_cast<int>(run.seen.end);
  const int first = begin / L::kKeys, last = (end - 1) / L::kKeys;
  const BlockRow rows[2] = {run.row(p, heads, lane / 4), run.row(p, heads, lane / 4 + 8)};
  PageAhead page(p.places, run.seen, last * L::kKeys);
  const auto load = [&](int block, int stage) {
    if (block >= first) {
      const Bf16* const values =
          p.values.of(page.row_of(block * L::kKeys), heads.kv_head) + static_cast<int>(blockIdx.z) * L::kColumns;
      load_rows<L::kKeys, L::kColumns>(shared.values[stage][0], p.values.data, [&](int row, int column) {
        const int position = block * L::kKeys + row;
        return position >= begin && position < end ? values + row * p.values.width + column : nullptr;
      });
    }
    commit_copies();
    if (block > first) page.look_up((block - 1) * L::kKeys);
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) load(last - i, i);

  Sums sums;
  float o[L::kWarpTiles][4] = {};
  for (int block = last, turn = 0; block >= first; --block, ++turn) {
    if (turn % kWarps == 0) {
      __syncthreads();  // p has been read
      follow_blocks<L>(p, rows, block, first, sums, shared);
    }
    wait_copies<kStages - 2>();
    __syncthreads();  // p and the values are there for all, and nobody reads the values before them any more
    load(block - (kStages - 1), (turn + kStages - 1) % kStages);
    const float4 of_block = shared.sums[turn % kWarps][lane];
    sums.sum[0] = fmaf(sums.sum[0], of_block.x, of_block.z);
    sums.sum[1] = fmaf(sums.sum[1], of_block.y, of_block.w);
    if (warp >= L::kSummingWarps) continue;
#pragma unroll
    for (int i = 0; i < L::kWarpTiles; ++i) {
      o[i][0] *= of_block.x, o[i][1] *= of_block.x, o[i][2] *= of_block.y, o[i][3] *= of_block.y;
    }
    multiply_values<L>(shared, turn % kWarps, turn % kStages, o);
  }
  wait_copies<0>();
  __syncthreads();  // all of it may be overwritten
  if (warp < L::kSummingWarps) store_rows<kValue, L>(p, rows, sums, o);
}

template <int kValue, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) values_kernel(CachedBlocks p) {
  using L = ValueLayout<kValue, kColumns>;
  extern __shared__ uint4 shared[];
  begin_behind_work_before();
  const BlockHeads heads(p);
  TokenRun run = first_run(p);
  while (run.next(p, end_token(p))) {
    if (run.seen.exists()) {
      sum_run<kValue, L>(p, heads, run, *reinterpret_cast<ValueShared<L>*>(shared));
      continue;
    }
    const Bf16 nan = from_float<Bf16>(__int_as_float(0x7FC00000));
    for (int i = static_cast<int>(threadIdx.x); i < heads.count * kColumns; i += kThreads) {
      const int64_t head = static_cast<int64_t>(run.first) * p.num_heads + heads.first + i / kColumns;
      p.out[head * kValue + static_cast<int>(blockIdx.z) * kColumns + i % kColumns] = nan;
    }
  }
}

// --- launches

// Blocks of scores for each multiprocessor, as far as there are tiles: what they cost to start is little beside it.
constexpr int kScoreBlocks = 8;

template <int kKey, bool kParts>
void launch_scores_of(Context& ctx, const CachedBlocks& p, dim3 grid) {
  const int64_t shares = ceil_div<int64_t>(int64_t{kScoreBlocks} * ctx.num_sms, int64_t{grid.x} * grid.y);
  grid.z = short_grid_size(std::min<int64_t>(shares, p.span / kTile));
  constexpr int kBytes = sizeof(ScoreShared<kKey>);
  allow_dynamic_shared(scores_kernel<kKey, kParts>, kBytes);
  launch_early(ctx, scores_kernel<kKey, kParts>, grid, kThreads, kBytes, p);
}

template <int kKey>
void launch_scores(Context& ctx, const CachedBlocks& p, dim3 grid) {
  if (p.own_key == kKey) return launch_scores_of<kKey, false>(ctx, p, grid);
  launch_scores_of<kKey, true>(ctx, p, grid);
}

template <int kValue, int kColumns>
void launch_columns(Context& ctx, const CachedBlocks& p, dim3 grid) {
  grid.z = kValue / kColumns;
  constexpr int kBytes = sizeof(ValueShared<ValueLayout<kValue, kColumns>>);
  allow_dynamic_shared(values_kernel<kValue, kColumns>, kBytes);
  launch_early(ctx, values_kernel<kValue, kColumns>, grid, kThreads, kBytes, p);
}
template <int kValue>
void launch_values(Context& ctx, const CachedBlocks& p, dim3 grid) {
  if (int64_t{grid.x} * grid.y * 2 < ctx.num_sms) return launch_columns<kValue, kNarrowColumns>(ctx, p, grid);
  launch_columns<kValue, kValue>(ctx, p, grid);
}

void launch(Context& ctx, const CachedBlocks& p, int64_t key, int64_t value) {
  const dim3 grid(grid_size(ceil_div(p.num_tokens, p.block_tokens)), short_grid_size(p.num_kv_heads * p.head_tiles));
  if (key == 64) {
    launch_scores<64>(ctx, p, grid);
  } else if (key == 128) {
    launch_scores<128>(ctx, p, grid);
  } else {
    launch_scores<192>(ctx, p, grid);
  }
  if (value == 64) {
    launch_values<64>(ctx, p, grid);
  } else {
    launch_values<128>(ctx, p, grid);
  }
}

// Where tokens are many, they are long pieces of few slots.
int block_tokens(int64_t num_tokens, int64_t heads) {
  constexpr int64_t kManyTokens = 257;
  return num_tokens < kManyTokens ? 1 : static_cast<int>(std::max<int64_t>(1, kRows / heads));
}

// The caches, as all tokens see them.
struct Caches {
  CachedHeads keys, shared_keys, values;
  int64_t own_key, num_kv_heads;
};

// Of a cache's elements from `offset` on.
CachedHeads heads_of(const Tensor& cache, int64_t offset, int64_t head_step) {
  NMOE_CHECK(cache.dim(2) * kPagePositions <= INT32_MAX, "a cache {}", cache.shape());
  return {cache.data<Bf16>() + offset, static_cast<int>(cache.dim(2)), static_cast<int>(head_step)};
}

// Args: CachedAttention or MlaExpandedAttention.
template <class Args>
void attend(Context& ctx, const Args& args, const Caches& caches, const CachedScores& scores, Tensor sinks = {}) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  if (args.out.num_elements() == 0) return;
  NMOE_CHECK(aligned16(args.q.rows_raw()) && args.q.stride() % 8 == 0 && aligned16(caches.keys.data) &&
                 aligned16(caches.shared_keys.data) && aligned16(caches.values.data),
             "unaligned tensors");
  NMOE_CHECK(args.pages.num_elements() <= INT32_MAX, "pages {}", args.pages.shape());
  const int64_t heads = H / caches.num_kv_heads, part = scores.all.dim(0);
  for (int64_t first = 0; first < T; first += part) {
    const CachedBlocks blocks{.q = args.q.template rows_data<Bf16>() + first * args.q.stride(),
                              .places = places_of(args).from(first),
                              .keys = caches.keys,
                              .shared_keys = caches.shared_keys,
                              .values = caches.values,
                              .own_key = static_cast<int>(caches.own_key),
                              .scores = scores.all.data<float>(),
                              .highest = scores.highest.data<float>(),
                              .out = args.out.template data<Bf16>() + first * H * Dv,
                              .num_heads = static_cast<int>(H),
                              .num_kv_heads = static_cast<int>(caches.num_kv_heads),
                              .head_tiles = static_cast<int>(ceil_div<int64_t>(heads, kRows)),
                              .num_tokens = static_cast<int>(std::min(part, T - first)),
                              .block_tokens = block_tokens(T, heads),
                              .span = static_cast<int>(scores.all.dim(2)),
                              .query_stride = args.q.stride(),
                              .window = args.window,
                              .scale = static_cast<float>(args.scale),
                              .sinks = sinks.data_or_null<float>()};
    launch(ctx, blocks, Dk, Dv);
  }
}

}  // namespace

void cached_attention_by_blocks(Context& ctx, const CachedAttention& args, const CachedScores& scores) {
  const int64_t Dk = args.q.dim(2), Dv = args.out.dim(2);
  const CachedHeads keys = heads_of(args.keys, 0, Dk), values = heads_of(args.values, 0, Dv);
  attend(ctx, args, {keys, /*shared_keys=*/keys, values, /*own_key=*/Dk, args.num_kv_heads}, scores, args.sinks);
}

void cached_attention_by_blocks(Context& ctx, const MlaExpandedAttention& args, const CachedScores& scores) {
  const int64_t Dv = args.out.dim(2), rope = args.k_rope.dim(2), nope = args.q.dim(2) - rope;
  const CachedHeads keys = heads_of(args.kv, 0, nope + Dv), values = heads_of(args.kv, nope, nope + Dv);
  attend(ctx, args, {keys, heads_of(args.k_rope, 0, 0), values, nope, /*num_kv_heads=*/args.q.dim(1)}, scores);
}

}  // namespace nmoe::cuda
