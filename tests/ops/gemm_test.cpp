// Single-threaded matrix products against plain loops: every transpose, strided operands, alpha and beta.
#include "ops/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/row_products.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

using cpu::Operand;
using cpu::Transpose;

struct Product {
  int64_t m, n, k;
  Transpose a, b;
  double alpha, beta;
};

std::vector<Product> all_products() {
  std::vector<Product> products;
  constexpr int64_t kSizes[][3] = {{1, 1, 1},     {3, 5, 7}, {70, 65, 130}, {29, 33, 300},
                                   {16, 520, 64}, {0, 3, 2}, {3, 0, 2},     {4, 3, 0}};
  for (const auto& [m, n, k] : kSizes) {
    for (const Transpose a : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose b : {Transpose::kNo, Transpose::kYes}) {
        for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {-0.5, 0.25}}) {
          products.push_back({m, n, k, a, b, alpha, beta});
        }
      }
    }
  }
  return products;
}

constexpr int64_t kGap = 3;  // elements between the end of a row and the start of the next

// [rows, cols] stored as it is or transposed, with gaps of NaN that must not be read.
template <class Real>
struct Stored {
  Stored(int64_t rows, int64_t cols, Transpose transpose, uint64_t stream)
      : row_step(transpose == Transpose::kNo ? cols + kGap : 1),
        col_step(transpose == Transpose::kNo ? 1 : rows + kGap),
        stride(transpose == Transpose::kNo ? row_step : col_step),
        data(static_cast<size_t>(stride * (transpose == Transpose::kNo ? rows : cols) + 1),
             std::numeric_limits<Real>::quiet_NaN()) {
    const Philox rng(7, stream);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) at(i, j) = static_cast<Real>(rng.normal(static_cast<uint64_t>(i * cols + j)));
    }
  }
  Real& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * row_step + j * col_step)]; }

  int64_t row_step, col_step, stride;
  std::vector<Real> data;
};

// Checks against the definition; sums of up to 300 products of numbers of order one round to within `tolerance`.
template <class Real>
void check(const Product& p, double tolerance) {
  SCOPED_TRACE(fmt::format("{}{} {} x {} x {}, alpha {}, beta {}", static_cast<char>(p.a), static_cast<char>(p.b), p.m,
                           p.n, p.k, p.alpha, p.beta));
  Stored<Real> a(p.m, p.k, p.a, 0), b(p.k, p.n, p.b, 1), c(p.m, p.n, Transpose::kNo, 2);
  std::vector<double> expected, actual;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = p.beta == 0 ? 0 : p.beta * static_cast<double>(c.at(i, j));
      for (int64_t k = 0; k < p.k; ++k)
        sum += p.alpha * static_cast<double>(a.at(i, k)) * static_cast<double>(b.at(k, j));
      expected.push_back(sum);
      if (p.beta == 0) c.at(i, j) = std::numeric_limits<Real>::quiet_NaN();
    }
  }
  std::vector<Real> scratch(cpu::kGemmScratchElements);
  cpu::gemm<Real>(scratch.data(), p.m, p.n, p.k, static_cast<Real>(p.alpha), {a.data.data(), a.stride, p.a},
                  {b.data.data(), b.stride, p.b}, static_cast<Real>(p.beta), c.data.data(), c.stride);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) actual.push_back(static_cast<double>(c.at(i, j)));
    for (int64_t gap = 0; gap < kGap; ++gap) EXPECT_TRUE(std::isnan(c.at(i, p.n + gap)));
  }
  EXPECT_TRUE(near(actual, expected, tolerance));
}

TEST(Gemm, FloatIsTheDefinition) {
  for (const Product& product : all_products()) check<float>(product, 2e-3);
}

TEST(Gemm, DoubleIsTheDefinition) {
  for (const Product& product : all_products()) check<double>(product, 1e-11);
}

// Larger than the blocks that operands are copied in, and no multiple of anything.
constexpr int64_t kRows = 75, kColumns = 1'100, kDepth = 600;

// Rows and columns from `row` and `column` on, by `kernel`.
std::vector<float> large_product(cpu::GemmKernel kernel, Transpose a_transpose, Transpose b_transpose, int64_t row,
                                 int64_t rows, int64_t column, int64_t columns) {
  static const Stored<float> plain_a(kRows, kDepth, Transpose::kNo, 0), turned_a(kRows, kDepth, Transpose::kYes, 0),
      plain_b(kDepth, kColumns, Transpose::kNo, 1), turned_b(kDepth, kColumns, Transpose::kYes, 1);
  const Stored<float>& a = a_transpose == Transpose::kNo ? plain_a : turned_a;
  const Stored<float>& b = b_transpose == Transpose::kNo ? plain_b : turned_b;
  std::vector<float> c(static_cast<size_t>(rows * columns)), scratch(cpu::kGemmScratchElements);
  kernel(scratch.data(), rows, columns, kDepth, 0.5F, {a.data.data() + row * a.row_step, a.stride, a_transpose},
         {b.data.data() + column * b.col_step, b.stride, b_transpose}, 0, c.data(), columns);
  return c;
}

// An element's bits do not depend on what is computed beside it, on how operands are stored, or on the processor.
TEST(Gemm, AnElementHasTheSameBitsEverywhere) {
  const std::vector<float> whole =
      large_product(cpu::avx2_gemm(), Transpose::kNo, Transpose::kNo, 0, kRows, 0, kColumns);
  std::vector<cpu::GemmKernel> kernels = {cpu::avx2_gemm()};
  if (cpu::has_avx512()) kernels.push_back(cpu::avx512_gemm());
  constexpr int64_t kRow = 11, kFewRows = 62, kColumn = 37;
  for (const cpu::GemmKernel kernel : kernels) {
    for (const Transpose a : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose b : {Transpose::kNo, Transpose::kYes}) {
        EXPECT_EQ(large_product(kernel, a, b, 0, kRows, 0, kColumns), whole);
        for (const int64_t columns : {int64_t{5}, int64_t{48}, kColumns - kColumn}) {
          const std::vector<float> part = large_product(kernel, a, b, kRow, kFewRows, kColumn, columns);
          for (int64_t i = 0; i < kFewRows; ++i) {
            const auto row = whole.begin() + (kRow + i) * kColumns + kColumn;
            ASSERT_TRUE(std::equal(row, row + columns, part.begin() + i * columns)) << columns << " columns, row " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
