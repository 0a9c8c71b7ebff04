// Of each target, a step's forward pass and one that no backward follows make the same loss, bit for bit: so what
// compares generation with forward passes (eval/generation_parity.h) compares it with steps. Built for each device,
// NMOE_TEST_DEVICE.
#include <gtest/gtest.h>

#include "train/tiny_engine.h"

namespace nmoe::test {
namespace {

constexpr std::string_view kStepDevice = NMOE_TEST_DEVICE;

class StepLossesTest : public testing::TestWithParam<std::string> {};

TEST_P(StepLossesTest, AreThoseOfAForwardPass) {
  const Config config = config_on(kStepDevice, GetParam(), {"train.batch_seqs=8", "train.microbatch_seqs=4"});
  ReadyEngine ready(config);
  const int64_t tokens = config.train.batch_seqs * config.data.seq_len;
  const auto inputs = random_ids(tokens, config.model.vocab_size, 1);
  const auto targets = random_ids(tokens, config.model.vocab_size, 2);
  std::vector<float> expected(static_cast<size_t>(tokens));
  const size_t size = expected.size() / 2;
  for (const size_t first : {size_t{0}, size}) {
    const auto of_inputs = std::span(inputs).subspan(first, size), of_targets = std::span(targets).subspan(first, size);
    ready.engine.evaluate(of_inputs, of_targets, std::span(expected).subspan(first, size));
    ready.engine.load(static_cast<int64_t>(first / size), microbatch_of(of_inputs, of_targets, {}));
  }
  ready.engine.step({.steps = 1, .tokens = tokens}, tokens, /*in_detail=*/true);
  const std::vector<float> losses = ready.engine.result().token_losses;
  ASSERT_EQ(losses.size(), expected.size());
  int64_t differing = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] == expected[i]) continue;
    if (differing++ == 0) ADD_FAILURE() << "target " << i << ": " << losses[i] << ", not " << expected[i];
  }
  EXPECT_EQ(differing, 0) << "of " << losses.size();
}

INSTANTIATE_TEST_SUITE_P(Precisions, StepLossesTest,
                         testing::ValuesIn(kStepDevice == "cpu" ? std::vector<std::string>{"fp32"}
                                                                : std::vector<std::string>{"fp32", "bf16"}),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nmoe::test
