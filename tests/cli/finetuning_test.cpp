// examples/finetuning/run.sh: what docs/finetuning.md promises.
#include <stdlib.h>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

TEST_F(CliTest, FromAModelOfHuggingFaceToOneThatTalks) {
  ::setenv("N", NMOE_PROGRAM, 1);
  const std::string example = std::string(NMOE_SOURCE_DIR) + "/examples/finetuning/";
  const Outcome outcome = test::Program(dir_, {"bash", example + "run.sh", dir_.string()}).wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // Conversations that it has learned, in the form that it was trained with though nobody named one.
  const std::string told = outcome.out.substr(outcome.out.find("== A conversation"));
  EXPECT_EQ(told.substr(told.find('\n') + 1),
            "A program that trains Mixture-of-Experts language models.\nA trainer.\n");
  // What the document shows of the configuration is the configuration.
  const std::string document = read_file(std::string(NMOE_SOURCE_DIR) + "/docs/finetuning.md"),
                    toml = read_file(example + "finetune.toml");
  EXPECT_TRUE(contains(document, toml.substr(toml.find("[run]"))));
  // It goes on in the usual ways: another conversation, and back to Hugging Face.
  const Outcome brief =
      n({"chat", "runs/checkpoints/talks", "--temperature", "0", "--system", "Be brief."}, "Do I need a GPU?\n");
  EXPECT_EQ(brief.out, "No.\n") << brief.err;
  EXPECT_TRUE(contains(output({"export", "runs/checkpoints/talks", "out"}), "read back and equal"));
}

}  // namespace
}  // namespace nmoe
