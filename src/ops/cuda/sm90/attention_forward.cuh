// Attention, forward: out = softmax(scale q k^T) v, lse = log of the sum of exp(scale q k^T), over visible keys.
//
// The structure is FlashAttention-3's (arXiv 2407.08608), the sums those of algorithm 1 of arXiv 2307.08691. A
// persistent, warp-specialised kernel: one block a multiprocessor works on tiles of queries of one head. One warp of
// the producer warpgroup fills two rings of stages with blocks of keys and of values by TMA, another loads queries.
// Each consumer warpgroup has 64 rows of queries and goes through its blocks of keys from the last one visible to the
// first:
//
//   s = q k^T of a block           wgmma, both operands in shared memory
//   o += p v of the block before   wgmma, p in registers
//   p = exp(scale s - highest)     while the second product is under way; o and the sums of p follow where `highest`
//                                  rises
//
// Masks. Row i sees the keys [low(i), i]: low(i) is where its document begins, or where its window does. low never
// falls, so that a warpgroup's blocks are those from low of its first row to its last row; blocks outside are not
// multiplied, and those that no consumer wants are not loaded. Only blocks that some of its rows see in part are
// masked. The rows of a consumer lie in one block of keys, its first, so that each sees a key there, itself: its
// highest score is finite from there on.
//
// Tiles of a sequence are counted from a sequence's end: where the length is not a multiple of a tile it is the first
// tile, of little work, whose consumers stand idle. Every row of `out` is written once, from sums in one order.
//
// Rows that are in slots of a cache (generation's prompts) are tiles of runs of tokens, whose keys lie in their slot
// from position 0 on. A consumer's rows lie in one block of keys there too, so that their sums are the same.
//
// Bound by tensor cores, with softmax close behind for heads of 64: a block of 128 keys costs a consumer 1,024 cycles
// of wgmma there, while the multiprocessor makes its 8,192 exponentials in 512, of which all consumers share both.
#pragma once

#include <math_constants.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "ops/cuda/primitives/attention_sums.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/quad_rows.cuh"
#include "ops/cuda/sm90/slot_tiles.h"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90::forward {

constexpr int kRows = kPanel;  // of queries, a consumer
constexpr int kWarpgroupWarps = kWarpgroup / kWarp;
constexpr int kConsumers = 3;
// Named barriers: of consumers' turns, and of the threads of each.
constexpr int kTurnBarrier = 1, kOwnBarrier = kTurnBarrier + kConsumers;
constexpr int kTileRows = kConsumers * kRows;

// Where the rows of queries are: in sequences of one length, whose keys and values lie beside them, or as runs of
// tokens of the slots of a cache, which has their keys and values.
enum class QueryRows { kSequences, kSlots };

template <int kKeySize_, int kValueSize_, int kKeys_, int kStages_, QueryRows kQueryRows>
struct Layout {
  static constexpr bool kInSlots = kQueryRows == QueryRows::kSlots;
  static constexpr int kKeySize = kKeySize_, kValueSize = kValueSize_;
  static constexpr int kKeys = kKeys_;  // of a block
  static constexpr int kStages = kStages_;
  static_assert(kKeySize % kPanel == 0 && kKeys % kRows == 0);
  using Registers = WarpgroupRegisters<1, 32, kConsumers, 160>;
  // Of a consumer's 64 rows, a thread's. With p, in pairs, they are most of its registers.
  static constexpr int kScores = kKeys / 2, kOut = kValueSize / 2;
  static_assert(kScores + kScores / 2 + kOut <= 128);
  static constexpr bool kLags = attention_lags(kValueSize);
  static_assert(kKeys == attention_block_keys(kValueSize));

  static constexpr int kKeyPanels = kKeySize / kPanel, kValuePanels = kValueSize / kPanel;
  static constexpr int kBlockPanelBytes = kKeys * kPanel * 2;  // of keys or values
  using Keys = TmaPipeline<kStages, kKeyPanels * kBlockPanelBytes>;
  using Values = TmaPipeline<kStages, kValuePanels * kBlockPanelBytes>;
  // Shared memory: queries of each consumer, the stages, their mbarriers, and two mbarriers for each consumer's
  // queries.
  static constexpr int kQueryBytes = kKeyPanels * kPanelBytes;
  static constexpr int kKeysAt = kConsumers * kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kStages * Keys::kStageBytes;
  static constexpr int kControlAt = kValuesAt + kStages * Values::kStageBytes;
  static constexpr int kQueryBarriersAt = kControlAt + Keys::kBarrierBytes + Values::kBarrierBytes;
  static constexpr int kSharedBytes = kQueryBarriersAt + kConsumers * 2 * static_cast<int>(sizeof(uint64_t));
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

struct Attention {
  CUtensorMap q, k, k_last, v;  // k_last: the last panel of keys
  int last_heads;               // of k_last: all, or one that all share
  __nv_bfloat16* out;           // [T, H, kValueSize]
  float* lse;                   // [B, H, S]; kSlots: not used, nor is first_keys
  const int32_t* first_keys;    // [T], or null
  int num_seqs, seq_len, heads, group;
  int window;  // 0: none
  float scale;
  int tiles;                  // of a sequence's rows; the first begins `missing` rows before the sequence
  int missing;                // a multiple of 64, less than a tile
  int section;                // heads whose tiles are taken before those of the next ones
  const SlotRows* slot_rows;  // kSlots: in place of these, tiles that begin at multiples of kTileRows positions, those
  const int* num_slot_rows;   // with the most keys first
};

// 64 rows of queries for each consumer, of which those at [begin, end) of the sequence or slot exist.
struct Tile {
  int first_row;  // in the sequence; may be negative
  int head, seq;  // seq: or slot
  int begin, end;
  int token;  // kSlots: of first_row, were it there
};

// Tiles in the order of the sections, within one those of all heads' last rows first. Block b of a grid of n takes the
// tiles b, 2 n - 1 - b, 2 n + b, ... of that order; so all have much the same work if the section is well chosen
// (balanced_section), and work on few heads at a time, whose keys and values stay in L2. Of slots it is the order that
// the tiles have, all heads of one side by side.
template <class L>
struct Schedule {
  const Attention& a;
  int turn = 0;

  __device__ bool next(Tile& tile) {
    const int n = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x);
    const int place = turn * n + (turn % 2 == 0 ? b : n - 1 - b);
    if constexpr (L::kInSlots) {
      const int number = place / a.heads;
      if (number >= *a.num_slot_rows) return false;
      ++turn;
      const SlotRows rows = a.slot_rows[number];
      const int first_row = rows.begin / kTileRows * kTileRows;
      tile = {
          first_row, place - number * a.heads, rows.slot, rows.begin, rows.end, rows.token - (rows.begin - first_row)};
      return true;
    }
    const int heads = a.num_seqs * a.heads;
    if (place >= heads * a.tiles) return false;
    ++turn;
    const int section = place / (a.section * a.tiles), rest = place - section * a.section * a.tiles;
    const int section_heads = min(a.section, heads - section * a.section), row = rest / section_heads;
    const int head = section * a.section + rest - row * section_heads;  // of all sequences
    tile = {(a.tiles - 1 - row) * kTileRows - a.missing, head % a.heads, head / a.heads, 0, a.seq_len, 0};
    return true;
  }
};

// The same value for the warp, and known to be.
__device__ int of_first_lane(int value) { return __shfl_sync(kAllLanes, value, 0); }

// The first key that a row sees.
template <class L>
__device__ int low_key(const Attention& a, const Tile& tile, int row) {
  int document = 0;
  if constexpr (!L::kInSlots) document = a.first_keys != nullptr ? a.first_keys[tile.seq * a.seq_len + row] : 0;
  return a.window > 0 ? max(document, row - a.window + 1) : document;
}
// Behind the last row that exists.
template <class L>
__device__ int end_row(const Attention& a, const Tile& tile) {
  return L::kInSlots ? tile.end : a.seq_len;
}
// Whether a consumer has rows that exist, of the 64 from `row` on.
template <class L>
__device__ bool has_rows(const Tile& tile, int row) {
  return L::kInSlots ? row + kRows > tile.begin && row < tile.end : row >= 0;
}

// Blocks of keys, from `last` down to `first`.
struct Blocks {
  int first, last;
};
// Those that rows [row, row + kCount) see, as far as such rows exist.
template <class L, int kCount>
__device__ Blocks blocks_of(const Attention& a, const Tile& tile, int row) {
  return {of_first_lane(low_key<L>(a, tile, max(row, tile.begin))) / L::kKeys,
          (min(row + kCount, end_row<L>(a, tile)) - 1) / L::kKeys};
}

template <class L>
struct Shared {
  std::byte* base;
  __device__ std::byte* queries(int consumer) const { return base + consumer * L::kQueryBytes; }
  __device__ typename L::Keys keys() const { return {base + L::kKeysAt, base + L::kControlAt}; }
  __device__ typename L::Values values() const {
    return {base + L::kValuesAt, base + L::kControlAt + L::Keys::kBarrierBytes};
  }
  // Whether a consumer's queries are there, and whether they are no longer needed.
  __device__ uint64_t* queries_full(int consumer) const {
    return reinterpret_cast<uint64_t*>(base + L::kQueryBarriersAt) + 2 * consumer;
  }
  __device__ uint64_t* queries_empty(int consumer) const { return queries_full(consumer) + 1; }
};

// A block's stage: load(panel, where it goes, its mbarrier) of each panel.
template <class L, class Pipeline, class Load>
__device__ void load_block(const Pipeline& pipeline, typename Pipeline::Position& at, const Load& load) {
  pipeline.acquire(at);
  pipeline.expect(at, Pipeline::kStageBytes);
#pragma unroll
  for (int i = 0; i < Pipeline::kStageBytes / L::kBlockPanelBytes; ++i) {
    load(i, pipeline.stage(at) + i * L::kBlockPanelBytes, pipeline.full(at));
  }
  at.advance();
}

// Keys and values, by a warp.
template <class L>
__device__ void load_keys_and_values(const Attention& a, const Shared<L>& shared) {
  const bool elected = threadIdx.x % kWarp == 0;
  const typename L::Keys keys = shared.keys();
  const typename L::Values values = shared.values();
  typename L::Keys::Position key_at;
  typename L::Values::Position value_at;
  Schedule<L> schedule{a};
  Tile tile;
  while (schedule.next(tile)) {
    const Blocks blocks = blocks_of<L, kTileRows>(a, tile, tile.first_row);
    const int head = tile.head / a.group;
    const auto load_keys = [&](int block) {
      load_block<L>(keys, key_at, [&](int panel, std::byte* target, uint64_t* full) {
        if (panel + 1 < L::kKeyPanels) {
          tma_load(a.k, {panel * kPanel, head, block * L::kKeys, tile.seq}, target, full);
        } else {
          tma_load(a.k_last, {0, min(head, a.last_heads - 1), block * L::kKeys, tile.seq}, target, full);
        }
      });
    };
    if (elected) {
      load_keys(blocks.last);
      for (int block = blocks.last; block >= blocks.first; --block) {
        if (block > blocks.first) load_keys(block - 1);  // wanted before the values of the block behind it
        load_block<L>(values, value_at, [&](int panel, std::byte* target, uint64_t* full) {
          tma_load(a.v, {panel * kPanel, head, block * L::kKeys, tile.seq}, target, full);
        });
      }
    }
    __syncwarp();
  }
}

// Queries, by a thread.
template <class L>
__device__ void load_queries(const Attention& a, const Shared<L>& shared) {
  Schedule<L> schedule{a};
  Tile tile;
  for (int parity = 1; schedule.next(tile); parity ^= 1) {
#pragma unroll
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      uint64_t* const full = shared.queries_full(consumer);
      mbarrier_wait(shared.queries_empty(consumer), parity);
      mbarrier_arrive_expect_tx(full, L::kQueryBytes);
#pragma unroll
      for (int i = 0; i < L::kKeyPanels; ++i) {
        const int row = (L::kInSlots ? tile.token : tile.first_row) + consumer * kRows;
        tma_load(a.q, {i * kPanel, tile.head, row, L::kInSlots ? 0 : tile.seq},
                 shared.queries(consumer) + i * kPanelBytes, full);
      }
    }
  }
}

// s = q k^T. Under way at return.
template <class L>
__device__ void multiply_keys(uint64_t queries, uint64_t keys, float (&s)[L::kScores]) {
#pragma unroll
  for (int i = 0; i < L::kKeySize / kProductDepth; ++i) {
    const int panel = i / (kPanel / kProductDepth), step = i % (kPanel / kProductDepth);
    const uint64_t q = queries + panel * (kPanelBytes / 16) + step * wgmma_descriptor_step<true>();
    const uint64_t k = keys + panel * (L::kBlockPanelBytes / 16) + step * wgmma_descriptor_step<true>();
    if constexpr (L::kKeys == 128) {
      wgmma_n128<false, false>(s, q, k, i > 0);
    } else {
      wgmma_n64<false, false>(s, q, k, i > 0);
    }
  }
  wgmma_commit_group();
}
// o += p v. Under way at return.
template <class L>
__device__ void multiply_values(const uint32_t (&p)[L::kScores / 2], uint64_t values, float (&o)[L::kOut]) {
#pragma unroll
  for (int i = 0; i < L::kKeys / kProductDepth; ++i) {
    wgmma_rows</*kTransB=*/true>(o, p + 4 * i, values + i * wgmma_descriptor_step<false>());
  }
  wgmma_commit_group();
}

// The two rows of a thread, h = 0 and 1, whose values lie in s[4 j + 2 h + p] and o[4 j + 2 h + p] (wgmma.cuh). A quad
// of lanes has the whole rows between them.
struct RowPair {
  float highest[2];  // score so far
  float sum[2];      // of p, of this thread's columns
};

// s becomes p, and `factor` what sums so far are multiplied by; returns whether that is not 1 for all rows of the warp.
// Each row decides by its own scores alone.
template <bool kFirst, bool kLags, int kScores>
__device__ __forceinline__ bool softmax(float scale_log2, float (&s)[kScores], RowPair& rows, float (&factor)[2]) {
  bool follows = true;
  float highest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = s[2 * h], odd = s[2 * h + 1];
#pragma unroll
    for (int i = 4 + 2 * h; i < kScores; i += 4) {
      even = fmaxf(even, s[i]);
      odd = fmaxf(odd, s[i + 1]);
    }
    even = fmaxf(even, odd);
    even = fmaxf(even, __shfl_xor_sync(kAllLanes, even, 1));
    highest[h] = fmaxf(even, __shfl_xor_sync(kAllLanes, even, 2));
  }
  if constexpr (kFirst) {
    rows.highest[0] = highest[0];
    rows.highest[1] = highest[1];
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = follow_highest<kLags>(scale_log2, highest[h], rows.highest[h]);
    if constexpr (kLags) follows = __any_sync(kAllLanes, factor[0] != 1.0F || factor[1] != 1.0F);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sums[2] = {};
    add_exponentials(scale_log2, rows.highest[h] * scale_log2, h, s, sums);
    rows.sum[h] = kFirst ? sums[0] + sums[1] : fmaf(rows.sum[h], factor[h], sums[0] + sums[1]);
  }
  return follows;
}

template <int kScores>
__device__ __forceinline__ void round_scores(const float (&s)[kScores], uint32_t (&p)[kScores / 2]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) p[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

// What the rows do not see. `low` and `high`: the first and last key that each sees, counted from the block's first key
// and the thread's first column.
template <int kScores>
__device__ __forceinline__ void mask_scores(const int (&low)[2], const int (&high)[2], float (&s)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = i / 4 * 8 + i % 2, h = i / 2 % 2;
    if (key < low[h] || key > high[h]) s[i] = -CUDART_INF_F;
  }
}

// Rows `row` and row + 8 of the sequence, as far as they exist: 16 bytes a lane and time.
template <class L>
__device__ void store_rows(const Attention& a, const Tile& tile, int row, const float (&factor)[2],
                           const float (&o)[L::kOut]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = row + 8 * h;
    const int64_t token =
        L::kInSlots ? tile.token + (at - tile.first_row) : static_cast<int64_t>(tile.seq) * a.seq_len + at;
    const bool exists = L::kInSlots ? at >= tile.begin && at < tile.end : at < a.seq_len;
    __nv_bfloat16* const target = a.out + (token * a.heads + tile.head) * L::kValueSize;
#pragma unroll
    for (int first = 0; first < L::kValueSize / 8; first += 4) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * (first + i) + 2 * h;
        x[i] = bf16_pair(o[j] * factor[h], o[j + 1] * factor[h]);
      }
      transpose_in_quad(x);
      const int column = 8 * (first + static_cast<int>(threadIdx.x) % 4);
      if (exists) *reinterpret_cast<uint4*>(target + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

// Keys and values as a consumer goes through them.
template <class L>
struct Rings {
  typename L::Keys keys;
  typename L::Values values;
  typename L::Keys::Position key_at;
  typename L::Values::Position value_at;
  uint64_t first_keys, first_values;  // descriptors of the first stages

  __device__ explicit Rings(const Shared<L>& shared)
      : keys(shared.keys()),
        values(shared.values()),
        first_keys(wgmma_descriptor<L::kBlockPanelBytes>(keys.stage(key_at))),
        first_values(wgmma_descriptor<L::kBlockPanelBytes>(values.stage(value_at))) {}

  __device__ uint64_t wait_keys() const {
    keys.wait(key_at);
    return first_keys + key_at.stage * (L::Keys::kStageBytes / 16);
  }
  __device__ uint64_t wait_values() const {
    values.wait(value_at);
    return first_values + value_at.stage * (L::Values::kStageBytes / 16);
  }
  __device__ void release_keys() {
    if (threadIdx.x % kWarp == 0) keys.release(key_at.stage);
    key_at.advance();
  }
  __device__ void release_values() {
    if (threadIdx.x % kWarp == 0) values.release(value_at.stage);
    value_at.advance();
  }
  // A block that other consumers want.
  // NOTE: a stage is released in the round that it is full in, or the producer would count it for another.
  __device__ void skip() {
    wait_keys();
    release_keys();
    wait_values();
    release_values();
  }
};

// Consumers take turns to start their products, so that the softmax of one is under way with the products of the
// others. Every consumer has a turn for each block of a tile but the first, whether its rows want it or not.
template <class L>
struct Turns {
  int consumer;

  __device__ void wait() const { named_barrier_sync(kTurnBarrier + consumer, 2 * kWarpgroup); }
  __device__ void pass() const { named_barrier_arrive(kTurnBarrier + (consumer + 1) % kConsumers, 2 * kWarpgroup); }
};

// Zeros for the values of a block's keys from `first` on, by the threads of a consumer: all that have rows there do the
// same, and each before its own products read them.
template <class L>
__device__ void clear_values(std::byte* stage, int first, int consumer) {
  constexpr int kRowPieces = kPanel * 2 / 16;
  const int pieces = (L::kKeys - first) * kRowPieces;
#pragma unroll 1
  for (int panel = 0; panel < L::kValuePanels; ++panel) {
    auto* const target = reinterpret_cast<uint4*>(stage + panel * L::kBlockPanelBytes) + first * kRowPieces;
    for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < pieces; i += kWarpgroup) {
      target[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async();
  named_barrier_sync(kOwnBarrier + consumer, kWarpgroup);
}

// A consumer: 64 rows of every tile.
template <class L>
__device__ void attend(const Attention& a, const Shared<L>& shared) {
  const int consumer = of_first_lane(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_column = 2 * (lane % 4);
  const float scale_log2 = a.scale * std::numbers::log2e_v<float>;
  const uint64_t queries = wgmma_descriptor(shared.queries(consumer));
  Rings<L> rings(shared);
  const Turns<L> turns{consumer};
  if (consumer == kConsumers - 1) turns.pass();
  Schedule<L> schedule{a};
  Tile tile;
  for (int parity = 0; schedule.next(tile); parity ^= 1) {
    const Blocks all = blocks_of<L, kTileRows>(a, tile, tile.first_row);
    const int first_row = tile.first_row + consumer * kRows;
    const auto skip_blocks = [&](int count) {
      for (int i = 0; i < count; ++i) {
        rings.skip();
        turns.wait();
        turns.pass();
      }
    };
    mbarrier_wait(shared.queries_full(consumer), parity);
    if (!has_rows<L>(tile, first_row)) {
      if (lane == 0) mbarrier_arrive(shared.queries_empty(consumer));
      skip_blocks(all.last - all.first);
      rings.skip();
      continue;
    }
    const Blocks blocks = blocks_of<L, kRows>(a, tile, first_row);
    const int last_row = min(first_row + kRows, end_row<L>(a, tile)) - 1;
    const int lows_end = of_first_lane(low_key<L>(a, tile, last_row));  // the keys from here on all rows see, if any
    const int row = first_row + warp * (kRows / kWarpgroupWarps) + lane / 4;
    const int low[2] = {low_key<L>(a, tile, min(row, last_row)) - first_column,
                        low_key<L>(a, tile, min(row + 8, last_row)) - first_column};
    const auto mask_block = [&](int block, float(&s)[L::kScores]) {
      const int first_key = block * L::kKeys;
      mask_scores({low[0] - first_key, low[1] - first_key},
                  {row - first_column - first_key, row + 8 - first_column - first_key}, s);
    };

    // Of the slot's values behind the tile's last row nobody knows what they are.
    const auto wait_values = [&](int block) {
      const uint64_t values = rings.wait_values();
      if (L::kInSlots && (block + 1) * L::kKeys > tile.end) {
        clear_values<L>(rings.values.stage(rings.value_at), tile.end - block * L::kKeys, consumer);
      }
      return values;
    };

    float s[L::kScores], o[L::kOut], factor[2];
    uint32_t p[L::kScores / 2];
    RowPair rows;
#pragma unroll
    for (float& x : o) x = 0.0F;
    skip_blocks(all.last - blocks.last);
    uint64_t keys = rings.wait_keys();
    wgmma_fence();
    multiply_keys<L>(queries, keys, s);
    wgmma_wait_group<0>();
    rings.release_keys();
    mask_block(blocks.last, s);
    softmax</*kFirst=*/true, L::kLags>(scale_log2, s, rows, factor);
    round_scores(s, p);

    for (int block = blocks.last - 1; block >= blocks.first; --block) {
      keys = rings.wait_keys();
      turns.wait();
      wgmma_fence();
      multiply_keys<L>(queries, keys, s);
      const uint64_t values = wait_values(block + 1);
      wgmma_fence();
      multiply_values<L>(p, values, o);
      turns.pass();
      wgmma_wait_group<1>();
      rings.release_keys();
      if (block * L::kKeys < lows_end) mask_block(block, s);
      const bool follows = softmax</*kFirst=*/false, L::kLags>(scale_log2, s, rows, factor);
      wgmma_wait_group<0>();
      rings.release_values();
      if (follows) {
#pragma unroll
        for (int i = 0; i < L::kOut; ++i) o[i] *= factor[i / 2 % 2];
      }
      round_scores(s, p);
    }
    if (lane == 0) mbarrier_arrive(shared.queries_empty(consumer));
    const uint64_t values = wait_values(blocks.first);
    wgmma_fence();
    multiply_values<L>(p, values, o);
    float lse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(rows.sum[h]);
      factor[h] = 1.0F / sum;
      lse[h] = rows.highest[h] * a.scale + logf(sum);
    }
    wgmma_wait_group<0>();
    rings.release_values();
    for (int i = all.first; i < blocks.first; ++i) {
      turns.wait();
      turns.pass();
      rings.skip();
    }
    store_rows<L>(a, tile, row, factor, o);
    if (!L::kInSlots && lane % 4 == 0) {
      float* const target = a.lse + (static_cast<int64_t>(tile.seq) * a.heads + tile.head) * a.seq_len + row;
      if (row < a.seq_len) target[0] = lse[0];
      if (row + 8 < a.seq_len) target[8] = lse[1];
    }
  }
}

template <class L>
__global__ void __launch_bounds__(L::Registers::kThreads, 1) attention_kernel(const __grid_constant__ Attention a) {
  extern __shared__ __align__(kPanelAlignment) std::byte base[];
  const Shared<L> shared{base};
  if (threadIdx.x == 0) {
    tma_prefetch_map(a.q);
    tma_prefetch_map(a.k);
    tma_prefetch_map(a.k_last);
    tma_prefetch_map(a.v);
    constexpr int kWarps = kConsumers * kWarpgroupWarps;
    shared.keys().init(/*num_copiers=*/0, /*num_releases=*/kWarps);
    shared.values().init(/*num_copiers=*/0, /*num_releases=*/kWarps);
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      mbarrier_init(shared.queries_full(consumer), 1);
      mbarrier_init(shared.queries_empty(consumer), kWarpgroupWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<L::Registers::kProducer>();
    if (threadIdx.x < kWarp) {
      load_keys_and_values<L>(a, shared);
    } else if (threadIdx.x == kWarp) {
      load_queries<L>(a, shared);
    }
  } else {
    setmaxnreg_inc<L::Registers::kConsumer>();
    attend<L>(a, shared);
  }
}

}  // namespace nmoe::cuda::sm90::forward
