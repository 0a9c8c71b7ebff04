#include "chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/bounded_file.h"
#include "base/error.h"
#include "chat/rendered_text.h"
#include "data/prep/messages.h"

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
    if (!tokenizer.special_id(mark)) return mark;
  }
  return "";
}

// The roles of `messages` that templates know, in their places; {} where there is another.
ordered_json known_roles(const ordered_json& messages) {
  constexpr std::array<std::string_view, 8> kRoles = {"system", "developer", "user",        "assistant",
                                                      "tool",   "function",  "observation", "ipython"};
  ordered_json roles = ordered_json::array();
  for (const ordered_json& message : messages) {
    const bool has_role = message.is_object() && message.contains("role") && message["role"].is_string();
    const std::string role = has_role ? message["role"].get<std::string>() : "";
    const bool known = std::ranges::find(kRoles, role) != kRoles.end();
    roles.push_back(known ? ordered_json{{"role", role}} : ordered_json::object());
  }
  return roles;
}

bool has_parts(const ordered_json& message) {
  return message.is_object() && message.contains("content") && message["content"].is_array();
}

ordered_json example_turn() {
  return {{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", "answer"}}};
}

// What the template wrote behind the last that came with the data; "" where nothing came with it.
std::string text_behind_data(const std::vector<RenderedPiece>& pieces) {
  const auto last = std::find_if(pieces.rbegin(), pieces.rend(), [](const auto& piece) { return piece.from_data; });
  std::string text;
  if (last == pieces.rend()) return text;
  for (auto piece = last.base(); piece != pieces.end(); ++piece) text += piece->text;
  return text;
}

std::optional<int32_t> first_special(std::string_view text, const Tokenizer& tokenizer) {
  const auto specials = special_tokens_in(text, tokenizer);
  return specials.empty() ? std::nullopt : std::optional(specials.front().id);
}

std::string choose_source(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer) {
  const bool own = choice.empty() && !settings.chat_template.empty();
  if (own) return settings.chat_template;
  if (!choice.empty() && choice != kChatMlName) {
    if (!fs::exists(choice)) {
      throw usage_error(fmt::format("there is no chat template '{}'", choice), "name a Jinja file, or chatml");
    }
    return read_file_up_to(choice, kMaxSettingsFile);
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
      fmt::format("ChatML needs {}, which is not a special token of the tokenizer", missing),
      "take a tokenizer from n tokenizer train, which reserves both marks (but with --no-chatml), or name "
      "another form with --chat-template FILE.jinja");
}

}  // namespace

ChatTemplate::ChatTemplate(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer,
                           const std::optional<std::tm>& now)
    : source_(choose_source(settings, choice, tokenizer)),
      template_(source_, choice.empty() ? settings.chat_template_file : choice),
      special_tokens_(settings.special_tokens),
      now_(now) {}

std::vector<RenderedPiece> ChatTemplate::render(const ordered_json& messages, bool add_generation_prompt,
                                                const ordered_json& extra) const {
  if (std::ranges::none_of(messages, has_parts)) return render_as_given(messages, add_generation_prompt, extra);
  // A template reads lists if it writes one of a single part as it writes that part's text. (There are some that pass
  // over everything but text, and some that print the list.)
  ordered_json texts = messages, lists = messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!has_parts(messages[i])) continue;
    const std::string text = content_text(messages[i]["content"]);
    texts[i]["content"] = text;
    lists[i]["content"] = ordered_json::array({{{"type", "text"}, {"text", text}}});
  }
  std::vector<RenderedPiece> of_texts = render_as_given(texts, add_generation_prompt, extra);
  try {
    if (text_of(render_as_given(lists, add_generation_prompt, extra)) != text_of(of_texts)) return of_texts;
  } catch (const Error&) {
    return of_texts;
  }
  return render_as_given(messages, add_generation_prompt, extra);
}

std::optional<size_t> ChatTemplate::unwritten_message(const ordered_json& messages, const ordered_json& extra) const {
  const std::string whole = text_of(render(messages, /*add_generation_prompt=*/false, extra));
  for (size_t i = 0; i < messages.size(); ++i) {
    constexpr size_t kLong = 40;  // bytes: no other message has them by chance
    const std::string text = content_text(messages[i].value("content", ordered_json()));
    if (messages[i]["role"] == "assistant" || text.empty()) continue;
    if (text.size() >= kLong && whole.find(text) != std::string::npos) continue;
    // It may be written in another way. Then another text is another conversation.
    ordered_json other = messages;
    other[i]["content"] = "another " + text + " text";
    if (text_of(render(other, /*add_generation_prompt=*/false, extra)) == whole) return i;
  }
  return std::nullopt;
}

std::vector<RenderedPiece> ChatTemplate::render_as_given(const ordered_json& messages, bool add_generation_prompt,
                                                         const ordered_json& extra) const {
  // As transformers calls templates: tools and documents are there, and none.
  ordered_json data = {{"tools", nullptr}, {"documents", nullptr}};
  data.update(extra);
  data["messages"] = messages;
  data["add_generation_prompt"] = add_generation_prompt;
  ordered_json trusted(special_tokens_);
  trusted["messages"] = known_roles(messages);
  return template_.render(data, trusted, now_);
}

std::optional<int32_t> ChatTemplate::end_of_reply(const Tokenizer& tokenizer) const {
  std::vector<RenderedPiece> pieces;
  try {
    pieces = render(example_turn(), /*add_generation_prompt=*/false, ordered_json::object());
  } catch (const Error&) {
    return std::nullopt;  // it wants something else of a conversation
  }
  return first_special(text_behind_data(pieces), tokenizer);
}

std::optional<int32_t> ChatTemplate::end_of_turn(const Tokenizer& tokenizer) const {
  const std::optional<int32_t> end = end_of_reply(tokenizer);
  return end ? end : first_special(next_turn(example_turn(), "user", ordered_json::object()), tokenizer);
}

std::string ChatTemplate::next_turn(const ordered_json& messages, const std::string& role,
                                    const ordered_json& extra) const {
  constexpr std::string_view kSaid = "next";
  ordered_json more = messages;
  more.push_back({{"role", role}, {"content", kSaid}});
  std::vector<RenderedPiece> pieces;
  std::string behind;  // the last message, where none follows
  try {
    pieces = render(more, /*add_generation_prompt=*/false, extra);
    behind = text_behind_data(render(messages, /*add_generation_prompt=*/false, extra));
  } catch (const Error&) {
    return "";
  }
  const auto said = std::find_if(pieces.rbegin(), pieces.rend(), [](const auto& piece) { return piece.from_data; });
  if (said == pieces.rend() || said->text != kSaid || said + 1 == pieces.rend()) return "";
  const std::string& between = (said + 1)->text;
  return between.starts_with(behind) ? between.substr(behind.size()) : between;
}

std::vector<TokenFinder::Match> special_tokens_in(std::string_view text, const Tokenizer& tokenizer) {
  const TokenFinder finder(tokenizer.special_tokens());
  std::vector<TokenFinder::Match> matches;
  for (auto match = finder.find(text, 0); match; match = finder.find(text, match->end)) matches.push_back(*match);
  return matches;
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
