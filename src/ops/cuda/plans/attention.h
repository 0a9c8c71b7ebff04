// Attention over sequences.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"
#include "ops/mla_assembly.h"

namespace nmoe::cuda {

// Head sizes that cuDNN takes are multiples of 8, as is what lies between rows: on Hopper up to 256, on
// Blackwell up to 128, or 192 for keys and 128 for values.
inline bool cudnn_takes(const KernelSet& kernels, const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t key_size = q.dim(2), value_size = v.dim(2);
  if (q.dtype() != DType::kBF16 || key_size % 8 != 0 || value_size % 8 != 0) return false;
  if (q.stride() % 8 != 0 || k.stride() % 8 != 0 || v.stride() % 8 != 0) return false;
  if (!kernels.has_sm90() && key_size == 192) return value_size == 128;
  const int64_t largest = kernels.has_sm90() ? 256 : 128;
  return key_size <= largest && value_size <= largest;
}
// Which kernels attend; cuDNN's do not know sinks. The choice depends on the arguments alone, so that a run that goes
// on has the one it had.
enum class AttentionEngine {
  kSm90,   // our own for Hopper (sm90/attention.h)
  kCudnn,  // cuDNN's (vendor/cudnn_attention.h)
  kPlain,  // for F32 and any other heads (kernels/attention/attention_plain.h)
};
// Our own take head sizes that are common, and are faster with these.
inline bool sm90_attention_takes(const KernelSet& kernels, const AttentionShape& shape, const Tensor& q,
                                 const Tensor& k, const Tensor& v) {
  const int64_t key_size = q.dim(2), value_size = v.dim(2);
  const bool known =
      (key_size == 64 && value_size == 64) || (value_size == 128 && (key_size == 128 || key_size == 192));
  return kernels.has_sm90() && known && shape.scale > 0 && cudnn_takes(kernels, q, k, v);
}
inline AttentionEngine attention_engine(const KernelSet& kernels, const AttentionForward& args) {
  if (sm90_attention_takes(kernels, args.shape, args.q, args.k, args.v)) return AttentionEngine::kSm90;
  const bool cudnn = cudnn_takes(kernels, args.q, args.k, args.v) && !args.sinks.defined();
  return cudnn ? AttentionEngine::kCudnn : AttentionEngine::kPlain;
}
inline AttentionEngine attention_engine(const KernelSet& kernels, const AttentionBackward& args) {
  if (sm90_attention_takes(kernels, args.shape, args.q, args.k, args.v) &&
      cudnn_takes(kernels, args.dq, args.dk, args.dv)) {
    return AttentionEngine::kSm90;
  }
  const bool cudnn = cudnn_takes(kernels, args.q, args.k, args.v) && cudnn_takes(kernels, args.dq, args.dk, args.dv) &&
                     !args.sinks.defined();
  return cudnn ? AttentionEngine::kCudnn : AttentionEngine::kPlain;
}
// What our own rotate back themselves: all of a head, or the last 64 of 192 values, where keys come out as they are.
constexpr int64_t sm90_attention_rotated(int64_t key_size) { return key_size == 192 ? 64 : key_size; }
inline bool sm90_attention_rotates(const Tensor& q, const Rope& rope, bool rope_keys) {
  const int64_t key_size = q.dim(2), rotated = sm90_attention_rotated(key_size);
  return rope.positions.defined() && rope.cos.dim(0) > 0 && 2 * rope.cos.dim(1) == rotated &&
         rope.rope_offset == key_size - rotated && (!rope_keys || key_size == rotated);
}
// Our own take MLA's parts as they lie if what heads share is the last 64 values of keys.
inline bool sm90_attention_takes(const KernelSet& kernels, const MlaAttentionForward& args) {
  return args.k_rope.dim(1) == 64 && args.kv.stride() % 8 == 0 &&
         sm90_attention_takes(kernels, args.shape, args.q, /*k=*/args.k_rope, /*v=*/args.out);
}
inline bool sm90_attention_takes(const KernelSet& kernels, const MlaAttentionBackward& args) {
  return args.k_rope.dim(1) == 64 && args.kv.stride() % 8 == 0 && args.dq.stride() % 8 == 0 &&
         sm90_attention_takes(kernels, args.shape, args.q, /*k=*/args.k_rope, /*v=*/args.out);
}
// The gradients of what heads share, of each of them.
inline Tensor claim_shared_key_gradients(ArenaScope& scope, const MlaAttentionBackward& args) {
  return scope.allocate(args.kv.dtype(), {args.kv.dim(0), args.kv.dim(1), args.k_rope.dim(1)});
}
// Where each token's document begins, [T] I32; undefined without documents.
inline Tensor claim_first_keys(ArenaScope& scope, const AttentionShape& shape) {
  return shape.cu_seqlens.defined() ? scope.allocate(DType::kI32, {shape.num_seqs * shape.seq_len}) : Tensor();
}

// What a token sees, where cuDNN does not take the heads: two I32 a token.
inline Tensor claim_spans(ArenaScope& scope, int64_t num_tokens) {
  return scope.allocate(DType::kI32, {num_tokens, 2});
}

// Of Hopper's backward, in tiles of queries, of so many rows.
constexpr int64_t sm90_attention_rows(int64_t key_size) { return key_size == 64 ? 128 : 64; }
struct Sm90AttentionScratch {
  Tensor sums;        // [B H, padded S, Dk] F32, in an order of its own: gradients of queries
  Tensor lse, delta;  // [B H, padded S] F32
  Tensor lows;        // [B, padded S] I32: the first key that a row sees; undefined where it is always 0
  Tensor counters;    // [B H, tiles, 2] and 1 I32: who is next to add to a half of a tile, and to take a block
};
inline Sm90AttentionScratch claim_sm90(ArenaScope& scope, const AttentionShape& shape, const Tensor& q) {
  const int64_t rows = sm90_attention_rows(q.dim(2)), tiles = blocks_for(shape.seq_len, rows);
  const int64_t padded = tiles * rows;
  const int64_t B = shape.num_seqs, heads = B * q.dim(1);
  const bool is_bounded = shape.cu_seqlens.defined() || (shape.window > 0 && shape.window < shape.seq_len);
  Sm90AttentionScratch scratch;
  scratch.sums = scope.allocate(DType::kF32, {heads, padded, q.dim(2)});
  scratch.lse = scope.allocate(DType::kF32, {heads, padded});
  scratch.delta = scope.allocate(DType::kF32, {heads, padded});
  if (is_bounded) scratch.lows = scope.allocate(DType::kI32, {B, padded});
  scratch.counters = scope.allocate(DType::kI32, {heads * tiles * 2 + 1});
  return scratch;
}

// The sizes by which cuDNN's backward is divided into parts.
struct AttentionSizes {
  int64_t num_seqs, seq_len, kv_heads, group;  // group: query heads that share a key/value head
  int64_t key_size, value_size;
};
inline AttentionSizes attention_sizes(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  return {.num_seqs = shape.num_seqs,
          .seq_len = shape.seq_len,
          .kv_heads = k.dim(1),
          .group = q.dim(1) / k.dim(1),
          .key_size = q.dim(2),
          .value_size = v.dim(2)};
}
// Of one key/value head of one sequence: the gradients of scores, of whole tiles; where heads are shared, also those of
// keys and values before their sum.
inline int64_t attention_head_bytes(const AttentionSizes& sizes) {
  constexpr int64_t kTile = 128;
  const int64_t rows = blocks_for(sizes.seq_len, kTile) * kTile;
  const int64_t shared_bytes = sizes.group > 1 ? rows * (sizes.key_size + sizes.value_size) * 2 : 0;
  return sizes.group * (rows * rows * 2 + shared_bytes);
}
// Bytes that backward's workspace may take: 2 for every pair of positions and head, which keep the gradients of
// scores so that results are the same bits every time. Backward takes as many sequences at a time, or heads of one,
// as keep within it. Small parts are slower: 8 sequences of 16 heads lose 3 % at 2 GiB, 9 % at 1 GiB.
constexpr int64_t kAttentionWorkspaceLimit = int64_t{4} << 30;
// How many sequences, and how many of their key/value heads, backward takes at a time.
struct AttentionPart {
  int64_t num_seqs, kv_heads;
};
inline AttentionPart attention_part(const AttentionSizes& sizes, int64_t workspace_limit = kAttentionWorkspaceLimit) {
  // Statistics of a part have to begin at multiples of 16 bytes, as cuDNN's graphs are told.
  if (sizes.seq_len % 4 != 0) return {sizes.num_seqs, sizes.kv_heads};
  const int64_t heads = std::max<int64_t>(workspace_limit / attention_head_bytes(sizes), 1);
  if (heads < sizes.kv_heads) return {1, heads};
  return {std::min(heads / sizes.kv_heads, sizes.num_seqs), sizes.kv_heads};
}
// Room for cuDNN's workspace. `asked`: what cuDNN says, where it can be asked.
constexpr int64_t kCudnnSlackBytes = int64_t{1} << 20;
inline Tensor claim_attention_forward(ArenaScope& scope, int64_t asked = 0) {
  return scope.allocate(DType::kU8, {std::max(kCudnnSlackBytes, asked)});
}
struct AttentionBackwardScratch {
  Tensor workspace;  // bytes
  Tensor delta;      // [sequences, query heads, S] F32
};
inline AttentionBackwardScratch claim_attention_backward(ArenaScope& scope, const AttentionSizes& sizes,
                                                         const AttentionPart& part, int64_t asked = 0) {
  const int64_t room = part.num_seqs * part.kv_heads * attention_head_bytes(sizes) + kCudnnSlackBytes;
  AttentionBackwardScratch scratch;
  scratch.workspace = scope.allocate(DType::kU8, {std::max(room, asked)});
  scratch.delta = scope.allocate(DType::kF32, {part.num_seqs, part.kv_heads * sizes.group, sizes.seq_len});
  return scratch;
}

// How much of that, where cuDNN can be asked: the most of a part's workspace.
inline AttentionBackwardScratch claim_attention_backward(ArenaScope& scope, const AttentionBackward& args,
                                                         int64_t asked = 0,
                                                         int64_t workspace_limit = kAttentionWorkspaceLimit) {
  const AttentionSizes sizes = attention_sizes(args.shape, args.q, args.k, args.v);
  return claim_attention_backward(scope, sizes, attention_part(sizes, workspace_limit), asked);  // the first is largest
}

// --- the operations
struct AttentionForwardPlan {
  AttentionEngine engine = AttentionEngine::kPlain;
  Tensor first_keys = {};  // kSm90, kCudnn
  Tensor workspace = {};   // kCudnn
  Tensor spans = {};       // kPlain
};
// Kernels count tokens in 32 bits.
inline void check_tokens(const Tensor& q) {
  NMOE_CHECK(q.dim(0) <= INT32_MAX / 2, "attention over {} tokens", q.dim(0));
}
inline AttentionForwardPlan plan(Planner& to, const AttentionForward& args) {
  check_tokens(args.q);
  if (args.q.dim(0) == 0) return {};
  AttentionForwardPlan plan;
  plan.engine = attention_engine(to.kernels, args);
  if (plan.engine == AttentionEngine::kPlain) {
    plan.spans = claim_spans(to.scope, args.q.dim(0));
    return plan;
  }
  plan.first_keys = claim_first_keys(to.scope, args.shape);
  if (plan.engine == AttentionEngine::kCudnn) {
    const int64_t asked = to.vendor == nullptr ? 0 : to.vendor->attention_forward(args, to.arena.counting());
    plan.workspace = claim_attention_forward(to.scope, asked);
  }
  return plan;
}

struct AttentionBackwardPlan {
  AttentionEngine engine = AttentionEngine::kPlain;
  Tensor first_keys = {};               // kSm90, kCudnn
  Sm90AttentionScratch sm90 = {};       // kSm90
  AttentionBackwardScratch cudnn = {};  // kCudnn
  Tensor spans = {}, delta = {};        // kPlain; delta F32 like lse
  Tensor sink_sums = {};                // [chunks of rows, H] F64, where there are sinks
};
inline AttentionBackwardPlan plan(Planner& to, const AttentionBackward& args) {
  check_tokens(args.q);
  if (args.q.dim(0) == 0) return {};
  AttentionBackwardPlan plan;
  plan.engine = attention_engine(to.kernels, args);
  if (args.sinks.defined()) {
    plan.sink_sums = to.scope.allocate(DType::kF64, {blocks_for(args.q.dim(0), kSinkChunkRows), args.q.dim(1)});
  }
  if (plan.engine == AttentionEngine::kPlain) {
    plan.spans = claim_spans(to.scope, args.q.dim(0));
    plan.delta = to.scope.allocate(DType::kF32, args.lse.shape());
    return plan;
  }
  plan.first_keys = claim_first_keys(to.scope, args.shape);
  if (plan.engine == AttentionEngine::kSm90) {
    plan.sm90 = claim_sm90(to.scope, args.shape, args.q);
  } else {
    const int64_t asked = to.vendor == nullptr ? 0 : to.vendor->attention_backward(args);
    plan.cudnn = claim_attention_backward(to.scope, args, asked);
  }
  return plan;
}

// MLA's parts, as they lie or assembled to whole heads.
struct MlaAttentionForwardPlan {
  bool in_parts = false;
  Tensor first_keys = {};           // in parts
  AttentionForward assembled = {};  // else, and its
  AttentionForwardPlan whole = {};
};
inline MlaAttentionForwardPlan plan(Planner& to, const MlaAttentionForward& args) {
  check_tokens(args.q);
  if (args.q.dim(0) == 0) return {};
  MlaAttentionForwardPlan mla;
  mla.in_parts = sm90_attention_takes(to.kernels, args);
  if (mla.in_parts) {
    mla.first_keys = claim_first_keys(to.scope, args.shape);
  } else {
    mla.assembled = claim_assembled(to.scope, args);
    mla.whole = plan(to, mla.assembled);
  }
  return mla;
}

struct MlaAttentionBackwardPlan {
  bool in_parts = false;
  Tensor dk_rope = {}, first_keys = {};  // in parts
  Sm90AttentionScratch sm90 = {};
  AttentionBackward assembled = {};  // else, and its
  AttentionBackwardPlan whole = {};
};
inline MlaAttentionBackwardPlan plan(Planner& to, const MlaAttentionBackward& args) {
  check_tokens(args.q);
  if (args.q.dim(0) == 0) return {};
  MlaAttentionBackwardPlan mla;
  mla.in_parts = sm90_attention_takes(to.kernels, args);
  if (mla.in_parts) {
    mla.dk_rope = claim_shared_key_gradients(to.scope, args);
    mla.first_keys = claim_first_keys(to.scope, args.shape);
    mla.sm90 = claim_sm90(to.scope, args.shape, args.q);
  } else {
    mla.assembled = claim_assembled(to.scope, args);
    mla.whole = plan(to, mla.assembled);
  }
  return mla;
}

// Of whole heads.
inline TreeAttention plan(Planner& to, const MlaTreeAttention& args) { return claim_assembled(to.scope, args); }

}  // namespace nmoe::cuda
