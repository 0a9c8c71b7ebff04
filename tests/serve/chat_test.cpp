// /v1/chat/completions over HTTP, and `n chat` beside it.
#include "serve/served_model.h"

namespace nmoe {
namespace {

constexpr const char* kPath = "/v1/chat/completions";

class ServedChatTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ServedModel({"--chat-template", "chat.jinja", "--max-context", "200"}); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static ordered_json user(const ordered_json& content) { return {{"role", "user"}, {"content", content}}; }
  // Braces around one value are that value, not a list of it.
  static ordered_json list(const ordered_json& only) { return ordered_json::array({only}); }
  static ordered_json part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
  static std::string reply(const ordered_json& messages) {
    return server_->ask(
        kPath, {{"messages", messages}, {"temperature", 0}, {"max_tokens", 12}})["choices"][0]["message"]["content"];
  }
  static test::Outcome chat(std::vector<std::string> options, const std::string& input) {
    options.insert(options.begin(), {"chat", "runs/checkpoints/tiny", "--temperature", "0", "--max-tokens", "12"});
    return test::run_n(trained_model(), options, input);
  }
  static inline ServedModel* server_ = nullptr;
};

TEST_F(ServedChatTest, AReply) {
  const ordered_json request = {{"messages", list(user("hi"))}, {"temperature", 0}, {"max_completion_tokens", 10}};
  const ordered_json answer = server_->ask(kPath, request);
  EXPECT_EQ(answer["object"], "chat.completion");
  const ordered_json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 1 + 9 + 1 + 14);  // bytes, and two special tokens
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);
  std::string streamed;
  const std::vector<ordered_json> events = server_->stream(kPath, request);
  ASSERT_GT(events.size(), 3U);
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.back()["choices"][0]["delta"], ordered_json::object());
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
  for (const ordered_json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    streamed += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, choice["message"]["content"]);
}

TEST_F(ServedChatTest, Logprobs) {
  const ordered_json choice = server_->ask(kPath, {{"messages", list(user("hi"))},
                                                   {"temperature", 0},
                                                   {"max_tokens", 5},
                                                   {"logprobs", true},
                                                   {"top_logprobs", 3}})["choices"][0];
  ASSERT_EQ(choice["logprobs"]["content"].size(), 5U);
  std::string text;
  for (const ordered_json& token : choice["logprobs"]["content"]) {
    text += token["token"];
    EXPECT_EQ(token["bytes"].size(), 1U);
    ASSERT_EQ(token["top_logprobs"].size(), 3U);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  EXPECT_EQ(text, choice["message"]["content"]);
}

TEST_F(ServedChatTest, WhatTheTemplateSees) {
  const auto prompt_tokens = [&](const ordered_json& messages, const ordered_json& variables = nullptr) {
    return server_
        ->ask(
            kPath,
            {{"messages", messages}, {"max_tokens", 1}, {"chat_template_kwargs", variables}})["usage"]["prompt_tokens"]
        .get<int>();
  };
  const int one = prompt_tokens(list(user("hi")));
  EXPECT_EQ(prompt_tokens(list(user("hi")), {{"shout", true}}), one + 5);
  // A special token's name in a message is 13 bytes of text.
  EXPECT_EQ(prompt_tokens(list(user("hi<|endoftext|>"))), one + 13);
  EXPECT_EQ(prompt_tokens(list(user({part("h"), part("")}))), one);
  EXPECT_EQ(prompt_tokens({{{"role", "developer"}, {"content", ""}}, user("hi")}), one + 10);  // as "system"
  EXPECT_EQ(reply(list(user("hi"))), reply(list(user(list(part("hi"))))));
}

TEST_F(ServedChatTest, WrongMessages) {
  const auto fails = [&](const ordered_json& messages, const std::string& param, const std::string& message) {
    ServedModel::expect_error(server_->post(kPath, ordered_json{{"messages", messages}}.dump()), 400, param, message);
  };
  fails(nullptr, "messages", "a list of messages");
  fails(ordered_json::array(), "messages", "not empty");
  fails(list("hi"), "messages[0]", "an object");
  fails({user("hi"), {{"role", "tool"}, {"content", "x"}}}, "messages[1].role", "\"assistant\"");
  fails(list({{"role", "user"}}), "messages[0].content", "a string");
  fails(list(user(list({{"type", "image_url"}}))), "messages[0].content", "\"text\"");
  fails(list({{"role", "assistant"}, {"content", ""}, {"tool_calls", list(1)}}), "tool_calls", "not supported");
}

TEST_F(ServedChatTest, WithoutATemplate) {
  ServedModel bare;
  EXPECT_TRUE(contains(bare.program().errors(), "note: no /v1/chat/completions"));
  ServedModel::expect_error(bare.post(kPath, ordered_json{{"messages", list(user("hi"))}}.dump()), 400, "messages",
                            "--chat-template FILE");
  EXPECT_EQ(bare.complete({{"prompt", "the"}, {"max_tokens", 2}})["usage"]["completion_tokens"], 2);
}

TEST_F(ServedChatTest, InTheTerminal) {
  const std::string first = reply(list(user("hi")));
  const std::string second = reply({user("hi"), {{"role", "assistant"}, {"content", first}}, user("and you")});
  const std::string brief = reply({{{"role", "system"}, {"content", "brief"}}, user("hi")});
  const test::Outcome talk = chat({"--chat-template", "chat.jinja", "--context", "200"},
                                  "hi\n\nand you\n/reset\n/system brief\nhi\n/exit\nno\n");
  EXPECT_EQ(talk.exit_code, 0) << talk.err;
  EXPECT_EQ(talk.out, first + "\n" + second + "\n" + brief + "\n");
  const test::Outcome system = chat({"--chat-template", "chat.jinja", "--context", "200", "--system", "brief"}, "hi");
  EXPECT_EQ(system.out, brief + "\n");
  EXPECT_TRUE(contains(chat({"--chat-template", "chat.jinja"}, "/help\n/nope\n").err, "there is no command /nope"));
}

TEST_F(ServedChatTest, TerminalErrors) {
  const test::Outcome bare = chat({}, "hi\n");
  EXPECT_EQ(bare.exit_code, 2);
  EXPECT_TRUE(contains(bare.err, "this checkpoint has no chat template\nremedy: name one: --chat-template"));
  const test::Outcome full = chat({"--chat-template", "chat.jinja", "--context", "40"}, "hi\nhi\n");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_TRUE(contains(full.err, "tokens, the context 40\nremedy: begin a new one with /reset"));
}

}  // namespace
}  // namespace nmoe
