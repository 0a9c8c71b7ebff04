// The gated delta rule (Gated DeltaNet, arXiv 2412.06464, section 3; the arrangement of heads and norms as Qwen3-Next
// has them), and with a decay of each key channel Kimi Delta Attention (arXiv 2510.26692, section 3). H heads of V
// values, in G groups that share queries and keys of K values: head h is of group h / (H / G). A head has C decays: 1,
// of all its state, or K, one of each of its rows.
//
//   n(x) = x / sqrt(sum of x^2 + kDeltaRuleNormEps);   q' = n(q) / sqrt(K);   k' = n(k)
//   decay[c] = exp(softplus(a[c] + dt_bias[h, c]) * -exp(a_log[h]));   beta = sigmoid(b)
//   S[i] = decay[C == 1 ? 0 : i] * S[i];   delta = beta * (v - S^T k');   S = S + k' delta^T;   y = S^T q'
//
// for each token of a document in turn, with S [K, V] of each head and softplus(x) = x above kSoftplusLinearAbove
// (contracts/ssd.h). A document's state begins at 0. Sequences, documents and cu_seqlens are those of attention
// (AttentionShape, contracts/attention.h). States are stat, whatever act is.
//
// The order of sums on the CPU is the recurrence's, a token after the other, so that a row's bits depend neither on
// where its document lies nor on what follows it, and are the same in generation. S^T k' and S^T q' are sums over K,
// ascending from 0 on; the order of a norm's sum depends on K alone. Backward makes states again. Its sums over values
// (of dq', dk' and of decays' gradients) have an order that depends on V alone, and those of a decay's rows are added
// ascending in K. Gradients of a group's q' and k' are added from the group's first head to its last, and only then go
// through the norm. da_log and ddt_bias are summed over a sequence's tokens, from the last to the first, of each
// da_log over its decays, ascending, then over sequences, ascending, from 0 on, and this is added to the gradient.
//
// On CUDA, where K is kMostDeltaKeyDim at most and C is 1, generation and forward in F32 are the recurrence too, S^T k'
// and S^T q' in eight parts of K, ascending, then from the first part to the last: generation in F32 has training's
// bits. Forward in BF16 and backward go through chunks of 64 tokens that begin with documents
// (ops/cuda/kernels/recurrent/delta_chunks.cuh has the formulas): a row's bits depend on its place in its document, and
// on what comes before it there. Within a chunk sums over tokens, K or V ascend in sixteens (BF16, by tensor cores) or
// one by one (F32). Operands are rounded to act, which in BF16 is 2^-9 of each, so that generation in BF16, which
// rounds none but y, differs from training by some 1e-2 of y's largest value at most. A state that is given and then
// handed on at a chunk's end is that of the whole; elsewhere it differs by rounding. ddt_bias and da_log: a chunk's
// tokens ascending, then chunks by 32 lanes (chunk_table.cuh).
//
// A sequence may continue one that was computed elsewhere, from `initial_state`, which its first document goes on from;
// `final_state` is what the next part would go on from. On the CPU both parts have the bits of the whole, wherever the
// cut is, but for the sums over a sequence's tokens.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace nmoe {

constexpr double kDeltaRuleNormEps = 1e-6;
constexpr int64_t kMostDeltaKeyDim = 128;  // on GPUs

struct DeltaRuleInputs {
  int64_t num_seqs = 1;
  int64_t seq_len = 0;
  Tensor q, k;                // [T, G, K], apart
  Tensor v;                   // [T, H, V], apart
  Tensor b;                   // [T, H], apart
  Tensor a;                   // [T, H] or, with a decay of each channel, [T, H, K], apart
  Tensor dt_bias;             // [H] or [H, K] stat
  Tensor a_log;               // [H] stat
  Tensor cu_seqlens = {};     // [C] i32; undefined: every sequence is one document
  Tensor initial_state = {};  // [B, H, K, V] stat; undefined: sequences begin here
};
struct DeltaRuleForward {
  DeltaRuleInputs in;
  Tensor y;                 // = [T, H, V]
  Tensor final_state = {};  // = [B, H, K, V] stat, of the sequence's last document; undefined: not wanted
};
struct DeltaRuleBackward {
  DeltaRuleInputs in;          // as in forward
  Tensor dy;                   // [T, H, V]
  Tensor dfinal_state = {};    // [B, H, K, V] stat; undefined: 0
  Tensor dq, dk;               // = [T, G, K], apart
  Tensor dv;                   // = [T, H, V], apart
  Tensor db;                   // = [T, H], apart
  Tensor da;                   // = as a, apart
  Tensor ddt_bias;             // += as dt_bias, stat
  Tensor da_log;               // += [H] stat
  Tensor dinitial_state = {};  // = [B, H, K, V] stat, if there is an initial_state
};

// The same in generation: row t is a token at positions[t] of the sequence in slots[t] (CachedRows, model/states.h),
// whose state is that after its last row. A row at position 0 begins a sequence, whatever its slot holds. Rows of a
// slot are in the order of their positions; one of no slot (-1) becomes 0. A row has the bits that DeltaRuleForward
// gives it, but in BF16 on CUDA.
struct CachedDeltaRule {
  Tensor q, k;       // [T, G, K], apart
  Tensor v;          // [T, H, V], apart
  Tensor b;          // [T, H], apart
  Tensor a;          // [T, H] or [T, H, K], apart
  Tensor dt_bias;    // [H] or [H, K] stat
  Tensor a_log;      // [H] stat
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor states;     // [Z, H, K, V] stat, updated
  Tensor y;          // = [T, H, V]
};

// What forward, backward and generation have in common.
struct DeltaRuleSizes {
  int64_t tokens, groups, key_dim, heads, value_dim;
  int64_t decays;  // of a head

  int64_t group_size() const { return heads / groups; }
  int64_t state() const { return key_dim * value_dim; }  // of a head
};
template <class Rows>  // of q, v and a
DeltaRuleSizes delta_rule_sizes(const Rows& rows) {
  const Tensor &q = rows.q, &v = rows.v;
  return {.tokens = v.dim(0),
          .groups = q.dim(1),
          .key_dim = q.dim(2),
          .heads = v.dim(1),
          .value_dim = v.dim(2),
          .decays = rows.a.shape().rank() == 3 ? q.dim(2) : 1};
}

}  // namespace nmoe
