// Plan, dispatch and combine on CUDA against the CPU's, bit by bit: sums over K rows have one order. Needs a GPU.

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct PlanCase {
  int64_t num_tokens, top_k, num_experts;
  int64_t only_expert = -1;  // where all go
  int64_t width = 64;
};

class CudaMoe : public CudaTest, public ::testing::WithParamInterface<PlanCase> {
 protected:
  CudaMoe() {
    const auto [num_tokens, top_k, num_experts, only_expert, width] = GetParam();
    top_idx_ = pool_.random_ints({num_tokens, top_k}, num_experts);  // a token may repeat an expert: placement is free
    if (only_expert >= 0) {
      for (int32_t& expert : top_idx_.span<int32_t>()) expert = static_cast<int32_t>(only_expert);
    }
    plan_.offsets = pool_.zeros(DType::kI32, {num_experts + 1});
    plan_.row_of = pool_.zeros(DType::kI32, {num_tokens, top_k});
    num_copies_ = num_tokens * top_k;
    plan_.token_of = pool_.zeros(DType::kI32, {num_copies_});
    counts_ = pool_.zeros(DType::kI32, {num_experts});
    cpu().build_moe_plan({top_idx_, plan_, counts_});
    device_plan_.offsets = up(plan_.offsets);
    device_plan_.row_of = up(plan_.row_of);
  }

  Tensor top_idx_, counts_;
  MoePlan plan_, device_plan_;
  int64_t num_copies_ = 0;
};

class CudaMoeSums : public CudaTest {};

INSTANTIATE_TEST_SUITE_P(Cases, CudaMoe,
                         ::testing::Values(PlanCase{13, 3, 7}, PlanCase{1, 5, 5, -1, 11},
                                           PlanCase{9, 2, 300},              // nearly all experts empty
                                           PlanCase{5003, 4, 64, -1, 13},    // many chunks, the last one odd
                                           PlanCase{40'000, 6, 33, -1, 8},   // chunks of more than the least size
                                           PlanCase{20'011, 7, 256, -1, 1},  // segments of chunks that end anywhere
                                           PlanCase{700, 8, 4096},           // experts beyond a block of the scan
                                           PlanCase{2500, 1, 4, 3, 1}, PlanCase{2500, 1, 4, 0, 7},
                                           PlanCase{33, 2, 1, -1, 1024}, PlanCase{0, 2, 3}));

TEST_P(CudaMoe, PlanMatchesTheCpu) {
  const Tensor expert_zeros = pool_.zeros(DType::kI32, counts_.shape());
  MoePlan made;
  made.offsets = up(pool_.zeros(DType::kI32, plan_.offsets.shape()));
  made.row_of = up(pool_.zeros(DType::kI32, plan_.row_of.shape()));
  made.token_of = up(pool_.zeros(DType::kI32, plan_.token_of.shape()));
  const Tensor counts = up(expert_zeros), top_idx = up(top_idx_);
  gpu().build_moe_plan({top_idx, made, {}});
  gpu().build_moe_plan({top_idx, made, counts});
  gpu().build_moe_plan({top_idx, made, counts});
  EXPECT_TRUE(same_bits(down(made.offsets), plan_.offsets));
  EXPECT_TRUE(same_bits(down(made.row_of), plan_.row_of));
  EXPECT_TRUE(same_bits(down(made.token_of), plan_.token_of));
  for (int32_t& count : counts_.span<int32_t>()) count *= 2;
  EXPECT_TRUE(same_bits(down(counts), counts_));
}

TEST_P(CudaMoe, DispatchMatchesTheCpu) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    const Tensor x = rounded(pool_.normal({GetParam().num_tokens, GetParam().width}), act);
    const Tensor expected = pool_.zeros({num_copies_, GetParam().width});
    const Tensor rows = up(expected, act);
    gpu().moe_dispatch({up(x, act), device_plan_, rows});
    cpu().moe_dispatch({x, plan_, expected});
    EXPECT_TRUE(same_bits(down(rows), expected)) << dtype_name(act);
  }
}

// To rows beyond which there is more room.
TEST_P(CudaMoe, DispatchOfCodesMatchesTheCpu) {
  const int64_t tokens = GetParam().num_tokens, width = GetParam().width, across = (width + 127) / 128;
  const RowCodes codes{.values = pool_.zeros(DType::kU8, {tokens, width}),
                       .scales = pool_.zeros(DType::kU8, {tokens, across})};
  cpu().quantize({.format = OperandFormat::kFp8,
                  .x = pool_.normal({1, tokens, width}),
                  .values = codes.values.reshape({1, tokens, width}),
                  .scales = codes.scales.reshape({1, tokens, across})});
  const RowCodes device_codes{.values = up(codes.values), .scales = up(codes.scales)};
  for (const DType act : kActDTypes) {
    const Tensor expected = pool_.full({num_copies_ + 3, width}, 9.0), rows = up(expected, act);
    const RowCodes of_rows{.values = pool_.zeros(DType::kU8, {num_copies_ + 3, width}),
                           .scales = pool_.zeros(DType::kU8, {num_copies_ + 3, across})};
    const RowCodes device_of_rows{.values = up(of_rows.values), .scales = up(of_rows.scales)};
    gpu().moe_dispatch({.x = {}, .plan = device_plan_, .rows = rows, .codes = device_codes});
    cpu().moe_dispatch({.x = {}, .plan = plan_, .rows = expected, .codes = codes, .row_codes = of_rows});
    EXPECT_TRUE(same_bits(down(rows), expected)) << dtype_name(act);
    gpu().fill({rows, 9.0});
    gpu().moe_dispatch(
        {.x = {}, .plan = device_plan_, .rows = rows, .codes = device_codes, .row_codes = device_of_rows});
    EXPECT_TRUE(same_bits(down(rows), expected)) << dtype_name(act);
    EXPECT_TRUE(same_bits(down(device_of_rows.values), of_rows.values)) << dtype_name(act);
    EXPECT_TRUE(same_bits(down(device_of_rows.scales), of_rows.scales)) << dtype_name(act);
  }
}

TEST_P(CudaMoe, CombineMatchesTheCpu) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    for (const bool accumulate : {false, true}) {
      const Tensor rows = rounded(pool_.normal({num_copies_, GetParam().width}), act);
      const Tensor expected = rounded(pool_.normal({GetParam().num_tokens, GetParam().width}), act);
      const Tensor y = up(expected, act);
      gpu().moe_combine({up(rows, act), device_plan_, y, accumulate});
      cpu().moe_combine({rows, plan_, expected, accumulate});
      EXPECT_TRUE(same_bits(down(y), rounded(expected, act))) << dtype_name(act) << ", accumulate " << accumulate;
    }
  }
}

// Of a token's bf16 rows the sum is taken in fp32 and rounded once: added in bf16, ones would leave 256 as it is.
TEST_F(CudaMoeSums, RowsAreAddedInFp32) {
  constexpr int64_t kRows = 8;
  MoePlan plan;
  plan.offsets = up(pool_.ints({kRows + 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8}));
  plan.row_of = up(pool_.ints({1, kRows}, {0, 1, 2, 3, 4, 5, 6, 7}));
  const Tensor rows = up(pool_.of({kRows, 8}, std::vector<double>(kRows * 8, 1.0)), DType::kBF16);
  gpu().fill({rows.rows(0, 1), 256.0});
  const Tensor y = up(pool_.zeros({1, 8}), DType::kBF16);
  gpu().moe_combine({rows, plan, y, /*accumulate=*/false});
  EXPECT_EQ(values(down(y)), std::vector<double>(8, 264.0));  // 263, to the nearest bf16
}

TEST_P(CudaMoe, WeightsMatchTheCpu) {
  const Tensor weights = pool_.normal(plan_.row_of.shape()), expected = pool_.zeros({num_copies_});
  const Tensor row_weight = up(expected), back = up(pool_.zeros(weights.shape()));
  gpu().moe_dispatch_weights({up(weights), device_plan_, row_weight});
  gpu().moe_combine_weights({row_weight, device_plan_, back});
  cpu().moe_dispatch_weights({weights, plan_, expected});
  EXPECT_TRUE(same_bits(down(row_weight), expected));
  EXPECT_TRUE(same_bits(down(back), weights));
}

// Rows beyond the copies are room for more: nothing touches them.
TEST_P(CudaMoe, CapacityBeyondTheCopiesIsLeftAlone) {
  const int64_t capacity = num_copies_ + 37, width = GetParam().width;
  for (const DType act : kActDTypes) {
    const Tensor x = normal({GetParam().num_tokens, width}, act), expected = pool_.zeros({num_copies_, width});
    const Tensor rows = up(pool_.full({capacity, width}, 9.0), act), device_x = up(x, act);
    gpu().moe_dispatch({device_x, device_plan_, rows});
    cpu().moe_dispatch({x, plan_, expected});
    EXPECT_TRUE(same_bits(down(rows.rows(0, num_copies_)), expected)) << dtype_name(act);
    EXPECT_TRUE(
        near(down(rows.rows(num_copies_, capacity)), std::vector<double>(static_cast<size_t>(37 * width), 9), 0));
    // Garbage there does not reach a token.
    gpu().fill({rows.rows(num_copies_, capacity), NAN});
    const Tensor sums = pool_.zeros(x.shape()), y = up(sums, act);
    gpu().moe_combine({rows, device_plan_, y});
    cpu().moe_combine({expected, plan_, sums});
    EXPECT_TRUE(same_bits(down(y), rounded(sums, act))) << dtype_name(act);
  }
  const Tensor weights = pool_.normal(plan_.row_of.shape()), back = up(pool_.zeros(weights.shape()));
  const Tensor row_weight = up(pool_.full({capacity}, 9.0));
  gpu().moe_dispatch_weights({up(weights), device_plan_, row_weight});
  gpu().moe_combine_weights({row_weight, device_plan_, back});
  EXPECT_TRUE(same_bits(down(back), weights));
  EXPECT_TRUE(near(down(row_weight.rows(num_copies_, capacity)), std::vector<double>(37, 9), 0));
}

// A part at a time, down to one behind the last row.
TEST_P(CudaMoe, PartsMatchTheCpu) {
  const int64_t width = GetParam().width, capacity = num_copies_ / 3 + 1, chunk = num_copies_ / 4 + 1;
  constexpr int64_t kParts = 5;
  const Tensor parts = pool_.zeros(DType::kI32, {kParts, plan_.offsets.dim(0)}), device_parts = up(parts);
  cpu().divide_moe_rows({.offsets = plan_.offsets, .capacity = capacity, .chunk = chunk, .parts = parts});
  gpu().divide_moe_rows({.offsets = device_plan_.offsets, .capacity = capacity, .chunk = chunk, .parts = device_parts});
  EXPECT_TRUE(same_bits(down(device_parts), parts));
  const Tensor weights = pool_.normal(plan_.row_of.shape()), device_weights = up(weights);
  for (int64_t i = 0; i < kParts; ++i) {
    const int64_t first = i == 0 ? 0 : capacity + (i - 1) * chunk, most = i == 0 ? capacity : chunk;
    const MoePlan plan{.offsets = parts[i], .row_of = plan_.row_of, .first_row = first};
    const MoePlan device_plan{.offsets = device_parts[i], .row_of = device_plan_.row_of, .first_row = first};
    for (const DType act : kActDTypes) {
      const Tensor x = normal({GetParam().num_tokens, width}, act), expected = pool_.full({most, width}, 9.0);
      const Tensor rows = up(expected, act);
      gpu().moe_dispatch({up(x, act), device_plan, rows});
      cpu().moe_dispatch({x, plan, expected});
      EXPECT_TRUE(same_bits(down(rows), expected)) << "part " << i << ", " << dtype_name(act);
    }
    const Tensor expected = pool_.full({most}, 9.0), row_weight = up(expected);
    gpu().moe_dispatch_weights({device_weights, device_plan, row_weight});
    cpu().moe_dispatch_weights({weights, plan, expected});
    EXPECT_TRUE(same_bits(down(row_weight), expected)) << "part " << i;
  }
}

TEST_P(CudaMoe, CountingRunClaimsTheScratchOfARealOne) {
  const BuildMoePlan no_data{
      without_data(top_idx_), {without_data(plan_.offsets), without_data(plan_.row_of)}, without_data(counts_)};
  const int64_t counted = counted_scratch([&](Ops& ops) { ops.build_moe_plan(no_data); });
  gpu().build_moe_plan({up(top_idx_), device_plan_, up(counts_)});
  EXPECT_EQ(counted, gpu().scratch().high_water());
}

}  // namespace
}  // namespace nmoe::test
