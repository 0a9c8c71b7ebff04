// Attention over a key/value cache, forward only. Letters and conventions: ops/ops.h.
//
// A cache lies in pages, [P, kPagePositions, width]: position p of slot z is row p % kPagePositions of the page that
// pages[z, p / kPagePositions] names (ops/cache_places.h). Slots may share pages, and where pages lie changes no bit.
// Z slots have B blocks of positions each, C = B * kPagePositions. The blocks up to that of a row's position must have
// a page, one of [0, P); what `pages` says of those behind is not used.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

// Positions of a page: what attention's blocks of keys are aligned to, so that none has parts of two pages on a GPU.
constexpr int64_t kPagePositions = 128;

// Writes rows that later tokens attend to: [offset, offset + W) of the place of positions[t] of slots[t] = rows[t].
struct CacheWrite {
  Tensor rows;       // [T, W], apart
  Tensor slots;      // [T] i32, < Z
  Tensor positions;  // [T] i32, < C; no two rows have the same place
  Tensor pages;      // [Z, B] i32
  Tensor cache;      // = [P, kPagePositions, width], only at these places
  int64_t offset = 0;
};

// Attention of single tokens over the cached part of their sequences: row t, at positions[t] of slots[t], sees the
// positions j of that slot with positions[t] - window < j <= positions[t], or all j <= positions[t] when window is 0.
// Query head h reads key/value head h / (H / G). Rows may belong to any slots, also several to the same one, in any
// order. The work for a row is proportional to the number of positions it sees.
//
// On the CPU sums have the order of AttentionShape's, so that a row has the bits that attention_forward gives it. So
// they have on CUDA in BF16, with values of their own, scale > 0 and heads (keys, values) of 64/64, 128/128 or 192/128:
// the bits that AttentionForward gives a row on Hopper, at any length, where its document begins at a multiple of 128
// of its sequence. In F32 they have those of AttentionForward on CUDA wherever its document begins. Otherwise sums have
// an order of their own there. In any a row's bits depend on its position, what it sees and sizes alone, as long as
// what other rows of its slot see is finite.
struct CachedAttention {
  double scale = 1.0;        // factor of q.k before the softmax
  int64_t window = 0;        // 0: all
  Tensor q;                  // [T, H, Dk], apart
  Tensor slots;              // [T] i32
  Tensor positions;          // [T] i32
  Tensor pages;              // [Z, B] i32
  Tensor keys;               // [P, kPagePositions, G * Dk]
  Tensor values;             // [P, kPagePositions, G * Dv]; undefined: a value is the first Dv elements of its key
  int64_t num_kv_heads = 1;  // G
  Tensor out;                // = [T, H, Dv]
  Tensor sinks = {};         // [H] stat, as in AttentionForward; undefined: none
};

// MLA of single tokens, from the projections of their inputs (DeepSeek-V2, arXiv 2405.04434, sections 2.1.2 and 2.1.3):
// normed latents and rotated keys are written to the cache at the rows' places, as by CacheWrite, and all heads attend
// to the cache, as in CachedAttention. Cached latents are not expanded: a head's key is k = w_k c for the latent c, so
// q.k = (w_k^T q).c, and a sum of values w_v c is w_v times the sum of latents.
// These are other sums than those of MlaAttentionForward; MlaExpandedAttention has the same.
struct MlaCachedAttention {
  double scale = 1.0;
  int64_t window = 0;
  // The parts to be rotated may be rotated in place: afterwards they hold their old values or the rotated ones.
  Tensor q;          // [T, H, nope + rope], apart; the last `rope` values of a head are to be rotated
  Tensor kv_latent;  // [T, Rkv], apart; to be normed (contracts/norm.h)
  Tensor k_rope;     // [T, rope], apart; to be rotated
  Tensor gain;       // [Rkv] stat
  double eps = 1e-6;
  Tensor cos, sin;  // [positions, rope / 2] stat, as in Rope; undefined: nothing is rotated
  RopeLayout layout = RopeLayout::kInterleaved;
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor pages;      // [Z, B] i32
  Tensor kv_up;      // [H * (nope + Dv), Rkv]: a head's w_k [nope, Rkv], then its w_v [Dv, Rkv]
  Tensor cache;      // = [P, kPagePositions, Rkv + rope], at the rows' places
  Tensor out;        // = [T, H, Dv]
};
// Attention of single tokens to cached keys and values of MLA as training has them (MlaAttentionForward), whose parts
// lie in two caches: the key of head h at a position is kv[h, :nope] and behind it k_rope, its value kv[h, nope:]. Rows
// are as in CachedAttention, and so is the order of sums: a row has the bits that MlaAttentionForward gives it on the
// CPU, and on Hopper in BF16 with scale > 0, heads (keys, values) of 64/64, 128/128 or 192/128 and a multiple of 8 for
// rope, where its document begins at a multiple of 128 of its sequence; in F32 on CUDA wherever it begins. Other sizes
// in BF16 have an order of their own there.
struct MlaExpandedAttention {
  double scale = 1.0;
  int64_t window = 0;
  Tensor q;          // [T, H, nope + rope], apart; rotated
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor pages;      // [Z, B] i32
  Tensor kv;         // [P, kPagePositions, H * (nope + Dv)]
  Tensor k_rope;     // [P, kPagePositions, rope]; rotated
  Tensor out;        // = [T, H, Dv]
};

// The sizes of MlaCachedAttention.
struct MlaSizes {
  int64_t tokens, heads, nope, rope, rank, value;
};
inline MlaSizes mla_sizes(const MlaCachedAttention& args) {
  return {.tokens = args.q.dim(0),
          .heads = args.q.dim(1),
          .nope = args.q.dim(2) - args.k_rope.dim(1),
          .rope = args.k_rope.dim(1),
          .rank = args.kv_latent.dim(1),
          .value = args.out.dim(2)};
}

}  // namespace nmoe
