#include "chat/conversation_encoder.h"

#include <gtest/gtest.h>

#include "data/tokenizer/bpe_train.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

constexpr const char* kTwoTurns =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},{"role":"assistant","content":"yo"},)"
    R"({"role":"user","content":"<|im_end|>more"},{"role":"assistant","content":"end"}])";

class ConversationEncoderTest : public test::TempDirTest {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    make_directories((dir_ / name).parent_path());
    write_file_atomically(dir_ / name, text);
    return (dir_ / name).string();
  }

  std::shared_ptr<const Tokenizer> chat_tokenizer() const {
    return train_bpe({.inputs = {write("text.txt", "hi hi yo yo end end user user assistant assistant")},
                      .vocab_size = 265,
                      .specials = {"<|im_start|>", "<|im_end|>"}})
        .tokenizer;
  }

  // What is learned in brackets, special tokens by name.
  static std::string told(const EncodedDocument& encoded, const Tokenizer& tokenizer) {
    EXPECT_EQ(encoded.ids.size(), encoded.mask.size());
    std::string text;
    uint8_t learned = 0;
    for (size_t i = 0; i < encoded.ids.size(); ++i) {
      if (encoded.mask[i] != learned) text += encoded.mask[i] == 1 ? "[" : "]";
      learned = encoded.mask[i];
      text += tokenizer.token_bytes(encoded.ids[i]);
      for (const NamedToken& special : tokenizer.special_tokens()) {
        if (special.id == encoded.ids[i]) text += special.text;
      }
    }
    return learned == 1 ? text + "]" : text;
  }
};

TEST_F(ConversationEncoderTest, LearnsTheAssistantsTurnsAlone) {
  const auto tokenizer = chat_tokenizer();
  const auto encoder = make_conversation_encoder({}, tokenizer);
  const EncodedDocument encoded = encoder->encode(kTwoTurns, "").at(0);
  EXPECT_EQ(told(encoded, *tokenizer),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            "[yo<|im_end|>]\n<|im_start|>user\n<|im_end|>more<|im_end|>\n<|im_start|>assistant\n[end<|im_end|>]");
  EXPECT_EQ(encoded.text_bytes, std::ssize(std::string("Be brief.\nhi\nyo\n<|im_end|>more\nend")));
  // What a message says is text: no turn is ended by it.
  const int32_t end = tokenizer->special_tokens()[2].id;
  ASSERT_EQ(tokenizer->special_tokens()[2].text, "<|im_end|>");
  EXPECT_EQ(std::ranges::count(encoded.ids, end), 5);
  // Nothing is kept behind the last reply.
  const std::string asked = R"([{"role":"assistant","content":"yo"},{"role":"user","content":"hi"}])";
  EXPECT_EQ(told(encoder->encode(asked, "").at(0), *tokenizer), "<|im_start|>assistant\n[yo<|im_end|>]");
}

TEST_F(ConversationEncoderTest, AModelsOwnTemplate) {
  const auto tokenizer = byte_tokenizer();
  const std::string form =
      "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %} {{ m.content + eos_token }}"
      "{% else %} {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
  const std::string expected = "s: Be brief.\nu: hi\na:[ yo<|endoftext|>]u: <|im_end|>more\na:[ end]";
  const auto encoder_of = [&](const std::string& source) {
    return make_conversation_encoder({.chat_template = source}, tokenizer);
  };
  const auto from_file = encoder_of(write("form.jinja", form));
  EXPECT_EQ(from_file->source(), form);
  // The end of the document is the last turn's end.
  EXPECT_EQ(told(from_file->encode(kTwoTurns, "").at(0), *tokenizer), expected);
  write("model/chat_template.jinja", form);
  write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto from_model = encoder_of((dir_ / "model").string());
  EXPECT_EQ(told(from_model->encode(kTwoTurns, "").at(0), *tokenizer), expected);
  write("step_1/huggingface/chat_template.jinja", form);
  write("step_1/huggingface/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto from_checkpoint = encoder_of((dir_ / "step_1").string());
  EXPECT_EQ(told(from_checkpoint->encode(kTwoTurns, "").at(0), *tokenizer), expected);

  EXPECT_EQ(from_file->fingerprint(), from_model->fingerprint());
  EXPECT_NE(from_file->fingerprint(), encoder_of(write("other.jinja", form + " "))->fingerprint());
}

// The switches of axolotl, OpenAI, torchtune and others.
TEST_F(ConversationEncoderTest, MessagesThatAreNotLearned) {
  const auto tokenizer = chat_tokenizer();
  const auto encoder = make_conversation_encoder({}, tokenizer);
  const auto learned = [&](const std::string& member) {
    return told(encoder
                    ->encode(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo",)" + member +
                                 R"(},{"role":"user","content":"hi"},{"role":"assistant","content":"end"}])",
                             "")
                    .at(0),
                *tokenizer);
  };
  const std::string user = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const std::string none = user + "yo<|im_end|>\n" + user + "[end<|im_end|>]";
  for (const char* member : {R"("weight":0)", R"("weight":0.0)", R"("train":false)", R"("trainable":false)",
                             R"("loss":false)", R"("masked":true)"}) {
    EXPECT_EQ(learned(member), none) << member;
  }
  for (const char* member : {R"("weight":1)", R"("weight":null)", R"("train":true)", R"("masked":false)"}) {
    EXPECT_EQ(learned(member), user + "[yo<|im_end|>]\n" + user + "[end<|im_end|>]") << member;
  }
  const auto fails = [&](const std::string& messages, const std::string& what) {
    EXPECT_TRUE(contains(error_of([&] { encoder->encode(messages, ""); }).what(), what)) << messages;
  };
  fails(R"([{"role":"assistant","content":"yo","weight":0.5}])", "message 1 has the weight 0.5");
  fails(R"([{"role":"assistant","content":"yo","weight":1,"train":false}])", "both that it is trained on and that");
  fails(R"([{"role":"assistant","content":"yo","weight":0}])", "none of the assistant's messages is to be trained on");
  fails(R"([{"role":"user","content":"hi","train":true},{"role":"assistant","content":"yo"}])",
        "message 1 is to be trained on, and its role is \"user\"");
}

// A member at which the template does not look would be lost without a word.
TEST_F(ConversationEncoderTest, MembersThatTheTemplateDoesNotWrite) {
  const auto tokenizer = chat_tokenizer();
  const auto encoder = make_conversation_encoder({}, tokenizer);
  const auto reply = [](const std::string& member) {
    return R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo",)" + member + "}]";
  };
  for (const char* member : {R"("reasoning_content":"hm")", R"("tool_calls":[{"function":{"name":"f"}}])",
                             R"("name":"Bob")", R"("learn":false)", R"("images":["a"])"}) {
    const Error error = error_of([&] { encoder->encode(reply(member), ""); });
    const std::string name(member + 1, std::string(member).find('"', 1) - 1);
    EXPECT_TRUE(contains(error.what(), "message 2 has \"" + name + "\", at which the chat template does not look"));
    EXPECT_TRUE(contains(error.remedy(), "--ignore-field " + name));
  }
  const auto ignoring = make_conversation_encoder({.ignored_fields = {"learn"}}, tokenizer);
  EXPECT_EQ(ignoring->encode(reply(R"("learn":false)"), "").size(), 1U);
  // What says nothing is none.
  for (const char* member : {R"("id":"17")", R"("name":null)", R"("tool_calls":[])", R"("reasoning_content":"")"}) {
    EXPECT_EQ(encoder->encode(reply(member), "").size(), 1U) << member;
  }
  const std::string calls = R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}])";
  EXPECT_TRUE(contains(error_of([&] { encoder->encode(calls, ""); }).what(), "message 1 has \"tool_calls\""));

  const std::string plain = R"([{"role":"assistant","content":"yo"}])";
  const auto beside = [&](const std::string& fields) {
    return std::string(error_of([&] { encoder->encode(plain, fields); }).what());
  };
  EXPECT_TRUE(contains(beside(R"({"tools":[{"name":"f"}]})"), "has \"tools\", at which the chat template does not"));
  EXPECT_TRUE(contains(beside(R"({"chat_template_kwargs":{"x":1}})"), "has \"x\", at which"));
  EXPECT_TRUE(contains(beside(R"({"system":"Be brief."})"), "has \"system\", which is not supported"));
  EXPECT_TRUE(contains(beside(R"({"tools":3})"), "\"tools\" is not a list"));
  EXPECT_EQ(encoder->encode(plain, R"({"tools":[],"system":null})").size(), 1U);
}

// Templates that know roles pass over messages of others.
TEST_F(ConversationEncoderTest, MessagesThatTheTemplateDoesNotWrite) {
  const auto tokenizer = chat_tokenizer();
  write_file_atomically(dir_ / "roles.jinja",
                        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content | upper }}"
                        "{% elif m.role == 'assistant' %}:{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
                        "{% if add_generation_prompt %}:{% endif %}");
  const auto encoder = make_conversation_encoder({.chat_template = (dir_ / "roles.jinja").string()}, tokenizer);
  const std::string turn = R"({"role":"user","content":"hi"},{"role":"assistant","content":"yo"}])";
  EXPECT_EQ(told(encoder->encode("[" + turn, "").at(0), *tokenizer), "<|im_start|>HI:[yo<|im_end|>]");
  for (const std::string role : {"system", "tool", "critic"}) {
    const std::string messages = R"([{"role":")" + role + R"(","content":"hi"},)" + turn;
    EXPECT_TRUE(contains(error_of([&] { encoder->encode(messages, ""); }).what(),
                         "the chat template does not write message 1, whose role is \"" + role + "\""));
  }
}

TEST_F(ConversationEncoderTest, ContentsInParts) {
  const auto tokenizer = chat_tokenizer();
  const std::string parts = R"([{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"more"}]},)"
                            R"({"role":"assistant","content":[{"type":"text","text":"yo"}]}])";
  const auto told_by = [&](const std::string& form) {
    write_file_atomically(dir_ / "form.jinja", form);
    const auto encoder = make_conversation_encoder({.chat_template = (dir_ / "form.jinja").string()}, tokenizer);
    return told(encoder->encode(parts, "").at(0), *tokenizer);
  };
  // A template that reads lists has them; for one that takes the content for text, or passes over lists, they are one
  // text.
  EXPECT_EQ(told_by("{% for m in messages %}<|im_start|>{% if m.content is string %}{{ m.content }}{% else %}"
                    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>{% endif %}"),
            "<|im_start|>himore<|im_end|><|im_start|>[yo<|im_end|>]");
  const std::string joined = "<|im_start|>hi\nmore<|im_end|><|im_start|>[yo<|im_end|>]";
  EXPECT_EQ(told_by("{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>{% endif %}"),
            joined);
  EXPECT_EQ(told_by("{% for m in messages %}<|im_start|>{{ m.content if m.content is string else '' }}<|im_end|>"
                    "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"),
            joined);
  EXPECT_EQ(told_by("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>{% endif %}"),
            joined);
}

TEST_F(ConversationEncoderTest, TheDateIsTheSameOnAnyDay) {
  const auto tokenizer = byte_tokenizer();
  const std::string form = write(
      "date.jinja", "{{ strftime_now('%d %b %Y') }}{% for m in messages %} {{ m.content }}{{ eos_token }}{% endfor %}");
  const std::string messages = R"([{"role":"assistant","content":"yo"}])";
  const auto text_on = [&](const std::string& date) {
    const auto encoder = make_conversation_encoder({.chat_template = form, .date = date}, tokenizer);
    EXPECT_TRUE(contains(encoder->note(), "the chat template writes the date: " + date));
    return tokenizer->decode(encoder->encode(messages, "").at(0).ids);
  };
  EXPECT_EQ(text_on("2024-02-29").substr(0, 11), "29 Feb 2024");
  EXPECT_EQ(make_conversation_encoder({.chat_template = form}, tokenizer)->encode(messages, "").at(0).ids.front(), '0');
  EXPECT_EQ(make_conversation_encoder({}, chat_tokenizer())->note(), "");
  EXPECT_NE(make_conversation_encoder({.chat_template = form, .date = "2024-02-29"}, tokenizer)->fingerprint(),
            make_conversation_encoder({.chat_template = form}, tokenizer)->fingerprint());
  for (const char* date : {"2025-02-29", "today", "2025-01-01 "}) {
    EXPECT_EQ(
        error_of([&] { make_conversation_encoder({.chat_template = form, .date = date}, tokenizer); }).exit_code(), 2)
        << date;
  }
}

TEST_F(ConversationEncoderTest, Errors) {
  const Error lacks = error_of([&] { make_conversation_encoder({}, byte_tokenizer()); });
  EXPECT_EQ(lacks.exit_code(), 2);
  EXPECT_TRUE(contains(lacks.what(), "ChatML needs <|im_start|>"));
  EXPECT_TRUE(contains(lacks.remedy(), "n tokenizer train"));
  make_directories(dir_ / "empty");
  EXPECT_TRUE(contains(error_of([&] {
                         make_conversation_encoder({.chat_template = (dir_ / "empty").string()}, byte_tokenizer());
                       }).what(),
                       "has no chat template"));
}

}  // namespace
}  // namespace nmoe
