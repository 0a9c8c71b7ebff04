// Jinja templates, as far as the chat templates of Hugging Face checkpoints use them.
//
// The language of Jinja 3.1 with the settings of the package `transformers`: trim_blocks, lstrip_blocks, {% break %},
// {% continue %}, {% generation %} (which prints what is in it), the functions raise_exception and strftime_now, and a
// tojson without HTML's escapes. There are if, for, set and macro, but no inheritance, imports, call, filter, with and
// raw blocks, no string formatting with %, and of the methods, filters and tests those in builtins.cpp. What is not
// supported is an Error that names it and its line. A template is not trusted: it can neither reach anything nor run
// forever.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// What a template printed, in order.
struct RenderedPiece {
  std::string text;  // UTF-8, not empty
  // Whether it came with the data, and not from the template itself or from `trusted`. Neighbours differ in that.
  bool from_data = false;
};

// Immutable; safe to use from several threads at once.
class JinjaTemplate {
 public:
  // `name` is the file, for messages. Error (usage) for what is no template or is not supported.
  JinjaTemplate(std::string_view source, std::string name);
  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

  // The variables are the members of both objects. Where both have one, the strings that `trusted` has in it, at
  // whatever depth, take the place of those of `data` ({"messages": [{"role": ...}]}). `now` is the time that the
  // template may ask for; nothing: the clock's. Error (runtime), naming the line, when the template fails or refuses
  // what it is given.
  std::vector<RenderedPiece> render(const nlohmann::ordered_json& data, const nlohmann::ordered_json& trusted,
                                    const std::optional<std::tm>& now = {}) const;

  // Whether the name, or the string, stands anywhere in the template's code: what does not, it never looks at.
  bool mentions(std::string_view name) const { return names_.contains(name); }

 private:
  struct Tree;
  std::string name_;
  std::set<std::string, std::less<>> names_;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace nmoe
