#include "chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kChatMlName = "chatml";

constexpr const char* kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// The first of ChatML's marks that is no special token; "" where both are.
std::string missing_mark(const Tokenizer& tokenizer) {
  for (const char* mark : kChatMlMarks) {
    const auto& specials = tokenizer.special_tokens();
    if (std::ranges::find(specials, mark, &NamedToken::text) == specials.end()) return mark;
  }
  return "";
}

std::string choose_source(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer) {
  const bool own = choice.empty() && !settings.chat_template.empty();
  if (own) return settings.chat_template;
  if (!choice.empty() && choice != kChatMlName) {
    if (!fs::exists(choice)) {
      throw usage_error(fmt::format("there is no chat template '{}'", choice), "name a Jinja file, or chatml");
    }
    return read_file(choice);
  }
  const std::string missing = missing_mark(tokenizer);
  if (missing.empty()) return kChatMl;
  if (choice.empty()) {
    throw usage_error(
        fmt::format("this checkpoint has no chat template, and its tokenizer no special token {} for ChatML", missing),
        "name the form that it was trained with: --chat-template FILE.jinja; docs/finetuning.md makes a model that "
        "talks; n generate needs no template");
  }
  throw usage_error(
      fmt::format("ChatML needs {}, which is no special token of the tokenizer", missing),
      "take a tokenizer from n tokenizer train, which reserves both marks (but with --no-chatml), or name "
      "another form with --chat-template FILE.jinja");
}

}  // namespace

ChatTemplate::ChatTemplate(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer)
    : source_(choose_source(settings, choice, tokenizer)),
      template_(source_, choice.empty() ? settings.chat_template_file : choice),
      special_tokens_(settings.special_tokens) {}

std::vector<RenderedPiece> ChatTemplate::render(const ordered_json& messages, bool add_generation_prompt,
                                                const ordered_json& extra) const {
  // As transformers calls templates: tools and documents are there, and none.
  ordered_json data = {{"tools", nullptr}, {"documents", nullptr}};
  data.update(extra);
  data["messages"] = messages;
  data["add_generation_prompt"] = add_generation_prompt;
  return template_.render(data, special_tokens_);
}

std::optional<int32_t> ChatTemplate::end_of_turn(const Tokenizer& tokenizer) const {
  std::vector<RenderedPiece> pieces;
  try {
    pieces = render({{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", "answer"}}},
                    /*add_generation_prompt=*/false, ordered_json::object());
  } catch (const Error&) {
    return std::nullopt;  // it wants something else of a conversation
  }
  const auto answer = std::find_if(pieces.rbegin(), pieces.rend(), [](const auto& piece) { return piece.from_data; });
  if (answer == pieces.rend()) return std::nullopt;
  std::string behind;
  for (auto piece = answer.base(); piece != pieces.end(); ++piece) behind += piece->text;
  std::optional<int32_t> end;
  TokenFinder(tokenizer.special_tokens())
      .cut(
          behind, [](std::string_view) {},
          [&](int32_t id) {
            if (!end) end = id;
          });
  return end;
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
