#include "chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

JinjaTemplate load_template(const CheckpointSettings& settings, const std::string& file) {
  if (!file.empty()) return {read_file(file), file};
  if (settings.chat_template.empty()) {
    throw usage_error("this checkpoint has no chat template",
                      "name one: --chat-template FILE.jinja, of the form that the model was trained with; "
                      "n generate needs none");
  }
  return {settings.chat_template, settings.chat_template_file};
}

}  // namespace

const char* const kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

ChatTemplate::ChatTemplate(const CheckpointSettings& settings, const std::string& file)
    : template_(load_template(settings, file)), special_tokens_(settings.special_tokens) {}

std::vector<RenderedPiece> ChatTemplate::render(const ordered_json& messages, bool add_generation_prompt,
                                                const ordered_json& extra) const {
  // As transformers calls templates: tools and documents are there, and none.
  ordered_json data = {{"tools", nullptr}, {"documents", nullptr}};
  data.update(extra);
  data["messages"] = messages;
  data["add_generation_prompt"] = add_generation_prompt;
  return template_.render(data, special_tokens_);
}

std::vector<int32_t> encode_rendered(const std::vector<RenderedPiece>& pieces, const Tokenizer& tokenizer) {
  const TokenFinder specials(tokenizer.special_tokens());
  std::vector<int32_t> ids;
  std::string text;  // since the last special token: words go across pieces
  const auto encode_text = [&] {
    tokenizer.encode(text, ids);
    text.clear();
  };
  for (const RenderedPiece& piece : pieces) {
    if (piece.from_data) {
      text += piece.text;
      continue;
    }
    specials.cut(
        piece.text, [&](std::string_view part) { text += part; },
        [&](int32_t id) {
          encode_text();
          ids.push_back(id);
        });
  }
  encode_text();
  return ids;
}

}  // namespace nmoe
