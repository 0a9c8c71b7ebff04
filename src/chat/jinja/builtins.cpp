#include "chat/jinja/builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <span>

namespace nmoe::jinja {
namespace {

bool one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 21> kTextMethods = {
    "strip",    "lstrip", "rstrip", "split",   "rsplit",       "splitlines",   "startswith",
    "endswith", "upper",  "lower",  "title",   "capitalize",   "replace",      "find",
    "rfind",    "count",  "join",   "isdigit", "removeprefix", "removesuffix", "index"};
constexpr std::array<std::string_view, 2> kListMethods = {"index", "count"};
constexpr std::array<std::string_view, 4> kDictMethods = {"items", "keys", "values", "get"};

Text capitalize(TextView text) { return text.empty() ? Text() : upper(text.substr(0, 1)) + lower(text.substr(1)); }

// Each part after one of `separators` with a capital; Python's and Jinja's titles differ in what these are.
template <class IsSeparator>
Text title(TextView text, IsSeparator&& is_separator) {
  charge(4 * static_cast<int64_t>(text.size()));
  Text result;
  bool begins = true;
  for (const char32_t c : text) {
    result += begins ? upper(TextView(&c, 1)) : lower(TextView(&c, 1));
    begins = is_separator(code_point(c));
  }
  return result;
}

Value text_list(std::vector<Text> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(make_text(std::move(part)));
  return make_list(std::move(items));
}

int64_t count_of(TextView text, TextView part) {
  if (part.empty()) return static_cast<int64_t>(text.size()) + 1;
  int64_t count = 0;
  for (size_t place = find(text, part); place != Text::npos; place = find(text, part, place + part.size())) ++count;
  return count;
}

Text join(const Value& items, TextView separator) {
  Text text;
  bool first = true;
  for (const Value& item : iterate(items)) {
    if (!first) text += separator;
    first = false;
    text += to_text(item);
    charge(static_cast<int64_t>(separator.size()));
    if (text.size() > kMaxText) fail("a text of more than ", std::to_string(kMaxText), " characters");
  }
  return text;
}

std::vector<Text> split_lines(TextView text) {
  std::vector<Text> lines;
  for (size_t begin = 0; begin < text.size();) {
    charge(2 * kStepUnits);
    size_t end = begin;
    while (end < text.size() && code_point(text[end]) != U'\n' && code_point(text[end]) != U'\r') ++end;
    lines.emplace_back(text.substr(begin, end - begin));
    if (end + 1 < text.size() && code_point(text[end]) == U'\r' && code_point(text[end + 1]) == U'\n') ++end;
    begin = end + 1;
  }
  return lines;
}

// startswith and endswith take one text, or a tuple of them.
template <class Has>
bool any_affix(const Value& affixes, Has&& has) {
  if (const Text* one = as_text(affixes)) return has(*one);
  const List* list = as_list(affixes);
  if (list == nullptr || !list->tuple) fail("startswith and endswith need a string or a tuple of them");
  return std::ranges::any_of(list->items, [&](const Value& affix) {
    const Text* text = as_text(affix);
    if (text == nullptr) fail("startswith and endswith need strings");
    return has(*text);
  });
}

int64_t place_or(size_t place) { return place == Text::npos ? -1 : static_cast<int64_t>(place); }

size_t checked_place(size_t place) {
  if (place == Text::npos) fail("index: it is not in there");
  return place;
}

Value call_text_method(const Text& text, const std::string& name, const Arguments& arguments) {
  const auto bind = [&](std::vector<std::string_view> names) { return Bound(name, arguments, std::move(names)); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Side side = name == "strip" ? Side::kBoth : name == "lstrip" ? Side::kLeft : Side::kRight;
    return make_text(strip(text, side, bind({"chars"}).text_or_null(0)));
  }
  if (name == "split" || name == "rsplit") {
    const Bound bound = bind({"sep", "maxsplit"});
    const Text* separator = bound.text_or_null(0);
    if (separator != nullptr && separator->empty()) fail(name, " with an empty separator");
    const auto limit = bound.whole_or(1, -1);
    return text_list(name == "split" ? split(text, separator, limit) : rsplit(text, separator, limit));
  }
  if (name == "startswith" || name == "endswith") {
    const auto has = [&](TextView affix) {
      return name == "startswith" ? starts_with(text, affix) : ends_with(text, affix);
    };
    return any_affix(bind({"affix"}).value(0), has);
  }
  if (name == "replace") {
    const Bound bound = bind({"old", "new", "count"});
    const TextView from = bound.text(0), to = bound.text(1);
    const auto most = static_cast<size_t>(count_of(text, from));
    if (text.size() + most * to.size() > kMaxText) fail("replace: the result would be too long");
    return make_text(replace(text, from, to, bound.whole_or(2, -1)));
  }
  if (name == "find") return place_or(find(text, bind({"sub"}).text(0)));
  if (name == "rfind") return place_or(rfind(text, bind({"sub"}).text(0)));
  if (name == "index") return static_cast<int64_t>(checked_place(find(text, bind({"sub"}).text(0))));
  if (name == "count") return count_of(text, bind({"sub"}).text(0));
  if (name == "join") {
    const Bound bound = bind({"iterable"});
    for (const Value& item : iterate(bound.value(0))) {
      if (as_text(item) == nullptr) fail("join: a ", type_name(item), " is not a string");
    }
    return make_text(join(bound.value(0), text));
  }
  if (name == "removeprefix") {
    const Bound bound = bind({"prefix"});
    return make_text(TextView(text).substr(starts_with(text, bound.text(0)) ? bound.text(0).size() : 0));
  }
  if (name == "removesuffix") {
    const Bound bound = bind({"suffix"});
    return make_text(
        TextView(text).substr(0, text.size() - (ends_with(text, bound.text(0)) ? bound.text(0).size() : 0)));
  }
  bind({});
  if (name == "splitlines") return text_list(split_lines(text));
  if (name == "upper") return make_text(upper(text));
  if (name == "lower") return make_text(lower(text));
  if (name == "capitalize") return make_text(capitalize(text));
  if (name == "title")
    return make_text(title(text, [](char32_t c) { return upper(TextView(&c, 1)) == lower(TextView(&c, 1)); }));
  return !text.empty() &&
         std::ranges::all_of(text, [](char32_t c) { return code_point(c) >= U'0' && code_point(c) <= U'9'; });
}

Value call_list_method(const List& list, const std::string& name, const Arguments& arguments) {
  const Bound bound(name, arguments, {"value"});
  const auto same = [&](const Value& item) { return equal(item, bound.value(0)); };
  if (name == "count") return static_cast<int64_t>(std::ranges::count_if(list.items, same));
  const auto found = std::ranges::find_if(list.items, same);
  return static_cast<int64_t>(
      checked_place(found == list.items.end() ? Text::npos : static_cast<size_t>(found - list.items.begin())));
}

Value dict_items(const Dict& dict) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) items.push_back(make_list({key, value}, /*tuple=*/true));
  return make_list(std::move(items));
}

Value call_dict_method(const Dict& dict, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    const Bound bound(name, arguments, {"key", "default"});
    const Text* key = as_text(bound.value(0));
    const Value* found = key == nullptr ? nullptr : dict.find(*key);
    if (found != nullptr) return *found;
    return bound.has(1) ? bound.value(1) : Value(None{});
  }
  const Bound bound(name, arguments, {});
  if (name == "items") return dict_items(dict);
  std::vector<Value> parts;
  for (const auto& [key, value] : dict.items) parts.push_back(name == "keys" ? key : value);
  return make_list(std::move(parts));
}

Value to_whole(const Value& input, int64_t otherwise) {
  if (is_whole(input)) return as_whole(input);
  double real = std::nan("");
  if (is_number(input)) real = as_real(input);
  if (const Text* text = as_text(input)) {
    const std::string digits = encode(strip(*text, Side::kBoth));
    const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
    const char* end = digits.data() + digits.size();
    int64_t whole = 0;
    if (const auto result = std::from_chars(begin, end, whole); result.ec == std::errc() && result.ptr == end)
      return whole;
    if (const auto result = std::from_chars(begin, end, real); result.ec != std::errc() || result.ptr != end)
      return otherwise;
  }
  return std::abs(real) < 9e18 ? static_cast<int64_t>(real) : otherwise;
}

Value to_real(const Value& input, double otherwise) {
  if (is_number(input)) return as_real(input);
  const Text* text = as_text(input);
  if (text == nullptr) return otherwise;
  const std::string digits = encode(strip(*text, Side::kBoth));
  const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
  const char* end = digits.data() + digits.size();
  double real = 0;
  const auto result = std::from_chars(begin, end, real);
  return result.ec == std::errc() && result.ptr == end ? real : otherwise;
}

// "a.b.0" of an item, as map(attribute=...) and its relatives look it up.
Value attribute_of(const Value& item, const Value& path) {
  if (is_whole(path)) return get_item(item, path);
  const Text* text = as_text(path);
  if (text == nullptr) fail("the name of an attribute must be a string");
  const Text dot = U".";
  Value value = item;
  for (const Text& part : split(*text, &dot, -1)) {
    const bool digits = !part.empty() && std::ranges::all_of(part, [](char32_t c) { return c >= U'0' && c <= U'9'; });
    value = get_item(value, digits ? to_whole(make_text(part), 0) : make_text(part));
  }
  return value;
}

// Without the first `count` arguments.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

std::string name_argument(const Arguments& arguments, size_t i, std::string_view what) {
  const Text* name = i < arguments.positional.size() ? as_text(arguments.positional[i]) : nullptr;
  if (name == nullptr) fail(what, " needs the name of a filter, a test or an attribute");
  return encode(*name);
}

Value map_items(const Value& input, const Arguments& arguments) {
  std::vector<Value> results;
  const bool by_attribute = arguments.positional.empty();
  if (by_attribute) {
    const Bound bound("map", arguments, {"attribute", "default"});
    for (const Value& item : iterate(input)) {
      Value value = attribute_of(item, bound.value(0));
      if (is_undefined(value) && bound.has(1)) value = bound.value(1);
      results.push_back(std::move(value));
    }
  } else {
    const std::string filter = name_argument(arguments, 0, "map");
    const Arguments rest = rest_of(arguments, 1);
    for (const Value& item : iterate(input)) results.push_back(apply_filter(filter, item, rest));
  }
  return make_list(std::move(results));
}

// select, reject, selectattr and rejectattr.
Value select_items(const std::string& filter, const Value& input, const Arguments& arguments) {
  const bool by_attribute = filter.ends_with("attr");
  const bool wanted = filter.starts_with("select");
  const size_t names = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) fail(filter, " needs the name of an attribute");
  const bool has_test = arguments.positional.size() > names;
  const std::string test = has_test ? name_argument(arguments, names, filter) : "";
  const Arguments rest = rest_of(arguments, names + 1);
  std::vector<Value> results;
  for (const Value& item : iterate(input)) {
    const Value tested = by_attribute ? attribute_of(item, arguments.positional[0]) : item;
    if ((has_test ? apply_test(test, tested, rest) : truth(tested)) == wanted) results.push_back(item);
  }
  return make_list(std::move(results));
}

Value sort_items(const Value& input, const Bound& bound) {
  const bool reverse = bound.flag_or(0, false), with_case = bound.flag_or(1, false);
  std::vector<std::pair<Value, Value>> items;  // what to sort by, and the item
  for (const Value& item : iterate(input)) {
    Value key = bound.has(2) ? attribute_of(item, bound.value(2)) : item;
    if (const Text* text = as_text(key); text != nullptr && !with_case) key = make_text(lower(*text));
    items.emplace_back(std::move(key), item);
  }
  std::ranges::stable_sort(items, [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (auto& [key, item] : items) sorted.push_back(std::move(item));
  return make_list(std::move(sorted));
}

Value tojson(const Value& input, const Bound& bound) {
  JsonStyle style;
  style.sort_keys = bound.flag_or(3, false);
  style.ascii = bound.flag_or(0, false);
  Text indent;
  if (bound.has(1) && !is_none(bound.value(1))) {
    indent = as_text(bound.value(1)) != nullptr
                 ? bound.text(1)
                 : Text(static_cast<size_t>(std::clamp<int64_t>(bound.whole(1), 0, 100)), U' ');
    style.indent = &indent;
    style.item_separator = U",";
  }
  if (bound.has(2) && !is_none(bound.value(2))) {
    const List* separators = as_list(bound.value(2));
    if (separators == nullptr || separators->items.size() != 2 || as_text(separators->items[0]) == nullptr ||
        as_text(separators->items[1]) == nullptr) {
      fail("tojson: separators must be two strings");
    }
    style.item_separator = *as_text(separators->items[0]);
    style.key_separator = *as_text(separators->items[1]);
  }
  return make_text(to_json(input, style));
}

Value indent_lines(const Text& text, const Bound& bound) {
  const bool given = bound.has(0) && as_text(bound.value(0)) != nullptr;
  const Text indent =
      given ? bound.text(0) : Text(static_cast<size_t>(std::clamp<int64_t>(bound.whole_or(0, 4), 0, 100)), U' ');
  const bool first = bound.flag_or(1, false), blank = bound.flag_or(2, false);
  const Text newline = U"\n";
  Text result;
  std::vector<Text> lines = split(text, &newline, -1);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += U'\n';
    charge(static_cast<int64_t>(indent.size()));
    if (i == 0 ? first : blank || !lines[i].empty()) result += indent;
    result += lines[i];
  }
  return make_text(std::move(result));
}

constexpr std::array<std::string_view, 29> kFilters = {
    "trim",   "length", "count",      "tojson",     "default", "d",       "join", "first", "last",  "upper",
    "lower",  "title",  "capitalize", "items",      "replace", "string",  "int",  "float", "list",  "map",
    "select", "reject", "selectattr", "rejectattr", "sort",    "reverse", "abs",  "safe",  "indent"};

constexpr std::array<std::string_view, 30> kTests = {
    "defined",     "undefined", "none",    "string", "mapping", "sequence", "iterable", "number",
    "integer",     "float",     "boolean", "true",   "false",   "callable", "odd",      "even",
    "divisibleby", "eq",        "equalto", "ne",     "lt",      "lessthan", "le",       "gt",
    "greaterthan", "ge",        "in",      "sameas", "lower",   "upper"};
constexpr std::array<std::string_view, 12> kTestsOfTwo = {"divisibleby", "eq", "equalto",     "ne", "lt", "lessthan",
                                                          "le",          "gt", "greaterthan", "ge", "in", "sameas"};
constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict", "raise_exception",
                                                        "strftime_now"};

bool has_cased(TextView text) { return !equal(upper(text), lower(text)); }

Value written_time(const Text& format, const std::tm& now) {
  const std::string pattern = encode(format);
  if (pattern.empty()) return make_text(std::string_view());
  std::array<char, 1024> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), pattern.c_str(), &now);
  if (size == 0) fail("strftime_now: the result is empty or too long");
  return make_text(std::string_view(buffer.data(), size));
}

Value make_range(const Bound& bound) {
  const int64_t first = bound.whole(0);
  const int64_t begin = bound.has(1) ? first : 0;
  const int64_t end = bound.has(1) ? bound.whole(1) : first;
  const int64_t step = bound.whole_or(2, 1);
  if (step == 0) fail("range: the step is 0");
  constexpr size_t kMaxRange = 100000;  // as Jinja's sandbox
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() == kMaxRange) fail("range: more than ", std::to_string(kMaxRange), " numbers");
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(items));
}

}  // namespace

// ---- arguments ----

Bound::Bound(std::string_view what, const Arguments& arguments, std::vector<std::string_view> names)
    : what_(what), names_(std::move(names)), values_(names_.size(), Undefined{}), given_(names_.size(), false) {
  charge(kStepUnits);
  if (arguments.positional.size() > names_.size()) {
    fail(what_, " takes at most ", std::to_string(names_.size()), " arguments that are supported, not ",
         std::to_string(arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto i = static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
    if (i == names_.size()) fail(what_, " has no argument '", name, "' that is supported");
    if (given_[i]) fail(what_, ": the argument '", name, "' is given twice");
    values_[i] = value;
    given_[i] = true;
  }
}

void Bound::wrong(size_t i, const char* expected) const {
  fail(what_, ": the argument '", names_[i], "' must be ", expected, ", not a ", type_name(values_[i]));
}
const Value& Bound::value(size_t i) const {
  if (!given_[i]) fail(what_, ": the argument '", names_[i], "' is missing");
  return values_[i];
}
const Text& Bound::text(size_t i) const {
  const Text* text = as_text(value(i));
  if (text == nullptr) wrong(i, "a string");
  return *text;
}
int64_t Bound::whole(size_t i) const {
  if (!is_whole(value(i))) wrong(i, "an integer");
  return as_whole(values_[i]);
}
const Text* Bound::text_or_null(size_t i) const { return !given_[i] || is_none(values_[i]) ? nullptr : &text(i); }
int64_t Bound::whole_or(size_t i, int64_t otherwise) const {
  return !given_[i] || is_none(values_[i]) ? otherwise : whole(i);
}
bool Bound::flag_or(size_t i, bool otherwise) const { return given_[i] ? truth(values_[i]) : otherwise; }

// ---- methods ----

bool has_method(const Value& object, std::string_view name) {
  if (as_text(object) != nullptr) return one_of(name, kTextMethods);
  if (as_list(object) != nullptr) return one_of(name, kListMethods);
  return as_dict(object) != nullptr && one_of(name, kDictMethods);
}

Value call_method(const Value& object, const std::string& name, const Arguments& arguments) {
  if (const Text* text = as_text(object)) return call_text_method(*text, name, arguments);
  if (const List* list = as_list(object)) return call_list_method(*list, name, arguments);
  return call_dict_method(*as_dict(object), name, arguments);
}

// ---- filters ----

bool is_filter(std::string_view name) { return one_of(name, kFilters); }

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments) {
  if (!is_filter(name)) fail("the filter '", name, "' is not supported");
  const auto bind = [&](std::vector<std::string_view> names) { return Bound(name, arguments, std::move(names)); };
  if (name == "map") return map_items(input, arguments);
  if (name.starts_with("select") || name.starts_with("reject")) return select_items(name, input, arguments);
  if (name == "trim") return make_text(strip(to_text(input), Side::kBoth, bind({"chars"}).text_or_null(0)));
  if (name == "tojson") return tojson(input, bind({"ensure_ascii", "indent", "separators", "sort_keys"}));
  if (name == "default" || name == "d") {
    const Bound bound = bind({"default_value", "boolean"});
    const bool use = is_undefined(input) || (bound.flag_or(1, false) && !truth(input));
    return !use ? input : bound.has(0) ? bound.value(0) : make_text(std::string_view());
  }
  if (name == "join") {
    const Bound bound = bind({"d", "attribute"});
    const Text separator = bound.has(0) ? to_text(bound.value(0)) : Text();
    return make_text(
        join(bound.has(1) ? map_items(input, {.positional = {}, .named = {{"attribute", bound.value(1)}}}) : input,
             separator));
  }
  if (name == "replace") {
    const Bound bound = bind({"old", "new", "count"});
    Arguments call;
    call.positional.push_back(make_text(to_text(bound.value(0))));
    call.positional.push_back(make_text(to_text(bound.value(1))));
    if (bound.has(2)) call.positional.push_back(bound.value(2));
    return call_text_method(to_text(input), "replace", call);
  }
  if (name == "int") return to_whole(input, bind({"default"}).whole_or(0, 0));
  if (name == "float") {
    const Bound bound = bind({"default"});
    return to_real(input, bound.has(0) && is_number(bound.value(0)) ? as_real(bound.value(0)) : 0.0);
  }
  if (name == "sort") return sort_items(input, bind({"reverse", "case_sensitive", "attribute"}));
  if (name == "indent") return indent_lines(to_text(input), bind({"width", "first", "blank"}));
  bind({});
  if (name == "length" || name == "count") return length(input);
  if (name == "first" || name == "last") {
    const std::vector<Value> items = iterate(input);
    return items.empty() ? Value(Undefined{name + " of nothing"}) : name == "first" ? items.front() : items.back();
  }
  if (name == "upper") return make_text(upper(to_text(input)));
  if (name == "lower") return make_text(lower(to_text(input)));
  if (name == "capitalize") return make_text(capitalize(to_text(input)));
  if (name == "title") {
    constexpr TextView kSeparators = U"-([{<";
    return make_text(
        title(to_text(input), [&](char32_t c) { return is_space(c) || kSeparators.find(c) != TextView::npos; }));
  }
  if (name == "items") {
    if (is_undefined(input)) return make_list({});
    const Dict* dict = as_dict(input);
    if (dict == nullptr) fail("items needs a mapping, not a ", type_name(input));
    return dict_items(*dict);
  }
  if (name == "string" || name == "safe") return make_text(to_text(input));
  if (name == "list") return make_list(iterate(input));
  if (name == "reverse") {
    if (const Text* text = as_text(input)) return make_text(Text(text->rbegin(), text->rend()));
    std::vector<Value> items = iterate(input);
    std::ranges::reverse(items);
    return make_list(std::move(items));
  }
  // abs
  if (!is_number(input)) fail("abs needs a number, not a ", type_name(input));
  if (!is_whole(input)) return std::abs(as_real(input));
  if (as_whole(input) == INT64_MIN) fail("an integer of more than 64 bits");
  return std::abs(as_whole(input));
}

// ---- tests ----

bool is_test(std::string_view name) { return one_of(name, kTests); }
bool takes_argument(std::string_view test) { return one_of(test, kTestsOfTwo); }

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  if (!is_test(name)) fail("the test '", name, "' is not supported");
  if (takes_argument(name)) {
    const Bound bound(name, arguments, {"other"});
    const Value& other = bound.value(0);
    if (name == "eq" || name == "equalto") return equal(input, other);
    if (name == "ne") return !equal(input, other);
    if (name == "lt" || name == "lessthan") return compare(input, other) < 0;
    if (name == "le") return compare(input, other) <= 0;
    if (name == "gt" || name == "greaterthan") return compare(input, other) > 0;
    if (name == "ge") return compare(input, other) >= 0;
    if (name == "in") return contains(other, input);
    if (name == "sameas") return input.index() == other.index() && equal(input, other);
    if (!is_whole(input) || bound.whole(0) == 0) fail("divisibleby needs integers, and no 0");
    return bound.whole(0) == -1 || as_whole(input) % bound.whole(0) == 0;  // INT64_MIN % -1 traps
  }
  const Bound bound(name, arguments, {});
  if (name == "defined") return !is_undefined(input);
  if (name == "undefined") return is_undefined(input);
  if (name == "none") return is_none(input);
  if (name == "string") return as_text(input) != nullptr;
  if (name == "mapping") return as_dict(input) != nullptr;
  const bool container = as_text(input) != nullptr || as_list(input) != nullptr || as_dict(input) != nullptr;
  if (name == "sequence" || name == "iterable") return container || is_undefined(input);
  if (name == "number") return is_number(input);
  if (name == "integer") return std::holds_alternative<int64_t>(input);
  if (name == "float") return std::holds_alternative<double>(input);
  const bool* flag = std::get_if<bool>(&input);
  if (name == "boolean") return flag != nullptr;
  if (name == "true") return flag != nullptr && *flag;
  if (name == "false") return flag != nullptr && !*flag;
  if (name == "callable") {
    return std::holds_alternative<std::shared_ptr<const Method>>(input) ||
           std::holds_alternative<std::shared_ptr<const Macro>>(input) ||
           std::holds_alternative<std::shared_ptr<const Function>>(input);
  }
  if (name == "odd" || name == "even") {
    if (!is_whole(input)) fail(name, " needs an integer, not a ", type_name(input));
    return (as_whole(input) % 2 != 0) == (name == "odd");
  }
  const Text text = to_text(input);
  return has_cased(text) && equal(text, name == "lower" ? lower(text) : upper(text));
}

// ---- functions ----

bool is_function(std::string_view name) { return one_of(name, kFunctions); }

Value call_function(const std::string& name, const Arguments& arguments, const std::tm& now) {
  if (name == "raise_exception") {
    fail("the template refuses this: ", encode(to_text(Bound(name, arguments, {"message"}).value(0))));
  }
  if (name == "strftime_now") return written_time(Bound(name, arguments, {"format"}).text(0), now);
  if (name == "range") return make_range(Bound(name, arguments, {"start", "stop", "step"}));
  std::vector<std::pair<Value, Value>> items;
  if (!arguments.positional.empty()) {
    const Dict* dict = as_dict(arguments.positional[0]);
    if (dict == nullptr || arguments.positional.size() > 1) fail(name, " takes one mapping, and named values");
    items = dict->items;
  }
  for (const auto& [key, value] : arguments.named) items.emplace_back(make_text(std::string_view(key)), value);
  Value checked = make_dict(std::move(items));
  if (name == "dict") return checked;
  auto result = std::make_shared<Namespace>();
  for (const auto& [key, value] : as_dict(checked)->items) result->items.emplace_back(encode(to_text(key)), value);
  return result;
}

// ---- parts of values ----

Value get_attribute(const Value& object, const std::string& name) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) fail("'", undefined->name, "' is undefined");
  if (has_method(object, name)) return std::make_shared<const Method>(Method{object, name});
  if (const Dict* dict = as_dict(object)) {
    if (const Value* value = dict->find(decode(name, 0))) return *value;
  }
  if (const auto* space = std::get_if<std::shared_ptr<Namespace>>(&object)) {
    for (const auto& [key, value] : (*space)->items) {
      if (key == name) return value;
    }
  }
  if (const auto* shared = std::get_if<std::shared_ptr<const Loop>>(&object)) {
    const Loop& loop = **shared;
    const auto count = static_cast<int64_t>(loop.list->items.size());
    const auto item = [&](int64_t i) {
      return i >= 0 && i < count ? loop.list->items[static_cast<size_t>(i)] : Value(Undefined{"loop." + name});
    };
    if (name == "index") return loop.index + 1;
    if (name == "index0") return loop.index;
    if (name == "revindex") return count - loop.index;
    if (name == "revindex0") return count - loop.index - 1;
    if (name == "first") return loop.index == 0;
    if (name == "last") return loop.index + 1 == count;
    if (name == "length") return count;
    if (name == "depth") return loop.depth;
    if (name == "depth0") return loop.depth - 1;
    if (name == "previtem") return item(loop.index - 1);
    if (name == "nextitem") return item(loop.index + 1);
    fail("loop.", name, " is not supported");
  }
  return Undefined{std::string(type_name(object)) + " has no '" + name + "' that is supported; it"};
}

Value get_item(const Value& object, const Value& key) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) fail("'", undefined->name, "' is undefined");
  const Text* name = as_text(key);
  if (const Dict* dict = as_dict(object)) {
    for (const auto& [known, value] : dict->items) {
      if (equal(known, key)) return value;
    }
  }
  const List* list = as_list(object);
  const Text* text = as_text(object);
  if ((list != nullptr || text != nullptr) && is_whole(key)) {
    const int64_t count = length(object);
    const int64_t index = as_whole(key) < 0 ? as_whole(key) + count : as_whole(key);
    if (index < 0 || index >= count)
      return Undefined{"item " + std::to_string(as_whole(key)) + " of a " + type_name(object)};
    return list != nullptr ? list->items[static_cast<size_t>(index)]
                           : make_text(Text(1, (*text)[static_cast<size_t>(index)]));
  }
  if (name != nullptr && as_dict(object) == nullptr) return get_attribute(object, encode(*name));
  if (name != nullptr && has_method(object, encode(*name))) return get_attribute(object, encode(*name));
  constexpr size_t kShown = 80;
  return Undefined{encode(to_repr(key).substr(0, kShown))};
}

}  // namespace nmoe::jinja
