// Attention, backward: the main kernel's arguments, sizes and shared memory (attention_backward.cuh).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/sm90/limits.cuh"
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

}  // namespace nmoe::cuda::sm90
