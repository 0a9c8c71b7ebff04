#include "chat/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace nmoe::jinja {
namespace {

using nlohmann::ordered_json;

template <class T>
const T* shared(const Value& value) {
  const auto* pointer = std::get_if<std::shared_ptr<const T>>(&value);
  return pointer == nullptr ? nullptr : pointer->get();
}

int depth_of(const Value& value) {
  if (const List* list = as_list(value)) return list->depth;
  if (const Dict* dict = as_dict(value)) return dict->depth;
  if (value.index() > Value(std::shared_ptr<const Dict>()).index()) {
    fail("a ", type_name(value), " cannot be part of another value");
  }
  return 0;
}

int checked_depth(int depth) {
  if (depth > kMaxDepth) fail("a value of more than ", std::to_string(kMaxDepth), " levels");
  return depth;
}

// What `vouched` has for one member of an object, or one item of a list; null where it has nothing.
const ordered_json* member_of(const ordered_json* vouched, const std::string& key) {
  if (vouched == nullptr || !vouched->is_object()) return nullptr;
  const auto found = vouched->find(key);
  return found == vouched->end() ? nullptr : &*found;
}
const ordered_json* item_of(const ordered_json* vouched, size_t i) {
  return vouched == nullptr || !vouched->is_array() || i >= vouched->size() ? nullptr : &(*vouched)[i];
}

Value from_json(const ordered_json& json, char32_t mark, const ordered_json* vouched, int depth) {
  checked_depth(depth);
  if (vouched != nullptr && vouched->is_string()) return make_text(decode(vouched->get_ref<const std::string&>(), 0));
  switch (json.type()) {
    case ordered_json::value_t::null:
      return None{};
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) fail("the number ", std::to_string(number), " is too large");
      return static_cast<int64_t>(number);
    }
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string:
      return make_text(decode(json.get_ref<const std::string&>(), mark));
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const ordered_json& item : json) {
        items.push_back(from_json(item, mark, item_of(vouched, items.size()), depth + 1));
      }
      return make_list(std::move(items));
    }
    case ordered_json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) {
        items.emplace_back(make_text(decode(key, mark)), from_json(item, mark, member_of(vouched, key), depth + 1));
      }
      return make_dict(std::move(items));
    }
    default:
      fail("JSON of an unknown kind");
  }
}

Text ascii(std::string_view text) { return decode(text, 0); }

std::string real_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// repr of a string: in single quotes unless that would need escapes that double quotes do not.
Text quoted(const Text& text) {
  const bool use_double = find(text, U"'") != Text::npos && find(text, U"\"") == Text::npos;
  const char32_t quote = use_double ? U'"' : U'\'';
  charge(4 * static_cast<int64_t>(text.size()));  // as long as its escapes
  Text result(1, quote);
  for (const char32_t c : text) {
    const char32_t point = code_point(c);
    if (point == quote || point == U'\\') {
      result += U'\\';
      result += c;
    } else if (point == U'\n') {
      result += U"\\n";
    } else if (point == U'\r') {
      result += U"\\r";
    } else if (point == U'\t') {
      result += U"\\t";
    } else if (point < 0x20 || (point >= 0x7F && point < 0xA1) || point == 0xAD) {
      result += ascii(fmt::format("\\x{:02x}", static_cast<uint32_t>(point)));
    } else {
      result += c;
    }
  }
  return result += quote;
}

// JSON's string, each escape with the mark of what it stands for.
void append_json_text(Text& out, TextView text, bool escape_all) {
  charge(6 * static_cast<int64_t>(text.size()));  // as long as its escapes
  out += U'"';
  for (const char32_t c : text) {
    const char32_t point = code_point(c);
    std::string escape;
    switch (point) {
      case U'"':
        escape = "\\\"";
        break;
      case U'\\':
        escape = "\\\\";
        break;
      case U'\n':
        escape = "\\n";
        break;
      case U'\r':
        escape = "\\r";
        break;
      case U'\t':
        escape = "\\t";
        break;
      case U'\b':
        escape = "\\b";
        break;
      case U'\f':
        escape = "\\f";
        break;
      default:
        if (point < 0x20 || (escape_all && point > 0x7E && point <= 0xFFFF)) {
          escape = fmt::format("\\u{:04x}", static_cast<uint32_t>(point));
        } else if (escape_all && point > 0xFFFF) {
          const auto offset = static_cast<uint32_t>(point) - 0x10000;
          escape = fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
        }
    }
    out += escape.empty() ? Text(1, c) : decode(escape, c & kFromData);
  }
  out += U'"';
}

void append_json(Text& out, const Value& value, const JsonStyle& style, int level) {
  charge(kStepUnits + static_cast<int64_t>(style.item_separator.size() + style.key_separator.size()));
  const auto new_line = [&](int indent_level) {
    if (style.indent == nullptr) return;
    charge(indent_level * static_cast<int64_t>(style.indent->size()));
    out += U'\n';
    for (int i = 0; i < indent_level; ++i) out += *style.indent;
  };
  const auto append_items = [&](const auto& items, char32_t open, char32_t close, const auto& append_item) {
    out += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += style.item_separator;
      first = false;
      new_line(level + 1);
      append_item(item);
    }
    if (!first) new_line(level);
    out += close;
  };
  if (const Text* text = as_text(value)) {
    append_json_text(out, *text, style.ascii);
  } else if (const List* list = as_list(value)) {
    append_items(list->items, U'[', U']', [&](const Value& item) { append_json(out, item, style, level + 1); });
  } else if (const Dict* dict = as_dict(value)) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict->items) items.push_back(&item);
    if (style.sort_keys) {
      std::ranges::stable_sort(items, [](auto* a, auto* b) { return compare(a->first, b->first) < 0; });
    }
    append_items(items, U'{', U'}', [&](const auto* item) {
      // A key that is no string becomes one, written as its value would be.
      Text key;
      append_json(key, item->first, style, 0);
      if (as_text(item->first) != nullptr) {
        out += key;
      } else {
        append_json_text(out, key, style.ascii);
      }
      out += style.key_separator;
      append_json(out, item->second, style, level + 1);
    });
  } else if (const bool* flag = std::get_if<bool>(&value)) {
    out += *flag ? U"true" : U"false";
  } else if (is_none(value)) {
    out += U"null";
  } else if (const double* real = std::get_if<double>(&value)) {
    const bool finite = std::isfinite(*real);
    out += finite ? ascii(real_text(*real)) : std::isnan(*real) ? U"NaN" : *real > 0 ? U"Infinity" : U"-Infinity";
  } else if (is_number(value)) {
    out += to_text(value);
  } else {
    fail("a ", type_name(value), " has no JSON");
  }
  if (out.size() > kMaxText) fail("JSON of more than ", std::to_string(kMaxText), " characters");
}

Text joined(const std::vector<Text>& parts) {
  Text text;
  for (const Text& part : parts) {
    charge(static_cast<int64_t>(part.size()));
    if (!text.empty()) text += U", ";
    text += part;
  }
  return text;
}

}  // namespace

const Value* Dict::find(TextView key) const {
  for (const auto& [name, value] : items) {
    const Text* text = as_text(name);
    if (text != nullptr && jinja::equal(*text, key)) return &value;
  }
  return nullptr;
}

Value make_text(Text text) {
  if (text.size() > kMaxText) fail("a text of more than ", std::to_string(kMaxText), " characters");
  charge(kStepUnits + static_cast<int64_t>(text.size()));
  return std::make_shared<const Text>(std::move(text));
}
Value make_text(TextView text) { return make_text(Text(text)); }
Value make_text(std::string_view text) { return make_text(ascii(text)); }

Value make_list(std::vector<Value> items, bool tuple) {
  if (items.size() > kMaxList) fail("a list of more than ", std::to_string(kMaxList), " items");
  charge(kStepUnits + kValueUnits * static_cast<int64_t>(items.size()));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  list->tuple = tuple;
  list->depth = checked_depth(depth + 1);
  return std::shared_ptr<const List>(std::move(list));
}

Value make_dict(std::vector<std::pair<Value, Value>> items) {
  auto dict = std::make_shared<Dict>();
  int depth = 0;
  for (auto& item : items) {
    depth = std::max({depth, depth_of(item.first), depth_of(item.second)});
    if (as_list(item.first) != nullptr || as_dict(item.first) != nullptr) {
      fail("a ", type_name(item.first), " cannot be a key");
    }
    charge(2 * kValueUnits);
    const auto same = [&](const auto& other) { return equal(other.first, item.first); };
    const auto found = std::ranges::find_if(dict->items, same);
    if (found != dict->items.end()) {
      found->second = std::move(item.second);
    } else {
      dict->items.push_back(std::move(item));
    }
  }
  dict->depth = checked_depth(depth + 1);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value from_json(const ordered_json& json, char32_t mark, const ordered_json* vouched) {
  return from_json(json, mark, vouched, 0);
}

const Text* as_text(const Value& value) { return shared<Text>(value); }
const List* as_list(const Value& value) { return shared<List>(value); }
const Dict* as_dict(const Value& value) { return shared<Dict>(value); }
bool is_undefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
bool is_none(const Value& value) { return std::holds_alternative<None>(value); }
bool is_whole(const Value& value) {
  return std::holds_alternative<bool>(value) || std::holds_alternative<int64_t>(value);
}
bool is_number(const Value& value) { return is_whole(value) || std::holds_alternative<double>(value); }
int64_t as_whole(const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::get<int64_t>(value);
}
double as_real(const Value& value) {
  const double* real = std::get_if<double>(&value);
  return real != nullptr ? *real : static_cast<double>(as_whole(value));
}

const char* type_name(const Value& value) {
  constexpr const char* kNames[] = {"undefined value", "none",      "boolean", "integer", "float",    "string", "list",
                                    "mapping",         "namespace", "method",  "macro",   "function", "loop"};
  static_assert(std::size(kNames) == std::variant_size_v<Value>);
  return kNames[value.index()];
}

bool truth(const Value& value) {
  if (is_undefined(value) || is_none(value)) return false;
  if (is_number(value)) return as_real(value) != 0;
  if (const Text* text = as_text(value)) return !text->empty();
  if (const List* list = as_list(value)) return !list->items.empty();
  if (const Dict* dict = as_dict(value)) return !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  charge(1);
  if (is_number(a) && is_number(b)) {
    return is_whole(a) && is_whole(b) ? as_whole(a) == as_whole(b) : as_real(a) == as_real(b);
  }
  if (a.index() != b.index()) return false;
  if (const Text* text = as_text(a)) return equal(*text, *as_text(b));
  if (const List* list = as_list(a)) {
    const List* other = as_list(b);
    const auto same = [](const Value& x, const Value& y) { return equal(x, y); };
    return list->tuple == other->tuple && std::ranges::equal(list->items, other->items, same);
  }
  if (const Dict* dict = as_dict(a)) {
    const auto& others = as_dict(b)->items;
    return dict->items.size() == others.size() && std::ranges::all_of(dict->items, [&](const auto& item) {
             return std::ranges::any_of(others, [&](const auto& other) {
               return equal(item.first, other.first) && equal(item.second, other.second);
             });
           });
  }
  if (is_undefined(a) || is_none(a)) return true;
  return false;
}

int compare(const Value& a, const Value& b) {
  charge(1);
  if (is_number(a) && is_number(b)) {
    if (is_whole(a) && is_whole(b)) return as_whole(a) < as_whole(b) ? -1 : as_whole(a) > as_whole(b);
    return as_real(a) < as_real(b) ? -1 : as_real(a) > as_real(b);
  }
  const Text* text = as_text(a);
  const Text* other_text = as_text(b);
  if (text != nullptr && other_text != nullptr) return compare(*text, *other_text);
  const List* list = as_list(a);
  const List* other_list = as_list(b);
  if (list != nullptr && other_list != nullptr && list->tuple == other_list->tuple) {
    for (size_t i = 0; i < std::min(list->items.size(), other_list->items.size()); ++i) {
      if (!equal(list->items[i], other_list->items[i])) return compare(list->items[i], other_list->items[i]);
    }
    return list->items.size() < other_list->items.size() ? -1 : list->items.size() > other_list->items.size();
  }
  fail("a ", type_name(a), " and a ", type_name(b), " have no order");
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = as_text(container)) {
    const Text* part = as_text(item);
    if (part == nullptr) fail("a ", type_name(item), " cannot be in a string");
    return find(*text, *part) != Text::npos;
  }
  return std::ranges::any_of(iterate(container), [&](const Value& other) { return equal(other, item); });
}

int64_t length(const Value& value) {
  if (is_undefined(value)) return 0;
  if (const Text* text = as_text(value)) return static_cast<int64_t>(text->size());
  if (const List* list = as_list(value)) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = as_dict(value)) return static_cast<int64_t>(dict->items.size());
  fail("a ", type_name(value), " has no length");
}

std::vector<Value> iterate(const Value& value) {
  if (is_undefined(value)) return {};
  if (const List* list = as_list(value)) {
    charge(kValueUnits * static_cast<int64_t>(list->items.size()));
    return list->items;
  }
  std::vector<Value> items;
  if (const Dict* dict = as_dict(value)) {
    charge(kValueUnits * static_cast<int64_t>(dict->items.size()));
    for (const auto& [key, item] : dict->items) items.push_back(key);
  } else if (const Text* text = as_text(value)) {
    if (text->size() > kMaxList) fail("a list of more than ", std::to_string(kMaxList), " items");
    charge(kValueUnits * static_cast<int64_t>(text->size()));
    for (const char32_t c : *text) items.push_back(make_text(Text(1, c)));
  } else {
    fail("a ", type_name(value), " has no items");
  }
  return items;
}

Text to_text(const Value& value) {
  if (const Text* text = as_text(value)) {
    charge(static_cast<int64_t>(text->size()));
    return *text;
  }
  if (is_undefined(value)) return {};
  return to_repr(value);
}

Text to_repr(const Value& value) {
  charge(kStepUnits);
  if (is_undefined(value)) return U"Undefined";
  if (is_none(value)) return U"None";
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? U"True" : U"False";
  if (const double* real = std::get_if<double>(&value)) return ascii(real_text(*real));
  if (is_whole(value)) return ascii(fmt::format("{}", as_whole(value)));
  if (const Text* text = as_text(value)) return quoted(*text);
  std::vector<Text> parts;
  if (const List* list = as_list(value)) {
    for (const Value& item : list->items) parts.push_back(to_repr(item));
    if (!list->tuple) return U"[" + joined(parts) + U"]";
    return U"(" + joined(parts) + (parts.size() == 1 ? U",)" : U")");
  }
  if (const Dict* dict = as_dict(value)) {
    for (const auto& [key, item] : dict->items) parts.push_back(to_repr(key) + U": " + to_repr(item));
    return U"{" + joined(parts) + U"}";
  }
  fail("a ", type_name(value), " cannot be printed");
}

Text to_json(const Value& value, const JsonStyle& style) {
  Text text;
  append_json(text, value, style, 0);
  return text;
}

}  // namespace nmoe::jinja
