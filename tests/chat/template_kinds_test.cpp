// The kinds of chat templates that models come with, in small: what is learned of a conversation under each. In what is
// expected, brackets are around what is learned, and special tokens are written by name.
#include <gtest/gtest.h>

#include "chat/conversation_encoder.h"
#include "data/tokenizer/bpe_train.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

// As Qwen3's: the reasoning of the turns before the last question is left out, and a reply that is the last has a place
// for it.
constexpr const char* kQwen3 = R"(
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %})";

// As DeepSeek-R1's: reasoning is cut out of every reply, the prompt for one begins it, or (as it was at first) not.
constexpr const char* kDeepSeek =
    "{% set ns = namespace(system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{ ns.system_prompt }}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<|User|>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<|Assistant|>' + content + '<|end|>'}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt %}{{'<|Assistant|>PROMPT'}}{% endif %}";

constexpr const char* kTwoQuestions =
    R"([{"role":"user","content":"hi"},{"role":"assistant","reasoning_content":"hm","content":"yo"},)"
    R"({"role":"user","content":"more"},{"role":"assistant","reasoning_content":"so","content":"end"}])";
constexpr const char* kThoughtsInContent =
    R"([{"role":"user","content":"hi"},{"role":"assistant","content":"<think>\nhm\n</think>\n\nyo"},)"
    R"({"role":"user","content":"more"},{"role":"assistant","content":"<think>\nso\n</think>\n\nend"}])";
constexpr const char* kPlainTurns = R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo"},)"
                                    R"({"role":"user","content":"more"},{"role":"assistant","content":"end"}])";

using Documents = std::vector<std::string>;

class TemplateKindsTest : public test::TempDirTest {
 protected:
  void use(const std::string& form, const std::vector<std::string>& specials) {
    write_file_atomically(dir_ / "form.jinja", form);
    write_file_atomically(dir_ / "text.txt", "hi hi yo yo end end user user assistant assistant more more");
    tokenizer_ =
        train_bpe(
            {.inputs = {(dir_ / "text.txt").string()}, .vocab_size = 260 + std::ssize(specials), .specials = specials})
            .tokenizer;
    encoder_ = make_conversation_encoder({.chat_template = (dir_ / "form.jinja").string()}, tokenizer_);
  }

  Documents told(const std::string& messages, const std::string& fields = "") const {
    Documents documents;
    for (const EncodedDocument& encoded : encoder_->encode(messages, fields)) {
      std::string text;
      uint8_t learned = 0;
      for (size_t i = 0; i < encoded.ids.size(); ++i) {
        if (encoded.mask[i] != learned) text += encoded.mask[i] == 1 ? "[" : "]";
        learned = encoded.mask[i];
        text += tokenizer_->token_bytes(encoded.ids[i]);
        for (const NamedToken& special : tokenizer_->special_tokens()) {
          if (special.id == encoded.ids[i]) text += special.text;
        }
      }
      documents.push_back(learned == 1 ? text + "]" : text);
    }
    return documents;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ConversationEncoder> encoder_;
};

TEST_F(TemplateKindsTest, Qwen3) {
  for (const bool think_is_special : {true, false}) {
    std::vector<std::string> specials = {"<|im_start|>", "<|im_end|>"};
    if (think_is_special) specials.insert(specials.end(), {"<think>", "</think>", "<tool_call>", "</tool_call>"});
    use(kQwen3, specials);
    const Documents expected = {
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[<think>\nhm\n</think>\n\nyo<|im_end|>]",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"
        "<|im_start|>assistant\n[<think>\nso\n</think>\n\nend<|im_end|>]"};
    EXPECT_EQ(told(kTwoQuestions), expected);
    EXPECT_EQ(told(kThoughtsInContent), expected);
    // A reply that is not to be learned makes no document.
    std::string last = kTwoQuestions;
    last.insert(last.find(",\"content\":\"yo\""), ",\"weight\":0");
    EXPECT_EQ(told(last), Documents{expected[1]});

    const std::string tool_turns =
        R"([{"role":"user","content":"hi"},{"role":"assistant","reasoning_content":"hm","content":null,"tool_calls":)"
        R"([{"type":"function","id":"1","function":{"name":"more","arguments":{"a":1}}}]},)"
        R"({"role":"tool","tool_call_id":"1","name":"more","content":"7"},)"
        R"({"role":"assistant","reasoning_content":"so","content":"end"}])";
    // Between two questions, nothing is rewritten.
    EXPECT_EQ(told(tool_turns, R"({"tools":[{"name":"more"}]})"),
              Documents{"<|im_start|>system\n# Tools\n<tools>\n{\"name\": \"more\"}\n</tools><|im_end|>\n"
                        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[<think>\nhm\n</think>\n\n<tool_call>\n"
                        "{\"name\": \"more\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>]\n<|im_start|>user\n"
                        "<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
                        "[<think>\nso\n</think>\n\nend<|im_end|>]"});
    // Parquet files have lists of different things as JSON in strings.
    EXPECT_EQ(told(tool_turns, R"({"tools":"[{\"name\":\"more\"}]"})"),
              told(tool_turns, R"({"tools":[{"name":"more"}]})"));
    // Variables of the template.
    EXPECT_EQ(
        told(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}])",
             R"({"chat_template_kwargs":{"enable_thinking":false}})"),
        Documents{"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[yo<|im_end|>]"});
  }
}

TEST_F(TemplateKindsTest, DeepSeek) {
  const auto form = [](const std::string& prompt) {
    std::string text = kDeepSeek;
    return text.replace(text.find("PROMPT"), 6, prompt);
  };
  const Documents expected = {"<|User|>hi<|Assistant|>[<think>\nhm\n</think>\n\nyo<|end|>]",
                              "<|User|>hi<|Assistant|>\n\nyo<|end|><|User|>more<|Assistant|>"
                              "[<think>\nso\n</think>\n\nend<|end|>]"};
  const std::vector<std::string> specials = {"<|User|>", "<|Assistant|>", "<|end|>", "<think>", "</think>"};
  use(form(""), specials);
  EXPECT_EQ(told(kThoughtsInContent), expected);
  // What is in the prompt is not learned.
  use(form("<think>\\n"), specials);
  Documents prompted = expected;
  for (std::string& document : prompted) document.replace(document.find("[<think>\n"), 9, "<think>\n[");
  EXPECT_EQ(told(kThoughtsInContent), prompted);
  const Error none = error_of([&] { told(kPlainTurns); });
  EXPECT_TRUE(contains(none.what(),
                       "does not write message 2 behind its prompt for a reply: its prompt begins the "
                       "reply with <think>, which the message has not"));
  EXPECT_TRUE(contains(none.remedy(), "<think>...</think>"));
  EXPECT_TRUE(contains(error_of([&] { told(kTwoQuestions); }).what(), "message 2 has \"reasoning_content\""));
  // A prompt that ends the reasoning leaves none to learn.
  use(form("</think>"), specials);
  EXPECT_TRUE(contains(error_of([&] { told(kThoughtsInContent); }).what(), "message 2 behind its prompt"));
  // Without reasoning nothing is rewritten.
  use(form(""), specials);
  EXPECT_EQ(told(kPlainTurns), Documents{"<|User|>hi<|Assistant|>[yo<|end|>]<|User|>more<|Assistant|>[end<|end|>]"});
}

// Phi-3 and Zephyr: the marker is built around the role. What ends a turn is a token, or the end of the document.
TEST_F(TemplateKindsTest, MarkersAroundRoles) {
  const std::string form =
      "{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\\n' + message['content'] + END + '\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";
  const auto ending = [&](const std::string& end) {
    std::string text = form;
    return text.replace(text.find("END"), 3, end);
  };
  use(ending("'<|end|>'"), {"<|user|>", "<|assistant|>", "<|end|>"});
  EXPECT_EQ(told(kPlainTurns), Documents{"<|user|>\nhi<|end|>\n<|assistant|>\n[yo<|end|>]\n<|user|>\nmore<|end|>\n"
                                         "<|assistant|>\n[end<|end|>]"});
  use(ending("eos_token"), {"<|user|>", "<|assistant|>"});
  EXPECT_EQ(told(kPlainTurns), Documents{"<|user|>\nhi<|endoftext|>\n<|assistant|>\n[yo<|endoftext|>]\n<|user|>\nmore"
                                         "<|endoftext|>\n<|assistant|>\n[end]"});
  EXPECT_EQ(tokenizer_->special_tokens().size(), 3U);
  const std::vector<EncodedDocument> documents = encoder_->encode(kPlainTurns, "");
  for (const int32_t id : documents.at(0).ids) {
    EXPECT_EQ(tokenizer_->token_bytes(id).find('|'), std::string_view::npos);  // no marker is in pieces
  }
}

// GLM: nothing is behind a reply, and the model stops at the next turn's marker.
TEST_F(TemplateKindsTest, RepliesThatTheNextTurnEnds) {
  const std::vector<std::string> specials = {"<|user|>", "<|assistant|>", "<|tool|>", "</tool_call>"};
  use("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content or '' }}"
      "{% for call in m.tool_calls or [] %}{{ call.function.name }}</tool_call>{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
      specials);
  EXPECT_EQ(told(kPlainTurns), Documents{"<|user|>\nhi<|assistant|>\n[yo<|user|>]\nmore<|assistant|>\n[end<|user|>]"});
  EXPECT_EQ(told(R"([{"role":"user","content":"hi"},)"
                 R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]},)"
                 R"({"role":"tool","content":"7"},{"role":"assistant","content":"end"}])"),
            Documents{"<|user|>\nhi<|assistant|>\n[f</tool_call><|tool|>]\n7<|assistant|>\n[end<|user|>]"});
  // The same where earlier turns are rewritten (GLM-4.5).
  use("{% for m in messages %}<|{{ m.role }}|>"
      "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content if loop.last else '' }}</think>{% endif %}"
      "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
      {"<|user|>", "<|assistant|>", "<think>", "</think>"});
  EXPECT_EQ(
      told(kTwoQuestions),
      (Documents{"<|user|>hi<|assistant|>[<think>hm</think>yo<|user|>]",
                 "<|user|>hi<|assistant|><think></think>yo<|user|>more<|assistant|>[<think>so</think>end<|user|>]"}));
}

// A special token inside the reply, and none behind it: all of the answer is learned.
TEST_F(TemplateKindsTest, SpecialTokensWithinAReply) {
  const std::string form =
      "{% for m in messages %}{% if m.role == 'assistant' %}A: <think>{{ m.reasoning_content }}</think>{{ m.content }}"
      "{% else %}Q: {{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
  use(form, {"<think>", "</think>"});
  EXPECT_EQ(told(R"([{"role":"user","content":"hi"},)"
                 R"({"role":"assistant","reasoning_content":"hm","content":"yo"}])"),
            Documents{"Q: hi\nA:[ <think>hm</think>yo\n]"});
  // In text alone, the next turn's marker is what is in front of its message.
  EXPECT_EQ(told(kTwoQuestions), Documents{"Q: hi\nA:[ <think>hm</think>yo\nQ:] more\nA:[ <think>so</think>end\n]"});
}

// gpt-oss: reasoning and answer are messages of their own, the last of which ends otherwise.
TEST_F(TemplateKindsTest, Channels) {
  use("{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}"
      "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
      "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}"
      "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
      {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"});
  std::string messages = kTwoQuestions;
  for (size_t at; (at = messages.find("reasoning_content")) != std::string::npos;) messages.replace(at, 17, "thinking");
  EXPECT_EQ(told(messages),
            (Documents{"<|start|>user<|message|>hi<|end|><|start|>assistant[<|channel|>analysis<|message|>hm<|end|>"
                       "<|start|>assistant<|channel|>final<|message|>yo<|return|>]",
                       "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>yo<|end|>"
                       "<|start|>user<|message|>more<|end|><|start|>assistant[<|channel|>analysis<|message|>so<|end|>"
                       "<|start|>assistant<|channel|>final<|message|>end<|return|>]"}));
}

}  // namespace
}  // namespace nmoe
