#include "chat/conversation_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "chat/chat_template.h"
#include "chat/checkpoint_settings.h"
#include "chat/rendered_text.h"
#include "chat/reply.h"
#include "data/prep/messages.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr const char* kClock = "strftime_now";

CheckpointSettings settings_of(const std::string& source, const Tokenizer& tokenizer) {
  CheckpointSettings settings;
  if (fs::is_directory(source)) {
    const fs::path imported = fs::path(source) / "huggingface";
    settings = read_model_settings(fs::exists(imported) ? imported : fs::path(source), tokenizer);
    if (!settings.chat_template.empty()) return settings;
    throw usage_error(fmt::format("'{}' has no chat template", source),
                      "name a Jinja file or \"chatml\" with --chat-template");
  }
  settings.special_tokens["eos_token"] = tokenizer.special_text(tokenizer.eos_id());
  return settings;
}

std::tm parse_date(const std::string& date) {
  std::tm parts{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &parts);
  if (end == nullptr || *end != '\0') {
    throw usage_error(fmt::format("'{}' is not a date", date), "write it as YYYY-MM-DD, such as 2025-01-31");
  }
  const std::tm given = parts;
  const std::time_t seconds = timegm(&parts);
  gmtime_r(&seconds, &parts);
  if (given.tm_mday != parts.tm_mday) throw usage_error(fmt::format("there is no {}", date), "give a day that exists");
  return parts;
}

// Whether a message's member says nothing of its text, wherever it comes from.
bool is_label(std::string_view key, std::string_view role) {
  constexpr std::array<std::string_view, 10> kLabels = {"id",        "message_id", "parent_id",  "tool_call_id",
                                                        "timestamp", "created",    "created_at", "model",
                                                        "metadata",  "annotations"};
  if (key == "name") return role == "tool" || role == "function";
  return std::ranges::find(kLabels, key) != kLabels.end();
}

class TemplateEncoder final : public ConversationEncoder {
 public:
  TemplateEncoder(const CheckpointSettings& settings, const ConversationOptions& options,
                  std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)),
        template_(settings, fs::is_directory(options.chat_template) ? "" : options.chat_template, *tokenizer_,
                  parse_date(options.date)),
        options_(options),
        end_of_reply_(template_.end_of_reply(*tokenizer_)),
        stop_ids_(settings.stop_ids) {
    stop_ids_.push_back(end_of_reply_.value_or(tokenizer_->eos_id()));
    stop_ids_.push_back(tokenizer_->eos_id());
    Sha256 sha;
    sha.update(template_.source());
    for (const auto& [role, token] : settings.special_tokens) sha.update(fmt::format("\n{} {}", role, token));
    sha.update("\nlearned through the end of the turn");  // the rules above
    if (template_.mentions(kClock)) sha.update("\n" + options.date);
    fingerprint_ = sha.finish();
  }

  std::vector<EncodedDocument> encode(const std::string& messages, const std::string& fields) const override {
    const Conversation conversation = parse_conversation(messages, fields);
    check_members(conversation);
    if (const auto unwritten = template_.unwritten_message(conversation.messages, conversation.variables)) {
      throw runtime_error(fmt::format("the chat template does not write message {}, whose role is \"{}\"",
                                      *unwritten + 1, conversation.messages[*unwritten]["role"].get<std::string>()),
                          "name a template that writes it with --chat-template, or remove the message");
    }
    std::vector<std::pair<size_t, RenderedReply>> replies;  // with their messages' places
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      if (!conversation.learned[i]) continue;
      replies.emplace_back(i, reply_of(template_, conversation.messages, i, conversation.variables));
    }
    const std::vector<RenderedPiece> whole =
        template_.render(conversation.messages, /*add_generation_prompt=*/false, conversation.variables);
    const bool stand = std::ranges::all_of(replies, [&](const auto& reply) {
      return !reply.second.as_written && begins_with(whole, reply.second.pieces);
    });
    if (stand) return {encode_document(conversation, conversation.messages.size(), whole, replies)};
    std::vector<EncodedDocument> documents;
    for (const auto& reply : replies) {
      documents.push_back(encode_document(conversation, reply.first + 1, reply.second.pieces, std::span(&reply, 1)));
    }
    return documents;
  }

  const std::string& source() const override { return template_.source(); }

  std::string note() const override {
    if (!template_.mentions(kClock)) return "";
    return fmt::format("the chat template writes the date: {} (--template-date)", options_.date);
  }

  std::string fingerprint() const override { return fingerprint_; }

 private:
  void check_members(const Conversation& conversation) const {
    for (const auto& [name, value] : conversation.variables.items()) {
      if (template_.mentions(name)) continue;
      throw runtime_error(fmt::format("the record has \"{}\", at which the chat template does not look", name),
                          fmt::format("name a template that writes it with --chat-template, or say that it means "
                                      "nothing: --ignore-field {}",
                                      name));
    }
    size_t number = 0;
    for (const ordered_json& message : conversation.messages) {
      ++number;
      for (const auto& [key, value] : message.items()) {
        const bool empty = value == "" || (value.is_structured() && value.empty());
        if (key == "role" || key == "content" || empty || template_.mentions(key)) continue;
        if (is_label(key, message["role"].get_ref<const std::string&>())) continue;
        if (std::ranges::find(options_.ignored_fields, key) != options_.ignored_fields.end()) continue;
        throw runtime_error(
            fmt::format("message {} has \"{}\", at which the chat template does not look", number, key),
            fmt::format("name a template that writes it with --chat-template, or say that it means nothing: "
                        "--ignore-field {}",
                        key));
      }
    }
  }

  // The document of the first `count` messages. `pieces` is its text, in which `replies` are learned.
  EncodedDocument encode_document(const Conversation& conversation, size_t count, std::vector<RenderedPiece> pieces,
                                  std::span<const std::pair<size_t, RenderedReply>> replies) const {
    EncodedDocument document{
        .ids = {}, .mask = {}, .text_bytes = std::ssize(conversation_text(conversation.messages, count))};
    size_t done = 0;
    for (const auto& [index, reply] : replies) {
      const size_t end = end_of_learned(conversation, index, reply, pieces);
      const size_t begin = std::max(done, reply.prompt_bytes);
      append(part_of(pieces, done, begin), 0, document);
      append(part_of(pieces, begin, end), 1, document);
      done = std::max(begin, end);
    }
    if (!document.ids.empty() && document.ids.back() == tokenizer_->eos_id()) {
      document.ids.pop_back();
      document.mask.pop_back();
    }
    return document;
  }

  // Where what is learned of a reply ends in `pieces`, to which the next turn's marker is added where it is learned and
  // no turn follows.
  size_t end_of_learned(const Conversation& conversation, size_t index, const RenderedReply& reply,
                        std::vector<RenderedPiece>& pieces) const {
    const std::string text = text_of(pieces);
    const size_t reply_end = text_of(reply.pieces).size();
    const size_t data_end = std::max(reply.prompt_bytes, end_of_data(pieces, reply_end));
    const auto ends = special_tokens_in(std::string_view(text).substr(data_end, reply_end - data_end), *tokenizer_);
    for (const TokenFinder::Match& end : ends) {
      if (std::ranges::find(stop_ids_, end.id) != stop_ids_.end()) return data_end + end.end;
    }
    if (end_of_reply_ && !ends.empty()) return data_end + ends.back().end;
    const size_t next_begin = begin_of_data(pieces, reply_end);
    const bool is_last = reply_end == text.size();
    const std::string next = is_last ? next_turn(conversation, index) : text.substr(reply_end, next_begin - reply_end);
    const auto marks = special_tokens_in(next, *tokenizer_);
    if (!marks.empty()) {
      const size_t size = marks.front().end;
      if (is_last) pieces.push_back({next.substr(0, size), /*from_data=*/false});
      return reply_end + size;
    }
    if (!ends.empty()) return data_end + ends.back().end;
    if (is_last) return reply_end;  // the end of the document ends it
    return reply_end + next.find_last_not_of(" \t\r\n") + 1;
  }

  // What the template writes behind message `index` to open the turn that follows, or could follow.
  std::string next_turn(const Conversation& conversation, size_t index) const {
    const ordered_json& messages = conversation.messages;
    const bool calls = messages[index].contains("tool_calls");
    const std::string role = index + 1 < messages.size() ? messages[index + 1]["role"].get<std::string>()
                             : calls                     ? "tool"
                                                         : "user";
    return template_.next_turn(first_messages(messages, index + 1), role, conversation.variables);
  }

  void append(const std::vector<RenderedPiece>& part, uint8_t learned, EncodedDocument& document) const {
    const std::vector<int32_t> ids = encode_rendered(part, *tokenizer_);
    document.ids.insert(document.ids.end(), ids.begin(), ids.end());
    document.mask.resize(document.ids.size(), learned);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate template_;
  ConversationOptions options_;
  std::optional<int32_t> end_of_reply_;
  std::vector<int32_t> stop_ids_;
  std::string fingerprint_;
};

}  // namespace

std::shared_ptr<const ConversationEncoder> make_conversation_encoder(const ConversationOptions& options,
                                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  const CheckpointSettings settings = settings_of(options.chat_template, *tokenizer);
  return std::make_shared<TemplateEncoder>(settings, options, std::move(tokenizer));
}

}  // namespace nmoe
