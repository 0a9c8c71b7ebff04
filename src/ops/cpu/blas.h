// Matrix products of one thread. Parallel operations cut their work into tiles and call this once a tile.
#pragma once

#include <cstdint>
#include <string>

namespace nmoe::cpu {

enum class Transpose : char { kNo = 'N', kYes = 'T' };

// A matrix in row-major storage whose rows lie `stride` elements apart, so that a head of [T, H, Dk] or a tile of a
// larger matrix is one. With kYes it stands for its transpose: the product's operand is op(matrix).
template <class Real>
struct Operand {
  const Real* data;
  int64_t stride;
  Transpose transpose = Transpose::kNo;
};

// c = alpha * op(a) op(b) + beta * c, with op(a) [m, k], op(b) [k, n] and c [m, n], rows of c `c_stride` apart. With
// beta = 0, c is never read. Any extent may be 0: then c is only scaled. float: oneDNN, on the calling thread alone.
// double: a blocked loop, for proofs. The same arguments give the same bits on any thread. Thread-safe. c may not
// overlap a or b.
template <class Real>
void gemm(int64_t m, int64_t n, int64_t k, Real alpha, Operand<Real> a, Operand<Real> b, Real beta, Real* c,
          int64_t c_stride);

std::string blas_description();  // "oneDNN 2.6.3"

}  // namespace nmoe::cpu
