// Attention by TMA and wgmma: BF16 on Hopper. Which calls these take, attention_engine (ops/cuda/plans/attention.h)
// says. Compiled for sm_90a only.
//
// One H200, 2026-11-23, forward, TFLOP/s (2 B H S^2 (Dk + Dv) / 2 FLOP), cuDNN's graph (vendor/cudnn_attention.h) in
// turns beside it:
//   32 sequences of 2048, 12 heads of 64                    457   404
//   8 sequences of 4096, 16 heads of 128                    600 to 615   533 to 548
//   16 sequences of 4096, 32 heads over 4 of 128            627   554
//   16 sequences of 4096, 16 heads of 192 and 128           655   532
#pragma once

#include <cstdint>

#include "ops/contracts/attention.h"
#include "ops/cuda/plans/attention.h"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/vendor/tensor_map.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Shapes as in the contract, checked by the caller; T > 0. q, k, v and out are aligned to 16 bytes. `first_keys` [T]
// I32: where the document of a token begins, counted in the token's sequence; undefined: every sequence is one
// document. It takes the place of shape.cu_seqlens. Work is that of the blocks of keys that windows and documents leave
// to a tile of queries. The same bits every time. No scratch.
void attention_forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys);

void mla_attention_forward(Context& ctx, const MlaAttentionForward& args, const Tensor& first_keys);

// The same for backward, whose gradients too are aligned to 16 bytes.
void attention_backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
                        const Sm90AttentionScratch& scratch);
// dkv, and of the key part that heads share each head's gradient, in dk_rope [T, H, rope]. No codes.
void mla_attention_backward(Context& ctx, const MlaAttentionBackward& args, const Tensor& dk_rope,
                            const Tensor& first_keys, const Sm90AttentionScratch& scratch);

// --- what both directions know of where heads lie

// Heads of `size` values, from the `first`th on, of x [T, heads, ...].
inline HeadRows head_rows(const AttentionShape& shape, const Tensor& x, int64_t first, int64_t size) {
  return {.data = static_cast<const uint16_t*>(x.rows_raw()) + first,
          .num_seqs = shape.num_seqs,
          .seq_len = shape.seq_len,
          .heads = x.dim(1),
          .size = size,
          .stride = x.stride(),
          .head_stride = x.dim(2)};
}
inline HeadRows head_rows(const AttentionShape& shape, const Tensor& x) { return head_rows(shape, x, 0, x.dim(2)); }

// Keys and values. The last values of keys have a place of their own, since all heads of MLA share them.
constexpr int64_t kLastKeySize = 64;
struct KeyValueRows {
  HeadRows k;  // all but the last; where there are no others, as k_last
  HeadRows k_last;
  HeadRows v;
};
inline KeyValueRows key_value_rows(const AttentionShape& shape, const Tensor& k, const Tensor& v) {
  const int64_t rest = k.dim(2) - kLastKeySize;
  return {.k = head_rows(shape, k, 0, rest > 0 ? rest : kLastKeySize),
          .k_last = head_rows(shape, k, rest, kLastKeySize),
          .v = head_rows(shape, v)};
}
// Of MLA's parts kv [T, H, nope + value_size] and k_rope [T, 64].
inline KeyValueRows key_value_rows(const AttentionShape& shape, const Tensor& kv, const Tensor& k_rope,
                                   int64_t value_size) {
  const int64_t nope = kv.dim(2) - value_size;
  const HeadRows last = head_rows(shape, k_rope.reshape({k_rope.dim(0), 1, kLastKeySize}));
  return {.k = nope > 0 ? head_rows(shape, kv, 0, nope) : last,
          .k_last = last,
          .v = head_rows(shape, kv, nope, value_size)};
}

}  // namespace nmoe::cuda::sm90
