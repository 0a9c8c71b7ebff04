#include <algorithm>

#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kTokensPerTask = 32;

}  // namespace

template <class Real>
void mla_expand_forward(Context& ctx, const MlaExpandForward& args) {
  const Tensor kv = args.kv, k_rope = args.k_rope, k = args.k, v = args.v;
  const int64_t num_tokens = kv.dim(0), num_heads = kv.dim(1), rope = k_rope.dim(1), value = v.dim(2);
  const int64_t nope = k.dim(2) - rope;
  NMOE_CHECK(kv.dim(2) == nope + value, "kv {}, k {} and v {} disagree", kv.shape(), k.shape(), v.shape());
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

template <class Real>
void mla_expand_backward(Context& ctx, const MlaExpandBackward& args) {
  const Tensor dk = args.dk, dv = args.dv, dkv = args.dkv, dk_rope = args.dk_rope;
  const int64_t num_tokens = dkv.dim(0), num_heads = dkv.dim(1), rope = dk_rope.dim(1), value = dv.dim(2);
  const int64_t nope = dk.dim(2) - rope;
  NMOE_CHECK(dkv.dim(2) == nope + value, "dkv {}, dk {} and dv {} disagree", dkv.shape(), dk.shape(), dv.shape());
  if (ctx.counting()) return;
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
  write_codes<Real>(ctx, dkv.reshape({num_tokens, num_heads * (nope + value)}), /*num_rows=*/{}, args.dkv_codes);
}

NMOE_CPU_INSTANTIATE(mla_expand_forward, MlaExpandForward)
NMOE_CPU_INSTANTIATE(mla_expand_backward, MlaExpandBackward)

}  // namespace nmoe::cpu
