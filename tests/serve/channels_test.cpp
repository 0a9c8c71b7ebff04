// A model whose chat template has channels, over HTTP and in the terminal: its thoughts are apart from what it says.
#include "serve/served_model.h"

namespace nmoe {
namespace {

constexpr const char* kForm =
    "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";
constexpr const char* kConversation =
    R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","thinking":"hm the cat","content":"yo river"}]})";

// Taught one conversation by heart.
std::string channelled_model() {
  const fs::path& dir = trained_model();
  const auto run = [&](std::vector<std::string> arguments) {
    const test::Outcome outcome = test::run_n(dir, std::move(arguments));
    NMOE_CHECK(outcome.exit_code == 0, "{}", outcome.err);
  };
  std::string conversations, words;
  for (int i = 0; i < 60; ++i) {
    conversations += std::string(kConversation) + "\n";
    words += "hi hm the cat yo river analysis final user assistant ";
  }
  write_file_atomically(dir / "channels.jinja", kForm);
  write_file_atomically(dir / "talk.jsonl", conversations);
  write_file_atomically(dir / "talk_valid.jsonl", conversations.substr(0, conversations.size() / 20));
  write_file_atomically(dir / "words.txt", words);
  std::vector<std::string> learn = {"tokenizer", "train", "words.txt", "--vocab-size", "270", "--out", "channels.json"};
  for (const char* mark : {"start", "channel", "message", "end", "return", "call"}) {
    learn.insert(learn.end(), {"--special", fmt::format("<|{}|>", mark)});
  }
  run(learn);
  run({"prep", "talk.jsonl", "--valid", "talk_valid.jsonl", "--messages-field", "messages", "--chat-template",
       "channels.jinja", "--tokenizer", "channels.json", "--out", "talk", "--threads", "1"});
  run({"train", "tiny.toml", "--set", "run.name=channels", "--set", "data.path=talk", "--set", "data.seq_len=64",
       "--set", "data.mask_documents=true", "--set", "model.dim=32", "--set", "train.steps=100", "--set",
       "optim.schedule.decay=85"});
  return "runs/checkpoints/channels";
}

TEST(Channels, ThoughtsAreApart) {
  const std::string checkpoint = channelled_model();
  {
    const ServedModel served({"--model-name", "tiny"}, checkpoint);
    ordered_json request = {{"messages", ordered_json::array({{{"role", "user"}, {"content", "hi"}}})},
                            {"temperature", 0},
                            {"max_tokens", 60}};
    constexpr const char* kPath = "/v1/chat/completions";
    const ordered_json choice = served.ask(kPath, request)["choices"][0];
    EXPECT_EQ(choice["message"]["reasoning_content"], "hm the cat");
    EXPECT_EQ(choice["message"]["content"], "yo river");
    EXPECT_EQ(choice["finish_reason"], "stop");
    std::string thoughts, text;
    for (const ordered_json& event : served.stream(kPath, request)) {
      const ordered_json& delta = event["choices"][0]["delta"];
      thoughts += delta.value("reasoning_content", "");
      text += delta.value("content", "");
    }
    EXPECT_EQ(thoughts, "hm the cat");
    EXPECT_EQ(text, "yo river");

    // What a client sends back goes where the template takes it from.
    const auto prompt_tokens = [&] { return served.ask(kPath, request)["usage"]["prompt_tokens"].get<size_t>(); };
    request["max_tokens"] = 1;
    const size_t plain = prompt_tokens();
    request["reasoning_effort"] = "low";
    EXPECT_GT(prompt_tokens(), plain);
    request.erase("reasoning_effort");
    request["messages"].push_back({{"role", "assistant"}, {"content", "yo"}});
    const size_t silent = prompt_tokens();
    request["messages"][1]["reasoning_content"] = "hm";
    EXPECT_GT(prompt_tokens(), silent);
  }
  const test::Outcome talk = test::run_n(
      trained_model(), {"chat", checkpoint, "--temperature", "0", "--max-tokens", "60"}, "hi\n/save said.jsonl\n");
  EXPECT_TRUE(contains(talk.out, "[thinking] hm the cat\n[reply] yo river\n")) << talk.out;
  EXPECT_TRUE(contains(read_file(trained_model() / "said.jsonl"), R"("content":"yo river","thinking":"hm the cat")"));
}

}  // namespace
}  // namespace nmoe
