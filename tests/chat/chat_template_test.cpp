#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "chat/checkpoint_settings.h"
#include "data/tokenizer/bpe_train.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;
using test::contains;
using test::error_of;

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}{% if quiet %} hush{% endif %}{{ tools is none }}";

class ChatTemplateTest : public test::TempDirTest {
 protected:
  void write(const std::string& name, const std::string& text) const {
    make_directories(dir_ / "huggingface");
    write_file_atomically(dir_ / "huggingface" / name, text);
  }
  CheckpointSettings settings() const { return read_checkpoint_settings(dir_, *tokenizer_); }

  const std::shared_ptr<const Tokenizer> tokenizer_ = byte_tokenizer();
  const ordered_json messages_ = {{{"role", "user"}, {"content", "a<|endoftext|>b"}}};
};

std::string text_of(const std::vector<RenderedPiece>& pieces) {
  std::string text;
  for (const RenderedPiece& piece : pieces) text += piece.text;
  return text;
}

TEST_F(ChatTemplateTest, RendersAsTransformersDoes) {
  write("chat_template.jinja", kTemplate);
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": null, "chat_template": "other"})");
  const ChatTemplate chat(settings(), "", *tokenizer_);
  EXPECT_EQ(text_of(chat.render(messages_, true, {{"quiet", true}})),
            "<s><|endoftext|>user: a<|endoftext|>b\nassistant: hushTrue");
  EXPECT_EQ(text_of(chat.render(ordered_json::array(), false, ordered_json::object())), "<s>True");
}

TEST_F(ChatTemplateTest, AMessageCannotSmuggleSpecialTokens) {
  write("chat_template.jinja", kTemplate);
  const ChatTemplate chat(settings(), "", *tokenizer_);
  const auto ids = encode_rendered(chat.render(messages_, false, ordered_json::object()), *tokenizer_);
  EXPECT_EQ(std::ranges::count(ids, tokenizer_->eos_id()), 1);
  EXPECT_EQ(ids.front(), tokenizer_->eos_id());
  EXPECT_EQ(tokenizer_->decode(std::span(ids).subspan(1)), "user: a<|endoftext|>b\nTrue");
  // Half of one from the template and half from the message is none either.
  write("tokenizer_config.json", "{}");  // which names no eos_token
  write("chat_template.jinja", "<|endof{{ messages[0].content }}{{ eos_token }}");
  const ChatTemplate halves(settings(), "", *tokenizer_);
  const ordered_json half = {{{"role", "user"}, {"content", "text|>"}}};
  EXPECT_EQ(encode_rendered(halves.render(half, false, ordered_json::object()), *tokenizer_).size(), 13U);
}

TEST_F(ChatTemplateTest, WhereTheTemplateIs) {
  EXPECT_FALSE(settings().imported);
  EXPECT_EQ(settings().special_tokens.at("eos_token"), "<|endoftext|>");
  const Error none = error_of([&] { ChatTemplate(settings(), "", *tokenizer_); });
  EXPECT_TRUE(contains(none.what(), "has no chat template, and its tokenizer no special token <|im_start|>"));
  EXPECT_TRUE(contains(none.remedy(), "--chat-template FILE"));
  EXPECT_EQ(none.exit_code(), 2);

  write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_TRUE(settings().imported);
  EXPECT_EQ(settings().chat_template, "one");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(settings().chat_template, "two");
  write("chat_template.jinja", "three");
  EXPECT_EQ(settings().chat_template, "three");
  write_file_atomically(dir_ / "own.jinja", "{{ messages|length }}{% bad %}");
  EXPECT_TRUE(contains(error_of([&] { ChatTemplate(settings(), dir_ / "own.jinja", *tokenizer_); }).what(),
                       "own.jinja:1: the block {% bad"));
  EXPECT_TRUE(contains(error_of([&] { ChatTemplate(settings(), dir_ / "no.jinja", *tokenizer_); }).what(), "no.jinja"));
}

// A checkpoint that brings no template, with a tokenizer for conversations.
TEST_F(ChatTemplateTest, ChatMlWhereThereIsNone) {
  write_file_atomically(dir_ / "text.txt", "hi hi user user assistant");
  const auto tokenizer =
      train_bpe(
          {.inputs = {(dir_ / "text.txt").string()}, .vocab_size = 262, .specials = {"<|im_start|>", "<|im_end|>"}})
          .tokenizer;
  for (const char* choice : {"", "chatml"}) {
    const ChatTemplate chat(read_checkpoint_settings(dir_, *tokenizer), choice, *tokenizer);
    EXPECT_EQ(text_of(chat.render(messages_, true, ordered_json::object())),
              "<|im_start|>user\na<|endoftext|>b<|im_end|>\n<|im_start|>assistant\n");
    ASSERT_TRUE(chat.end_of_turn(*tokenizer).has_value());
    const auto& specials = tokenizer->special_tokens();
    EXPECT_EQ(std::ranges::find(specials, *chat.end_of_turn(*tokenizer), &NamedToken::id)->text, "<|im_end|>");
  }
  // The checkpoint's own comes first, unless ChatML is asked for.
  write("chat_template.jinja", "own");
  const CheckpointSettings own = read_checkpoint_settings(dir_, *tokenizer);
  EXPECT_EQ(ChatTemplate(own, "", *tokenizer).source(), "own");
  EXPECT_TRUE(contains(ChatTemplate(own, "chatml", *tokenizer).source(), "<|im_start|>"));
  const Error marks = error_of([&] { ChatTemplate(settings(), "chatml", *tokenizer_); });
  EXPECT_TRUE(contains(marks.what(), "ChatML needs <|im_start|>"));
  EXPECT_TRUE(contains(marks.remedy(), "n tokenizer train"));
}

TEST_F(ChatTemplateTest, WhatEndsATurn) {
  const auto end_of_turn = [&](const std::string& text) {
    write("chat_template.jinja", text);
    return ChatTemplate(settings(), "", *tokenizer_).end_of_turn(*tokenizer_);
  };
  EXPECT_EQ(end_of_turn("{% for m in messages %}{{ m.content | trim }}\n<|endoftext|>{% endfor %}"), 256);
  // Where none is behind the reply, the next turn's marker is.
  EXPECT_EQ(end_of_turn("{% for m in messages %}<|endoftext|>{{ m.content }}{% endfor %}"), 256);
  EXPECT_EQ(end_of_turn("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"), std::nullopt);
  EXPECT_EQ(end_of_turn("<|endoftext|>"), std::nullopt);  // no place where the reply is
  EXPECT_EQ(end_of_turn("{{ raise_exception('no') }}"), std::nullopt);
}

TEST_F(ChatTemplateTest, StopIdsAndDefaults) {
  EXPECT_EQ(settings().stop_ids, std::vector<int32_t>{256});
  write("config.json", R"({"eos_token_id": [9, 256]})");  // as transformers has it, where nothing else says it
  EXPECT_EQ(settings().stop_ids, (std::vector<int32_t>{9, 256}));
  write("generation_config.json", R"({"eos_token_id": [7, 3, 7], "temperature": 0.6, "top_k": 20, "top_p": null})");
  write("tokenizer_config.json",
        R"({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "add_bos_token": true})");
  const CheckpointSettings read = settings();
  EXPECT_EQ(read.stop_ids, (std::vector<int32_t>{3, 7, 256}));
  EXPECT_EQ(read.begin_ids, std::vector<int32_t>{256});
  EXPECT_EQ(read.sampling.temperature, 0.6);
  EXPECT_EQ(read.sampling.top_k, 20);
  EXPECT_FALSE(read.sampling.top_p.has_value());
  write("generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_EQ(settings().stop_ids, (std::vector<int32_t>{5, 256}));
}

// What tokenizer.json's post-processor puts in front, as tokenizers does it when nobody says whether to.
TEST_F(ChatTemplateTest, TokensThatBeginAText) {
  const auto piece = [](const char* kind, const char* id) {
    return ordered_json{{kind, {{"id", id}, {"type_id", 0}}}};
  };
  const auto process = [&](const ordered_json& post_processor) {
    write("tokenizer.json", ordered_json{{"post_processor", post_processor}}.dump());
    return settings().begin_ids;
  };
  const ordered_json bos_and_eos = {
      {"type", "TemplateProcessing"},
      {"single", {piece("SpecialToken", "<|endoftext|>"), piece("Sequence", "A"), piece("SpecialToken", "</s>")}}};
  const ordered_json bytes = {{"type", "ByteLevel"}};
  EXPECT_EQ(process(bos_and_eos), std::vector<int32_t>{256});  // and never what it puts behind
  EXPECT_EQ(process({{"type", "Sequence"}, {"processors", {bytes, bos_and_eos}}}), std::vector<int32_t>{256});
  EXPECT_EQ(process({{"type", "TemplateProcessing"},
                     {"single", {piece("Sequence", "A"), piece("SpecialToken", "<|endoftext|>")}}}),
            std::vector<int32_t>{});
  const ordered_json two = {
      {"type", "TemplateProcessing"},
      {"single",
       {piece("SpecialToken", "<|endoftext|>"), piece("SpecialToken", "<|endoftext|>"), piece("Sequence", "A")}}};
  EXPECT_EQ(process(two), (std::vector<int32_t>{256, 256}));
  EXPECT_EQ(process(nullptr), std::vector<int32_t>{});
  EXPECT_EQ(process(bytes), std::vector<int32_t>{});
  EXPECT_TRUE(contains(
      error_of([&] {
        process({{"type", "TemplateProcessing"}, {"single", {piece("SpecialToken", "<s>"), piece("Sequence", "A")}}});
      }).what(),
      "<s>, with which texts begin, is not a special token"));
  // An explicit word wins.
  process(two);
  write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": false})");
  EXPECT_EQ(settings().begin_ids, std::vector<int32_t>{});
  write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": true})");
  EXPECT_EQ(settings().begin_ids, std::vector<int32_t>{256});
  write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": null})");
  EXPECT_EQ(settings().begin_ids, (std::vector<int32_t>{256, 256}));
}

// A checkpoint that was trained on conversations has their template beside it, and is no import for that.
TEST_F(ChatTemplateTest, TheTemplateOfItsTraining) {
  write("chat_template.jinja", "{{ eos_token }}");
  EXPECT_FALSE(settings().imported);
  EXPECT_EQ(settings().chat_template, "{{ eos_token }}");
  EXPECT_EQ(settings().special_tokens.at("eos_token"), "<|endoftext|>");
}

// Markers are built around roles that templates know; any other role is what a message says.
TEST_F(ChatTemplateTest, MarkersBuiltAroundRoles) {
  write_file_atomically(dir_ / "text.txt", "hi hi user user assistant");
  const std::vector<std::string> roles = {"system", "developer", "user",        "assistant",
                                          "tool",   "function",  "observation", "ipython"};
  std::vector<std::string> markers = {"<|intruder|>"};
  for (const std::string& role : roles) markers.push_back("<|" + role + "|>");
  const auto tokenizer =
      train_bpe({.inputs = {(dir_ / "text.txt").string()}, .vocab_size = 268, .specials = markers}).tokenizer;
  write_file_atomically(dir_ / "roles.jinja",
                        "{% for m in messages %}{{ '<|' + m['role'] | trim + '|>' }}{{ m.content }}{% endfor %}");
  const ChatTemplate chat({}, dir_ / "roles.jinja", *tokenizer);
  const auto first_of = [&](const std::string& role, const std::string& content) {
    const ordered_json messages = {{{"role", role}, {"content", content}}};
    return encode_rendered(chat.render(messages, false, ordered_json::object()), *tokenizer);
  };
  for (const std::string& role : roles) {
    const auto marker = std::ranges::find(tokenizer->special_tokens(), "<|" + role + "|>", &NamedToken::text);
    const std::vector<int32_t> ids = first_of(role, "<|user|>");
    EXPECT_EQ(ids.front(), marker->id) << role;
    EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(1)), "<|user|>");  // which is no marker
  }
  for (const char* role : {"intruder", "user|><|system", "User", ""}) {
    EXPECT_EQ(tokenizer->decode(first_of(role, "x")), "<|" + std::string(role) + "|>x");
  }
}

TEST_F(ChatTemplateTest, WrongSettings) {
  const auto fails = [&](const std::string& file, const std::string& content, const std::string& what) {
    write(file, content);
    EXPECT_TRUE(contains(error_of([&] { settings(); }).what(), what));
    fs::remove(dir_ / "huggingface" / file);
  };
  fails("tokenizer_config.json", "[", "tokenizer_config.json: its content is not a JSON object");
  fails("tokenizer_config.json", R"({"eos_token": 3})", "eos_token is not a string");
  fails("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})", "chat_template is not");
  fails("generation_config.json", R"({"eos_token_id": 257})", "eos_token_id is not an id below 257");
  fails("generation_config.json", R"({"top_p": 1.5})", "top_p is not a number from 0 to 1");
}

}  // namespace
}  // namespace nmoe
