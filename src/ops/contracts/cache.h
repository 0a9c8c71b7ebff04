// Attention to a key/value cache, forward only. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>

#include "base/error.h"
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

// MLA without expanding what is cached (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): a head's key is k = w_k c for
// the latent c, so q.k = (w_k^T q).c, and a sum of values w_v c is w_v times the sum of latents. `kv_up` holds a head's
// w_k [nope, Rkv], then its w_v [Dv, Rkv].
struct MlaAbsorbQuery {
  Tensor q;         // [T, H, nope + rope], apart
  Tensor kv_up;     // [H * (nope + Dv), Rkv]
  Tensor latent_q;  // = [T, H, Rkv + rope]: w_k^T q, then the rotated part as it is
};
inline void check_mla_absorb_query(const MlaAbsorbQuery& args) {
  const Tensor q = args.q, kv_up = args.kv_up, latent_q = args.latent_q;
  const int64_t T = q.dim(0), H = q.dim(1), rope = latent_q.dim(2) - kv_up.dim(1), nope = q.dim(2) - rope;
  NMOE_CHECK(rope >= 0 && nope >= 0 && nope <= kv_up.dim(0) / H && latent_q.dim(0) == T && latent_q.dim(1) == H,
             "absorbing {} into {} to {}", kv_up.shape(), q.shape(), latent_q.shape());
}
struct MlaExpandOutput {
  Tensor latents;  // [T, H, Rkv]
  Tensor kv_up;    // [H * (nope + Dv), Rkv]
  Tensor out;      // = [T, H, Dv]: w_v times the latent
};
inline void check_mla_expand_output(const MlaExpandOutput& args) {
  const Tensor latents = args.latents, kv_up = args.kv_up, out = args.out;
  const int64_t T = latents.dim(0), H = latents.dim(1), rank = latents.dim(2);
  NMOE_CHECK(kv_up.dim(1) == rank && out.dim(2) <= kv_up.dim(0) / H && out.dim(0) == T && out.dim(1) == H,
             "expanding {} by {} to {}", latents.shape(), kv_up.shape(), out.shape());
}

}  // namespace nmoe
