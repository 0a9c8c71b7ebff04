// MLA's attention, of keys and values that are assembled first.
#include <algorithm>

#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"
#include "ops/mla_assembly.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kTokensPerTask = 32;

// k [T, H, nope + rope], v [T, H, Dv] = kv [T, H, nope + Dv] and k_rope [T, rope].
template <class Real>
void assemble(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  const int64_t num_tokens = kv.dim(0), num_heads = kv.dim(1), rope = k_rope.dim(1), value = v.dim(2);
  const int64_t nope = k.dim(2) - rope;
  if (ctx.counting()) return;
  parallel_blocks(ctx, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const Real* shared = k_rope.rows_data<Real>() + token * k_rope.stride();
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t row = token * num_heads + head;
        const Real* source = kv.data<Real>() + row * (nope + value);
        std::copy_n(shared, rope, std::copy_n(source, nope, k.data<Real>() + row * (nope + rope)));
        std::copy_n(source + nope, value, v.data<Real>() + row * value);
      }
    }
  });
}

// The gradients of the parts.
template <class Real>
void split_gradients(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) {
  if (ctx.counting()) return;
  const int64_t num_tokens = dkv.dim(0), num_heads = dkv.dim(1), rope = dk_rope.dim(1), value = dv.dim(2);
  const int64_t nope = dk.dim(2) - rope;
  parallel_blocks(ctx, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      Real* shared = dk_rope.rows_data<Real>() + token * dk_rope.stride();
      std::fill_n(shared, rope, Real{0});
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t row = token * num_heads + head;
        const Real* dk_row = dk.data<Real>() + row * (nope + rope);
        Real* target = dkv.data<Real>() + row * (nope + value);
        std::copy_n(dv.data<Real>() + row * value, value, std::copy_n(dk_row, nope, target));
#pragma omp simd
        for (int64_t r = 0; r < rope; ++r) shared[r] += dk_row[nope + r];
      }
    }
  });
}

}  // namespace

template <class Real>
void mla_attention_forward(Context& ctx, const MlaAttentionForward& args) {
  ArenaScope scope(ctx.scratch);
  const AttentionForward assembled = claim_assembled(scope, args);
  assemble<Real>(ctx, args.kv, args.k_rope, assembled.k, assembled.v);
  attention_forward<Real>(ctx, assembled);
}

template <class Real>
void mla_attention_backward(Context& ctx, const MlaAttentionBackward& args) {
  ArenaScope scope(ctx.scratch);
  const AttentionBackward assembled = claim_assembled(scope, args);
  assemble<Real>(ctx, args.kv, args.k_rope, assembled.k, assembled.v);
  attention_backward<Real>(ctx, assembled);
  split_gradients<Real>(ctx, assembled.dk, assembled.dv, args.dkv, args.dk_rope);
  write_codes<Real>(ctx, args.dkv.reshape({args.dkv.dim(0), args.dkv.shape().row_elements()}), /*num_rows=*/{},
                    args.dkv_codes);
}

template <class Real>
void mla_tree_attention(Context& ctx, const MlaTreeAttention& args) {
  ArenaScope scope(ctx.scratch);
  const TreeAttention assembled = claim_assembled(scope, args);
  assemble<Real>(ctx, args.kv, args.k_rope, assembled.k, assembled.v);
  tree_attention<Real>(ctx, assembled);
}

NMOE_CPU_INSTANTIATE(mla_attention_forward, MlaAttentionForward)
NMOE_CPU_INSTANTIATE(mla_attention_backward, MlaAttentionBackward)
NMOE_CPU_INSTANTIATE(mla_tree_attention, MlaTreeAttention)

}  // namespace nmoe::cpu
