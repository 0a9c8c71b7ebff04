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
  static std::string told(const EncodedConversation& encoded, const Tokenizer& tokenizer) {
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
  const auto encoder = make_conversation_encoder("chatml", tokenizer);
  const EncodedConversation encoded = encoder->encode(kTwoTurns);
  EXPECT_EQ(told(encoded, *tokenizer),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            "[yo<|im_end|>]\n<|im_start|>user\n<|im_end|>more<|im_end|>\n<|im_start|>assistant\n[end<|im_end|>]");
  // What a message says is text: no turn is ended by it.
  const int32_t end = tokenizer->special_tokens()[2].id;
  ASSERT_EQ(tokenizer->special_tokens()[2].text, "<|im_end|>");
  EXPECT_EQ(std::ranges::count(encoded.ids, end), 5);
  // Nothing is kept behind the last reply.
  const std::string asked = R"([{"role":"assistant","content":"yo"},{"role":"user","content":"hi"}])";
  EXPECT_EQ(told(encoder->encode(asked), *tokenizer), "<|im_start|>assistant\n[yo<|im_end|>]");
}

TEST_F(ConversationEncoderTest, AModelsOwnTemplate) {
  const auto tokenizer = byte_tokenizer();
  const std::string form =
      "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %} {{ m.content + eos_token }}"
      "{% else %} {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
  const std::string expected = "s: Be brief.\nu: hi\na:[ yo<|endoftext|>]u: <|im_end|>more\na:[ end]";
  const auto from_file = make_conversation_encoder(write("form.jinja", form), tokenizer);
  // The end of the document is the last turn's end.
  EXPECT_EQ(told(from_file->encode(kTwoTurns), *tokenizer), expected);
  write("model/chat_template.jinja", form);
  write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto from_model = make_conversation_encoder((dir_ / "model").string(), tokenizer);
  EXPECT_EQ(told(from_model->encode(kTwoTurns), *tokenizer), expected);
  write("step_1/huggingface/chat_template.jinja", form);
  write("step_1/huggingface/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto from_checkpoint = make_conversation_encoder((dir_ / "step_1").string(), tokenizer);
  EXPECT_EQ(told(from_checkpoint->encode(kTwoTurns), *tokenizer), expected);

  EXPECT_EQ(from_file->fingerprint(), from_model->fingerprint());
  EXPECT_NE(from_file->fingerprint(),
            make_conversation_encoder(write("other.jinja", form + " "), tokenizer)->fingerprint());
}

TEST_F(ConversationEncoderTest, Errors) {
  const Error lacks = error_of([&] { make_conversation_encoder("chatml", byte_tokenizer()); });
  EXPECT_EQ(lacks.exit_code(), 2);
  EXPECT_TRUE(contains(lacks.what(), "ChatML needs <|im_start|>"));
  EXPECT_TRUE(contains(lacks.remedy(), "n tokenizer train"));
  make_directories(dir_ / "empty");
  EXPECT_TRUE(contains(error_of([&] { make_conversation_encoder((dir_ / "empty").string(), byte_tokenizer()); }).what(),
                       "has no chat template"));
  // A template that takes the thoughts out of all turns but the last.
  const std::string thinking =
      "{% for m in messages %}{{ m.role }}:{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}"
      "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
  const auto encoder = make_conversation_encoder(write("thinking.jinja", thinking), byte_tokenizer());
  const Error moved = error_of([&] { encoder->encode(kTwoTurns); });
  EXPECT_TRUE(contains(moved.what(), "does not write message 3 behind its prompt"));
  EXPECT_TRUE(contains(moved.remedy(), "--chat-template chatml"));
}

}  // namespace
}  // namespace nmoe
