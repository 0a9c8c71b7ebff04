// Parity of generation and training as a user asks for it.
#include "cli/cli_test.h"

namespace nmoe {
namespace {

class GenerationParityCommandTest : public CliTest {
 protected:
  GenerationParityCommandTest() {
    prepare();
    output(train({"train.steps=5"}));
  }
  static std::vector<std::string> parity(const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "parity", "--generation", "runs/checkpoints/tiny", "--tokens", "30", "--batches", "1,5", "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(GenerationParityCommandTest, SaysThatGenerationIsTraining) {
  const std::string report = output(parity({"--arithmetic", "training"}));
  EXPECT_TRUE(
      contains(report, "batches of 5    30 tokens: largest difference of log-probability 0, in 0 of them; 0 of "));
  EXPECT_TRUE(contains(report, "generation is training, bit for bit"));
}

TEST_F(GenerationParityCommandTest, SaysWhereTheyDiffer) {
  const Outcome result = n(parity({}));
  expect_error(result, 1, "does not generate with the probabilities", "--arithmetic training");
  EXPECT_TRUE(contains(result.out, "the first value that differs: layers.0.attention.heads of sequence "));
}

TEST_F(GenerationParityCommandTest, WrongArguments) {
  expect_error(n(parity({"--arithmetic", "other"})), 2, "--arithmetic", "");
  expect_error(n(parity({"--prompt-file", "nowhere"})), 1, "nowhere", "");
  expect_error(n({"parity", "--generation", "nowhere"}), 1, "nowhere", "");
  expect_error(n({"parity", "--tokens", "5"}), 2, "--generation", "");
  expect_error(n(parity({"model"})), 2, "--generation", "");
}

}  // namespace
}  // namespace nmoe
