#include "chat/reply_channels.h"

#include <gtest/gtest.h>

#include "data/tokenizer/bpe_train.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

constexpr const char* kChannels =
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";

class ReplyChannelsTest : public test::TempDirTest {
 protected:
  void SetUp() override {
    write_file_atomically(dir_ / "text.txt", "analysis final commentary to=functions assistant");
    tokenizer_ = train_bpe({.inputs = {(dir_ / "text.txt").string()},
                            .vocab_size = 266,
                            .specials = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
                                         "<|constrain|>"}})
                     .tokenizer;
  }
  std::optional<ChannelMarks> marks_of(const std::string& form) const {
    write_file_atomically(dir_ / "form.jinja", form);
    CheckpointSettings settings;
    return channel_marks(ChatTemplate(settings, (dir_ / "form.jinja").string(), *tokenizer_), *tokenizer_);
  }
  // What becomes of a reply whose text comes late, as behind a stop string that was none: thoughts in brackets.
  std::string told(const std::string& reply, size_t late) const {
    ReplyChannels channels(*marks_of(kChannels));
    std::string shown, waiting;
    const auto put = [&](const std::vector<ReplyChannels::Piece>& pieces) {
      for (const auto& [text, is_thought] : pieces) shown += is_thought ? "[" + text + "]" : text;
    };
    std::vector<int32_t> ids;
    tokenizer_->encode(reply, TokenFinder(tokenizer_->special_tokens()), ids);
    for (const int32_t id : ids) {
      channels.add_token({.id = id, .bytes = tokenizer_->token_bytes(id)});
      waiting += tokenizer_->token_bytes(id);
      if (waiting.size() <= late) continue;
      put(channels.add_text(waiting.substr(0, waiting.size() - late)));
      waiting.erase(0, waiting.size() - late);
    }
    if (!waiting.empty()) put(channels.add_text(waiting));
    put(channels.finish());
    for (size_t at; (at = shown.find("][")) != std::string::npos;) shown.erase(at, 2);
    return shown;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(ReplyChannelsTest, AreThoseOfATemplateThatWritesThem) {
  const auto marks = marks_of(kChannels);
  ASSERT_TRUE(marks);
  EXPECT_EQ(marks->stops.size(), 2U);  // <|return|>, <|call|>
  EXPECT_FALSE(marks_of("{{ messages[0].content }}"));
  EXPECT_FALSE(marks_of("{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"));
}

TEST_F(ReplyChannelsTest, DivideAReply) {
  for (const size_t late : {0, 1, 7, 1000}) {
    SCOPED_TRACE(late);
    EXPECT_EQ(told("<|channel|>analysis<|message|>So it is.<|end|><|start|>assistant<|channel|>final<|message|>Blue é.",
                   late),
              "[So it is.]Blue é.");
    EXPECT_EQ(told("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
                   "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
                   "<|message|>It is.",
                   late),
              "[a\n\nb]I look.\n\nIt is.");
    // A call, in both places in which its recipient may stand.
    EXPECT_EQ(told("<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"a\":1}", late),
              "functions.get {\"a\":1}");
    EXPECT_EQ(told(" to=functions.get<|channel|>analysis json<|message|>{}", late), "functions.get {}");
    // What keeps to no format, or is cut off.
    EXPECT_EQ(told("plain words", late), "plain words");
    EXPECT_EQ(told("<|channel|>analysis<|message|>So", late), "[So]");
    EXPECT_EQ(told("<|message|>no channel", late), "no channel");
  }
}

}  // namespace
}  // namespace nmoe
