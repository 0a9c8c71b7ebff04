#include "ops/cpu/blas.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <type_traits>

#include "base/error.h"

// Takes the C library's place, for all that this program loads.
//
// oneDNN packs operands in aligned blocks of its own. The few bytes that such a block leaves at its ends, glibc before
// 2.38 keeps in a cache of the thread, where they part the memory that the next block would fit into: a heap grew to
// several times what was in use, by chance. At wider boundaries such ends are larger than what that cache takes.
extern "C" int posix_memalign(void** block, size_t alignment, size_t size) {
  constexpr size_t kLarge = 64 << 10;
  void* const made = memalign(size < kLarge ? alignment : std::max(alignment, kLarge), size);
  if (made == nullptr) return ENOMEM;
  *block = made;
  return 0;
}

namespace nmoe::cpu {
namespace {

// oneDNN asks OpenMP how many threads a call may use, and OpenMP keeps that number per calling thread.
struct OneThreadInside {
  OneThreadInside() { omp_set_num_threads(1); }
};

void gemm_f32(int64_t m, int64_t n, int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta, float* c,
              int64_t c_stride) {
  static thread_local const OneThreadInside one_thread_inside;
  const dnnl_status_t status = dnnl_sgemm(static_cast<char>(a.transpose), static_cast<char>(b.transpose), m, n, k,
                                          alpha, a.data, a.stride, b.data, b.stride, beta, c, c_stride);
  NMOE_CHECK(status == dnnl_success, "dnnl_sgemm({} x {} x {}) returned {}", m, n, k, static_cast<int>(status));
}

// c = beta * c, without reading it when beta is 0.
template <class Real>
void scale(int64_t m, int64_t n, Real beta, Real* c, int64_t c_stride) {
  for (int64_t i = 0; i < m; ++i) {
    Real* row = c + i * c_stride;
    for (int64_t j = 0; j < n; ++j) row[j] = beta == 0 ? 0 : beta * row[j];
  }
}

// Blocks of op(b) are copied to a dense buffer of 32 KiB, so that the innermost loop runs along rows of b and c
// whatever the transposes.
void gemm_f64(int64_t m, int64_t n, int64_t k, double alpha, Operand<double> a, Operand<double> b, double beta,
              double* c, int64_t c_stride) {
  constexpr int64_t kBlock = 64;
  const int64_t a_row = a.transpose == Transpose::kNo ? a.stride : 1;
  const int64_t a_col = a.transpose == Transpose::kNo ? 1 : a.stride;
  const int64_t b_row = b.transpose == Transpose::kNo ? b.stride : 1;
  const int64_t b_col = b.transpose == Transpose::kNo ? 1 : b.stride;
  scale(m, n, beta, c, c_stride);
  alignas(64) std::array<double, kBlock * kBlock> block;
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
          const double* block_row = block.data() + p * kBlock;
#pragma omp simd
          for (int64_t j = 0; j < width; ++j) c_row[j] += factor * block_row[j];
        }
      }
    }
  }
}

}  // namespace

template <class Real>
void gemm(int64_t m, int64_t n, int64_t k, Real alpha, Operand<Real> a, Operand<Real> b, Real beta, Real* c,
          int64_t c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // oneDNN would leave c as it is
    scale(m, n, beta, c, c_stride);
  } else if constexpr (std::is_same_v<Real, float>) {
    gemm_f32(m, n, k, alpha, a, b, beta, c, c_stride);
  } else {
    gemm_f64(m, n, k, alpha, a, b, beta, c, c_stride);
  }
}

template void gemm(int64_t, int64_t, int64_t, float, Operand<float>, Operand<float>, float, float*, int64_t);
template void gemm(int64_t, int64_t, int64_t, double, Operand<double>, Operand<double>, double, double*, int64_t);

std::string blas_description() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace nmoe::cpu
