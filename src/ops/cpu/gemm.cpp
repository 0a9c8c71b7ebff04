#include "ops/cpu/gemm.h"

#include <algorithm>
#include <type_traits>

#include "ops/cpu/avx2_vectors.h"
#include "ops/cpu/gemm_tiles.h"
#include "ops/cpu/row_products.h"

namespace nmoe::cpu {
namespace {

// c = beta * c, without reading it when beta is 0.
template <class Real>
void scale(int64_t m, int64_t n, Real beta, Real* c, int64_t c_stride) {
  for (int64_t i = 0; i < m; ++i) {
    Real* row = c + i * c_stride;
    for (int64_t j = 0; j < n; ++j) row[j] = beta == 0 ? 0 : beta * row[j];
  }
}

// Blocks of op(b) are copied to a dense buffer, so that the innermost loop runs along rows of b and c whatever the
// transposes.
void gemm_f64(double* block, int64_t m, int64_t n, int64_t k, double alpha, Operand<double> a, Operand<double> b,
              double beta, double* c, int64_t c_stride) {
  constexpr int64_t kBlock = 64;
  static_assert(kBlock * kBlock <= kGemmScratchElements);
  const int64_t a_row = a.transpose == Transpose::kNo ? a.stride : 1;
  const int64_t a_col = a.transpose == Transpose::kNo ? 1 : a.stride;
  const int64_t b_row = b.transpose == Transpose::kNo ? b.stride : 1;
  const int64_t b_col = b.transpose == Transpose::kNo ? 1 : b.stride;
  scale(m, n, beta, c, c_stride);
  for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
    const int64_t depth = std::min(kBlock, k - k0);
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t width = std::min(kBlock, n - j0);
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t j = 0; j < width; ++j) block[p * kBlock + j] = b.data[(k0 + p) * b_row + (j0 + j) * b_col];
      }
      for (int64_t i = 0; i < m; ++i) {
        double* c_row = c + i * c_stride + j0;
        for (int64_t p = 0; p < depth; ++p) {
          const double factor = alpha * a.data[i * a_row + (k0 + p) * a_col];
          const double* block_row = block + p * kBlock;
#pragma omp simd
          for (int64_t j = 0; j < width; ++j) c_row[j] += factor * block_row[j];
        }
      }
    }
  }
}

}  // namespace

GemmKernel avx2_gemm() { return gemm_of<Floats>; }

template <class Real>
void gemm(Real* scratch, int64_t m, int64_t n, int64_t k, Real alpha, Operand<Real> a, Operand<Real> b, Real beta,
          Real* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    scale(m, n, beta, c, c_stride);
  } else if constexpr (std::is_same_v<Real, float>) {
    static const GemmKernel best = has_avx512() ? avx512_gemm() : avx2_gemm();
    best(scratch, m, n, k, alpha, a, b, beta, c, c_stride);
  } else {
    gemm_f64(scratch, m, n, k, alpha, a, b, beta, c, c_stride);
  }
}

template void gemm(float*, int64_t, int64_t, int64_t, float, Operand<float>, Operand<float>, float, float*, int64_t);
template void gemm(double*, int64_t, int64_t, int64_t, double, Operand<double>, Operand<double>, double, double*,
                   int64_t);

}  // namespace nmoe::cpu
