// Attention, backward. With p = exp(scale q k^T - lse) where a query sees a key, and 0 elsewhere:
//
//   delta = sum over a head of dout * out;   dv = p^T dout
//   ds = p * (dout v^T - delta);   dk = scale ds^T q;   dq = scale ds k
//
// (arXiv 2307.08691, algorithm 2; the division of work is FlashAttention-3's, arXiv 2407.08608.) Three kernels:
//
//   prepare   delta, lse in base 2, the first visible key of each row, all of whole tiles; counters to zero
//   main      dk and dv, and the sums of dq in F32: this file
//   finish    dq out of its sums
//
// (prepare and finish: attention_backward_passes.cuh)
//
// dq and dk are rotated back by RoPE's angles, if asked, before they are rounded.
//
// The main kernel is persistent: one block a multiprocessor takes tickets, each a block of 128 keys of one key/value
// head. It keeps dk and dv of it in registers and goes through the tiles of queries that see it, of all query heads
// that share it. Its first warp loads by TMA. Two consumer warpgroups have 64 keys each and work on
// transposed scores, keys by rows, so that p^T is an operand in registers; ds^T goes to shared memory, where it is an
// operand of dk by rows and of dq by columns. They share the columns (or rows) of a tile's dq.
//
// The same bits every time: blocks of keys add to a tile of dq in one order. Two warps of the first warpgroup do that,
// a half of the tile each: they wait for its turn (a counter of blocks that have added), add by a bulk reduction, or
// store where they are the first, and count. Tickets are in the order of turns, so that a block waits only for blocks
// that have begun.
//
//   kLastKeysFirst   a head behind the other, from a sequence's last block of keys, each from the diagonal on: a block
//                    begins with the tile of which it is the first, and reaches the next when the block behind it has
//                    just added to it, so that turns are seldom waited for. The longest blocks come last.
//   kFirstKeysFirst  sections of heads, the first and longest blocks first, each from the last rows on, a tile of all
//                    query heads that share the keys before the next: blocks of a section work on the same few tiles,
//                    which stay in L2 with the sums of their dq, and the last blocks are short. Where one block takes
//                    the heads of a group in turn, the other order has blocks at different heads of it, all in memory.
//
// Masks: tiles that nothing is seen of are never loaded. Rows beyond the sequence have lse = inf, thus p = 0.
//
// Per tile of 64 x 128 with heads of 128: 2,560 cycles of wgmma, 512 of exp2, some 2,900 of shared memory.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

// Of blocks of keys: see above. It decides the order of sums, so it may depend on the heads' numbers alone.
enum class BackwardOrder { kFirstKeysFirst, kLastKeysFirst };

// Where a head's gradients go; strides in elements, from a token to the next and from a head to the next.
struct GradientRows {
  __nv_bfloat16* data;
  int64_t stride, head_stride;
  __device__ __nv_bfloat16* of(int64_t token, int head) const { return data + token * stride + head * head_stride; }
};

struct BackwardArgs {
  CUtensorMap q, k, k_last, v, dout;  // head_map, boxes of 64 values of L::kRows or L::kKeys positions
  int last_heads;                     // of k_last, the last panel of keys: all, or one that all share
  const float* lse;                   // [B, H, padded S] in base 2
  const float* delta;                 // [B, H, padded S]
  const int32_t* lows;                // [B, padded S], or null
  float* dq_sums;                     // [B, H, tiles of rows][2 halves][float4][128 threads]
  int32_t* turns;                     // [B, H, tiles of rows, 2]
  int32_t* tickets;                   // [1]
  GradientRows dk, dk_last, dv;       // dk_last: of the last panel of keys, of every head
  int num_seqs, seq_len, kv_heads, group;
  BackwardOrder order;
  int section;  // key/value heads whose blocks are worked on side by side
  float scale;
  GradientRotation rotation;  // of keys
};

// kNarrow: for want of registers dout v^T is not multiplied before p is there, which is then kept as bf16 alone.
template <int kKeySize_, int kValueSize_, int kRows_, int kKeyStages_, int kQueryStages_, int kScoreBuffers_,
          bool kNarrow_>
struct BackwardLayout {
  static constexpr int kKeySize = kKeySize_, kValueSize = kValueSize_, kRows = kRows_;
  static constexpr int kKeyStages = kKeyStages_, kQueryStages = kQueryStages_, kDoutStages = 2,
                       kScoreBuffers = kScoreBuffers_;
  static constexpr bool kNarrow = kNarrow_;
  static constexpr int kConsumers = 2, kKeys = kConsumers * kPanel;
  using Registers = WarpgroupRegisters<1, 24, kConsumers, 240>;
  using Tiles = TileRange<kRows, kKeys>;
  static constexpr int kRotated = kKeySize == 192 ? 64 : kKeySize;  // values of a head, its last, that RoPE rotates
  static constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;

  // Shared memory, bytes.
  static constexpr int kRowPanel = kRows * 128, kKeyPanel = kKeys * 128;
  static constexpr int kKeyBytes = kKeySize / kPanel * kKeyPanel, kValueBytes = kValueSize / kPanel * kKeyPanel;
  static constexpr int kQueryBytes = kKeySize / kPanel * kRowPanel, kDoutBytes = kValueSize / kPanel * kRowPanel;
  static constexpr int kScoreBytes = kRows / kPanel * kKeyPanel;
  static constexpr int kHalfSums = kRows * kKeySize / 2;  // values
  static constexpr int kHalfBytes = kHalfSums * 4;
  static constexpr int kStatBytes = kRows * 4;
  static constexpr int kK = 0, kV = kK + kKeyStages * kKeyBytes, kQ = kV + kValueBytes,
                       kDout = kQ + kQueryStages * kQueryBytes;
  static constexpr int kScores = kDout + kDoutStages * kDoutBytes, kSums = kScores + kScoreBuffers * kScoreBytes;
  static constexpr int kLse = kSums + 2 * kHalfBytes, kLows = kLse + kQueryStages * kStatBytes;
  static constexpr int kDelta = kLows + kQueryStages * kStatBytes, kControl = kDelta + kDoutStages * kStatBytes;
  static constexpr int kSharedBytes = kControl + 256;
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

// A ticket's work.
struct BackwardWork {
  int seq, kv_head, block;   // seq < 0: there is none
  int first_tile, end_tile;  // of rows

  __device__ int tile(BackwardOrder order, int t) const {
    return order == BackwardOrder::kFirstKeysFirst ? end_tile - 1 - t : first_tile + t;
  }
};
struct RingPlace {
  int stage = 0, parity = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class L>
struct BackwardShared {
  std::byte* base;
  struct Control {
    uint64_t query_full[L::kQueryStages], query_empty[L::kQueryStages];
    uint64_t dout_full[L::kDoutStages], dout_empty[L::kDoutStages];
    uint64_t keys_full[L::kKeyStages], keys_empty[L::kKeyStages], values_full, values_empty;
    uint64_t sums_full[2], sums_empty[2], work_full, work_empty;
    BackwardWork work;
  };
  static_assert(sizeof(Control) <= 256);
  __device__ Control& control() const { return *reinterpret_cast<Control*>(base + L::kControl); }
  __device__ std::byte* keys(int stage) const { return base + L::kK + stage * L::kKeyBytes; }
  __device__ std::byte* query(int stage) const { return base + L::kQ + stage * L::kQueryBytes; }
  __device__ std::byte* dout(int stage) const { return base + L::kDout + stage * L::kDoutBytes; }
  __device__ std::byte* scores(int buffer) const { return base + L::kScores + buffer * L::kScoreBytes; }
  __device__ float* sums(int half) const { return reinterpret_cast<float*>(base + L::kSums + half * L::kHalfBytes); }
  __device__ float* lse(int stage) const { return reinterpret_cast<float*>(base + L::kLse) + stage * L::kRows; }
  __device__ int32_t* lows(int stage) const { return reinterpret_cast<int32_t*>(base + L::kLows) + stage * L::kRows; }
  __device__ float* delta(int stage) const { return reinterpret_cast<float*>(base + L::kDelta) + stage * L::kRows; }
};

// --- bulk copies of the first warpgroup
__device__ inline void bulk_load(const void* source, void* target, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void bulk_store(float* target, const float* source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(target),
               "r"(shared_address(source)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_add(float* target, const float* source, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(target),
               "r"(shared_address(source)), "r"(bytes)
               : "memory");
}
__device__ inline int load_acquire(const int32_t* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(p) : "memory");
  return value;
}
__device__ inline void count_release(int32_t* p) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(p) : "memory");
}
__device__ inline void fence_proxy_async_all() { asm volatile("fence.proxy.async;\n" ::: "memory"); }

// --- the loading warp
template <class L>
__device__ void load_backward(const BackwardArgs& a, const BackwardShared<L>& shared) {
  auto& control = shared.control();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const typename L::Tiles tiles{a.seq_len};
  const int blocks = tiles.key_blocks(), padded = tiles.row_tiles() * L::kRows;
  const int tickets = a.num_seqs * a.kv_heads * blocks;
  RingPlace keys, query, dout;
  for (int parity = 0;; parity ^= 1) {
    int ticket = 0;
    if (lane == 0) ticket = atomicAdd(a.tickets, 1);
    ticket = __shfl_sync(kAllLanes, ticket, 0);
    BackwardWork work{-1, 0, 0, 0, 0};
    if (ticket < tickets) {
      const int section = ticket / (a.section * blocks), place = ticket % (a.section * blocks);
      const int heads = min(a.section, a.num_seqs * a.kv_heads - section * a.section);
      const int head = section * a.section + place % heads;
      work.seq = head / a.kv_heads;
      work.kv_head = head % a.kv_heads;
      work.block = a.order == BackwardOrder::kFirstKeysFirst ? place / heads : blocks - 1 - place / heads;
      work.first_tile = tiles.first_tile(work.block);
      work.end_tile = tiles.end_tile(work.block, a.lows == nullptr ? nullptr : a.lows + int64_t{padded} * work.seq);
    }
    mbarrier_wait(&control.work_empty, parity ^ 1);
    if (lane == 0) {
      control.work = work;
      mbarrier_arrive(&control.work_full);
    }
    if (work.seq < 0) return;
    if (lane == 0) {
      const int key = work.block * L::kKeys;
      mbarrier_wait(&control.keys_empty[keys.stage], keys.parity ^ 1);
      mbarrier_arrive_expect_tx(&control.keys_full[keys.stage], L::kKeyBytes);
#pragma unroll 1
      for (int p = 0; p < L::kKeySize / kPanel; ++p) {
        const bool is_last = p + 1 == L::kKeySize / kPanel;
        const int head = is_last ? min(work.kv_head, a.last_heads - 1) : work.kv_head;
        tma_load(is_last ? a.k_last : a.k, {is_last ? 0 : p * kPanel, head, key, work.seq},
                 shared.keys(keys.stage) + p * L::kKeyPanel, &control.keys_full[keys.stage]);
      }
      keys.template advance<L::kKeyStages>();
      bool has_values = false;
#pragma unroll 1
      for (int t = 0; t < work.end_tile - work.first_tile; ++t) {
        const int row = work.tile(a.order, t) * L::kRows;
#pragma unroll 1
        for (int g = 0; g < a.group; ++g) {
          const int head = work.kv_head * a.group + g;
          const int64_t stats = (int64_t{work.seq} * a.kv_heads * a.group + head) * padded;
          uint64_t* full = &control.query_full[query.stage];
          mbarrier_wait(&control.query_empty[query.stage], query.parity ^ 1);
          mbarrier_arrive_expect_tx(full, L::kQueryBytes + L::kStatBytes * (a.lows == nullptr ? 1 : 2));
#pragma unroll 1
          for (int p = 0; p < L::kKeySize / kPanel; ++p) {
            tma_load(a.q, {p * kPanel, head, row, work.seq}, shared.query(query.stage) + p * L::kRowPanel, full);
          }
          bulk_load(a.lse + stats + row, shared.lse(query.stage), L::kStatBytes, full);
          if (a.lows != nullptr) {
            bulk_load(a.lows + int64_t{padded} * work.seq + row, shared.lows(query.stage), L::kStatBytes, full);
          }
          query.template advance<L::kQueryStages>();
          if (!has_values) {  // behind what is needed before
            has_values = true;
            mbarrier_wait(&control.values_empty, parity ^ 1);
            mbarrier_arrive_expect_tx(&control.values_full, L::kValueBytes);
#pragma unroll 1
            for (int p = 0; p < L::kValueSize / kPanel; ++p) {
              tma_load(a.v, {p * kPanel, work.kv_head, key, work.seq}, shared.base + L::kV + p * L::kKeyPanel,
                       &control.values_full);
            }
          }
          full = &control.dout_full[dout.stage];
          mbarrier_wait(&control.dout_empty[dout.stage], dout.parity ^ 1);
          mbarrier_arrive_expect_tx(full, L::kDoutBytes + L::kStatBytes);
#pragma unroll 1
          for (int p = 0; p < L::kValueSize / kPanel; ++p) {
            tma_load(a.dout, {p * kPanel, head, row, work.seq}, shared.dout(dout.stage) + p * L::kRowPanel, full);
          }
          bulk_load(a.delta + stats + row, shared.delta(dout.stage), L::kStatBytes, full);
          dout.template advance<L::kDoutStages>();
        }
      }
    }
    __syncwarp();
  }
}

// --- the thread that adds a half of each tile of dq
template <class L>
__device__ void add_queries(const BackwardArgs& a, const BackwardShared<L>& shared, int half) {
  auto& control = shared.control();
  const int row_tiles = typename L::Tiles{a.seq_len}.row_tiles();
  int sums_parity = 0;
  for (int parity = 0;; parity ^= 1) {
    mbarrier_wait(&control.work_full, parity);
    const BackwardWork work = control.work;
    mbarrier_arrive(&control.work_empty);
    if (work.seq < 0) return;
    const int32_t* const lows = a.lows == nullptr ? nullptr : a.lows + int64_t{row_tiles} * L::kRows * work.seq;
#pragma unroll 1
    for (int t = 0; t < work.end_tile - work.first_tile; ++t) {
      const int tile = work.tile(a.order, t);
      const int turn = a.order == BackwardOrder::kFirstKeysFirst ? work.block - L::Tiles::first_block(tile, lows)
                                                                 : L::Tiles::last_block(tile) - work.block;
#pragma unroll 1
      for (int g = 0; g < a.group; ++g) {
        const int64_t head = (int64_t{work.seq} * a.kv_heads + work.kv_head) * a.group + g;
        const int64_t place = (head * row_tiles + tile) * 2 + half;
        if (turn > 0) {
          while (load_acquire(a.turns + place) < turn) {
          }
        }
        mbarrier_wait(&control.sums_full[half], sums_parity);
        sums_parity ^= 1;
        fence_proxy_async_all();
        float* target = a.dq_sums + place * L::kHalfSums;
        if (turn == 0) {
          bulk_store(target, shared.sums(half), L::kHalfBytes);
        } else {
          bulk_add(target, shared.sums(half), L::kHalfBytes);
        }
        tma_commit_group();
        tma_wait_read<0>();
        mbarrier_arrive(&control.sums_empty[half]);
        tma_wait<0>();
        fence_proxy_async_all();
        count_release(a.turns + place);
      }
    }
  }
}

// --- consumers
__device__ inline float unpack(uint32_t pair, int which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000U);
}
__device__ inline void store_matrices(uint32_t target, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(target), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// D[64 keys, rows] = keys x rows^T over `kSize` values: both operands by rows.
template <class L, int kSize>
__device__ void multiply_scores(const std::byte* keys, const std::byte* rows, float (&d)[L::kRows / 2]) {
  const uint64_t a = wgmma_descriptor<L::kKeyPanel>(keys), b = wgmma_descriptor<L::kRowPanel>(rows);
#pragma unroll
  for (int k = 0; k < kSize / kProductDepth; ++k) {
    constexpr int kPerPanel = kPanel / kProductDepth;
    const uint64_t step = k % kPerPanel * wgmma_descriptor_step<true>();
    const uint64_t at = a + k / kPerPanel * (L::kKeyPanel / 16) + step;
    const uint64_t bt = b + k / kPerPanel * (L::kRowPanel / 16) + step;
    if constexpr (L::kRows == 128) {
      wgmma_n128<false, false>(d, at, bt, k > 0);
    } else {
      wgmma_n64<false, false>(d, at, bt, k > 0);
    }
  }
}

// Row h of the two that this thread has of dk, whose whole head is rotated.
template <class L>
__device__ void rotate_keys(const GradientRotation& rotation, int64_t token, int h, float (&dk)[L::kKeySize / 2]) {
  constexpr int kPairs = L::kKeySize / 2;
  const int place = static_cast<int>(threadIdx.x) % 4;
  if (rotation.halves) {
#pragma unroll
    for (int j = 0; j < L::kKeySize / 16; ++j) {
      float c[2], s[2];
      load_angles<2>(rotation, token, kPairs, 8 * j + 2 * place, c, s);
      float* const first = dk + 4 * j + 2 * h;
      float* const second = first + L::kKeySize / 4;
      rotate_back(first[0], second[0], c[0], s[0]);
      rotate_back(first[1], second[1], c[1], s[1]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < L::kKeySize / 8; ++j) {
      float c[1], s[1];
      load_angles<1>(rotation, token, kPairs, 4 * j + place, c, s);
      rotate_back(dk[4 * j + 2 * h], dk[4 * j + 2 * h + 1], c[0], s[0]);
    }
  }
}

template <class L>
__device__ void consume_backward(const BackwardArgs& a, const BackwardShared<L>& shared) {
  constexpr int kRows = L::kRows, kScoreValues = kRows / 2;
  constexpr int kSumValues = L::kHalfSums / kWarpgroup;
  auto& control = shared.control();
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarp;
  const int own_key = consumer * kPanel + thread / kWarp * 16 + lane / 4;  // and the one 8 behind it
  const std::byte* const own_values = shared.base + L::kV + consumer * kPanelBytes;
  const float scale2 = a.scale * 1.4426950408889634F;
  // stmatrix: this lane's row of keys, and what its chunk of 16 bytes is swizzled by.
  const int matrix_row = consumer * kPanel + thread / kWarp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const uint32_t matrix_base = shared_address(shared.scores(0)) + matrix_row * 128;
  const int chunk0 = lane / 16, swizzle = lane % 8;

  RingPlace keys, query, dout;
  int sums_parity = 1, buffer = 0;
  for (int parity = 0;; parity ^= 1) {
    mbarrier_wait(&control.work_full, parity);
    const BackwardWork work = control.work;
    mbarrier_arrive(&control.work_empty);
    if (work.seq < 0) return;
    float dk[L::kKeySize / 2], dv[L::kValueSize / 2];
    const int tiles = work.end_tile - work.first_tile, count = tiles * a.group;
    const int key0 = work.block * L::kKeys;

    float s[kScoreValues], dp[kScoreValues];
    const std::byte* const own_keys = shared.keys(keys.stage) + consumer * kPanelBytes;
    mbarrier_wait(&control.keys_full[keys.stage], keys.parity);
    mbarrier_wait(&control.query_full[query.stage], query.parity);
    wgmma_fence();
    multiply_scores<L, L::kKeySize>(own_keys, shared.query(query.stage), s);
    wgmma_commit_group();
    mbarrier_wait(&control.values_full, parity);
    int t = 0, g = 0, before = -1;
#pragma unroll 1
    for (int i = 0;; ++i) {
      const int row0 = work.tile(a.order, t) * kRows;
      if constexpr (!L::kNarrow) {
        mbarrier_wait(&control.dout_full[dout.stage], dout.parity);
        wgmma_fence();
        multiply_scores<L, L::kValueSize>(own_values, shared.dout(dout.stage), dp);
        wgmma_commit_group();
      }
      wgmma_wait_group<L::kNarrow ? 0 : 1>();  // s, and dk before
      __syncwarp();
      if (before >= 0 && lane == 0) mbarrier_arrive(&control.query_empty[before]);
      if (key0 + L::kKeys - 1 > row0) {  // of consumers alike, so that neither runs ahead
#pragma unroll
        for (int j = 0; j < kScoreValues; ++j) {
          const int key = key0 + own_key + (j / 2 % 2) * 8, row = row0 + j / 4 * 8 + lane % 4 * 2 + j % 2;
          if (key > row) s[j] = -CUDART_INF_F;
        }
      }
      if (a.lows != nullptr) {
        const int32_t* const lows = shared.lows(query.stage);
        if (lows[kRows - 1] > key0) {
#pragma unroll
          for (int j = 0; j < kScoreValues; j += 4) {
            const int2 low = *reinterpret_cast<const int2*>(lows + j * 2 + lane % 4 * 2);
            const int key = key0 + own_key;
            if (key < low.x) s[j] = -CUDART_INF_F;
            if (key < low.y) s[j + 1] = -CUDART_INF_F;
            if (key + 8 < low.x) s[j + 2] = -CUDART_INF_F;
            if (key + 8 < low.y) s[j + 3] = -CUDART_INF_F;
          }
        }
      }
      const float* const lse = shared.lse(query.stage) + lane % 4 * 2;
      uint32_t p[kScoreValues / 2];
#pragma unroll
      for (int j = 0; j < kScoreValues; j += 4) {
        const float2 l = *reinterpret_cast<const float2*>(lse + j * 2);
        s[j] = flushed_exp2(s[j] * scale2 - l.x);
        s[j + 1] = flushed_exp2(s[j + 1] * scale2 - l.y);
        s[j + 2] = flushed_exp2(s[j + 2] * scale2 - l.x);
        s[j + 3] = flushed_exp2(s[j + 3] * scale2 - l.y);
        p[j / 2] = bf16_pair(s[j], s[j + 1]);
        p[j / 2 + 1] = bf16_pair(s[j + 2], s[j + 3]);
      }
      if constexpr (L::kNarrow) {
        mbarrier_wait(&control.dout_full[dout.stage], dout.parity);
        wgmma_fence();
        multiply_scores<L, L::kValueSize>(own_values, shared.dout(dout.stage), dp);
        wgmma_commit_group();
      } else {
        wgmma_fence();
      }
      // dv += p^T dout
      {
        const uint64_t b = wgmma_descriptor<L::kRowPanel>(shared.dout(dout.stage));
#pragma unroll
        for (int k = 0; k < kRows / kProductDepth; ++k) {
          wgmma_rows<true>(dv, p + 4 * k, b + k * wgmma_descriptor_step<false>(), i > 0 || k > 0);
        }
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();  // dp
      if (i + 1 == count && lane == 0) mbarrier_arrive(&control.values_empty);
      // ds^T
      if constexpr (L::kScoreBuffers == 1) named_barrier_sync(1, L::kConsumers * kWarpgroup);
      const float* const delta = shared.delta(dout.stage) + lane % 4 * 2;
      const uint32_t matrices = matrix_base + buffer * L::kScoreBytes;
#pragma unroll
      for (int j = 0; j < kScoreValues; j += 8) {
        const float2 d0 = *reinterpret_cast<const float2*>(delta + j * 2);
        const float2 d1 = *reinterpret_cast<const float2*>(delta + j * 2 + 8);
        float e[8];
#pragma unroll
        for (int n = 0; n < 8; ++n) e[n] = L::kNarrow ? unpack(p[(j + n) / 2], n % 2) : s[j + n];
        const uint32_t r[4] = {bf16_pair(e[0] * (dp[j] - d0.x), e[1] * (dp[j + 1] - d0.y)),
                               bf16_pair(e[2] * (dp[j + 2] - d0.x), e[3] * (dp[j + 3] - d0.y)),
                               bf16_pair(e[4] * (dp[j + 4] - d1.x), e[5] * (dp[j + 5] - d1.y)),
                               bf16_pair(e[6] * (dp[j + 6] - d1.x), e[7] * (dp[j + 7] - d1.y))};
        const int chunk = j / 4 + chunk0;  // of 8 rows
        store_matrices(matrices + j / 32 * L::kKeyPanel + ((chunk % 8) ^ swizzle) * 16, r);
      }
      fence_proxy_async();
      named_barrier_sync(1, L::kConsumers * kWarpgroup);

      // A half of dq = ds k: the half of its rows or of its columns.
      constexpr int kWhole = kSumValues < 32 ? kSumValues : 32;
      float dq[kWhole];
      wgmma_fence();
      {
        const std::byte* const ds = shared.scores(buffer);
        const std::byte* const k = shared.keys(keys.stage);
        constexpr uint64_t kStep = wgmma_descriptor_step<false>();
        if constexpr (kRows == 128) {
          static_assert(L::kKeySize == kPanel);
          const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds + consumer * L::kKeyPanel);
          const uint64_t db = wgmma_descriptor<L::kKeyPanel>(k);
#pragma unroll
          for (int n = 0; n < L::kKeys / kProductDepth; ++n)
            wgmma_n64<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
        } else if constexpr (L::kKeySize == 128) {
          const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds);
          const uint64_t db = wgmma_descriptor<L::kKeyPanel>(k + consumer * L::kKeyPanel);
#pragma unroll
          for (int n = 0; n < L::kKeys / kProductDepth; ++n)
            wgmma_n64<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
        } else if constexpr (L::kKeySize == 64) {
          const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds);
          const uint64_t db = wgmma_descriptor<L::kKeyPanel>(k + consumer * 64);
#pragma unroll
          for (int n = 0; n < L::kKeys / kProductDepth; ++n)
            wgmma_n32<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
        } else {  // a whole panel; a half of the middle one follows
          const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds);
          const uint64_t db = wgmma_descriptor<L::kKeyPanel>(k + consumer * 2 * L::kKeyPanel);
#pragma unroll
          for (int n = 0; n < L::kKeys / kProductDepth; ++n) {
            wgmma_n64<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
          }
        }
      }
      wgmma_commit_group();
      RingPlace next = query;
      next.template advance<L::kQueryStages>();
      // dk += ds^T q
      {
        const uint64_t da = wgmma_descriptor<L::kKeyPanel>(shared.scores(buffer) + consumer * kPanelBytes);
        const uint64_t db = wgmma_descriptor<L::kRowPanel>(shared.query(query.stage));
#pragma unroll
        for (int n = 0; n < kRows / kProductDepth; ++n) {
          constexpr int kPerPanel = kPanel / kProductDepth;
          const uint64_t at = da + n / kPerPanel * (L::kKeyPanel / 16) + n % kPerPanel * wgmma_descriptor_step<true>();
          const uint64_t bt = db + n * wgmma_descriptor_step<false>();
          if constexpr (L::kKeySize == 64) {
            wgmma_n64<false, true>(dk, at, bt, i > 0 || n > 0);
          } else if constexpr (L::kKeySize == 128) {
            wgmma_n128<false, true>(dk, at, bt, i > 0 || n > 0);
          } else {
            wgmma_n192<false, true>(dk, at, bt, i > 0 || n > 0);
          }
        }
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();  // dq, and dv
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.dout_empty[dout.stage]);
      mbarrier_wait(&control.sums_empty[consumer], sums_parity);
      sums_parity ^= 1;
      float4* const sums = reinterpret_cast<float4*>(shared.sums(consumer)) + thread;
#pragma unroll
      for (int c = 0; c < kWhole / 4; ++c) {
        sums[c * kWarpgroup] = make_float4(dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
      }
      if constexpr (kSumValues > kWhole) {
        float half[kSumValues - kWhole];
        const uint64_t da = wgmma_descriptor<L::kKeyPanel>(shared.scores(buffer));
        const uint64_t db = wgmma_descriptor<L::kKeyPanel>(shared.keys(keys.stage) + L::kKeyPanel + consumer * 64);
        constexpr uint64_t kStep = wgmma_descriptor_step<false>();
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < L::kKeys / kProductDepth; ++n) {
          wgmma_n32<true, true>(half, da + n * kStep, db + n * kStep, n > 0);
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();
#pragma unroll
        for (int c = 0; c < (kSumValues - kWhole) / 4; ++c) {
          sums[(c + kWhole / 4) * kWarpgroup] =
              make_float4(half[4 * c], half[4 * c + 1], half[4 * c + 2], half[4 * c + 3]);
        }
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.sums_full[consumer]);
      if (i + 1 == count && lane == 0) mbarrier_arrive(&control.keys_empty[keys.stage]);
      before = query.stage;
      query = next;
      dout.template advance<L::kDoutStages>();
      if constexpr (L::kScoreBuffers == 2) buffer ^= 1;
      if (++g == a.group) {
        g = 0;
        ++t;
      }
      if (i + 1 == count) break;
      mbarrier_wait(&control.query_full[query.stage], query.parity);
      wgmma_fence();
      multiply_scores<L, L::kKeySize>(own_keys, shared.query(query.stage), s);
      wgmma_commit_group();
    }
    wgmma_wait_group<0>();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&control.query_empty[before]);
    keys.template advance<L::kKeyStages>();
    const int row = key0 + own_key;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= a.seq_len) continue;
      const int64_t token = int64_t{work.seq} * a.seq_len + row + 8 * h;
      constexpr int kRest = L::kKeySize - kPanel;  // keys' values but the last
      __nv_bfloat16* const dk_row = a.dk.of(token, work.kv_head) + lane % 4 * 2;
      __nv_bfloat16* const dk_last_row = a.dk_last.of(token, work.kv_head) + lane % 4 * 2;
      __nv_bfloat16* const dv_row = a.dv.of(token, work.kv_head) + lane % 4 * 2;
      if (a.rotation.positions != nullptr) rotate_keys<L>(a.rotation, token, h, dk);
#pragma unroll
      for (int j = 0; j < L::kKeySize / 8; ++j) {
        __nv_bfloat16* const target = 8 * j < kRest ? dk_row + 8 * j : dk_last_row + (8 * j - kRest);
        *reinterpret_cast<uint32_t*>(target) = bf16_pair(a.scale * dk[4 * j + 2 * h], a.scale * dk[4 * j + 2 * h + 1]);
      }
#pragma unroll
      for (int j = 0; j < L::kValueSize / 8; ++j) {
        *reinterpret_cast<uint32_t*>(dv_row + 8 * j) = bf16_pair(dv[4 * j + 2 * h], dv[4 * j + 2 * h + 1]);
      }
    }
  }
}

template <class L>
__global__ void __launch_bounds__(L::Registers::kThreads, 1)
    attention_backward_kernel(const __grid_constant__ BackwardArgs a) {
  extern __shared__ __align__(kPanelAlignment) std::byte base[];
  const BackwardShared<L> shared{base};
  if (threadIdx.x == 0) {
    auto& control = shared.control();
    for (int i = 0; i < L::kQueryStages; ++i) {
      mbarrier_init(&control.query_full[i], 1);
      mbarrier_init(&control.query_empty[i], L::kConsumerWarps);
    }
    for (int i = 0; i < L::kDoutStages; ++i) {
      mbarrier_init(&control.dout_full[i], 1);
      mbarrier_init(&control.dout_empty[i], L::kConsumerWarps);
    }
    for (int i = 0; i < L::kKeyStages; ++i) {
      mbarrier_init(&control.keys_full[i], 1);
      mbarrier_init(&control.keys_empty[i], L::kConsumerWarps);
    }
    mbarrier_init(&control.values_full, 1);
    mbarrier_init(&control.values_empty, L::kConsumerWarps);
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&control.sums_full[i], kWarpgroup / kWarp);
      mbarrier_init(&control.sums_empty[i], 1);
    }
    mbarrier_init(&control.work_full, 1);
    mbarrier_init(&control.work_empty, L::kConsumers * kWarpgroup + 2);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<L::Registers::kProducer>();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (warp == 0) {
      load_backward<L>(a, shared);
    } else if (warp <= 2 && threadIdx.x % kWarp == 0) {
      add_queries<L>(a, shared, warp - 1);
    }
  } else {
    setmaxnreg_inc<L::Registers::kConsumer>();
    consume_backward<L>(a, shared);
  }
}

}  // namespace nmoe::cuda::sm90
