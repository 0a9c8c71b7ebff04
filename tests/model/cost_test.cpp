#include "model/spec/cost.h"

#include <gtest/gtest.h>

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

// A scan sees the positions of its chunk, and every token makes and reads a state.
TEST(Cost, ScansCountTheirChunks) {
  ModelConfig config = base_model();
  config.layers = "mamba2, dense";
  config.moe.num_experts = 0;
  config.mamba2 = {.num_heads = 2, .head_dim = 3, .state_dim = 2, .num_groups = 1, .conv_width = 4, .chunk = 4};
  const ModelCost cost = model_cost(config);
  const int64_t mamba2 = (6 + 6 + 2 + 2 + 2) * 6 + 6 * 6, dense = 10 * 6 + 6 * 5;  // in and out
  EXPECT_EQ(cost.active_matrix_parameters, 11 * 6 + mamba2 + dense);
  const int64_t taps = 10 * 4;  // which are no matrix: nothing is summed over channels
  EXPECT_EQ(cost.parameters, cost.active_matrix_parameters + 11 * 6 + taps + 10 + 3 * 2 + 6 + 3 * 6);
  // Of 10 tokens two chunks of 10 pairs and one of 3.
  const double scan = (8 * 2 + 6 * 6) * 23.0 + 14 * 6 * 2 * 10.0;
  EXPECT_DOUBLE_EQ(cost.document_flops(10), 60.0 * static_cast<double>(cost.active_matrix_parameters) + scan);
}

// What a delta rule's tokens cost does not depend on what is before them.
TEST(Cost, DeltaRulesCountTheirTokens) {
  ModelConfig config = base_model();
  config.layers = "gated_deltanet, dense";
  config.moe.num_experts = 0;
  config.gated_deltanet = {.num_key_heads = 1, .num_value_heads = 2, .key_head_dim = 3, .value_head_dim = 4};
  const ModelCost cost = model_cost(config);
  const int64_t net = (8 + 3 + 3 + 8 + 2 + 2) * 6 + 6 * 8, dense = 10 * 6 + 6 * 5;  // in and out
  EXPECT_EQ(cost.active_matrix_parameters, 11 * 6 + net + dense);
  EXPECT_EQ(cost.parameters, cost.active_matrix_parameters + 11 * 6 + 14 * 4 + 2 * 2 + 4 + 3 * 6);
  const double per_token = 6.0 * static_cast<double>(cost.active_matrix_parameters) + 24.0 * 8 * 3;
  EXPECT_DOUBLE_EQ(cost.document_flops(10), 10.0 * per_token);
}

}  // namespace
}  // namespace nmoe::test
