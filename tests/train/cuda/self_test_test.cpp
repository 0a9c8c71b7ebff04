// The self test of a GPU reaches what only GPUs have. Needs a GPU.
#include "train/proof/self_test.h"

#include <gtest/gtest.h>

namespace nmoe {
namespace {

TEST(CudaSelfTest, ReachesTheSamplerOfTokens) {
  const auto counts = run_self_test({.kind = "cuda", .compute_dtype = DType::kBF16}, [](const std::string&) {});
  EXPECT_GT(counts.at("sample_tokens"), 0);
  EXPECT_GT(counts.at("penalise_logits"), 0);
  EXPECT_GT(counts.at("grouped_linear_forward"), 0);
}

}  // namespace
}  // namespace nmoe
