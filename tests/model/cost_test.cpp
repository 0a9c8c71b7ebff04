#include "model/cost.h"

#include <gtest/gtest.h>

#include "model/exchange_cost.h"
#include "model/small_models.h"

namespace nmoe::test {
namespace {

// Counted by hand for base_model(): D 6, V 11, 2 layers, H 2, Rkv 4, nope 3, rope 2, value 5, dense 5, 5 experts
// of 3, top 2, 1 shared.
TEST(Cost, MatchesAHandCount) {
  const int64_t attention = 2 * 5 * 6 + 4 * 6 + 2 * 6 + 2 * 8 * 4 + 6 * 10;  // q, kv_down, k_rope, kv_up, out
  const int64_t dense = 10 * 6 + 6 * 5;
  const int64_t expert = 6 * 6 + 6 * 3, router = 5 * 6;
  const int64_t norms = 2 * (6 + 6 + 4) + 6;
  const ModelCost cost = model_cost(base_model());
  EXPECT_EQ(cost.parameters, 2 * 11 * 6 + 2 * attention + dense + router + 6 * expert + norms);
  EXPECT_EQ(cost.active_parameters, cost.parameters - 3 * expert);
  const int64_t matrices = 11 * 6 + 2 * attention + dense + router + 3 * expert;
  // A causal query of 4 positions sees 2.5 on average; 2 heads of 5 + 5, 2 layers.
  const double attention_flops = 6.0 * 2 * 10 * 2.5 * 2;
  EXPECT_DOUBLE_EQ(cost.flops_per_token(4), 6.0 * static_cast<double>(matrices) + attention_flops);
  EXPECT_DOUBLE_EQ(cost.document_flops(4), 4 * cost.flops_per_token(4));
  EXPECT_DOUBLE_EQ(cost.document_flops(1), 6.0 * static_cast<double>(matrices) + 6.0 * 2 * 10 * 2);
}

TEST(Cost, WindowsAndTiedHeadsCount) {
  ModelConfig config = base_model();
  const double untied_full = model_cost(config).document_flops(8);
  config.tied_head = true;  // the head's product remains
  EXPECT_DOUBLE_EQ(model_cost(config).document_flops(8), untied_full);
  EXPECT_EQ(model_cost(config).parameters, model_cost(base_model()).parameters - 11 * 6);
  config.window = 2;
  config.attn_global_every = 100;  // layer 0 is local: sees 1 + 7 * 2 of 8 positions' 36
  EXPECT_DOUBLE_EQ(model_cost(config).document_flops(8), untied_full - 6.0 * 2 * 10 * (36.0 - 15.0));
}

// By hand: 4 ranks, 8 experts, 2 of them a token; rows of 6 values.
TEST(Cost, BytesBetweenRanks) {
  Config config;
  config.model = base_model();
  config.model.moe.num_experts = 8;
  config.model.moe.top_k = 2;
  const ExchangeCost cost(config, DType::kBF16, 4);
  EXPECT_DOUBLE_EQ(cost.rows_per_token(), 3 * (1 - 6.0 * 5 / (8.0 * 7)));
  EXPECT_DOUBLE_EQ(cost.copies_per_token(), 2 * 3 / 4.0);
  const int64_t row = 6 * 2, slots = 2 * 4, weights = 2 * 4;
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kDispatch, 10, 15), 10 * (row + slots + weights));
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kCombine, 10, 15), 10 * row);
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kCombineBackward, 10, 15), 10 * row);
  EXPECT_DOUBLE_EQ(cost.bytes(Transfer::kDispatchBackward, 10, 15), 10 * (row + weights));
  EXPECT_DOUBLE_EQ(cost.bytes_per_token(), cost.rows_per_token() * (4 * row + slots + 2 * weights));
  EXPECT_DOUBLE_EQ(ExchangeCost(config, DType::kBF16, 1).bytes_per_token(), 0);

  config.train.recompute = Recompute::kBlocks;  // forward is done twice
  EXPECT_DOUBLE_EQ(ExchangeCost(config, DType::kBF16, 4).bytes_per_token(),
                   cost.rows_per_token() * (6 * row + 2 * slots + 3 * weights));
  config.train.recompute = Recompute::kNone;
  config.parallel.logical_shards = 8;  // every copy comes back
  const ExchangeCost apart(config, DType::kBF16, 4);
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kDispatch, 10, 15), 10 * (row + slots + weights + 4));
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kCombine, 10, 15), 15 * row);
  EXPECT_DOUBLE_EQ(apart.bytes(Transfer::kDispatchBackward, 10, 15), 15 * (row + 4));
}

// What goes to experts as codes takes a byte a value and one for each 128: at most 0.52 of bf16. What comes back is as
// it was.
TEST(Cost, CodesTakeHalfTheWay) {
  for (const int64_t dim : {64, 200, 1024, 2048, 7168}) {
    Config config;
    config.model = base_model();
    config.model.dim = dim;
    config.model.moe.num_experts = 8;
    config.model.moe.top_k = 2;
    const ExchangeCost plain(config, DType::kBF16, 4);
    config.precision.wire = RowFormat::kFp8;
    const ExchangeCost coded(config, DType::kBF16, 4);
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
TEST(Cost, RowsBetweenFourRanks) {
  Config config;
  config.model.moe.num_experts = 256;
  config.model.moe.top_k = 7;
  EXPECT_NEAR(ExchangeCost(config, DType::kBF16, 4).rows_per_token(), 2.61, 0.005);
  config.model.moe.num_experts = 64;
  config.model.moe.top_k = 6;
  EXPECT_NEAR(ExchangeCost(config, DType::kBF16, 4).rows_per_token(), 2.51, 0.005);
}

}  // namespace
}  // namespace nmoe::test
