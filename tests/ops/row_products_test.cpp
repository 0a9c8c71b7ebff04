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
    products.combine(m, n, depth, rows_of<Real>(a), rows_of<Real>(v), mutable_rows_of<Real>(sums), false);
    const Tensor in_parts = pool.full({m, n + 2}, 0.5);  // the terms in two calls
    const int64_t first = depth / 3;
    products.combine(m, n, first, rows_of<Real>(a), rows_of<Real>(v), mutable_rows_of<Real>(in_parts), false);
    products.combine(m, n, depth - first, {a.data<Real>() + first, a.dim(1)}, rows_of<Real>(v, first),
                     mutable_rows_of<Real>(in_parts), true);
    EXPECT_TRUE(same_bits(in_parts, sums));
    for (int64_t i = 0; i < m; ++i) {
      const Rows<const Real> row = rows_of<Real>(a, i);
      products.dot(1, n, depth, two, row, rows_of<Real>(b), mutable_rows_of<Real>(dots_by_row, i), false);
      products.dot(1, n, depth, two, row, rows_of<Real>(b), mutable_rows_of<Real>(dots_by_row, i), true);
      products.combine(1, n, depth, row, rows_of<Real>(v), mutable_rows_of<Real>(sums_by_row, i), false);
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

// Scratch that is planned for the most rows does for fewer, which go another way: up to 8 of an expert.
TEST(BatchInvariantLinear, ScratchOfManyRowsDoesForFewer) {
  constexpr int64_t kExperts = 128, kIn = 1024, kOut = 3, kMostRows = kExperts * 9, kTokens = 10;
  TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({kTokens, kIn}), w = pool.normal({kExperts, kOut, kIn});
  const auto forward = [&](Device& device, int64_t num_rows, bool counts) {
    std::vector<double> index(static_cast<size_t>(num_rows)), bounds = {0};
    for (int64_t row = 0; row < num_rows; ++row) index[static_cast<size_t>(row)] = static_cast<double>(row % kTokens);
    for (int64_t e = 1; e <= kExperts; ++e) bounds.push_back(static_cast<double>(num_rows * e / kExperts));
    const auto seen = [&](const Tensor& tensor) { return counts ? without_data(tensor) : tensor; };
    const Tensor y = pool.zeros({num_rows, kOut});
    device.ops(Arithmetic::kBatchInvariant)
        .grouped_activation_forward({.kind = Activation::kReluSquared,
                                     .x = {seen(x), seen(pool.ints({num_rows}, index))},
                                     .w = seen(w),
                                     .offsets = seen(pool.ints({kExperts + 1}, bounds)),
                                     .row_weight = {},
                                     .pre = seen(y),
                                     .h = seen(pool.zeros({num_rows, kOut}))});
    return y;
  };
  const auto counting = make_device({.num_threads = 1}), device = make_device({.num_threads = 1});
  forward(*counting, kMostRows, /*counts=*/true);
  device->scratch(Lane::kCompute).reserve(device->memory(), counting->scratch(Lane::kCompute).high_water());
  for (const int64_t num_rows : {kMostRows, kExperts * 8, kExperts * 5, int64_t{40}}) {
    SCOPED_TRACE(num_rows);
    const Tensor y = forward(*device, num_rows, /*counts=*/false);
    for (const int64_t row : {int64_t{0}, num_rows - 1}) {
      int64_t expert = 0;
      while (num_rows * (expert + 1) / kExperts <= row) ++expert;
      double expected = 0;
      for (int64_t k = 0; k < kIn; ++k) expected += get(x, row % kTokens * kIn + k) * get(w, expert * kOut * kIn + k);
      EXPECT_NEAR(get(y, row * kOut), expected, 1e-3);
    }
  }
}

}  // namespace
}  // namespace nmoe::test
