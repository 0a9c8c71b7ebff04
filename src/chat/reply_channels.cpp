#include "chat/reply_channels.h"

#include <algorithm>
#include <utility>

namespace nmoe {
namespace {

constexpr std::string_view kThoughts = "analysis", kRecipient = "to=";

// The word behind "to=", or "".
std::string_view recipient_in(std::string_view header) {
  const size_t at = header.find(kRecipient);
  if (at == std::string_view::npos) return "";
  header.remove_prefix(at + kRecipient.size());
  return header.substr(0, header.find(' '));
}

}  // namespace

std::optional<ChannelMarks> channel_marks(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const auto channel = tokenizer.special_id("<|channel|>"), message = tokenizer.special_id("<|message|>");
  if (!channel || !message || chat.source().find("<|channel|>analysis<|message|>") == std::string::npos) {
    return std::nullopt;
  }
  ChannelMarks marks{.channel = *channel, .message = *message, .others = {}, .stops = {}};
  for (const char* mark : {"<|return|>", "<|call|>"}) {
    if (const auto id = tokenizer.special_id(mark)) marks.stops.push_back(*id);
  }
  marks.others = marks.stops;
  for (const char* mark : {"<|start|>", "<|end|>", "<|constrain|>"}) {
    if (const auto id = tokenizer.special_id(mark)) marks.others.push_back(*id);
  }
  return marks;
}

void ReplyChannels::begin_message() {
  const std::string_view of_role = recipient_in(role_), recipient = of_role.empty() ? recipient_in(channel_) : of_role;
  is_thought_ = channel_.starts_with(kThoughts) && recipient.empty();
  bool& has_said = has_said_[is_thought_ ? 1 : 0];
  before_ = std::exchange(has_said, true) ? "\n\n" : "";
  if (!recipient.empty()) before_ += std::string(recipient) + " ";
  state_ = State::kText;
  began_ = true;
}

void ReplyChannels::add_token(const GeneratedToken& token) {
  if (token.id == marks_.message) return begin_message();
  if (token.id == marks_.channel) {
    state_ = State::kHeader;
    in_channel_ = true;
    channel_.clear();
    return;
  }
  if (std::ranges::find(marks_.others, token.id) != marks_.others.end()) {
    if (state_ == State::kText) {  // behind it, another header
      role_.clear();
      channel_.clear();
      in_channel_ = false;
    }
    state_ = State::kHeader;
    return;
  }
  if (token.bytes.empty()) return;
  if (state_ == State::kHeader) (in_channel_ ? channel_ : role_) += token.bytes;
  runs_.push_back({.bytes = token.bytes.size(),
                   .is_text = state_ == State::kText,
                   .is_thought = is_thought_,
                   .before = std::exchange(before_, "")});
}

std::vector<ReplyChannels::Piece> ReplyChannels::add_text(std::string_view text) {
  std::vector<Piece> pieces;
  while (!text.empty() && !runs_.empty()) {
    Run& run = runs_.front();
    const size_t count = std::min(run.bytes, text.size());
    const std::string_view part = text.substr(0, count);
    if (!run.is_text) {
      unsaid_ += part;
    } else {
      if (pieces.empty() || pieces.back().is_thought != run.is_thought) pieces.push_back({"", run.is_thought});
      pieces.back().text += std::exchange(run.before, "");
      pieces.back().text += part;
    }
    text.remove_prefix(count);
    run.bytes -= count;
    if (run.bytes == 0) runs_.pop_front();
  }
  return pieces;
}

std::vector<ReplyChannels::Piece> ReplyChannels::finish() {
  if (began_ || unsaid_.empty()) return {};
  return {{std::exchange(unsaid_, ""), false}};
}

}  // namespace nmoe
