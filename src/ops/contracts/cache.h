// Attention to a key/value cache, forward only. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

// Writes what later tokens attend to: cache[slots[t], positions[t], offset ... offset + W) = rows[t].
struct CacheWrite {
  Tensor rows;       // [T, W], apart
  Tensor slots;      // [T] i32, < Z
  Tensor positions;  // [T] i32, < C; no two rows have both slot and position in common
  Tensor cache;      // = [Z, C, width], the named parts of it only
  int64_t offset = 0;
};

// Attention of single tokens to what is cached of their sequences: row t, at positions[t] of slots[t], sees the
// positions j of that slot with positions[t] - window < j <= positions[t], or all j <= positions[t] when window is 0.
// Query head h reads key/value head h / (H / G). Rows may be of any slots, several of one slot among them, in any
// order. A row costs work proportional to what it sees.
struct CachedAttention {
  double scale = 1.0;        // factor of q.k before the softmax
  int64_t window = 0;        // 0: all
  Tensor q;                  // [T, H, Dk], apart
  Tensor slots;              // [T] i32
  Tensor positions;          // [T] i32
  Tensor keys;               // [Z, C, G * Dk]
  Tensor values;             // [Z, C, G * Dv]; undefined: the first Dv values of each key are its value
  int64_t num_kv_heads = 1;  // G
  Tensor out;                // = [T, H, Dv]
};

// MLA of single tokens, from what their input is projected to (DeepSeek-V2, arXiv 2405.04434, sections 2.1.2
// and 2.1.3): normed latents and rotated keys are written to the cache, at the rows' places as CacheWrite does, and all
// heads attend to what is there as CachedAttention does. Nothing cached is expanded: a head's key is k = w_k c for the
// latent c, so q.k = (w_k^T q).c, and a sum of values w_v c is w_v times the sum of latents.
struct MlaCachedAttention {
  double scale = 1.0;
  int64_t window = 0;
  // What is rotated may be left in either state.
  Tensor q;          // [T, H, nope + rope], apart; the last `rope` values of a head are to be rotated
  Tensor kv_latent;  // [T, Rkv], apart; to be normed (contracts/norm.h)
  Tensor k_rope;     // [T, rope], apart; to be rotated
  Tensor gain;       // [Rkv] stat
  double eps = 1e-6;
  Tensor cos, sin;  // [positions, rope / 2] stat, as in Rope
  RopeLayout layout = RopeLayout::kInterleaved;
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor kv_up;      // [H * (nope + Dv), Rkv]: a head's w_k [nope, Rkv], then its w_v [Dv, Rkv]
  Tensor cache;      // = [Z, C, Rkv + rope], at the rows' places
  Tensor out;        // = [T, H, Dv]
};
// The sizes that its tensors agree on.
struct MlaSizes {
  int64_t tokens, heads, nope, rope, rank, value;
};
inline MlaSizes mla_sizes(const MlaCachedAttention& args) {
  const MlaSizes sizes{.tokens = args.q.dim(0),
                       .heads = args.q.dim(1),
                       .nope = args.q.dim(2) - args.k_rope.dim(1),
                       .rope = args.k_rope.dim(1),
                       .rank = args.kv_latent.dim(1),
                       .value = args.out.dim(2)};
  const auto& [T, H, nope, rope, rank, value] = sizes;
  NMOE_CHECK(nope >= 0 && args.kv_latent.dim(0) == T && args.k_rope.dim(0) == T && args.gain.dim(0) == rank &&
                 args.cos.dim(1) * 2 == rope && args.sin.shape() == args.cos.shape() && args.slots.dim(0) == T &&
                 args.positions.dim(0) == T && args.kv_up.shape() == Shape({H * (nope + value), rank}) &&
                 args.cache.dim(2) == rank + rope && args.out.dim(0) == T && args.out.dim(1) == H,
             "MLA of q {}, latents {}, keys {} with {} over a cache {} to {}", args.q.shape(), args.kv_latent.shape(),
             args.k_rope.shape(), args.kv_up.shape(), args.cache.shape(), args.out.shape());
  return sizes;
}

}  // namespace nmoe
