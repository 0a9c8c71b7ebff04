// All experts on one rank: whether tokens are read where they lie or copied first, experts get the same rows.
#include <gtest/gtest.h>

#include <set>

#include "rdep/exchange.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// The rows that experts read, one after the other.
std::vector<double> rows_read(const OperandRows& rows) {
  std::vector<double> all;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const auto source = rows.index.defined() ? static_cast<int64_t>(get(rows.index, row)) : row;
    for (const double value : values(rows.source[source])) all.push_back(value);
  }
  return all;
}

// Every row is of the one token that names it.
void expect_rows_of_tokens(const OperandRows& rows) {
  std::set<int64_t> named;
  const int64_t top_k = rows.row_of.dim(1);
  for (int64_t copy = 0; copy < rows.row_of.num_elements(); ++copy) {
    const auto row = static_cast<int64_t>(get(rows.row_of, copy));
    EXPECT_TRUE(named.insert(row).second) << "row " << row;
    EXPECT_EQ(get(rows.index, row), static_cast<double>(copy / top_k)) << "row " << row;
  }
  EXPECT_EQ(static_cast<int64_t>(named.size()), rows.num_rows());
}

TEST(LocalExchange, ExpertsReadTheirTokensWhereTheyLie) {
  constexpr int64_t kTokens = 50, kTopK = 3, kExperts = 8, kWidth = 5, kRows = kTokens * kTopK;
  TensorPool pool(DType::kF32);
  const ReadyDevice device = cpu_device(DType::kF32);
  Arena activations("activations");
  activations.reserve(device.device().memory(), 1 << 20);
  const ExchangePass pass{.ops = *device, .activations = activations};
  const Tensor top_idx = pool.random_ints({kTokens, kTopK}, kExperts), x = pool.normal({kTokens, kWidth});
  const Tensor dy = pool.normal(x.shape()), weights = pool.normal({kTokens, kTopK});

  const auto exchange = make_local_exchange(kExperts)->plan(pass, top_idx, {});
  ASSERT_EQ(exchange->routed().capacity, kRows);
  const Tensor row_weight = pool.full({kRows}, NAN), room = pool.full({kRows, kWidth}, NAN);
  const int64_t mark = activations.mark();
  exchange->begin_dispatch(pass, x, weights);
  const OperandRows read = exchange->end_dispatch(pass, row_weight).rows;
  EXPECT_EQ(activations.mark(), mark) << "memory for copies";
  exchange->begin_combine_backward(pass, dy, x, weights);
  const OperandRows gradients = exchange->end_combine_backward(pass, room).rows;

  // Expert by expert, the tokens that chose it in their order.
  std::vector<double> rows, drows, row_weights;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    for (int64_t copy = 0; copy < kRows; ++copy) {
      if (get(top_idx, copy) != static_cast<double>(expert)) continue;
      for (const double value : values(x[copy / kTopK])) rows.push_back(value);
      for (const double value : values(dy[copy / kTopK])) drows.push_back(value);
      row_weights.push_back(get(weights, copy));
    }
  }
  EXPECT_EQ(rows_read(read), rows);
  EXPECT_EQ(rows_read(gradients), drows);
  expect_rows_of_tokens(read);
  expect_rows_of_tokens(gradients);
  EXPECT_EQ(values(row_weight), row_weights);
}

// What has codes is what they stand for.
TEST(LocalExchange, RowsOfCodesAreWhatTheseStandFor) {
  constexpr int64_t kTokens = 9, kTopK = 3, kExperts = 8, kWidth = 200, kRows = kTokens * kTopK;
  TensorPool pool(DType::kF32);
  const ReadyDevice device = cpu_device(DType::kF32);
  Arena activations("activations");
  activations.reserve(device.device().memory(), 1 << 20);
  const ExchangePass pass{.ops = *device, .activations = activations};
  const Tensor top_idx = pool.random_ints({kTokens, kTopK}, kExperts), weights = pool.normal({kTokens, kTopK});
  const auto coded = [&](Tensor rows) {
    const RowCodes codes = push_row_codes(activations, kTokens, kWidth);
    device->quantize({.format = OperandFormat::kFp8,
                      .x = rows.reshape({1, kTokens, kWidth}),
                      .values = codes.values.reshape({1, kTokens, kWidth}),
                      .scales = codes.scales.reshape({1, kTokens, 2})});
    return CodedRows(rows, codes);
  };
  const auto widened = [&](const CodedRows& rows) {
    const Tensor x = pool.full({kTokens, kWidth}, NAN);
    device->widen_rows({.codes = rows.codes, .x = x});
    return x;
  };
  const CodedRows x = coded(pool.normal({kTokens, kWidth})), dy = coded(pool.normal({kTokens, kWidth}));
  EXPECT_NE(values(widened(x)), values(x.rows));
  const auto rows_of = [&](const CodedRows& sent, const CodedRows& gradients) {
    const auto exchange = make_local_exchange(kExperts)->plan(pass, top_idx, {});
    exchange->begin_dispatch(pass, sent, weights);
    std::vector<double> all = rows_read(exchange->end_dispatch(pass, pool.full({kRows}, NAN)).rows);
    exchange->begin_combine_backward(pass, gradients, Tensor(), {});
    for (const double value : rows_read(exchange->end_combine_backward(pass, pool.full({kRows, kWidth}, NAN)).rows)) {
      all.push_back(value);
    }
    return all;
  };
  EXPECT_EQ(rows_of(x, dy), rows_of(widened(x), widened(dy)));
}

}  // namespace
}  // namespace nmoe::test
