// MLA's attention where keys and values are assembled from their parts first: arguments of the operation on whole
// heads.
#pragma once

#include "ops/contracts/attention.h"
#include "tensor/arena.h"

namespace nmoe {

// With room for the keys and values of every head.
inline AttentionForward claim_assembled(ArenaScope& scope, const MlaAttentionForward& args) {
  const int64_t T = args.kv.dim(0), H = args.kv.dim(1);
  const DType dtype = args.kv.dtype();
  return {.shape = args.shape,
          .q = args.q,
          .k = scope.allocate(dtype, {T, H, args.q.dim(2)}),
          .v = scope.allocate(dtype, {T, H, args.out.dim(2)}),
          .out = args.out,
          .lse = args.lse};
}

inline TreeAttention claim_assembled(ArenaScope& scope, const MlaTreeAttention& args) {
  const int64_t T = args.kv.dim(0), H = args.kv.dim(1);
  const DType dtype = args.kv.dtype();
  return {.scale = args.scale,
          .window = args.window,
          .q = args.q,
          .k = scope.allocate(dtype, {T, H, args.q.dim(2)}),
          .v = scope.allocate(dtype, {T, H, args.out.dim(2)}),
          .out = args.out,
          .positions = args.positions,
          .bounds = args.bounds,
          .parents = args.parents};
}

// With room for those, and for their gradients.
inline AttentionBackward claim_assembled(ArenaScope& scope, const MlaAttentionBackward& args) {
  const int64_t T = args.kv.dim(0), H = args.kv.dim(1);
  const DType dtype = args.kv.dtype();
  const Shape keys{T, H, args.q.dim(2)}, values{T, H, args.out.dim(2)};
  return {.shape = args.shape,
          .q = args.q,
          .k = scope.allocate(dtype, keys),
          .v = scope.allocate(dtype, values),
          .out = args.out,
          .lse = args.lse,
          .dout = args.dout,
          .dq = args.dq,
          .dk = scope.allocate(dtype, keys),
          .dv = scope.allocate(dtype, values),
          .rope = args.rope};
}

}  // namespace nmoe
