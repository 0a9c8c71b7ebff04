// Tiles of C in BF16, written by warps of their own beside the products of the next tile: the writers. As they are, or
// with an activation, forward and backward: what of it is stored is a list (grouped_epilogues.cuh).
//
// The warpgroups that multiply leave a tile's sums rounded to BF16 in shared memory (TileStash) and go on: a whole tile
// or, where the stash has half of one, the first half at once and the second beside the next tile's products, when
// writers are done with the first (HalfStasher). Writers read them, backward also the pre-activations of
// their rows and columns, whose place their gradients take: 16 bytes a lane, four rows of 64 columns a warp and
// instruction. Pre-activations come by asynchronous copies, several ahead.
//
// NOTE: not by loads ahead into registers: a warp counts what it waits for in six scoreboards, so that it waited for
// the copies it had just asked for, 1,300 cycles for every four rows of 64 columns (H200, 2026-11-23).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

// One tile of kConsumers x 64 rows and kNumCols columns of BF16 in shared memory, a part of 64 rows for each warpgroup
// that multiplies, with a weight for each row, and a Header that says which tile it is. Sides take turns at every part:
// `parity` is 0 for a side's first tile, 1 for its second, 0 again.
//
//   warpgroup that multiplies, its part        kWriters warps that write, part by part
//     acquire(part, parity)                      wait(part, parity)
//     header() =   by part 0, then               read header() behind wait(0)
//     row(i), row_weight(i) =                    read row(i), row_weight(i)
//     commit(part)  by every warp                release(part)  by every warp
template <int kConsumers, int kNumCols, int kWriters, class Header>
class TileStash {
 public:
  static constexpr int kCols = kNumCols;
  static constexpr int kRowBytes = StagedRows<kCols>::kRowBytes;
  static constexpr int kRows = kConsumers * kPanel;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kControlBytes = static_cast<int>(sizeof(Header) + 2 * kConsumers * sizeof(uint64_t));
  static_assert(sizeof(Header) % alignof(uint64_t) == 0, "mbarriers lie behind the header");
  static_assert(kRowBytes >= kCols * 2 + static_cast<int>(sizeof(float)), "a row's weight lies behind it");

  // `rows`: kBytes of shared memory, aligned to 16. `control`: kControlBytes of it, aligned as Header is, and to 8.
  __device__ TileStash(std::byte* rows, std::byte* control)
      : rows_(rows),
        header_(reinterpret_cast<Header*>(control)),
        full_(reinterpret_cast<uint64_t*>(control + sizeof(Header))),
        empty_(full_ + kConsumers) {}

  // By one thread, before a __syncthreads() that all threads pass.
  __device__ void init() const {
    for (int i = 0; i < kConsumers; ++i) {
      mbarrier_init(&full_[i], kWarpgroup / kWarp);
      mbarrier_init(&empty_[i], kWriters);
    }
    mbarrier_init_fence();
  }

  __device__ Header& header() const { return *header_; }
  __device__ std::byte* row(int i) const { return rows_ + i * kRowBytes; }
  __device__ float& row_weight(int i) const { return *reinterpret_cast<float*>(row(i) + kCols * 2); }

  __device__ void acquire(int part, int parity) const { mbarrier_wait(&empty_[part], parity ^ 1); }
  // Whether acquire() would return at once, the same for all lanes of a warp. Does not stand for it.
  __device__ bool is_free(int part, int parity) const {
    return __any_sync(kAllLanes, mbarrier_test(&empty_[part], parity ^ 1)) != 0;
  }
  __device__ void commit(int part) const { arrive(&full_[part]); }
  __device__ void wait(int part, int parity) const { mbarrier_wait(&full_[part], parity); }
  __device__ void release(int part) const { arrive(&empty_[part]); }

  // By a writer, the `writer`th of them: calls fn(row) with each row that this lane has of the tile's first `num_rows`,
  // for all lanes together, rows that do not exist included. Waits for all parts but the first, and releases all.
  template <class Fn>
  __device__ void for_each_row(int writer, int parity, int num_rows, const Fn& fn) const {
    int row = first_row(writer);
    for (int part = 0; part < kConsumers; ++part) {
      if (part > 0) wait(part, parity);
      for (; row - lane_row() < min((part + 1) * kPanel, num_rows); row += kRowsApart) fn(row);
      release(part);
    }
  }
  // The first of those rows, and how far the next one is.
  __device__ static int first_row(int writer) { return writer * kRowsAtOnce + lane_row(); }
  static constexpr int kRowsAtOnce = 4;
  static_assert(kPanel % kRowsAtOnce == 0, "a writer's rows are in one part");
  static constexpr int kRowsApart = kWriters * kRowsAtOnce;

 private:
  __device__ static int lane_row() { return static_cast<int>(threadIdx.x) % kWarp / 8; }
  __device__ static void arrive(uint64_t* barrier) {
    __syncwarp();  // all lanes have written or read
    if (threadIdx.x % kWarp == 0) mbarrier_arrive(barrier);
  }

  std::byte* rows_;
  Header* header_;
  uint64_t *full_, *empty_;
};

// A warp's side of a stash that has half of a tile's columns: its 16 rows of tiles of 2 Stash::kCols columns.
template <class Stash>
class HalfStasher {
 public:
  // consumer: the part. warp_row: the warp's first row in the tile.
  __device__ HalfStasher(const Stash& stash, int consumer, int warp_row)
      : stash_(stash), consumer_(consumer), warp_row_(warp_row) {}

  // Leaves the first half of `tile`, and holds the second if it has columns there. Header: of num_cols and c_col.
  template <class Header>
  __device__ void leave(const float (&c)[Stash::kCols], const Header& tile) {
    flush();
    stash_.acquire(consumer_, parity_);
    if (heads()) stash_.header() = tile;
    stage_columns<2 * Stash::kCols, 0, Stash::kCols>(c, tile.num_cols, stash_.row(warp_row_));
    commit();
    holds_ = tile.num_cols > Stash::kCols;
    if (holds_) round_columns<Stash::kCols, Stash::kCols>(c, held_);
  }
  // Leaves the half that is held, if there is one and writers are done with the one before.
  __device__ void try_flush() {
    if (holds_ && stash_.is_free(consumer_, parity_)) flush();
  }
  // The same, and waits for the writers.
  __device__ void flush() {
    if (!holds_) return;
    stash_.acquire(consumer_, parity_);
    if (heads()) {  // which is still the first half's
      stash_.header().num_cols -= Stash::kCols;
      stash_.header().c_col += Stash::kCols;
    }
    stage_pairs<Stash::kCols>(held_, stash_.row(warp_row_));
    commit();
    holds_ = false;
  }
  // The parity of the next turn.
  __device__ int parity() const { return parity_; }

 private:
  __device__ static bool heads() { return threadIdx.x == kWarpgroup; }
  __device__ void commit() {
    stash_.commit(consumer_);
    parity_ ^= 1;
  }

  const Stash& stash_;
  int consumer_, warp_row_, parity_ = 0;
  bool holds_ = false;
  uint32_t held_[Stash::kCols / 4];
};

constexpr int kWriterChunk = 64;  // columns that a writer has of four rows at a time, eight a lane
__device__ inline int writer_col() { return static_cast<int>(threadIdx.x) % 8 * 8; }

// Where a tile goes: its first row and column, in rows of `width`, aligned to 16 bytes.
struct TileTarget {
  __nv_bfloat16* c;
  int64_t width;
  int num_rows, num_cols;  // that exist; num_rows not more than the tile has
};

// What lies in the stash, as it is, by writer number `writer`. The stash's part 0 was waited for; all are released.
template <class Stash>
__device__ void write_tile(const Stash& stash, int writer, int parity, const TileTarget& tile) {
  const int col = writer_col();
  stash.for_each_row(writer, parity, tile.num_rows, [&](int row) {
    if (row >= tile.num_rows) return;
    const std::byte* const staged = stash.row(row) + col * 2;
    __nv_bfloat16* const target = tile.c + row * tile.width + col;
#pragma unroll
    for (int first = 0; first < Stash::kCols; first += kWriterChunk) {
      if (first + col >= tile.num_cols) continue;
      *reinterpret_cast<uint4*>(target + first) = *reinterpret_cast<const uint4*>(staged + first * 2);
    }
  });
}

// --- with an activation (primitives/activation.cuh). What a writer has of a row at a time are eight hidden units:
// with what they are made of and what is made of them they go to each of a list of stores, which are called with the
// row of the tile, this lane's first column of its rows and the columns before the units.

// Of A, forward.
template <class A>
struct ActivatedUnits {
  uint4 pre[A::kParts];
  float h[8];
};
// Backward.
template <class A>
struct UnitGradients {
  float pre[A::kParts][8];
  float weight;
  float dpre[A::kParts][8];
};

// The rows of pre-activations that a tile's gradients belong to.
struct PreTile {
  const __nv_bfloat16* pre;  // the tile's first row and column, in rows of parts of hidden_width; aligned to 16 bytes
  float* dweight;            // = of the rows, by the tile's columns alone
  int64_t hidden_width;
  int num_rows, num_cols;  // that exist; not more than the tile has
};

// Pre-activations on their way to a writer: for each lane 16 bytes of every part, kDepth times.
template <int kParts, int kDepth>
struct PreRing {
  static constexpr int kVectorBytes = 16, kSlotBytes = kParts * kWarp * kVectorBytes, kBytes = kDepth * kSlotBytes;

  std::byte* slots;  // kBytes of shared memory, the warp's own, aligned to 16

  __device__ std::byte* part(int slot, int part) const {
    return slots + slot * kSlotBytes + static_cast<int>(threadIdx.x) % kWarp * kVectorBytes +
           part * kWarp * kVectorBytes;
  }
};

// A tile of gradients of what A made, by writer number `writer`: to `stores` as UnitGradients, and dweight. The stash's
// part 0 was waited for; all are released.
template <class A, class Stash, int kDepth, class... Stores>
__device__ void write_activation_gradients(const Stash& stash, int writer, int parity,
                                           const PreRing<A::kParts, kDepth>& ring, const PreTile& tile,
                                           const Stores&... stores) {
  constexpr int kParts = A::kParts;
  const int col = writer_col();
  int next_row = Stash::first_row(writer), next_first = 0, next_slot = 0;  // to be fetched
  const auto fetch = [&] {
    if (next_row < tile.num_rows && next_first + col < tile.num_cols) {
      const __nv_bfloat16* const source = tile.pre + (next_row * kParts * tile.hidden_width + next_first + col);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        copy_async16(ring.part(next_slot, part), source + part * tile.hidden_width, true);
      }
    }
    commit_copies();
    next_slot = next_slot + 1 < kDepth ? next_slot + 1 : 0;
    next_first += kWriterChunk;
    if (next_first >= tile.num_cols) {
      next_first = 0;
      next_row += Stash::kRowsApart;
    }
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) fetch();
  int slot = 0;
  stash.for_each_row(writer, parity, tile.num_rows, [&](int row) {
    const auto* const staged = reinterpret_cast<const __nv_bfloat16*>(stash.row(row)) + col;
    const float weight = stash.row_weight(row);
    float dweight = 0.0F;
    for (int first = 0; first < tile.num_cols; first += kWriterChunk) {
      wait_copies<kDepth - 1>();
      if (row < tile.num_rows && first + col < tile.num_cols) {
        UnitGradients<A> units;
        units.weight = weight;
        float dh[8];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          load8(reinterpret_cast<const __nv_bfloat16*>(ring.part(slot, part)), units.pre[part]);
        }
        load8(staged + first, dh);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const UnitGradient<kParts> gradient = activation_gradient<__nv_bfloat16, A>(units.pre, i, weight, dh[i]);
#pragma unroll
          for (int part = 0; part < kParts; ++part) units.dpre[part][i] = gradient.pre[part];
          dweight += gradient.weight;
        }
        (stores(row, col, first, units), ...);
      }
      fetch();  // to where this lane alone has read
      slot = slot + 1 < kDepth ? slot + 1 : 0;
    }
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) dweight += __shfl_xor_sync(kAllLanes, dweight, offset);
    if (col == 0 && row < tile.num_rows) tile.dweight[row] = dweight;
  });
  wait_copies<0>();
}

// A tile of kCols columns of pre-activations, its parts side by side, to `stores` as ActivatedUnits. The same of the
// stash. num_rows, num_cols: that exist; num_rows not more than the tile has, num_cols of a part.
template <class A, int kCols, class Stash, class... Stores>
__device__ void write_activated(const Stash& stash, int writer, int parity, int num_rows, int num_cols,
                                const Stores&... stores) {
  constexpr int kPart = kCols / A::kParts;
  const int col = writer_col();
  stash.for_each_row(writer, parity, num_rows, [&](int row) {
    if (row >= num_rows) return;
    const auto* const staged = reinterpret_cast<const __nv_bfloat16*>(stash.row(row)) + col;
    const float weight = stash.row_weight(row);
#pragma unroll
    for (int first = 0; first < kPart; first += kWriterChunk) {
      if (first + col >= num_cols) continue;
      ActivatedUnits<A> units;
      float pre[A::kParts][8];
#pragma unroll
      for (int part = 0; part < A::kParts; ++part) {
        units.pre[part] = *reinterpret_cast<const uint4*>(staged + first + part * kPart);
        load8(reinterpret_cast<const __nv_bfloat16*>(&units.pre[part]), pre[part]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) units.h[i] = activated<__nv_bfloat16, A>(pre, i) * weight;
      (stores(row, col, first, units), ...);
    }
  });
}

}  // namespace nmoe::cuda::sm90
