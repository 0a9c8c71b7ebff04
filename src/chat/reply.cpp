#include "chat/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "chat/rendered_text.h"
#include "data/prep/messages.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

// What a content says before "</think>", without the marks.
std::string_view reasoning_in(std::string_view content) {
  const size_t end = content.find(kEndThink);
  if (end == std::string_view::npos) return "";
  std::string_view reasoning = trimmed(content.substr(0, end), kSpace);
  if (reasoning.starts_with(kThink)) reasoning.remove_prefix(kThink.size());
  return trimmed(reasoning, kSpace);
}

Error elsewhere(size_t index, const std::string& why, const std::string& remedy) {
  return runtime_error(
      fmt::format("the chat template does not write message {} behind its prompt for a reply: {}", index + 1, why),
      remedy);
}

// The marks of reasoning in what a message says are the template's, where it knows them.
void append_content(std::string_view content, const ChatTemplate& chat, std::vector<RenderedPiece>& pieces) {
  const auto append = [&](std::string_view text, bool from_data) {
    if (text.empty()) return;
    if (!pieces.empty() && pieces.back().from_data == from_data) {
      pieces.back().text += text;
    } else {
      pieces.push_back({std::string(text), from_data});
    }
  };
  const size_t end = content.find(kEndThink);
  if (end == std::string_view::npos || !chat.mentions(kEndThink)) return append(content, true);
  const bool opens = content.starts_with(kThink);
  if (opens) append(kThink, false);
  append(content.substr(opens ? kThink.size() : 0, end - (opens ? kThink.size() : 0)), true);
  append(kEndThink, false);
  append(content.substr(end + kEndThink.size()), true);
}

// The content as it is, between the prompt and what the template writes behind any content.
RenderedReply written_reply(const ChatTemplate& chat, const ordered_json& messages, size_t index,
                            const ordered_json& variables, const std::vector<RenderedPiece>& prompt) {
  constexpr std::string_view kPlain = "answer";
  const ordered_json& message = messages[index];
  const std::string remedy =
      "write the reasoning as the template takes it (\"reasoning_content\", or <think>...</think> in the content), or "
      "name another template, such as --chat-template chatml";
  if (!message["content"].is_string() || message.contains("tool_calls")) {
    throw elsewhere(index, "it would print other text there", remedy);
  }
  ordered_json plain = first_messages(messages, index + 1);
  plain.back()["content"] = kPlain;
  const std::vector<RenderedPiece> example = chat.render(plain, /*add_generation_prompt=*/false, variables);
  const size_t end = end_of_data(example, text_of(example).size());
  const std::string text = text_of(example), asked = text_of(prompt);
  const bool found = end >= kPlain.size() && text.compare(end - kPlain.size(), kPlain.size(), kPlain) == 0;
  const std::string before = found ? text.substr(0, end - kPlain.size()) : "";
  if (!found || !asked.starts_with(before)) throw elsewhere(index, "it would print other text there", remedy);
  const std::string_view opening = trimmed(std::string_view(asked).substr(before.size()), kSpace);
  std::string_view content = message["content"].get_ref<const std::string&>();
  if (opening.empty() && trimmed(asked, kSpace).ends_with(kEndThink)) {
    throw elsewhere(index, "its prompt ends the reasoning, and the message has some", remedy);
  }
  if (!opening.empty()) {
    content = trimmed(content, kSpace);
    const bool repeats = content.starts_with(opening);
    if (repeats) content.remove_prefix(opening.size());
    if (!repeats && (opening != kThink || content.find(kEndThink) == std::string_view::npos)) {
      throw elsewhere(index, fmt::format("its prompt begins the reply with {}, which the message has not", opening),
                      remedy);
    }
    content.remove_prefix(std::min(content.find_first_not_of(kSpace), content.size()));
  }
  RenderedReply reply{.pieces = prompt, .prompt_bytes = asked.size(), .as_written = true};
  append_content(content, chat, reply.pieces);
  const std::string behind = text.substr(end);
  if (behind.empty()) return reply;
  if (!reply.pieces.empty() && !reply.pieces.back().from_data) {
    reply.pieces.back().text += behind;
  } else {
    reply.pieces.push_back({behind, false});
  }
  return reply;
}

}  // namespace

ordered_json first_messages(const ordered_json& messages, size_t count) {
  return ordered_json(ordered_json::array_t(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)));
}

RenderedReply reply_of(const ChatTemplate& chat, const ordered_json& messages, size_t index,
                       const ordered_json& variables) {
  const std::vector<RenderedPiece> prompt =
      chat.render(first_messages(messages, index), /*add_generation_prompt=*/true, variables);
  std::vector<RenderedPiece> pieces =
      chat.render(first_messages(messages, index + 1), /*add_generation_prompt=*/false, variables);
  const ordered_json& content = messages[index]["content"];
  const std::string text = text_of(pieces);
  const size_t prompt_bytes = text_of(prompt).size();
  const bool follows = begins_with(pieces, prompt);
  const std::string said = content_text(content);
  const std::string_view reasoning = reasoning_in(said);
  if (!follows || text.find(reasoning, prompt_bytes) == std::string::npos) {
    return written_reply(chat, messages, index, variables, prompt);
  }
  return {.pieces = std::move(pieces), .prompt_bytes = prompt_bytes};
}

}  // namespace nmoe
