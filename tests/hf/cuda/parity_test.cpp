// Whole models on the GPU beside what transformers computes: logits, loss and gradients.
#include "hf/parity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hf/fixtures.h"

namespace nmoe {
namespace {

ParityReport on_gpu(const fs::path& fixture, Precision precision) {
  return compare_with_reference(
      {.model = fixture, .expected = fixture / "expected.safetensors", .device = "cuda", .precision = precision});
}

// The bounds of the CPU's (tests/hf/parity_test.cpp).
TEST(CudaParity, HoldsForEveryModel) {
  const auto fixtures = test::hf_fixtures();
  if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
  for (const fs::path& fixture : fixtures) {
    const ParityReport report = on_gpu(fixture, Precision::kDevice);
    EXPECT_LE(report.loss_error(), 1e-6 * report.expected_loss) << fixture;
    EXPECT_LE(report.logits.difference, 5e-6 * report.largest_logit) << fixture;
    ASSERT_FALSE(report.gradients.empty());
    EXPECT_LE(report.gradients.front().relative, 5e-6) << fixture << " " << report.gradients.front().tensor;
  }
}

// How far transformers itself is off when it computes in bf16 is in bf16.json (scripts/hf_fixture.py --bf16). Twice
// that is allowed: of logits and gradients of each model, and of losses, which are a number each, of all models
// together.
TEST(CudaParity, InBf16IsWithinTwiceWhatTransformersIs) {
  double losses = 0.0, allowed_losses = 0.0;
  int num_seen = 0;
  for (const fs::path& fixture : test::hf_fixtures()) {
    if (!fs::exists(fixture / "bf16.json")) continue;
    const auto own = nlohmann::json::parse(read_file(fixture / "bf16.json"));
    const ParityReport report = on_gpu(fixture, Precision::kBf16);
    const double logits = own["logits"], gradients = own["gradients"], loss = own["loss"];
    EXPECT_LE(report.relative.logits, 2.0 * logits) << fixture;
    EXPECT_LE(report.all_gradients, 2.0 * gradients) << fixture;
    losses += report.loss_error() * report.loss_error();
    allowed_losses += 4.0 * loss * loss;
    ++num_seen;
    GTEST_LOG_(INFO) << fixture.filename() << ": loss " << report.loss_error() << " (transformers " << loss
                     << "), logits " << report.relative.logits << " (" << logits << "), gradients "
                     << report.all_gradients << " (" << gradients << ")";
  }
  if (num_seen == 0) GTEST_SKIP() << "no bf16.json in tests/fixtures/hf: scripts/hf_fixture.py --bf16 writes them";
  EXPECT_LE(std::sqrt(losses), std::sqrt(allowed_losses));
}

}  // namespace
}  // namespace nmoe
