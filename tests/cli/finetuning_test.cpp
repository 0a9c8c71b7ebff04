// examples/finetuning/run.sh: what docs/finetuning.md promises.
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "cli/cli_test.h"
#include "infer/engine.h"

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
  // Three turns, each of which the model reads with those before it.
  const Outcome turns =
      n({"chat", "runs/checkpoints/talks", "--temperature", "0"}, "Hello!\nDo I need a GPU?\nThank you\n");
  EXPECT_EQ(turns.out, "Hello! What would you like to know about nmoe?\nNo, it trains on CPUs too.\nYou are welcome.\n")
      << turns.err;

  EXPECT_TRUE(contains(output({"export", "runs/checkpoints/talks", "out"}), "read back and equal"));
  const auto json = [&](const char* file) { return nlohmann::json::parse(read_file(dir_ / "out" / file)); };
  EXPECT_EQ(json("tokenizer_config.json")["chat_template"], read_file(dir_ / "out/chat_template.jinja"));
  // What another program does with the folder: its own ChatML, until one of the ids that generation_config.json names.
  output({"import", "out", "again"});
  InferenceEngine engine(dir_ / "again", {.num_threads = 1, .max_sequences = 1});
  GenerationRequest request{.max_tokens = 60, .ignore_eos = true};
  engine.tokenizer().encode("<|im_start|>user\nWhat is nmoe?<|im_end|>\n<|im_start|>assistant\n",
                            TokenFinder(engine.tokenizer().special_tokens()), request.prompt);
  request.sampling.temperature = 0;
  request.stop_ids = json("generation_config.json")["eos_token_id"].get<std::vector<int32_t>>();
  std::string said;
  GenerationListener listener;
  listener.on_text = [&](std::string_view piece) { said += piece; };
  FinishReason reason = FinishReason::kCancelled;
  listener.on_finish = [&](const GenerationResult& result) { reason = result.reason; };
  engine.submit(std::move(request), std::move(listener));
  while (engine.step()) {
  }
  EXPECT_EQ(said, "A program that trains Mixture-of-Experts language models.");
  EXPECT_EQ(reason, FinishReason::kStop);
}

}  // namespace
}  // namespace nmoe
