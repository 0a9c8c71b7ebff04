// Whole models on the GPU beside what transformers computes: logits, loss and gradients.
#include "hf/parity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "config/layers.h"
#include "hf/binding.h"
#include "hf/fixtures.h"
#include "support/errors.h"

namespace nmoe {
namespace {

// Whether its model has layers that GPUs do not compute yet.
bool is_for_cpus(const fs::path& fixture) {
  return count_parts(layer_specs(read_hf_model(fixture).config), PartKind::kKda) > 0;
}

ParityReport on_gpu(const fs::path& fixture, Precision precision) {
  return compare_with_reference(
      {.model = fixture, .expected = fixture / "expected.safetensors", .device = "cuda", .precision = precision});
}

// The bounds of the CPU's (tests/hf/parity_test.cpp).
TEST(CudaParity, HoldsForEveryModel) {
  const auto fixtures = test::hf_fixtures();
  if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
  for (const fs::path& fixture : fixtures) {
    if (is_for_cpus(fixture)) {
      const Error error = test::error_of([&] { on_gpu(fixture, Precision::kDevice); });
      EXPECT_TRUE(test::contains(error.what(), "not available on GPUs yet")) << error.what();
      continue;
    }
    const ParityReport report = on_gpu(fixture, Precision::kDevice);
    EXPECT_LE(report.loss_error(), 1e-6 * report.expected_loss) << fixture;
    EXPECT_LE(report.logits.difference, 5e-6 * report.largest_logit) << fixture;
    ASSERT_FALSE(report.gradients.empty());
    EXPECT_LE(report.gradients.front().relative, 5e-6) << fixture << " " << report.gradients.front().tensor;
  }
}

struct Bf16Distance {
  double loss = 0.0, logits = 0.0, gradients = 0.0;

  void add_squares(const Bf16Distance& other) {
    loss += other.loss * other.loss;
    logits += other.logits * other.logits;
    gradients += other.gradients * other.gradients;
  }
};

void expect_within_twice(const Bf16Distance& own, const Bf16Distance& theirs, const std::string& what) {
  EXPECT_LE(own.logits, 2.0 * theirs.logits) << what;
  EXPECT_LE(own.gradients, 2.0 * theirs.gradients) << what;
}

// How far transformers itself is off when it computes in bf16 is in bf16.json (scripts/hf_fixture.py --bf16). Twice
// that is allowed to each model without experts. Where a router chooses others than in fp32, by a hair, that costs more
// than all rounding does, on either side: models with experts are held to it together, by root mean squares. So are
// losses, which are a number each.
TEST(CudaParity, InBf16IsWithinTwiceWhatTransformersIs) {
  Bf16Distance all, all_theirs;
  int num_seen = 0;
  for (const fs::path& fixture : test::hf_fixtures()) {
    if (!fs::exists(fixture / "bf16.json")) continue;
    const auto json = nlohmann::json::parse(read_file(fixture / "bf16.json"));
    const Bf16Distance theirs = {.loss = json["loss"], .logits = json["logits"], .gradients = json["gradients"]};
    const ParityReport report = on_gpu(fixture, Precision::kBf16);
    const Bf16Distance own = {
        .loss = report.loss_error(), .logits = report.relative.logits, .gradients = report.all_gradients};
    GTEST_LOG_(INFO) << fixture.filename() << ": loss " << own.loss << " (transformers " << theirs.loss << "), logits "
                     << own.logits << " (" << theirs.logits << "), gradients " << own.gradients << " ("
                     << theirs.gradients << ")";
    if (read_hf_model(fixture).config.moe.num_experts == 0) expect_within_twice(own, theirs, fixture.string());
    all.add_squares(own);
    all_theirs.add_squares(theirs);
    ++num_seen;
  }
  if (num_seen == 0) GTEST_SKIP() << "no bf16.json in tests/fixtures/hf: scripts/hf_fixture.py --bf16 writes them";
  const auto root = [](const Bf16Distance& squares) {
    return Bf16Distance{std::sqrt(squares.loss), std::sqrt(squares.logits), std::sqrt(squares.gradients)};
  };
  expect_within_twice(root(all), root(all_theirs), "all models");
  EXPECT_LE(root(all).loss, 2.0 * root(all_theirs).loss);
}

}  // namespace
}  // namespace nmoe
