// Attention, forward, by TMA and wgmma: out = softmax(scale q k^T) v, over visible keys, and the logarithm of the sum
// of exp(scale q k^T). What is attended to for whom is a template's Work: training's sequences (attention_forward.cu),
// or rows of generation (cached_attention.cu).
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
// Masks. Row i sees the keys [low(i), i]: low(i) is where its document begins, or where its window does. In a tile low
// never falls, so that a warpgroup's blocks are those from low of its first row to its last row; blocks outside are not
// multiplied, and those that no consumer wants are not loaded. Only blocks that some of its rows see in part are
// masked. The rows of a consumer lie in one block of keys, its first, so that each sees a key there, itself: its
// highest score is finite from there on.
//
// Bound by tensor cores, with softmax close behind for heads of 64: a block of 128 keys costs a consumer 1,024 cycles
// of wgmma there, while the multiprocessor makes its 8,192 exponentials in 512, of which all consumers share both.
#pragma once

#include <math_constants.h>

#include <cstdint>
#include <numbers>

#include "ops/cuda/primitives/attention_sums.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_softmax.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/quad_rows.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kRows = kPanel;  // of queries, a consumer
constexpr int kWarpgroupWarps = kWarpgroup / kWarp;
constexpr int kFewRows = 8;  // of the smallest boxes, which the swizzle repeats itself in
static_assert(kFewRows * kPanel * 2 == kPanelAlignment);
constexpr int kTurnBarrier = 1;  // the named barriers of consumers' turns
constexpr int kHideBarrier = 4;  // of each consumer's threads

template <int kKeySize_, int kValueSize_, int kKeys_, int kStages_>
struct AttentionLayout {
  static constexpr int kKeySize = kKeySize_, kValueSize = kValueSize_;
  static constexpr int kKeys = kKeys_;  // of a block
  static constexpr int kStages = kStages_;
  static_assert(kKeySize % kPanel == 0 && kKeys % kRows == 0);
  static constexpr int kConsumers = 3;
  static constexpr int kTileRows = kConsumers * kRows;
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

// The head sizes that there are.
using Heads64 = AttentionLayout<64, 64, 128, 4>;
using Heads128 = AttentionLayout<128, 128, 64, 4>;
using Heads192 = AttentionLayout<192, 128, 64, 3>;

// Work has
//   whole              maps of blocks of keys and values and of a consumer's rows of queries
//   last_heads         of k_last: all, or one that all share
//   out                [., heads, kValueSize]
//   heads, group       query heads, of which so many have a key/value head
//   scale
// and, for threads of the kernel,
//   Tile                   kTileRows rows of queries of one head, kRows for each consumer, by their positions in a
//                          sequence: `first_row`, `head`, what else it wants. Not all of them exist; those of a
//                          consumer lie in one block of keys
//   prepare<L>(base)       by all threads before anything else; behind L::kSharedBytes shared memory is its own
//   tiles<L>(base)         what gives a block its tiles: next(tile) fills the next one in or returns false
//   first_row(tile)        the first row that exists, and
//   end_row(tile)          where they end
//   exists(tile, row)      whether a row of a consumer that has rows does, and
//   has_rows(tile, row)    whether one of the consumer's that begin at `row` does
//   takes_turns(tile)      whether more than one consumer may have rows
//   low_key(tile, row)     the first position that a row sees
//   key_place(tile, position)                   where maps have it: the first of a block, the others behind it
//   load_queries<L>(tile, row, target, full)    a consumer's rows, or an arrival at `full`, by load_query_rows
//   out_row(tile, row)     of `out`
//   kKeepsLse              whether the logarithms are wanted: lse_of(tile, row), and those of the next rows behind it
//   kHidesRest             whether keys and values at positions from end_row on may be anything; of the last block only
//                          rows before it are read then, by `few`, maps of kFewRows rows
struct HeadMaps {               // vendor/tensor_map.h
  CUtensorMap q, k, k_last, v;  // k_last: the last panel of keys
};
struct SequencePlace {
  int position, sequence;
};

// The same value for the warp, and known to be.
__device__ inline int of_first_lane(int value) { return __shfl_sync(kAllLanes, value, 0); }

// KeyBlocks of keys, from `last` down to `first`.
struct KeyBlocks {
  int first, last;
};
// Those that rows [row, row + kCount) see, as far as such rows exist.
template <class L, int kCount, class Work>
__device__ KeyBlocks blocks_of(const Work& work, const typename Work::Tile& tile, int row) {
  return {of_first_lane(work.low_key(tile, max(row, work.first_row(tile)))) / L::kKeys,
          (min(row + kCount, work.end_row(tile)) - 1) / L::kKeys};
}

template <class L>
struct AttentionShared {
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

// A block's stage: load(maps, panel, position, where it goes, its mbarrier) of each panel, from the block's first
// position on. Where values behind a tile's last row may be anything, what lies there is not read.
template <class L, class Work, class Pipeline, class Load>
__device__ void load_block(const Work& work, const typename Work::Tile& tile, int block, const Pipeline& pipeline,
                           typename Pipeline::Position& at, const Load& load) {
  constexpr int kPanels = Pipeline::kStageBytes / L::kBlockPanelBytes;
  pipeline.acquire(at);
  if constexpr (Work::kHidesRest) {
    const int few = ceil_div(work.end_row(tile) - block * L::kKeys, kFewRows) * kFewRows;
    if (few < L::kKeys) {
      pipeline.expect(at, kPanels * few * kPanel * 2);
#pragma unroll 1
      for (int i = 0; i < kPanels; ++i) {
#pragma unroll 1
        for (int row = 0; row < few; row += kFewRows) {
          std::byte* const target = pipeline.stage(at) + i * L::kBlockPanelBytes + row * kPanel * 2;
          load(work.few, i, block * L::kKeys + row, target, pipeline.full(at));
        }
      }
      at.advance();
      return;
    }
  }
  pipeline.expect(at, Pipeline::kStageBytes);
#pragma unroll
  for (int i = 0; i < kPanels; ++i) {
    load(work.whole, i, block * L::kKeys, pipeline.stage(at) + i * L::kBlockPanelBytes, pipeline.full(at));
  }
  at.advance();
}

// Keys and values, by a warp.
template <class L, class Work>
__device__ void load_keys_and_values(const Work& work, const AttentionShared<L>& shared) {
  const bool elected = threadIdx.x % kWarp == 0;
  const typename L::Keys keys = shared.keys();
  const typename L::Values values = shared.values();
  typename L::Keys::Position key_at;
  typename L::Values::Position value_at;
  auto tiles = work.template tiles<L>(shared.base);
  typename Work::Tile tile;
  while (tiles.next(tile)) {
    const KeyBlocks blocks = blocks_of<L, L::kTileRows>(work, tile, tile.first_row);
    const int head = tile.head / work.group;
    const auto load_keys = [&](int block) {
      const SequencePlace first = work.key_place(tile, block * L::kKeys);
      load_block<L>(
          work, tile, block, keys, key_at,
          [&](const auto& maps, int panel, int position, std::byte* target, uint64_t* full) {
            const SequencePlace at{first.position + position - block * L::kKeys, first.sequence};
            if (panel + 1 < L::kKeyPanels) {
              tma_load(maps.k, {panel * kPanel, head, at.position, at.sequence}, target, full);
            } else {
              tma_load(maps.k_last, {0, min(head, work.last_heads - 1), at.position, at.sequence}, target, full);
            }
          });
    };
    if (elected) {
      load_keys(blocks.last);
      for (int block = blocks.last; block >= blocks.first; --block) {
        if (block > blocks.first) load_keys(block - 1);  // wanted before the values of the block behind it
        const SequencePlace first = work.key_place(tile, block * L::kKeys);
        load_block<L>(work, tile, block, values, value_at,
                      [&](const auto& maps, int panel, int position, std::byte* target, uint64_t* full) {
                        const SequencePlace at{first.position + position - block * L::kKeys, first.sequence};
                        tma_load(maps.v, {panel * kPanel, head, at.position, at.sequence}, target, full);
                      });
      }
    }
    __syncwarp();
  }
}

// kBoxRows rows of queries, from `at` on, to shared memory.
template <class L, int kBoxRows>
__device__ void load_query_rows(const CUtensorMap& q, int head, const SequencePlace& at, std::byte* target,
                                uint64_t* full) {
  mbarrier_arrive_expect_tx(full, L::kKeyPanels * kBoxRows * kPanel * 2);
#pragma unroll
  for (int i = 0; i < L::kKeyPanels; ++i) {
    tma_load(q, {i * kPanel, head, at.position, at.sequence}, target + i * kPanelBytes, full);
  }
}
// Queries, by a thread.
template <class L, class Work>
__device__ void load_queries(const Work& work, const AttentionShared<L>& shared) {
  auto tiles = work.template tiles<L>(shared.base);
  typename Work::Tile tile;
  for (int parity = 1; tiles.next(tile); parity ^= 1) {
#pragma unroll
    for (int consumer = 0; consumer < L::kConsumers; ++consumer) {
      mbarrier_wait(shared.queries_empty(consumer), parity);
      work.template load_queries<L>(tile, tile.first_row + consumer * kRows, shared.queries(consumer),
                                    shared.queries_full(consumer));
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
template <class L, class Work>
__device__ void store_rows(const Work& work, const typename Work::Tile& tile, int row, const float (&factor)[2],
                           const float (&o)[L::kOut]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = row + 8 * h;
    __nv_bfloat16* const target = work.out + (work.out_row(tile, at) * work.heads + tile.head) * L::kValueSize;
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
      if (work.exists(tile, at)) *reinterpret_cast<uint4*>(target + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

// Keys and values as a consumer goes through them.
template <class L>
struct KeyValueRings {
  typename L::Keys keys;
  typename L::Values values;
  typename L::Keys::Position key_at;
  typename L::Values::Position value_at;
  uint64_t first_keys, first_values;  // descriptors of the first stages

  __device__ explicit KeyValueRings(const AttentionShared<L>& shared)
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
// others. Every consumer has a turn for each block of a tile but the first, whether its rows want it or not; where one
// alone has rows, none has.
template <class L>
struct ConsumerTurns {
  int consumer;
  bool taken = true;  // in this tile

  __device__ void wait() const {
    if (taken) named_barrier_sync(kTurnBarrier + consumer, 2 * kWarpgroup);
  }
  __device__ void pass() const {
    if (taken) named_barrier_arrive(kTurnBarrier + (consumer + 1) % L::kConsumers, 2 * kWarpgroup);
  }
};

// Values of a block from its row `first` on become zeros, by a consumer.
template <class L>
__device__ void hide_values(std::byte* stage, int first, int consumer) {
  constexpr int kRowPieces = kPanel * 2 / 16;
  const int pieces = (L::kKeys - first) * kRowPieces;
  for (int panel = 0; panel < L::kValuePanels; ++panel) {
    auto* const rows = reinterpret_cast<uint4*>(stage + panel * L::kBlockPanelBytes) + first * kRowPieces;
    for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < pieces; i += kWarpgroup)
      rows[i] = make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  named_barrier_sync(kHideBarrier + consumer, kWarpgroup);
}

// A consumer: 64 rows of every tile.
template <class L, class Work>
__device__ void attend(const Work& work, const AttentionShared<L>& shared) {
  const int consumer = of_first_lane(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_column = 2 * (lane % 4);
  const float scale_log2 = work.scale * std::numbers::log2e_v<float>;
  const uint64_t queries = wgmma_descriptor(shared.queries(consumer));
  KeyValueRings<L> rings(shared);
  ConsumerTurns<L> turns{consumer};
  if (consumer == L::kConsumers - 1) turns.pass();
  auto tiles = work.template tiles<L>(shared.base);
  typename Work::Tile tile;
  for (int parity = 0; tiles.next(tile); parity ^= 1) {
    const KeyBlocks all = blocks_of<L, L::kTileRows>(work, tile, tile.first_row);
    const int first_row = tile.first_row + consumer * kRows;
    turns.taken = work.takes_turns(tile);
    const auto skip_blocks = [&](int count) {
      for (int i = 0; i < count; ++i) {
        rings.skip();
        turns.wait();
        turns.pass();
      }
    };
    mbarrier_wait(shared.queries_full(consumer), parity);
    if (!work.has_rows(tile, first_row)) {
      if (lane == 0) mbarrier_arrive(shared.queries_empty(consumer));
      skip_blocks(all.last - all.first);
      rings.skip();
      continue;
    }
    const KeyBlocks blocks = blocks_of<L, kRows>(work, tile, first_row);
    const int last_row = min(first_row + kRows, work.end_row(tile)) - 1;
    const int lows_end = of_first_lane(work.low_key(tile, last_row));  // the keys from here on all rows see, if any
    const int row = first_row + warp * (kRows / kWarpgroupWarps) + lane / 4;
    const int low[2] = {work.low_key(tile, min(row, last_row)) - first_column,
                        work.low_key(tile, min(row + 8, last_row)) - first_column};
    const auto mask_block = [&](int block, float(&s)[L::kScores]) {
      const int first_key = block * L::kKeys;
      mask_scores({low[0] - first_key, low[1] - first_key},
                  {row - first_column - first_key, row + 8 - first_column - first_key}, s);
    };

    const auto wait_values = [&](int block) {
      const uint64_t values = rings.wait_values();
      if constexpr (Work::kHidesRest) {
        const int rest = work.end_row(tile) - block * L::kKeys;
        if (rest < L::kKeys) hide_values<L>(rings.values.stage(rings.value_at), rest, consumer);
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
      lse[h] = rows.highest[h] * work.scale + logf(sum);
      if (work.sinks != nullptr) {
        const RowEnd end = end_with_sink(__fmul_rn(rows.highest[h], work.scale), sum, work.sinks[tile.head]);
        factor[h] = end.factor;
        lse[h] = end.lse;
      }
    }
    wgmma_wait_group<0>();
    rings.release_values();
    for (int i = all.first; i < blocks.first; ++i) {
      turns.wait();
      turns.pass();
      rings.skip();
    }
    store_rows<L>(work, tile, row, factor, o);
    if constexpr (Work::kKeepsLse) {
      if (lane % 4 == 0) {
        float* const target = work.lse_of(tile, row);
        if (work.exists(tile, row)) target[0] = lse[0];
        if (work.exists(tile, row + 8)) target[8] = lse[1];
      }
    }
  }
}

template <class L, class Work>
__global__ void __launch_bounds__(L::Registers::kThreads, 1) attention_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(kPanelAlignment) std::byte base[];
  const AttentionShared<L> shared{base};
  work.template prepare<L>(base);
  if (threadIdx.x == 0) {
    tma_prefetch_map(work.whole.q);
    tma_prefetch_map(work.whole.k);
    tma_prefetch_map(work.whole.k_last);
    tma_prefetch_map(work.whole.v);
    constexpr int kWarps = L::kConsumers * kWarpgroupWarps;
    shared.keys().init(/*num_copiers=*/0, /*num_releases=*/kWarps);
    shared.values().init(/*num_copiers=*/0, /*num_releases=*/kWarps);
    for (int consumer = 0; consumer < L::kConsumers; ++consumer) {
      mbarrier_init(shared.queries_full(consumer), 1);
      mbarrier_init(shared.queries_empty(consumer), kWarpgroupWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<L::Registers::kProducer>();
    if (threadIdx.x < kWarp) {
      load_keys_and_values<L>(work, shared);
    } else if (threadIdx.x == kWarp) {
      load_queries<L>(work, shared);
    }
  } else {
    setmaxnreg_inc<L::Registers::kConsumer>();
    attend<L>(work, shared);
  }
}

}  // namespace nmoe::cuda::sm90
