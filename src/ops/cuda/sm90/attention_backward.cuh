// Attention, backward. With p = exp(scale q k^T - lse) where a query sees a key, and 0 elsewhere:
//
//   delta = sum over a head of dout * out;   dv = p^T dout
//   ds = p * (dout v^T - delta);   dk = scale ds^T q;   dq = scale ds k
//
// (arXiv 2307.08691, algorithm 2; the division of work is FlashAttention-3's, arXiv 2407.08608.) Three kernels:
//
//   prepare   delta, lse in base 2, the first visible key of each row, all of whole tiles; counters to zero
//   main      dk and dv, and the sums of dq in F32: this file, what consumers do in attention_backward_consumers.cuh
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

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/attention_backward_consumers.cuh"
#include "ops/cuda/sm90/attention_backward_layout.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"

namespace nmoe::cuda::sm90 {

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
