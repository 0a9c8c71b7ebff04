#include "chat/conversation_encoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "chat/chat_template.h"
#include "chat/checkpoint_settings.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

std::string text_of(const std::vector<RenderedPiece>& pieces) {
  std::string text;
  for (const RenderedPiece& piece : pieces) text += piece.text;
  return text;
}

// The part [begin, end) of what a template printed, in bytes.
std::vector<RenderedPiece> part_of(const std::vector<RenderedPiece>& pieces, size_t begin, size_t end) {
  std::vector<RenderedPiece> part;
  size_t place = 0;
  for (const RenderedPiece& piece : pieces) {
    const size_t from = std::max(place, begin), to = std::min(place + piece.text.size(), end);
    if (from < to) part.push_back({piece.text.substr(from - place, to - from), piece.from_data});
    place += piece.text.size();
  }
  return part;
}

CheckpointSettings settings_of(const std::string& source, const Tokenizer& tokenizer) {
  CheckpointSettings settings;
  if (fs::is_directory(source)) {
    const fs::path imported = fs::path(source) / "huggingface";
    settings = read_model_settings(fs::exists(imported) ? imported : fs::path(source), tokenizer);
    if (!settings.chat_template.empty()) return settings;
    throw usage_error(fmt::format("'{}' has no chat template", source),
                      "name a Jinja file or \"chatml\" with --chat-template");
  }
  for (const NamedToken& special : tokenizer.special_tokens()) {
    if (special.id == tokenizer.eos_id()) settings.special_tokens["eos_token"] = special.text;
  }
  return settings;
}

class TemplateEncoder final : public ConversationEncoder {
 public:
  TemplateEncoder(const CheckpointSettings& settings, const std::string& choice,
                  std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)), template_(settings, choice, *tokenizer_) {
    Sha256 sha;
    sha.update(template_.source());
    for (const auto& [role, token] : settings.special_tokens) sha.update(fmt::format("\n{} {}", role, token));
    fingerprint_ = sha.finish();
    for (const NamedToken& token : tokenizer_->special_tokens()) special_ids_.push_back(token.id);
    std::ranges::sort(special_ids_);
  }

  EncodedConversation encode(const std::string& json) const override {
    const ordered_json messages = parse_json<ordered_json>(json);
    const std::vector<RenderedPiece> pieces = render(messages, /*prompt=*/false);
    const std::string whole = text_of(pieces);
    EncodedConversation encoded;
    ordered_json before = ordered_json::array();
    size_t done = 0;  // of `whole`, in bytes
    for (size_t i = 0; i < messages.size(); ++i) {
      const bool reply = messages[i]["role"] == "assistant";
      const std::string prompt = reply ? text_of(render(before, /*prompt=*/true)) : "";
      before.push_back(messages[i]);
      if (!reply) continue;
      const std::string replied = text_of(render(before, /*prompt=*/false));
      if (!whole.starts_with(prompt) || !whole.starts_with(replied) || replied.size() < prompt.size() ||
          prompt.size() < done) {
        throw runtime_error(
            fmt::format(
                "the chat template does not write message {} behind its prompt for a reply when all {} messages "
                "are there",
                i + 1, messages.size()),
            "name a template that writes a message in one way wherever it stands, such as --chat-template chatml");
      }
      append(part_of(pieces, done, prompt.size()), false, encoded);
      append(part_of(pieces, prompt.size(), replied.size()), true, encoded);
      done = replied.size();
    }
    while (!encoded.mask.empty() && encoded.mask.back() == 0) pop(encoded);
    if (!encoded.ids.empty() && encoded.ids.back() == tokenizer_->eos_id()) pop(encoded);
    return encoded;
  }

  std::string fingerprint() const override { return fingerprint_; }

 private:
  std::vector<RenderedPiece> render(const ordered_json& messages, bool prompt) const {
    return template_.render(messages, prompt, ordered_json::object());
  }

  void append(const std::vector<RenderedPiece>& part, bool learned, EncodedConversation& encoded) const {
    const std::vector<int32_t> ids = encode_rendered(part, *tokenizer_);
    size_t end = 0;  // of what is learned
    if (learned) {
      const auto last = std::find_if(ids.rbegin(), ids.rend(),
                                     [&](int32_t id) { return std::ranges::binary_search(special_ids_, id); });
      end = last == ids.rend() ? ids.size() : static_cast<size_t>(ids.rend() - last);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      encoded.ids.push_back(ids[i]);
      encoded.mask.push_back(i < end ? 1 : 0);
    }
  }

  static void pop(EncodedConversation& encoded) {
    encoded.ids.pop_back();
    encoded.mask.pop_back();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate template_;
  std::string fingerprint_;
  std::vector<int32_t> special_ids_;  // ascending
};

}  // namespace

std::shared_ptr<const ConversationEncoder> make_conversation_encoder(const std::string& chat_template,
                                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  const CheckpointSettings settings = settings_of(chat_template, *tokenizer);
  const std::string choice = fs::is_directory(chat_template) ? "" : chat_template;  // "": the folder's own
  return std::make_shared<TemplateEncoder>(settings, choice, std::move(tokenizer));
}

}  // namespace nmoe
