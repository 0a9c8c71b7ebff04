// Parity with transformers as a user asks for it.
#include "cli/cli_test.h"
#include "hf/fixtures.h"

namespace nmoe {
namespace {

class ParityCommandTest : public CliTest {
 protected:
  void SetUp() override {
    const auto fixtures = test::hf_fixtures();
    if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
    model_ = fixtures.front().string();
    expected_ = (fixtures.front() / "expected.safetensors").string();
  }
  std::string model_, expected_;
};

TEST_F(ParityCommandTest, WithinTolerance) {
  const std::string report = output({"parity", model_, expected_, "--threads", "1"});
  EXPECT_TRUE(contains(report, "loss "));
  EXPECT_TRUE(contains(report, "logits "));
  EXPECT_TRUE(contains(report, "layers.0.attention.out"));
  EXPECT_TRUE(contains(report, "within tolerance"));
}

// Figures that differ by rounding are beyond a tolerance of nothing.
TEST_F(ParityCommandTest, BeyondTolerance) {
  expect_error(n({"parity", model_, expected_, "--gradient-tolerance", "0"}), 1, "gradients", "float32");
  expect_error(n({"parity", model_, expected_, "--logit-tolerance", "0"}), 1, "beyond tolerance are logits", "float32");
}

// Low precisions are told, beside what they are expected to cost, and fail where a tolerance was asked for.
TEST_F(ParityCommandTest, LowPrecisionsAreWhatIsExpectedOfThem) {
  for (const char* precision : {"fp8", "mxfp8", "nvfp4"}) {
    const std::string report = output({"parity", model_, expected_, "--precision", precision});
    EXPECT_TRUE(contains(report, std::string(precision) + " costs ")) << report;
    EXPECT_TRUE(contains(report, "choices of experts are others than in fp32")) << report;
    EXPECT_TRUE(contains(report, ": as expected")) << report;
    EXPECT_FALSE(contains(report, "tolerance")) << report;
  }
  expect_error(n({"parity", model_, expected_, "--precision", "fp8", "--logit-tolerance", "1e-4"}), 1,
               "beyond tolerance are logits", "");
  expect_error(n({"parity", model_, expected_, "--precision", "fp7"}), 2, "--precision", "");
}

TEST_F(ParityCommandTest, WrongArguments) {
  expect_error(n({"parity", model_, "missing.safetensors"}), 1, "missing.safetensors", "");
  expect_error(n({"parity", "nowhere", expected_}), 1, "nowhere", "");
  expect_error(n({"parity", model_, expected_, "--loss-tolerance", "-1"}), 2, "--loss-tolerance", "");
  expect_error(n({"parity", model_}), 2, "expected", "");
  expect_error(n({"parity", model_, expected_, "--device", "tpu"}), 2, "--device", "");
}

}  // namespace
}  // namespace nmoe
