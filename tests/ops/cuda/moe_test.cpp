// Plan, dispatch and combine on CUDA against the CPU's, bit by bit: sums over K rows have one order. Needs a GPU.
#include "ops/cuda/kernels/moe.h"

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
    plan_.token_of_row = pool_.zeros(DType::kI32, {num_tokens * top_k});
    counts_ = pool_.zeros(DType::kI32, {num_experts});
    cpu_->moe_plan(top_idx_, plan_, counts_);
    device_plan_.offsets = up(plan_.offsets);
    device_plan_.row_of = up(plan_.row_of);
    device_plan_.token_of_row = up(plan_.token_of_row);
  }

  std::unique_ptr<Backend> cpu_ = cpu_backend(DType::kF32);
  Tensor top_idx_, counts_;
  MoePlan plan_, device_plan_;
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaMoe,
                         ::testing::Values(PlanCase{13, 3, 7}, PlanCase{1, 5, 5, -1, 11},
                                           PlanCase{9, 2, 300},             // nearly all experts empty
                                           PlanCase{5003, 4, 64, -1, 13},   // many chunks, the last one odd
                                           PlanCase{40'000, 6, 33, -1, 8},  // chunks of more than the least size
                                           PlanCase{700, 8, 4096},          // experts beyond a block of the scan
                                           PlanCase{2500, 1, 4, 3, 1}, PlanCase{2500, 1, 4, 0, 7},
                                           PlanCase{33, 2, 1, -1, 1024}, PlanCase{0, 2, 3}));

TEST_P(CudaMoe, PlanMatchesTheCpu) {
  const Tensor expert_zeros = pool_.zeros(DType::kI32, counts_.shape());
  MoePlan made;
  made.offsets = up(pool_.zeros(DType::kI32, plan_.offsets.shape()));
  made.row_of = up(pool_.zeros(DType::kI32, plan_.row_of.shape()));
  made.token_of_row = up(pool_.zeros(DType::kI32, plan_.token_of_row.shape()));
  const Tensor counts = up(expert_zeros), top_idx = up(top_idx_);
  cuda::Context ctx = context();
  cuda::moe_plan(ctx, top_idx, made, {});
  cuda::moe_plan(ctx, top_idx, made, counts);
  cuda::moe_plan(ctx, top_idx, made, counts);
  EXPECT_TRUE(same_bits(down(made.offsets), plan_.offsets));
  EXPECT_TRUE(same_bits(down(made.row_of), plan_.row_of));
  EXPECT_TRUE(same_bits(down(made.token_of_row), plan_.token_of_row));
  for (int32_t& count : counts_.span<int32_t>()) count *= 2;
  EXPECT_TRUE(same_bits(down(counts), counts_));
}

TEST_P(CudaMoe, DispatchMatchesTheCpu) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    const Tensor x = rounded(pool_.normal({GetParam().num_tokens, GetParam().width}), act);
    const Tensor expected = pool_.zeros({plan_.token_of_row.dim(0), GetParam().width});
    const Tensor rows = up(expected, act);
    cuda::Context ctx = context();
    cuda::moe_dispatch(ctx, up(x, act), device_plan_, rows);
    cpu_->moe_dispatch(x, plan_, expected);
    EXPECT_TRUE(same_bits(down(rows), expected)) << dtype_name(act);
  }
}

TEST_P(CudaMoe, CombineMatchesTheCpu) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    for (const bool accumulate : {false, true}) {
      const Tensor rows = rounded(pool_.normal({plan_.token_of_row.dim(0), GetParam().width}), act);
      const Tensor expected = rounded(pool_.normal({GetParam().num_tokens, GetParam().width}), act);
      const Tensor y = up(expected, act);
      cuda::Context ctx = context();
      cuda::moe_combine(ctx, up(rows, act), device_plan_, y, accumulate);
      cpu_->moe_combine(rows, plan_, expected, accumulate);
      EXPECT_TRUE(same_bits(down(y), rounded(expected, act))) << dtype_name(act) << ", accumulate " << accumulate;
    }
  }
}

TEST_P(CudaMoe, WeightsMatchTheCpu) {
  const Tensor weights = pool_.normal(plan_.row_of.shape()), expected = pool_.zeros(plan_.token_of_row.shape());
  const Tensor row_weight = up(expected), back = up(pool_.zeros(weights.shape()));
  cuda::Context ctx = context();
  cuda::moe_dispatch_weights(ctx, up(weights), device_plan_, row_weight);
  cuda::moe_combine_weights(ctx, row_weight, device_plan_, back);
  cpu_->moe_dispatch_weights(weights, plan_, expected);
  EXPECT_TRUE(same_bits(down(row_weight), expected));
  EXPECT_TRUE(same_bits(down(back), weights));
}

TEST_P(CudaMoe, CountingRunClaimsTheScratchOfARealOne) {
  Arena counting("counting");
  cuda::Context plan = context(counting), ctx = context();
  cuda::moe_plan(plan, without_data(top_idx_),
                 {without_data(plan_.offsets), without_data(plan_.row_of), without_data(plan_.token_of_row)},
                 without_data(counts_));
  cuda::moe_plan(ctx, up(top_idx_), device_plan_, up(counts_));
  EXPECT_EQ(counting.high_water(), ctx.scratch.high_water());
}

}  // namespace
}  // namespace nmoe::test
