#include "chat/jinja/template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/renderer.h"

namespace nmoe {

namespace {

std::tm local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return parts;
}

}  // namespace

struct JinjaTemplate::Tree {
  jinja::Body body;
};

JinjaTemplate::JinjaTemplate(std::string_view source, std::string name) : name_(std::move(name)) {
  constexpr size_t kMaxSource = 1 << 20;
  if (source.size() > kMaxSource) {
    throw usage_error(fmt::format("{}: a template of {} bytes; at most {} are read", name_, source.size(), kMaxSource),
                      "name a chat template: those of models have some ten thousand bytes");
  }
  try {
    const jinja::Text text = jinja::decode(source, 0);
    tree_ = std::make_unique<const Tree>(Tree{jinja::parse_template(text)});
    for (const jinja::Token& token : jinja::cut_template(text)) {
      const bool named = token.kind == jinja::TokenKind::kName || token.kind == jinja::TokenKind::kString;
      if (named) names_.insert(jinja::encode(token.text));
    }
  } catch (const jinja::Failure& failure) {
    throw usage_error(fmt::format("{}:{}: {}", name_, failure.line, failure.what),
                      "use a template of what docs/serving.md lists, or rewrite this line");
  }
}

JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

std::vector<RenderedPiece> JinjaTemplate::render(const nlohmann::ordered_json& data,
                                                 const nlohmann::ordered_json& trusted,
                                                 const std::optional<std::tm>& now) const {
  jinja::Text text;
  try {
    const jinja::Budget budget(jinja::kRenderUnits);
    jinja::Context context;
    for (const auto& [name, value] : trusted.items()) context[name] = jinja::from_json(value, /*mark=*/0);
    for (const auto& [name, value] : data.items()) {
      const auto vouched = trusted.find(name);
      context[name] = jinja::from_json(value, jinja::kFromData, vouched == trusted.end() ? nullptr : &*vouched);
    }
    text = jinja::render(tree_->body, context, now.value_or(local_time()));
  } catch (const jinja::Failure& failure) {
    const std::string place = failure.line == 0 ? name_ : fmt::format("{}:{}", name_, failure.line);
    throw runtime_error(fmt::format("{}: {}", place, failure.what),
                        "change the messages to what the template takes, or the template");
  }
  std::vector<RenderedPiece> pieces;
  for (size_t begin = 0; begin < text.size();) {
    const char32_t mark = text[begin] & jinja::kFromData;
    size_t end = begin;
    while (end < text.size() && (text[end] & jinja::kFromData) == mark) ++end;
    pieces.push_back({jinja::encode(jinja::TextView(text).substr(begin, end - begin)), mark != 0});
    begin = end;
  }
  return pieces;
}

}  // namespace nmoe
