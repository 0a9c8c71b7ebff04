#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// Where rows are in a cache.
template <class Args>
void check_places(const Tensor& cache, const Args& args, int64_t num_tokens) {
  const Tensor &slots = args.slots, &positions = args.positions, &pages = args.pages;
  NMOE_CHECK(cache.shape().rank() == 3 && cache.dim(1) == kPagePositions && is(slots, DType::kI32, {num_tokens}) &&
                 is(positions, DType::kI32, {num_tokens}) && pages.dtype() == DType::kI32 && pages.shape().rank() == 2,
             "{} rows of a cache {}: slots {}, positions {}, pages {}", num_tokens, cache.shape(), slots.shape(),
             positions.shape(), pages.shape());
}

}  // namespace

void check(const CacheWrite& args) {
  const Tensor &rows = args.rows, &cache = args.cache;
  check_places(cache, args, rows.dim(0));
  NMOE_CHECK(rows.shape().rank() == 2 && is_act(rows.dtype()) && cache.dtype() == rows.dtype() && args.offset >= 0 &&
                 args.offset + rows.dim(1) <= cache.dim(2),
             "rows {} {} at offset {} of a cache {} {}", dtype_name(rows.dtype()), rows.shape(), args.offset,
             dtype_name(cache.dtype()), cache.shape());
}

void check(const CachedAttention& args) {
  const Tensor &q = args.q, &keys = args.keys, &out = args.out;
  const int64_t T = q.dim(0), H = q.dim(1), Dk = q.dim(2), Dv = out.dim(2), G = args.num_kv_heads;
  check_places(keys, args, T);
  NMOE_CHECK(
      G > 0 && H % G == 0 && keys.dim(2) == G * Dk && is_act(q.dtype()) && keys.dtype() == q.dtype() &&
          is(out, q.dtype(), {T, H, Dv}) && args.window >= 0 &&
          (args.values.defined() ? is(args.values, q.dtype(), {keys.dim(0), keys.dim(1), G * Dv}) : G == 1 && Dv <= Dk),
      "cached attention of q {} {} to keys {} and values {} of {} heads, out {}", dtype_name(q.dtype()), q.shape(),
      keys.shape(), args.values.shape(), G, out.shape());
  NMOE_CHECK(!args.sinks.defined() || (is_stat(args.sinks.dtype()) && args.sinks.shape() == Shape({H})),
             "sinks {} {} of q {}", dtype_name(args.sinks.dtype()), args.sinks.shape(), q.shape());
}

void check(const MlaCachedAttention& args) {
  const auto& [T, H, nope, rope, rank, value] = mla_sizes(args);
  const DType act = args.q.dtype();
  check_places(args.cache, args, T);
  NMOE_CHECK(is_act(act) && nope >= 0 && is(args.kv_latent, act, {T, rank}) && is(args.k_rope, act, {T, rope}) &&
                 is_stat(args.gain.dtype()) && args.gain.shape() == Shape({rank}) &&
                 args.cos.defined() == args.sin.defined() &&
                 (!args.cos.defined() || (is_stat(args.cos.dtype()) && args.cos.dim(1) * 2 == rope &&
                                          is(args.sin, args.cos.dtype(), args.cos.shape()))) &&
                 is(args.kv_up, act, {H * (nope + value), rank}) && args.cache.dtype() == act &&
                 args.cache.dim(2) == rank + rope && is(args.out, act, {T, H, value}) && args.window >= 0,
             "MLA of q {} {}, latents {}, keys {} with {} over a cache {} to {}", dtype_name(act), args.q.shape(),
             args.kv_latent.shape(), args.k_rope.shape(), args.kv_up.shape(), args.cache.shape(), args.out.shape());
}

void check(const MlaExpandedAttention& args) {
  const Tensor &q = args.q, &kv = args.kv, &out = args.out;
  const int64_t T = q.dim(0), H = q.dim(1), Dv = out.dim(2), rope = args.k_rope.dim(2), nope = q.dim(2) - rope;
  check_places(kv, args, T);
  NMOE_CHECK(is_act(q.dtype()) && nope >= 0 && kv.dtype() == q.dtype() && kv.dim(2) == H * (nope + Dv) &&
                 is(args.k_rope, q.dtype(), {kv.dim(0), kv.dim(1), rope}) && is(out, q.dtype(), {T, H, Dv}) &&
                 args.window >= 0,
             "MLA of q {} {} over caches of keys and values {} and shared keys {}, out {}", dtype_name(q.dtype()),
             q.shape(), kv.shape(), args.k_rope.shape(), out.shape());
}

}  // namespace nmoe
