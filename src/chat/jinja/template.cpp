#include "chat/jinja/template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/renderer.h"

namespace nmoe {

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
    tree_ = std::make_unique<const Tree>(Tree{jinja::parse_template(jinja::decode(source, 0))});
  } catch (const jinja::Failure& failure) {
    throw usage_error(fmt::format("{}:{}: {}", name_, failure.line, failure.what),
                      "use a template of what docs/serving.md lists, or rewrite this line");
  }
}

JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

std::vector<RenderedPiece> JinjaTemplate::render(const nlohmann::ordered_json& data,
                                                 const nlohmann::ordered_json& trusted) const {
  jinja::Text text;
  try {
    const jinja::Budget budget(jinja::kRenderUnits);
    jinja::Context context;
    for (const auto& [name, value] : data.items()) context[name] = jinja::from_json(value);
    for (const auto& [name, value] : trusted.items()) context[name] = jinja::from_json(value, /*mark=*/0);
    text = jinja::render(tree_->body, context);
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
