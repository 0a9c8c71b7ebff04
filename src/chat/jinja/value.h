// Values of templates, as Python has them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "chat/jinja/budget.h"
#include "chat/jinja/text.h"

namespace nmoe::jinja {

struct Undefined {
  std::string name;  // what was looked for: short, since each copy has its own
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Method;
struct Macro;     // a template's own function (ast.h)
struct Function;  // raise_exception and the like
struct Loop;

// Containers are shared and never change, but for namespaces. So they hold no cycles, as namespaces may not be held.
using Value =
    std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
                 std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Method>,
                 std::shared_ptr<const Macro>, std::shared_ptr<const Function>, std::shared_ptr<const Loop>>;

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  // of nesting
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion; keys differ
  int depth = 1;
  const Value* find(TextView key) const;  // nullptr where there is none
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};
// A method before it is called: text.split.
struct Method {
  Value object;
  std::string name;
};
struct Function {
  std::string name;
};
// The variable `loop` of a for block, in the iteration `index`.
struct Loop {
  std::shared_ptr<const List> list;
  int64_t index = 0;
  int64_t depth = 1;
};

// A list is at most this deep, a text at most this long (characters): templates are not trusted.
inline constexpr int kMaxDepth = 200;
inline constexpr size_t kMaxText = 16 << 20;
inline constexpr size_t kMaxList = 1 << 20;

// Failure where a limit is exceeded, or an item is a namespace, a function or `loop`.
Value make_text(Text text);
Value make_text(TextView text);
Value make_text(std::string_view ascii);
Value make_list(std::vector<Value> items, bool tuple = false);
Value make_dict(std::vector<std::pair<Value, Value>> items);  // of equal keys, the last counts
// All characters get `mark`, but for what `vouched` (null: nothing) has in the same place: members of its objects and
// items of its lists take the place of those in `json`, without a mark.
Value from_json(const nlohmann::ordered_json& json, char32_t mark = kFromData,
                const nlohmann::ordered_json* vouched = nullptr);

const Text* as_text(const Value& value);  // nullptr for everything else
const List* as_list(const Value& value);
const Dict* as_dict(const Value& value);
bool is_undefined(const Value& value);
bool is_none(const Value& value);
bool is_number(const Value& value);  // bool included, as in Python
// As Python's int and float see a number. Call for is_number alone.
bool is_whole(const Value& value);
int64_t as_whole(const Value& value);
double as_real(const Value& value);

const char* type_name(const Value& value);  // for messages: "string", "list"
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
int compare(const Value& a, const Value& b);               // Failure where they have no order
bool contains(const Value& container, const Value& item);  // `in`
int64_t length(const Value& value);
// What a for block runs over: items, keys, characters; nothing of what is undefined.
std::vector<Value> iterate(const Value& value);

Text to_text(const Value& value);  // str(value)
Text to_repr(const Value& value);  // repr(value)

struct JsonStyle {
  Text item_separator = U", ";
  Text key_separator = U": ";
  const Text* indent = nullptr;  // one level of it; nullptr: all in one line
  bool sort_keys = false;
  bool ascii = false;  // everything else escaped
};
Text to_json(const Value& value, const JsonStyle& style);

}  // namespace nmoe::jinja
