// Matrix products of one thread. Parallel operations cut their work into tiles and call this once a tile.
//
// An element of float's product is summed as contracts/linear.h says. So its bits are the same wherever the element
// lies, however rows and columns are cut, on any thread and on any processor, with AVX-512 or without.
#pragma once

#include <cstdint>

#include "ops/cpu/context.h"
#include "ops/cpu/gemm_kernels.h"

namespace nmoe::cpu {

// Scratch of gemm for every thread of an operation, a row each.
template <class Real>
Tensor claim_gemm_scratch(ArenaScope& scope, const Context& ctx) {
  return scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kGemmScratchElements});
}

// c = alpha * op(a) op(b) + beta * c, with op(a) [m, k], op(b) [k, n] and c [m, n], rows of c `c_stride` apart. With
// beta = 0, c is never read. Any extent may be 0: then c is only scaled. c may not overlap a or b. `scratch` has
// kGemmScratchElements, for the calling thread alone.
template <class Real>
void gemm(Real* scratch, int64_t m, int64_t n, int64_t k, Real alpha, Operand<Real> a, Operand<Real> b, Real beta,
          Real* c, int64_t c_stride);

}  // namespace nmoe::cpu
