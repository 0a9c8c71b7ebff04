// Single-threaded matrix products against plain loops: every transpose, strided operands, alpha and beta.
#include "ops/cpu/blas.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

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
  constexpr int64_t kSizes[][3] = {{1, 1, 1}, {3, 5, 7}, {70, 65, 130}, {0, 3, 2}, {3, 0, 2}, {4, 3, 0}};
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

// Checks against the definition; sums of up to 130 products of numbers of order one round to within `tolerance`.
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
  cpu::gemm<Real>(p.m, p.n, p.k, static_cast<Real>(p.alpha), {a.data.data(), a.stride, p.a},
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

TEST(Gemm, EveryThreadGetsTheSameBits) {
  constexpr int64_t kSize = 192;
  Stored<float> a(kSize, kSize, Transpose::kNo, 0), b(kSize, kSize, Transpose::kYes, 1);
  const auto product = [&] {
    std::vector<float> c(kSize * kSize);
    cpu::gemm<float>(kSize, kSize, kSize, 1, {a.data.data(), a.stride}, {b.data.data(), b.stride, Transpose::kYes}, 0,
                     c.data(), kSize);
    return c;
  };
  const std::vector<float> here = product();
  std::vector<float> there;
  std::thread([&] { there = product(); }).join();
  EXPECT_EQ(here, there);
}

TEST(Gemm, NamesItsLibrary) { EXPECT_TRUE(cpu::blas_description().starts_with("oneDNN ")); }

// Blocks as oneDNN allocates them, of two sizes in turn, and small ones that stay. A heap has room for the larger and
// the boundaries that they begin at, whatever the ends that these leave.
TEST(Blas, AlignedBlocksLeaveNoHoles) {
  constexpr size_t kSmaller = 300'000, kLarger = 900'000;
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // all of these are in the heap
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  std::vector<std::unique_ptr<char[]>> kept;
  const size_t before = mallinfo2().arena;
  for (size_t i = 0; i < 400; ++i) {
    void* block = nullptr;
    ASSERT_EQ(posix_memalign(&block, 128, i % 2 == 0 ? kSmaller : kLarger), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 128, 0U);
    kept.push_back(std::make_unique<char[]>(24 + i % 5 * 16));
    std::free(block);
  }
  EXPECT_LE(mallinfo2().arena - before, 2 * kLarger);
}

}  // namespace
}  // namespace nmoe::test
