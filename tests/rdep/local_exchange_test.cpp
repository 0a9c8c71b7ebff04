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

class LocalExchange : public testing::Test {
 protected:
  static constexpr int64_t kTopK = 3, kExperts = 8;

  LocalExchange() { activations_.reserve(device_.device().memory(), 1 << 20); }
  void route(int64_t num_tokens) {
    top_idx_ = pool_.random_ints({num_tokens, kTopK}, kExperts);
    weights_ = pool_.normal({num_tokens, kTopK});
  }

  TensorPool pool_{DType::kF32};
  const ReadyDevice device_ = cpu_device(DType::kF32);
  Arena activations_{"activations"};
  const ExchangePass pass_{.ops = *device_, .activations = activations_};
  Tensor top_idx_, weights_;  // [T, K]
};

TEST_F(LocalExchange, ExpertsReadTheirTokensWhereTheyLie) {
  constexpr int64_t kTokens = 50, kWidth = 5, kRows = kTokens * kTopK;
  route(kTokens);
  const Tensor x = pool_.normal({kTokens, kWidth}), dy = pool_.normal(x.shape());

  const auto exchange = make_local_exchange(kExperts)->plan(pass_, top_idx_, {});
  ASSERT_EQ(exchange->routed().capacity, kRows);
  const Tensor row_weight = pool_.full({kRows}, NAN), room = pool_.full({kRows, kWidth}, NAN);
  const int64_t mark = activations_.mark();
  exchange->begin_dispatch(pass_, x, weights_);
  const OperandRows read = exchange->end_dispatch(pass_, row_weight).values;
  EXPECT_EQ(activations_.mark(), mark) << "memory for copies";
  exchange->begin_combine_backward(pass_, dy, x, weights_);
  const OperandRows gradients = exchange->end_combine_backward(pass_, room).values;

  // Expert by expert, the tokens that chose it in their order.
  std::vector<double> rows, drows, row_weights;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    for (int64_t copy = 0; copy < kRows; ++copy) {
      if (get(top_idx_, copy) != static_cast<double>(expert)) continue;
      for (const double value : values(x[copy / kTopK])) rows.push_back(value);
      for (const double value : values(dy[copy / kTopK])) drows.push_back(value);
      row_weights.push_back(get(weights_, copy));
    }
  }
  EXPECT_EQ(rows_read(read), rows);
  EXPECT_EQ(rows_read(gradients), drows);
  expect_rows_of_tokens(read);
  expect_rows_of_tokens(gradients);
  EXPECT_EQ(values(row_weight), row_weights);
}

// What has codes is what they stand for.
TEST_F(LocalExchange, RowsOfCodesAreWhatTheseStandFor) {
  constexpr int64_t kTokens = 9, kWidth = 200, kRows = kTokens * kTopK;
  route(kTokens);
  const auto coded = [&](Tensor rows) {
    const RowCodes codes = push_row_codes(activations_, kTokens, kWidth);
    device_->quantize({.format = OperandFormat::kFp8,
                       .x = rows.reshape({1, kTokens, kWidth}),
                       .values = codes.values.reshape({1, kTokens, kWidth}),
                       .scales = codes.scales.reshape({1, kTokens, 2})});
    return Rows(OperandRows(rows), codes);
  };
  const auto widened = [&](const Rows& rows) {
    const Tensor x = pool_.full({kTokens, kWidth}, NAN);
    device_->widen_rows({.codes = rows.quantised, .x = x});
    return x;
  };
  const Rows x = coded(pool_.normal({kTokens, kWidth})), dy = coded(pool_.normal({kTokens, kWidth}));
  EXPECT_NE(values(widened(x)), values(x.tensor()));
  const auto rows_of = [&](RowFormat dispatch_format, const Rows& sent, const Rows& gradients) {
    const auto exchange = make_local_exchange(kExperts, dispatch_format)->plan(pass_, top_idx_, {});
    exchange->begin_dispatch(pass_, sent, weights_);
    std::vector<double> all = rows_read(exchange->end_dispatch(pass_, pool_.full({kRows}, NAN)).values);
    exchange->begin_combine_backward(pass_, gradients, Tensor(), {});
    for (const double value :
         rows_read(exchange->end_combine_backward(pass_, pool_.full({kRows, kWidth}, NAN)).values)) {
      all.push_back(value);
    }
    return all;
  };
  const std::vector<double> expected = rows_of(RowFormat::kDevice, widened(x), widened(dy));
  EXPECT_EQ(rows_of(RowFormat::kFp8, x, dy), expected);
  EXPECT_EQ(rows_of(RowFormat::kFp8, x.tensor(), dy.tensor()), expected) << "quantised on the way";
}

}  // namespace
}  // namespace nmoe::test
