// Whole models on the GPU beside what transformers computes: logits, loss and gradients, in fp32.
#include "hf/parity.h"

#include <gtest/gtest.h>

#include "hf/fixtures.h"

namespace nmoe {
namespace {

TEST(CudaParity, HoldsForEveryModel) {
  const auto fixtures = test::hf_fixtures();
  if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
  for (const fs::path& fixture : fixtures) {
    const ParityReport report =
        compare_with_reference({.model = fixture, .expected = fixture / "expected.safetensors", .device = "cuda"});
    EXPECT_LE(report.loss_error(), 1e-5) << fixture;
    EXPECT_LE(report.logits.difference, 1e-4) << fixture;
    ASSERT_FALSE(report.gradients.empty());
    EXPECT_LE(report.gradients.front().relative, 1e-4) << fixture << " " << report.gradients.front().tensor;
  }
}

}  // namespace
}  // namespace nmoe
