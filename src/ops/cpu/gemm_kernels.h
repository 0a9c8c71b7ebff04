// What gemm<float> (ops/cpu/gemm.h) runs, by instruction set.
#pragma once

#include <cstdint>

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

// What is copied of op(b) at once, in panels, and of op(a): rows of some tiles, which lie kGemmRowStride apart (no
// power of two, so that they do not share the same lines of a cache), or for each tile [depth, vector] of their
// transpose.
constexpr int64_t kGemmBlockDepth = 256, kGemmBlockColumns = 512, kGemmTilesOfRows = 4;
constexpr int64_t kGemmRowStride = kGemmBlockDepth + 16, kGemmMostRows = 16 * kGemmTilesOfRows;
constexpr int64_t kGemmScratchElements = kGemmMostRows * kGemmRowStride + kGemmBlockDepth * kGemmBlockColumns;

// Of `left` terms that are left of a product's sum, how many the next chain has: they are cut evenly.
[[gnu::always_inline]] constexpr int64_t product_piece(int64_t left) {
  const int64_t pieces = (left + kGemmBlockDepth - 1) / kGemmBlockDepth;
  return pieces == 0 ? 0 : (left + pieces - 1) / pieces;
}

// As gemm<float>; m, n and k are not 0.
using GemmKernel = void (*)(float* scratch, int64_t m, int64_t n, int64_t k, float alpha, Operand<float> a,
                            Operand<float> b, float beta, float* c, int64_t c_stride);
GemmKernel avx2_gemm();
GemmKernel avx512_gemm();  // to be called where has_avx512() (ops/cpu/row_products.h)

}  // namespace nmoe::cpu
