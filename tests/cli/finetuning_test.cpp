// examples/finetuning/run.sh: what docs/finetuning.md promises.
#include <stdlib.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"
#include "data/tokenizer/tokenizer.h"
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

// ---- what a reply sees of its question --------------------------------------------------------

// As published: ChatML's mark ends a turn, and is the first eos_token_id of config.json, too.
constexpr const char* kQwen3 = R"(
[run]
name = "base"
[model]
dim = 64
num_layers = 2
num_heads = 4
attention = "gqa"
[model.gqa]
num_kv_heads = 2
head_dim = 16
qk_norm = true
[model.moe]
num_experts = 8
top_k = 2
expert_dim = 32
num_shared_experts = 0
score = "softmax"
bias_rate = 0
[data]
path = "base-data"
seq_len = 256
[optim]
lr = 5e-3
router = { lr = 1e-4 }
[train]
steps = 20
batch_seqs = 1
)";

// One step, whose loss is that of the weights it begins with.
constexpr const char* kFrozen = R"(
[model.init]
from = "imported"
[optim]
lr = 0
[train]
steps = 1
batch_seqs = 1
)";

class QuestionsTest : public CliTest {
 protected:
  QuestionsTest() {
    write("base.toml", kQwen3);
    write("frozen.toml", kFrozen);
    const std::string text = std::string(NMOE_SOURCE_DIR) + "/docs/data.md";
    output({"tokenizer", "train", text, "--vocab-size", "400", "-o", "tokenizer.json"});
    output({"prep", text, "--tokenizer", "tokenizer.json", "--out", "base-data"});
    output({"train", "base.toml"});
    output({"export", "runs/checkpoints/base", "hf"});
    tokenizer_ = load_tokenizer((dir_ / "tokenizer.json").string());
    const int32_t end_of_turn = tokenizer_->special_tokens()[2].id, end_of_document = tokenizer_->eos_id();
    change("config.json", {{"eos_token_id", end_of_turn}});
    change("generation_config.json", {{"eos_token_id", {end_of_turn, end_of_document}}});
    change("tokenizer.json", {{"post_processor", nullptr}});
    change("tokenizer_config.json",
           {{"eos_token", "<|im_end|>"},
            {"add_bos_token", false},
            {"chat_template",
             "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}});
    output({"import", "hf", "imported"});
  }

  void change(const char* file, const nlohmann::json& members) const {
    nlohmann::json json = nlohmann::json::parse(read_file(dir_ / "hf" / file));
    json.update(members);
    write(fs::path("hf") / file, json.dump());
  }

  using Turn = std::pair<std::string, std::string>;  // question, answer

  // The loss of the answers, in one window that all turns fill, each a document of its own.
  double loss(const std::vector<Turn>& turns, bool mask_documents) {
    const std::string name = "data-" + std::to_string(++number_);
    std::string lines;
    int64_t tokens = 0;
    for (const auto& [question, answer] : turns) {
      const nlohmann::json messages = {{{"role", "user"}, {"content", question}},
                                       {{"role", "assistant"}, {"content", answer}}};
      lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
    }
    write(name + ".jsonl", lines);
    output({"prep", name + ".jsonl", "--messages-field", "messages", "--tokenizer", "hf", "--chat-template", "hf",
            "--out", name});
    tokens = std::stoll(nlohmann::json::parse(read_file(dir_ / name / "report.json"))["train"]["tokens"].dump());
    const Outcome run = n({"train", "frozen.toml", "--set", "run.name=" + name, "--set", "data.path=" + name, "--set",
                           "data.seq_len=" + std::to_string(tokens - 1), "--set",
                           std::string("data.mask_documents=") + (mask_documents ? "true" : "false")});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const std::string said = run.out + run.err, label = "train step 1/1  loss ";
    const size_t place = said.find(label);
    EXPECT_NE(place, std::string::npos) << said;
    return place == std::string::npos ? 0.0 : std::stod(said.substr(place + label.size()));
  }

  // What is learned of an answer: its ids, the end of its turn, and that of the document.
  int64_t learned(const std::string& answer) const {
    std::vector<int32_t> ids;
    tokenizer_->encode(answer, ids);
    return std::ssize(ids) + 2;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  int number_ = 0;
};

// Where documents are masked, an answer sees its own question, all of it, and no other one.
TEST_F(QuestionsTest, AnAnswerSeesItsOwnQuestionAlone) {
  const std::vector<Turn> turns = {{"What is it?", "A program that trains models."},
                                   {"Do I need a cluster of machines?", "No, it runs on two cores."},
                                   {"How do I begin?", "Write a file and call it."}};
  std::vector<Turn> exchanged = turns;  // the same answers to other questions
  for (size_t i = 0; i < turns.size(); ++i) exchanged[i].first = turns[(i + 1) % turns.size()].first;

  constexpr double kPrinted = 1e-4;  // four decimals
  for (const std::vector<Turn>& some : {turns, exchanged}) {
    double nats = 0.0, targets = 0.0;
    for (const Turn& turn : some) {
      const auto count = static_cast<double>(learned(turn.second));
      nats += count * loss({turn}, /*mask_documents=*/true);
      targets += count;
    }
    EXPECT_NEAR(loss(some, /*mask_documents=*/true), nats / targets, kPrinted);
    EXPECT_GT(std::abs(loss(some, /*mask_documents=*/false) - nats / targets), 2 * kPrinted);
  }
  EXPECT_GT(std::abs(loss(turns, /*mask_documents=*/true) - loss(exchanged, /*mask_documents=*/true)), 2 * kPrinted);
}

}  // namespace
}  // namespace nmoe
