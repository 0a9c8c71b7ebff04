// The operations that take tensors whose rows lie apart (`apart` in their contracts), each with arguments: what tests
// run with such rows beside the same with dense ones.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "support/tensors.h"

namespace nmoe::test {

template <class Args>
struct ApartCase {
  using Members = std::vector<Tensor Args::*>;
  std::string name;
  void (Ops::*operation)(const Args&);
  Args args;      // all dense
  Members apart;  // act, may lie apart
  Members acts;   // other act tensors
  Members rest;   // of a dtype of their own
};

// Calls visit(case) for each operation. `cpu`, of the pool's dtype, computes what backwards want of forwards.
template <class Visit>
void for_each_apart_operation(TensorPool& pool, Ops& cpu, const Visit& visit) {
  {
    using A = Rope;
    const A args{.x = pool.normal({9, 3, 40}),
                 .positions = pool.random_ints({9}, 20),
                 .cos = pool.normal({20, 8}),
                 .sin = pool.normal({20, 8}),
                 .rope_offset = 16};
    visit(ApartCase<A>{"rope", &Ops::rope_forward, args, {&A::x}, {}, {&A::positions, &A::cos, &A::sin}});
    visit(ApartCase<A>{"rope, backward", &Ops::rope_backward, args, {&A::x}, {}, {&A::positions, &A::cos, &A::sin}});
  }
  {
    using B = BiasBackward;
    const B backward{.dy = pool.normal({70, 48}), .dbias = pool.normal({48})};
    visit(ApartCase<B>{"bias, backward", &Ops::bias_backward, backward, {&B::dy}, {}, {&B::dbias}});
  }
  for (const Shape& shape : {Shape{70, 48}, Shape{33, 3, 48}}) {
    using F = RmsNormForward;
    using B = RmsNormBackward;
    const F forward{.x = pool.normal(shape),
                    .gain = pool.normal({48}),
                    .eps = 1e-3,
                    .y = pool.zeros(shape),
                    .rstd = pool.zeros({shape.num_elements() / 48})};
    visit(ApartCase<F>{"norm", &Ops::rms_norm_forward, forward, {&F::x, &F::y}, {}, {&F::gain, &F::rstd}});
    cpu.rms_norm_forward(forward);
    for (const bool accumulate : {false, true}) {
      const B backward{.x = forward.x,
                       .gain = forward.gain,
                       .rstd = forward.rstd,
                       .dy = pool.normal(shape),
                       .dx = pool.normal(shape),
                       .dgain = pool.normal({48}),
                       .accumulate_dx = accumulate};
      visit(ApartCase<B>{"norm, backward",
                         &Ops::rms_norm_backward,
                         backward,
                         {&B::x, &B::dy, &B::dx},
                         {},
                         {&B::gain, &B::rstd, &B::dgain}});
    }
  }
  constexpr int64_t kSeqs = 2, kLen = 70, kTokens = kSeqs * kLen, kHeads = 4, kKvHeads = 2, kKey = 24, kValue = 16;
  {
    using F = AttentionForward;
    using B = AttentionBackward;
    const F forward{.shape = {kSeqs, kLen, 0.3, 0},
                    .q = pool.normal({kTokens, kHeads, kKey}),
                    .k = pool.normal({kTokens, kKvHeads, kKey}),
                    .v = pool.normal({kTokens, kKvHeads, kValue}),
                    .out = pool.zeros({kTokens, kHeads, kValue}),
                    .lse = pool.zeros({kSeqs, kHeads, kLen})};
    visit(ApartCase<F>{"attention", &Ops::attention_forward, forward, {&F::q, &F::k, &F::v}, {&F::out}, {&F::lse}});
    cpu.attention_forward(forward);
    const B backward{.shape = forward.shape,
                     .q = forward.q,
                     .k = forward.k,
                     .v = forward.v,
                     .out = forward.out,
                     .lse = forward.lse,
                     .dout = pool.normal(forward.out.shape()),
                     .dq = pool.zeros(forward.q.shape()),
                     .dk = pool.zeros(forward.k.shape()),
                     .dv = pool.zeros(forward.v.shape())};
    visit(ApartCase<B>{"attention, backward",
                       &Ops::attention_backward,
                       backward,
                       {&B::q, &B::k, &B::v, &B::dq, &B::dk, &B::dv},
                       {&B::out, &B::dout},
                       {&B::lse}});
  }
  {
    using F = MlaAttentionForward;
    using B = MlaAttentionBackward;
    const F forward{.shape = {kSeqs, kLen, 0.3, 0},
                    .q = pool.normal({kTokens, kHeads, kKey}),
                    .kv = pool.normal({kTokens, kHeads, kKey - 8 + kValue}),
                    .k_rope = pool.normal({kTokens, 8}),
                    .out = pool.zeros({kTokens, kHeads, kValue}),
                    .lse = pool.zeros({kSeqs, kHeads, kLen})};
    visit(ApartCase<F>{
        "MLA's attention", &Ops::mla_attention_forward, forward, {&F::q, &F::k_rope}, {&F::kv, &F::out}, {&F::lse}});
    cpu.mla_attention_forward(forward);
    const B backward{.shape = forward.shape,
                     .q = forward.q,
                     .kv = forward.kv,
                     .k_rope = forward.k_rope,
                     .out = forward.out,
                     .lse = forward.lse,
                     .dout = pool.normal(forward.out.shape()),
                     .dq = pool.zeros(forward.q.shape()),
                     .dkv = pool.zeros(forward.kv.shape()),
                     .dk_rope = pool.zeros(forward.k_rope.shape())};
    visit(ApartCase<B>{"MLA's attention, backward",
                       &Ops::mla_attention_backward,
                       backward,
                       {&B::q, &B::k_rope, &B::dq, &B::dk_rope},
                       {&B::kv, &B::out, &B::dout, &B::dkv},
                       {&B::lse}});
  }
  {
    using A = CacheWrite;
    const A args{.rows = pool.normal({3, 24}),
                 .slots = pool.ints({3}, {0, 1, 1}),
                 .positions = pool.ints({3}, {4, 0, 2}),
                 .pages = pool.ints({2, 1}, {1, 0}),
                 .cache = pool.normal({2, kPagePositions, 40}),
                 .offset = 8};
    visit(
        ApartCase<A>{"cache", &Ops::cache_write, args, {&A::rows}, {&A::cache}, {&A::slots, &A::positions, &A::pages}});
  }
  {
    using A = CachedAttention;
    const A args{.scale = 0.3,
                 .q = pool.normal({5, kHeads, kKey}),
                 .slots = pool.random_ints({5}, 2),
                 .positions = pool.random_ints({5}, 30),
                 .pages = pool.ints({2, 1}, {1, 0}),
                 .keys = pool.normal({2, kPagePositions, kKvHeads * kKey}),
                 .values = pool.normal({2, kPagePositions, kKvHeads * kValue}),
                 .num_kv_heads = kKvHeads,
                 .out = pool.zeros({5, kHeads, kValue})};
    visit(ApartCase<A>{"cached attention",
                       &Ops::cached_attention,
                       args,
                       {&A::q},
                       {&A::keys, &A::values, &A::out},
                       {&A::slots, &A::positions, &A::pages}});
  }
  {
    using A = MlaCachedAttention;
    const A args{.scale = 0.2,
                 .q = pool.normal({11, 3, 24}),
                 .kv_latent = pool.normal({11, 32}),
                 .k_rope = pool.normal({11, 8}),
                 .gain = pool.normal({32}),
                 .cos = pool.normal({20, 4}),
                 .sin = pool.normal({20, 4}),
                 .slots = pool.ints({11}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
                 .positions = pool.ints({11}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
                 .pages = pool.ints({1, 1}, {0}),
                 .kv_up = pool.normal({3 * 24, 32}),
                 .cache = pool.zeros({1, kPagePositions, 40}),
                 .out = pool.zeros({11, 3, 8})};
    visit(ApartCase<A>{"cached latent attention",
                       &Ops::mla_cached_attention,
                       args,
                       {&A::q, &A::kv_latent, &A::k_rope},
                       {&A::kv_up, &A::cache, &A::out},
                       {&A::gain, &A::cos, &A::sin, &A::slots, &A::positions, &A::pages}});
  }
  {
    using A = CountNonFinite;
    const A args{.x = pool.normal({300, 3, 24}), .out = pool.ints({1}, {0})};
    for (const int64_t i : {0, 23, 24, 5001, 21599}) set(args.x, i, i % 2 == 0 ? NAN : INFINITY);
    visit(ApartCase<A>{"count of non-finite values", &Ops::count_non_finite, args, {&A::x}, {}, {&A::out}});
  }
}

}  // namespace nmoe::test
