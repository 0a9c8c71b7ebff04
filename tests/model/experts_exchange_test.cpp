// What layers of experts exchange, by hand.
#include "model/experts_exchange.h"

#include <gtest/gtest.h>

#include "model/small_models.h"

namespace nmoe::test {
namespace {

// By hand: 4 ranks, 8 experts, 2 of them a token; rows of 6 values.
TEST(ExpertsExchange, BytesBetweenRanks) {
  Config config;
  config.model = base_model();
  config.model.moe.num_experts = 8;
  config.model.moe.top_k = 2;
  const ExchangeCost cost = exchange_cost(config, DType::kBF16, 4, /*layer=*/0);
  EXPECT_DOUBLE_EQ(cost.rows_per_token(), 3 * (1 - 6.0 * 5 / (8.0 * 7)));
  EXPECT_DOUBLE_EQ(cost.copies_per_token(), 2 * 3 / 4.0);
  const int64_t row = 6 * 2, slots = 2 * 4, weights = 2 * 4;
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kDispatch, 10, 15), 10 * (row + slots + weights));
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kCombine, 10, 15), 10 * row);
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kCombineBackward, 10, 15), 10 * row);
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kDispatchBackward, 10, 15), 10 * (row + weights));
  EXPECT_DOUBLE_EQ(cost.bytes_per_token(), cost.rows_per_token() * (4 * row + slots + 2 * weights));
  EXPECT_DOUBLE_EQ(exchange_cost(config, DType::kBF16, 1, /*layer=*/0).bytes_per_token(), 0);

  config.train.recompute = Recompute::kBlocks;  // forward is done twice
  EXPECT_DOUBLE_EQ(exchange_cost(config, DType::kBF16, 4, /*layer=*/0).bytes_per_token(),
                   cost.rows_per_token() * (6 * row + 2 * slots + 3 * weights));
  config.train.recompute = Recompute::kNone;
  config.parallel.logical_shards = 8;  // every copy comes back
  const ExchangeCost apart = exchange_cost(config, DType::kBF16, 4, /*layer=*/0);
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kDispatch, 10, 15), 10 * (row + slots + weights + 4));
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kCombine, 10, 15), 15 * row);
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kDispatchBackward, 10, 15), 15 * (row + 4));
}

// What goes to experts as codes takes a byte a value and one for each 128: at most 0.52 of bf16. What comes back is as
// it was.
TEST(ExpertsExchange, CodesTakeHalfTheWay) {
  for (const int64_t dim : {64, 200, 1024, 2048, 7168}) {
    Config config;
    config.model = base_model();
    config.model.dim = dim;
    config.model.moe.num_experts = 8;
    config.model.moe.top_k = 2;
    const ExchangeCost plain = exchange_cost(config, DType::kBF16, 4, /*layer=*/0);
    config.precision.wire = RowFormat::kFp8;
    const ExchangeCost coded = exchange_cost(config, DType::kBF16, 4, /*layer=*/0);
    const double row = coded.bytes(Transfer::kCombineBackward, 1, 1);
    EXPECT_EQ(row, static_cast<double>(dim + (dim + 127) / 128));
    EXPECT_LE(row, 0.52 * plain.bytes(Transfer::kCombineBackward, 1, 1)) << dim;
    EXPECT_EQ(plain.bytes(Transfer::kDispatch, 1, 1) - coded.bytes(Transfer::kDispatch, 1, 1),
              static_cast<double>(2 * dim) - row);
    for (const Transfer back : {Transfer::kCombine, Transfer::kDispatchBackward}) {
      EXPECT_EQ(coded.bytes(back, 10, 15), plain.bytes(back, 10, 15));
    }
  }
}

// What transfers of `super` and `moonlet` are known to be.
TEST(ExpertsExchange, RowsBetweenFourRanks) {
  Config config;
  config.model.moe.num_experts = 256;
  config.model.moe.top_k = 7;
  EXPECT_NEAR(exchange_cost(config, DType::kBF16, 4, /*layer=*/0).rows_per_token(), 2.61, 0.005);
  config.model.moe.num_experts = 64;
  config.model.moe.top_k = 6;
  EXPECT_NEAR(exchange_cost(config, DType::kBF16, 4, /*layer=*/0).rows_per_token(), 2.51, 0.005);
}

}  // namespace
}  // namespace nmoe::test
