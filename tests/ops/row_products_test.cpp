// Row products against plain sums, and bit for bit against themselves one row at a time; likewise the linear layers of
// batch-invariant arithmetic.
#include "ops/cpu/row_products.h"

#include <gtest/gtest.h>

#include "ops/cpu/gemm.h"
#include "ops/factory.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// As in linear_test.cpp.
constexpr double kFloatRowTolerance = 2e-3;
constexpr double kDoubleRowTolerance = 1e-10;

struct Extent {
  int64_t m, n, depth;
};
using cpu::Rows;

// Around the tiles' heights and widths and the vectors' lanes; more than a block of columns.
constexpr Extent kExtents[] = {{1, 1, 1},  {2, 3, 7},    {3, 4, 8},   {4, 5, 9},  {5, 16, 31}, {7, 17, 64},
                               {1, 9, 33}, {3, 70, 130}, {11, 33, 3}, {6, 40, 0}, {0, 4, 5}};

template <class Real>
Rows<const Real> rows_of(Tensor x, int64_t first = 0) {
  return {x.data<Real>() + first * x.dim(1), x.dim(1)};
}
template <class Real>
Rows<Real> mutable_rows_of(Tensor x, int64_t first = 0) {
  return {x.data<Real>() + first * x.dim(1), x.dim(1)};
}

template <class Real>
void check(const cpu::RowProducts<Real>& products, double tolerance) {
  for (const auto& [m, n, depth] : kExtents) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, depth));
    // Rows lie further apart than they are long.
    TensorPool pool(DTypeOf<Real>::value);
    const Tensor a = pool.normal({m, depth + 3}), b = pool.normal({n, depth + 1}), v = pool.normal({depth, n + 2});
    const Tensor dots = pool.full({m, n + 5}, 0.5), sums = pool.full({m, n + 2}, 0.5);
    const Tensor dots_by_row = pool.full({m, n + 5}, 0.5), sums_by_row = pool.full({m, n + 2}, 0.5);
    const auto two = static_cast<Real>(2);
    products.dot(m, n, depth, two, rows_of<Real>(a), rows_of<Real>(b), mutable_rows_of<Real>(dots), false);
    products.dot(m, n, depth, two, rows_of<Real>(a), rows_of<Real>(b), mutable_rows_of<Real>(dots), true);
    products.combine(m, n, depth, rows_of<Real>(a), rows_of<Real>(v), mutable_rows_of<Real>(sums));
    for (int64_t i = 0; i < m; ++i) {
      const Rows<const Real> row = rows_of<Real>(a, i);
      products.dot(1, n, depth, two, row, rows_of<Real>(b), mutable_rows_of<Real>(dots_by_row, i), false);
      products.dot(1, n, depth, two, row, rows_of<Real>(b), mutable_rows_of<Real>(dots_by_row, i), true);
      products.combine(1, n, depth, row, rows_of<Real>(v), mutable_rows_of<Real>(sums_by_row, i));
    }
    EXPECT_TRUE(same_bits(dots, dots_by_row));
    EXPECT_TRUE(same_bits(sums, sums_by_row));
    std::vector<double> expected_dots, expected_sums;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n + 5; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < depth && j < n; ++k) sum += get(a, i * (depth + 3) + k) * get(b, j * (depth + 1) + k);
        expected_dots.push_back(j < n ? 4 * sum : 0.5);
      }
      for (int64_t j = 0; j < n + 2; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < depth && j < n; ++k) sum += get(a, i * (depth + 3) + k) * get(v, k * (n + 2) + j);
        expected_sums.push_back(j < n ? sum : 0.5);
      }
    }
    EXPECT_TRUE(near(dots, expected_dots, tolerance));
    EXPECT_TRUE(near(sums, expected_sums, tolerance));
  }
}

TEST(RowProducts, AreTheProductsAndEachRowIsItsOwn) {
  check<float>(cpu::avx2_row_products<float>(), kFloatRowTolerance);
  check<double>(cpu::avx2_row_products<double>(), kDoubleRowTolerance);
}

TEST(RowProducts, OfAvx512Too) {
  if (!cpu::has_avx512()) GTEST_SKIP() << "this processor has none";
  check<float>(cpu::avx512_row_products<float>(), kFloatRowTolerance);
  check<double>(cpu::avx512_row_products<double>(), kDoubleRowTolerance);
}

// Products of few rows and of many have one order, on every instruction set.
void expect_bits_of_gemm(const cpu::RowProducts<float>& products) {
  for (const auto& [m, n, depth] : {Extent{1, 40, 31}, {3, 70, 256}, {5, 33, 257}, {4, 9, 700}, {2, 129, 64}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, depth));
    TensorPool pool(DType::kF32);
    const Tensor a = pool.normal({m, depth}), b = pool.normal({n, depth}), before = pool.normal({m, n});
    std::vector<float> scratch(cpu::kGemmScratchElements);
    for (const bool accumulate : {false, true}) {
      const Tensor expected = pool.clone(before), got = pool.clone(before);
      cpu::gemm<float>(scratch.data(), m, n, depth, 0.3F, {a.data<float>(), depth},
                       {b.data<float>(), depth, cpu::Transpose::kYes}, accumulate ? 1 : 0, expected.data<float>(), n);
      products.dot(m, n, depth, 0.3F, rows_of<float>(a), rows_of<float>(b), mutable_rows_of<float>(got), accumulate);
      EXPECT_TRUE(same_bits(got, expected)) << accumulate;
    }
  }
}

TEST(RowProducts, HaveTheBitsOfGemm) {
  expect_bits_of_gemm(cpu::avx2_row_products<float>());
  if (cpu::has_avx512()) expect_bits_of_gemm(cpu::avx512_row_products<float>());
}

ReadyDevice invariant_device(DType real, int num_threads) {
  return {{.num_threads = num_threads, .compute_dtype = real}, 4 << 20, Arithmetic::kBatchInvariant};
}

TEST(BatchInvariantLinear, IsTheSameLayerWithBitsOfEachRowAlone) {
  const Extent extents[] = {{1, 300, 70}, {9, 515, 130}, {200, 130, 33}, {0, 3, 4}};
  for (const auto& [tokens, out, in] : extents) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, in, out));
    TensorPool pool(DType::kF32);
    const Tensor x = pool.normal({tokens, in}), w = pool.normal({out, in}), before = pool.normal({tokens, out});
    const Tensor expected = pool.clone(before), rows = pool.clone(before);
    cpu_device(DType::kF32)->linear_forward({x, w, expected, expected});
    const auto one_thread = invariant_device(DType::kF32, 1);
    for (int64_t t = 0; t < tokens; ++t)
      one_thread->linear_forward({x.rows(t, t + 1), w, rows.rows(t, t + 1), rows.rows(t, t + 1)});
    EXPECT_TRUE(same_bits(rows, expected));
    for (const int threads : {1, 2, 3}) {
      const Tensor y = pool.clone(before);
      invariant_device(DType::kF32, threads)->linear_forward({x, w, y, y});
      EXPECT_TRUE(same_bits(y, rows)) << threads;
    }
  }
}

TEST(BatchInvariantLinear, GroupsToo) {
  const std::vector<double> cases[] = {{0, 0, 3, 3, 7, 8, 8}, {0, 1, 301, 301, 900}, {0, 0, 0}, {0, 0, 0, 40, 40}};
  for (const std::vector<double>& bounds : cases) {
    const auto num_experts = static_cast<int64_t>(bounds.size()) - 1, num_rows = static_cast<int64_t>(bounds.back());
    SCOPED_TRACE(fmt::format("{} rows, {} experts", num_rows, num_experts));
    constexpr int64_t kIn = 70, kOut = 130;
    TensorPool pool(DType::kF32);
    const Tensor offsets = pool.ints({num_experts + 1}, bounds);
    const Tensor x = pool.normal({num_rows, kIn}), w = pool.normal({num_experts, kOut, kIn});
    const Tensor expected = pool.full({num_rows, kOut}, NAN);
    const auto linear = invariant_device(DType::kF32, 1);
    for (int64_t e = 0; e < num_experts; ++e) {
      const auto begin = static_cast<int64_t>(get(offsets, e)), end = static_cast<int64_t>(get(offsets, e + 1));
      linear->linear_forward({x.rows(begin, end), w[e], expected.rows(begin, end)});
    }
    for (const int threads : {1, 2, 3}) {
      const Tensor y = pool.full({num_rows, kOut}, NAN);
      invariant_device(DType::kF32, threads)->grouped_linear_forward({x, w, offsets, y});
      EXPECT_TRUE(same_bits(y, expected)) << threads;
    }
  }
  TensorPool pool(DType::kF32);
  const auto ops = invariant_device(DType::kF32, 1);
  const Tensor x = pool.normal({4, 2}), w = pool.normal({1, 3, 2}), y = pool.zeros({4, 3});
  EXPECT_THROW(ops->grouped_linear_forward({x, w, pool.ints({2}, {0, 5}), y}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
