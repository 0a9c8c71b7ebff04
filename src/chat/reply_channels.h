// The parts of a reply whose template gives it channels: gpt-oss' format, harmony (docs/format.md of openai/harmony).
//
// A reply goes on from "<|start|>assistant" with messages, each
//   [<|start|>ROLE[ to=RECIPIENT]]<|channel|>CHANNEL[ to=RECIPIENT][ <|constrain|>TYPE]<|message|>TEXT<|end|>
// of which the last ends with <|return|>, or, as a call of a tool, with <|call|>. These marks are special tokens. What
// a model says on the channel "analysis" are its thoughts; all else is for whom it talks to.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "infer/engine.h"

namespace nmoe {

struct ChannelMarks {
  int32_t channel = 0, message = 0;
  std::vector<int32_t> others;  // that are part of no text: <|start|>, <|end|>, <|constrain|> and the ends of a reply
  std::vector<int32_t> stops;   // the ends of a reply
};

// Nothing where the template writes no such channels, or the tokenizer lacks their special tokens.
std::optional<ChannelMarks> channel_marks(const ChatTemplate& chat, const Tokenizer& tokenizer);

// Divides the text of one reply. One thread at a time.
class ReplyChannels {
 public:
  struct Piece {
    std::string text;         // UTF-8, not empty
    bool is_thought = false;  // of the channel "analysis"
  };

  explicit ReplyChannels(ChannelMarks marks) : marks_(std::move(marks)) {}

  // As GenerationListener::on_token and on_text tell of the reply, in the same order. A message for a recipient begins
  // with its name, and a message behind another of the same part with an empty line.
  void add_token(const GeneratedToken& token);
  std::vector<Piece> add_text(std::string_view text);
  // At the end: what a model said that does not keep to the format, and so began no message.
  std::vector<Piece> finish();

 private:
  enum class State { kHeader, kText };
  // So many bytes of the text, and where they belong.
  struct Run {
    size_t bytes = 0;
    bool is_text = false, is_thought = false;
    std::string before;  // to be put in front
  };
  void begin_message();

  ChannelMarks marks_;
  State state_ = State::kHeader;
  std::string role_, channel_;  // of the header, with a recipient in either
  bool in_channel_ = false, is_thought_ = false, began_ = false;
  bool has_said_[2] = {};  // whether there was a message of answers, of thoughts
  std::string before_;     // of the message's first bytes
  std::deque<Run> runs_;   // of the text to come
  std::string unsaid_;     // text outside of messages
};

}  // namespace nmoe
