// /v1/chat/completions over HTTP, and `n chat` beside it.
#include <csignal>

#include "serve/served_model.h"
#include "support/terminal.h"

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
  EXPECT_EQ(streamed, choice["message"]["content"].get<std::string>());
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
  EXPECT_EQ(text, choice["message"]["content"].get<std::string>());
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
  fails({user("hi"), {{"role", "critic"}, {"content", "x"}}}, "messages[1].role", "\"assistant\"");
  fails(list({{"role", "user"}}), "messages[0].content", "a string");
  fails(list(user(list({{"type", "image_url"}}))), "messages[0].content", "\"image_url\"");
  fails(list(user(list({{"type", "input_audio"}}))), "messages[0].content", "\"input_audio\"");
  fails(list({{"role", "assistant"}, {"content", ""}, {"tool_calls", list(1)}}), "messages[0].tool_calls", "a list of");
}

// A template that does not look at them would lose them.
TEST_F(ServedChatTest, ToolsThatTheTemplateDoesNotWrite) {
  const ordered_json function = {{"name", "add"}, {"parameters", ordered_json::object()}};
  ordered_json request = {{"messages", list(user("hi"))}, {"max_tokens", 1}};
  request["tools"] = list({{"type", "function"}, {"function", function}});
  ServedModel::expect_error(server_->post(kPath, request.dump()), 400, "tools", "does not write tools");
  request["tool_choice"] = "none";
  server_->ask(kPath, request);
  request = {
      {"messages",
       list({{"role", "assistant"},
             {"content", nullptr},
             {"tool_calls", list({{"type", "function"}, {"function", {{"name", "add"}, {"arguments", "{}"}}}})}})}};
  ServedModel::expect_error(server_->post(kPath, request.dump()), 400, "messages[0].tool_calls", "does not write");
}

TEST_F(ServedChatTest, ToolsOfATemplateThatWritesThem) {
  write_file_atomically(trained_model() / "tools.jinja",
                        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for m in messages %}"
                        "<|endoftext|>{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
                        "{{ call.function.name }}({% for key, value in call.function.arguments | items %}"
                        "{{ key }}={{ value }}{% endfor %}){% endfor %}{% endfor %}");
  const ServedModel served({"--chat-template", "tools.jinja"});
  const auto prompt_tokens = [&](ordered_json request) {
    request["max_tokens"] = 1;
    return served.ask(kPath, request)["usage"]["prompt_tokens"].get<size_t>();
  };
  ordered_json request = {{"messages", list(user("hi"))}};
  const size_t plain = prompt_tokens(request);
  request["tools"] = list({{"type", "function"}, {"function", {{"name", "add"}}}});
  EXPECT_EQ(prompt_tokens(request), plain + 3);  // bytes of "add"
  request["tool_choice"] = "none";
  EXPECT_EQ(prompt_tokens(request), plain);
  // A call and its result, as clients send them back.
  const ordered_json call = {
      {"id", "c1"}, {"type", "function"}, {"function", {{"name", "add"}, {"arguments", "{\"a\": 12}"}}}};
  request["messages"].push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", list(call)}});
  request["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "12"}});
  EXPECT_EQ(prompt_tokens(request),
            plain + 1 + std::string("assistant: add(a=12)").size() + 1 + std::string("tool: 12").size());
}

TEST_F(ServedChatTest, WithoutATemplate) {
  ServedModel bare;
  EXPECT_TRUE(contains(bare.program().errors(), "note: no /v1/chat/completions"));
  ServedModel::expect_error(bare.post(kPath, ordered_json{{"messages", list(user("hi"))}}.dump()), 400, "messages",
                            "--chat-template FILE");
  const ordered_json request = {{"prompt", "the"}, {"max_tokens", 2}, {"ignore_eos", true}};
  EXPECT_EQ(bare.complete(request)["usage"]["completion_tokens"], 2);
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
  // A message of several lines, wherever its fences are; what begins like a command can be said, too.
  const std::string lines = reply(list(user("hi\n/you")));
  for (const char* input : {"\"\"\"hi\n/you\"\"\"\n", "\"\"\"\nhi\n/you\n\"\"\"\n"}) {
    EXPECT_EQ(chat({"--chat-template", "chat.jinja", "--context", "200"}, input).out, lines + "\n");
  }
  EXPECT_EQ(chat({"--chat-template", "chat.jinja", "--context", "200"}, " /hi\n").out,
            reply(list(user(" /hi"))) + "\n");
}

TEST_F(ServedChatTest, CommandsOfTheTerminal) {
  fs::remove(trained_model() / "chats.jsonl");  // of a repetition
  const test::Outcome talk = chat({"--chat-template", "chat.jinja", "--context", "200"},
                                  "/help\n/sytem x\n/nope\nhi\n/system be kind\n/save chats.jsonl\n/reset\n/system\n"
                                  "hi\n/save chats.jsonl\n/exit\n");
  EXPECT_EQ(talk.exit_code, 0) << talk.err;
  for (const char* answer :
       {"/save FILE    add the conversation", "[there is no command /sytem; did you mean /system?;",
        "[there is no command /nope; /help lists them.", "[system prompt: be kind]",
        "[saved: 2 messages, added to chats.jsonl]", "[forgotten: 2 messages]", "[no system prompt]"}) {
    EXPECT_TRUE(contains(talk.err, answer));
  }
  const std::string saved = read_file(trained_model() / "chats.jsonl");
  const std::string hi = reply(list(user("hi")));
  const ordered_json asked = user("hi"), answered = {{"role", "assistant"}, {"content", hi}},
                     first = {{"messages", {{{"role", "system"}, {"content", "be kind"}}, asked, answered}}},
                     second = {{"messages", {asked, answered}}};
  EXPECT_EQ(saved, first.dump() + "\n" + second.dump() + "\n");
  // What was saved can be learned from.
  write_file_atomically(trained_model() / "plain.jinja",
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant:{% endif %}");
  const test::Outcome prep =
      test::run_n(trained_model(), {"prep", "chats.jsonl", "--messages-field", "messages", "--chat-template",
                                    "plain.jinja", "--out", "chats", "--force"});
  EXPECT_EQ(prep.exit_code, 0) << prep.err;

  const auto fails = [&](const std::string& input, const std::string& what) {
    const test::Outcome outcome = chat({"--chat-template", "chat.jinja"}, input);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_TRUE(contains(outcome.err, "error: " + what));
  };
  fails("/save\n", "/save needs the name of a file");
  fails("/save chats.jsonl\n", "there is nothing to save");
  fails("\"\"\"hi\nyou\n", "the message of several lines has no end");
  fails("hi\n/save no/such/folder/chats.jsonl\n", "cannot write no/such/folder/chats.jsonl");
}

// Keys that only a terminal understands.
TEST_F(ServedChatTest, EditingAndHistory) {
  const std::string first = reply(list(user("h\u00e4i")));
  test::Terminal terminal(trained_model(), {"chat", "runs/checkpoints/tiny", "--temperature", "0", "--max-tokens", "12",
                                            "--chat-template", "chat.jinja", "--context", "200"});
  terminal.wait_for_prompt();
  constexpr const char *kLeft = "\033[D", *kUp = "\033[A", *kStartOfLine = "\001", *kDeleteKey = "\004";
  // "xh\u00e4yi" with a wrong letter at its front and one inside, each character being one, however many bytes it has.
  terminal.type(std::string("xh\u00e4yi") + kLeft + "\177" + kStartOfLine + kDeleteKey + "\r");
  EXPECT_TRUE(contains(terminal.read_until(first), first));
  terminal.wait_for_prompt();
  terminal.type("/reset\r");
  EXPECT_TRUE(contains(terminal.read_until("forgotten: 2 messages]"), "forgotten"));
  terminal.wait_for_prompt();
  terminal.type(std::string(kUp) + kUp + "\r");  // what was said before
  EXPECT_TRUE(contains(terminal.read_until(first), first));
  terminal.wait_for_prompt();
  terminal.type("/save\r");
  EXPECT_TRUE(contains(terminal.read_until("remedy: "), "error: /save needs the name of a file"));  // and it goes on
  terminal.wait_for_prompt();
  terminal.type("\"\"\"\r");
  terminal.wait_for_prompt(". ");
  terminal.type("hi\r");
  terminal.wait_for_prompt(". ");
  terminal.type("\004");
  EXPECT_TRUE(contains(terminal.read_until("remedy: "), "has no end"));
  terminal.wait_for_prompt();
  terminal.type("\004");
  EXPECT_EQ(terminal.wait(), 0);
}

// Ctrl-C while a line is typed: the program ends, and the shell gets the terminal as it was.
TEST_F(ServedChatTest, TheTerminalIsGivenBack) {
  test::Terminal terminal(trained_model(), {"chat", "runs/checkpoints/tiny", "--chat-template", "chat.jinja"});
  terminal.wait_for_prompt();
  EXPECT_FALSE(terminal.is_cooked());
  terminal.type("h");
  terminal.type("\003");
  EXPECT_EQ(terminal.wait(), 128 + SIGINT);
  EXPECT_TRUE(terminal.is_cooked());
}

TEST_F(ServedChatTest, TerminalErrors) {
  const test::Outcome bare = chat({}, "hi\n");
  EXPECT_EQ(bare.exit_code, 2);
  EXPECT_TRUE(
      contains(bare.err, "this checkpoint has no chat template, and its tokenizer no special token <|im_start|>"));
  const test::Outcome full = chat({"--chat-template", "chat.jinja", "--context", "40"}, "hi\nhi\n");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_TRUE(contains(full.err, "tokens, the context 40\nremedy: begin a new one with /reset"));
}

}  // namespace
}  // namespace nmoe
