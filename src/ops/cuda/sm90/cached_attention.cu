// Attention of rows of generation to caches of keys and values (attention_forward.cuh): to training's bits, since a
// row's sums know nothing of rows beside it.
//
// Tiles. Rows that follow each other, in their slot as among the rows, are a run; a tile has those of a run whose
// positions lie in the same kTileRows, so that a consumer's rows lie in one block of keys. Each block finds all tiles
// by itself, by the rows' places: where one begins and where it ends. A prompt's chunk has full tiles, and training's
// speed. A single row is a tile, one consumer works, on a row of the 64 that its instructions have, and is faster than
// memory all the same: 64 positions of a head, 40 KiB, are some 1,000 cycles, in which a multiprocessor gets 15 KiB.
//
// The heads of a tile are taken one after the other, by neighbouring blocks: they read the same positions, and what
// they share of keys is in L2 when the second wants it. Where tiles are few, those that see most go first. Blocks take
// them to and fro, as in training. Rows of one consumer alone are the first's in one tile, the second's in the next, so
// that one begins while the other ends.
//
// Positions that no row has written may hold anything. Scores of them are masked; values become zeros where they lie in
// shared memory, behind a tile's last row.
#include <algorithm>

#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention_forward.cuh"
#include "ops/cuda/sm90/cached_attention.h"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

// Of a launch: of so many a block has room for a list of tiles.
constexpr int kMaxTokens = 2048;
constexpr int kSortedTiles = 128;  // more are many for each block, and so much the same for all

struct TokenTile {
  int token, slot, position;  // of its first row
  int end_token;
};

// Behind what attention has of shared memory.
struct TileList {
  TokenTile tiles[kMaxTokens];
  int counts[kMaxTokens / kWarp];  // of tiles that begin at a warp's tokens
  int num_tiles;
};
// Tiles in the list's order, heads of each.
template <class L>
struct ListedTiles;

struct CachedRows {
  HeadMaps whole, few;
  int last_heads;
  __nv_bfloat16* out;  // [T, H, kValueSize]
  CachePlaces places;
  int num_tokens, heads, group;
  int window;  // 0: none
  float scale;
  const float* sinks;  // of all heads, or null

  // As attention_forward.cuh wants it. Positions are the slot's.
  struct Tile {
    int first_row, head;
    unsigned first_page;  // the slot's first block, among all
    int begin, end;       // of the rows that exist
    int token_of_zero;    // the token that position 0 would be
    bool alone;           // whether they are one consumer's
  };
  static constexpr bool kHidesRest = true, kKeepsLse = false;
  template <class L>
  __device__ void prepare(std::byte* base) const;
  template <class L>
  __device__ ListedTiles<L> tiles(std::byte* base) const;
  __device__ int first_row(const Tile& tile) const { return tile.begin; }
  __device__ int end_row(const Tile& tile) const { return tile.end; }
  __device__ bool exists(const Tile& tile, int row) const { return row >= tile.begin && row < tile.end; }
  __device__ bool has_rows(const Tile& tile, int row) const { return row + kRows > tile.begin && row < tile.end; }
  __device__ bool takes_turns(const Tile& tile) const { return !tile.alone; }
  __device__ int low_key(const Tile&, int row) const { return window > 0 ? max(0, row - window + 1) : 0; }
  template <class L>
  __device__ void load_queries(const Tile& tile, int row, std::byte* target, uint64_t* full) const {
    if (!has_rows(tile, row)) return mbarrier_arrive(full);
    const int token = tile.token_of_zero + row, first = max(tile.begin - row, 0) / kFewRows * kFewRows;
    if (tile.end - row <= first + kFewRows) {
      return load_query_rows<L, kFewRows>(few.q, tile.head, {token + first, 0}, target + first * kPanel * 2, full);
    }
    load_query_rows<L, kRows>(whole.q, tile.head, {token, 0}, target, full);
  }
  // A block of keys lies in one page, which is a sequence of the maps.
  __device__ SequencePlace key_place(const Tile& tile, int position) const {
    const unsigned block = static_cast<unsigned>(position) / unsigned{kPagePositions};
    return {static_cast<int>(position % unsigned{kPagePositions}), places.pages[tile.first_page + block]};
  }
  __device__ int64_t out_row(const Tile& tile, int row) const { return tile.token_of_zero + row; }
};

template <class L>
struct ListedTiles {
  const TileList& list;
  int heads;
  unsigned num_blocks;  // of a slot
  int turn = 0;

  __device__ bool next(CachedRows::Tile& tile) {
    const int n = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x);
    const int place = turn * n + (turn % 2 == 0 ? b : n - 1 - b);
    if (place >= list.num_tiles * heads) return false;
    ++turn;
    const TokenTile& at = list.tiles[place / heads];
    const int end = at.position + at.end_token - at.token, first_block = at.position / kRows;
    const bool alone = (end - 1) / kRows == first_block;
    tile = {
        .first_row = alone ? (first_block - turn % L::kConsumers) * kRows : at.position / L::kTileRows * L::kTileRows,
        .head = place % heads,
        .first_page = static_cast<unsigned>(at.slot) * num_blocks,
        .begin = at.position,
        .end = end,
        .token_of_zero = at.token - at.position,
        .alone = alone};
    return true;
  }
};

template <class L>
__device__ TileList& list_of(std::byte* base) {
  return *reinterpret_cast<TileList*>(base + L::kSharedBytes);
}
template <class L>
__device__ ListedTiles<L> CachedRows::tiles(std::byte* base) const {
  return {list_of<L>(base), heads, static_cast<unsigned>(places.num_blocks)};
}

// The list, and NaN where a row has no place.
template <class L>
__device__ void CachedRows::prepare(std::byte* base) const {
  constexpr int kThreads = L::Registers::kThreads, kTurns = kMaxTokens / kThreads;
  static_assert(kMaxTokens % kThreads == 0);
  TileList& list = list_of<L>(base);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  begin_behind_work_before();
  // A token's own place, and whether the token behind it goes on from there in the same tile. 0: no place.
  const auto seen_of = [&](int token) {
    return token >= 0 && token < num_tokens ? seen_by(places, token, /*window=*/0) : Seen{0, 0, 0};
  };
  const auto goes_on = [](const Seen& from, const Seen& to) {
    return from.exists() && to.slot == from.slot && to.position() == from.position() + 1 &&
           to.position() % L::kTileRows != 0;
  };
  Seen own[kTurns];
  unsigned begins[kTurns];
  bool ends[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int token = i * kThreads + thread;
    own[i] = seen_of(token);
    begins[i] = __ballot_sync(kAllLanes, own[i].exists() && !goes_on(seen_of(token - 1), own[i]));
    ends[i] = own[i].exists() && !goes_on(own[i], seen_of(token + 1));
    if (lane == 0) list.counts[token / kWarp] = __popc(begins[i]);
    if (token < num_tokens && !own[i].exists() && token % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x)) {
      const __nv_bfloat16 nan = from_float<__nv_bfloat16>(__int_as_float(0x7FC00000));
      for (int d = 0; d < heads * L::kValueSize; ++d) {
        out[static_cast<int64_t>(token) * heads * L::kValueSize + d] = nan;
      }
    }
  }
  __syncthreads();
  if (warp == 0) {  // counts become sums of those before
    int sum = 0;
    for (int first = 0; first < kMaxTokens / kWarp; first += kWarp) {
      const int count = list.counts[first + lane];
      int inclusive = count;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, inclusive, step);
        if (lane >= step) inclusive += other;
      }
      list.counts[first + lane] = sum + inclusive - count;
      sum += __shfl_sync(kAllLanes, inclusive, kWarp - 1);
    }
    if (lane == 0) list.num_tiles = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int token = i * kThreads + thread;
    const unsigned up_to_own = begins[i] & (kAllLanes >> (kWarp - 1 - lane));
    const int tile = list.counts[token / kWarp] + __popc(up_to_own) - 1;
    if ((begins[i] >> lane & 1) != 0) {
      list.tiles[tile].token = token;
      list.tiles[tile].slot = static_cast<int>(own[i].slot);
      list.tiles[tile].position = static_cast<int>(own[i].position());
    }
    if (ends[i]) list.tiles[tile].end_token = token + 1;
  }
  if (list.num_tiles > kSortedTiles) return;  // before the barrier that all pass next
  __syncthreads();
  TokenTile tile;
  int rank = 0;
  if (thread < list.num_tiles) {
    tile = list.tiles[thread];
    for (int i = 0; i < list.num_tiles; ++i) {
      const TokenTile& other = list.tiles[i];
      const int more = other.position + other.end_token - other.token - (tile.position + tile.end_token - tile.token);
      rank += more > 0 || (more == 0 && i < thread) ? 1 : 0;
    }
  }
  __syncthreads();
  if (thread < list.num_tiles) list.tiles[rank] = tile;
}

// Heads of a cache [P, kPagePositions, width], their `size` elements from the `first`th on, so many rows a box.
CUtensorMap heads_of(const Tensor& cache, int64_t first, int64_t heads, int64_t size, int box_rows) {
  const int64_t width = cache.dim(2);
  return head_map({.data = static_cast<const uint16_t*>(cache.raw()) + first,
                   .num_seqs = cache.dim(0),
                   .seq_len = cache.dim(1),
                   .heads = heads,
                   .size = size,
                   .stride = width,
                   .head_stride = width / heads},
                  box_rows);
}
HeadMaps cache_maps(const MlaExpandedAttention& args, int box_rows) {
  const int64_t H = args.q.dim(1), Dv = args.out.dim(2), rope = args.k_rope.dim(2), nope = args.q.dim(2) - rope;
  const CUtensorMap last = heads_of(args.k_rope, 0, 1, rope, box_rows);
  return {.q = {},
          .k = nope > 0 ? heads_of(args.kv, 0, H, nope, box_rows) : last,
          .k_last = last,
          .v = heads_of(args.kv, nope, H, Dv, box_rows)};
}
HeadMaps cache_maps(const CachedAttention& args, int box_rows) {
  const int64_t G = args.num_kv_heads, rest = args.q.dim(2) - kPanel;
  const CUtensorMap last = heads_of(args.keys, rest, G, kPanel, box_rows);
  return {.q = {},
          .k = rest > 0 ? heads_of(args.keys, 0, G, rest, box_rows) : last,
          .k_last = last,
          .v = heads_of(args.values, 0, G, args.out.dim(2), box_rows)};
}

const float* sinks_of(const MlaExpandedAttention&) { return nullptr; }
const float* sinks_of(const CachedAttention& args) { return args.sinks.data_or_null<float>(); }

// Key/value heads, and of these those with a last panel of keys of their own.
struct CacheShape {
  int64_t num_kv_heads, last_heads;
};

template <class L, class Args>
void launch(Context& ctx, const Args& args, const CacheShape& shape) {
  constexpr int kBytes = L::kSharedBytes + static_cast<int>(sizeof(TileList));
  static_assert(kBytes <= kMaxSharedBytes);
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  static_assert(kPagePositions % L::kKeys == 0);
  const CachePlaces places = places_of(args);
  NMOE_CHECK(args.pages.num_elements() <= INT32_MAX, "pages {}", args.pages.shape());
  CachedRows rows{.whole = cache_maps(args, L::kKeys),
                  .few = cache_maps(args, kFewRows),
                  .last_heads = static_cast<int>(shape.last_heads),
                  .out = nullptr,
                  .places = places,
                  .num_tokens = 0,
                  .heads = static_cast<int>(H),
                  .group = static_cast<int>(H / shape.num_kv_heads),
                  .window = args.window < places.capacity() ? static_cast<int>(args.window) : 0,
                  .scale = static_cast<float>(args.scale),
                  .sinks = sinks_of(args)};
  allow_dynamic_shared(attention_kernel<L, CachedRows>, kBytes);
  for (int64_t first = 0; first < T; first += kMaxTokens) {
    const int64_t tokens = std::min<int64_t>(kMaxTokens, T - first);
    const HeadRows queries{.data = static_cast<const uint16_t*>(args.q.rows_raw()) + first * args.q.stride(),
                           .num_seqs = 1,
                           .seq_len = tokens,
                           .heads = H,
                           .size = Dk,
                           .stride = args.q.stride(),
                           .head_stride = Dk};
    rows.whole.q = head_map(queries, kRows);
    rows.few.q = head_map(queries, kFewRows);
    rows.num_tokens = static_cast<int>(tokens);
    rows.out = args.out.template data<__nv_bfloat16>() + first * H * Dv;
    rows.places = places.from(first);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(tokens * H, ctx.num_sms));
    launch_early(ctx, attention_kernel<L, CachedRows>, blocks, L::Registers::kThreads, kBytes, rows);
  }
}

template <class Args>
void launch_for_sizes(Context& ctx, const Args& args, const CacheShape& shape) {
  const int64_t key = args.q.dim(2), value = args.out.dim(2);
  if (key == 64 && value == 64) return launch<Heads64>(ctx, args, shape);
  if (key == 128 && value == 128) return launch<Heads128>(ctx, args, shape);
  NMOE_CHECK(key == 192 && value == 128, "attention with heads of {} and {}", key, value);
  launch<Heads192>(ctx, args, shape);
}

}  // namespace

void cached_attention(Context& ctx, const CachedAttention& args) {
  if (args.out.num_elements() == 0) return;
  NMOE_CHECK(aligned16(args.q.rows_raw()) && aligned16(args.keys.raw()) && aligned16(args.values.raw()) &&
                 aligned16(args.out.raw()),
             "attention of rows that are not aligned to 16 bytes");
  launch_for_sizes(ctx, args, {args.num_kv_heads, /*last_heads=*/args.num_kv_heads});
}

void mla_expanded_attention(Context& ctx, const MlaExpandedAttention& args) {
  if (args.out.num_elements() == 0) return;
  NMOE_CHECK(aligned16(args.q.rows_raw()) && aligned16(args.kv.raw()) && aligned16(args.k_rope.raw()) &&
                 aligned16(args.out.raw()),
             "attention of rows that are not aligned to 16 bytes");
  launch_for_sizes(ctx, args, {/*num_kv_heads=*/args.q.dim(1), /*last_heads=*/1});
}

}  // namespace nmoe::cuda::sm90
