// JSON that others wrote. This is the one place of the program that parses it into values, within bounds: the parser
// itself does not recurse, but whatever copies, compares or prints a value does, and some 100,000 levels would overflow
// its stack.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nmoe {

inline constexpr int kMaxJsonDepth = 100;  // levels of lists and objects
// Members of an object of an ordered_json, which looks through all of them for each.
inline constexpr int64_t kMaxOrderedMembers = 4096;

// Why a text is not taken, as a part of a sentence: "parse error at line 1, column 2: ...", "it has more than 100
// levels".
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `Json` is nlohmann::json or nlohmann::ordered_json. JsonError for what is not JSON, is beyond the bounds above, has
// an integer of more than 64 bits, or more than `max_values` values (each takes up to 100 bytes; 2 bytes of text make
// one).
template <class Json>
Json parse_json(std::string_view text, int64_t max_values = std::numeric_limits<int64_t>::max());

// The same; a discarded value (is_discarded(), of no type that could be asked for) instead of a JsonError.
template <class Json>
Json try_parse_json(std::string_view text);

// The whole number that a value is; JsonError where it is none, or none that T has. (The library's own conversion of
// one that is too large, or of a fraction, gives another number or is undefined.)
template <std::integral T, class Json>
T integer_of(const Json& value) {
  if (value.is_number_unsigned()) {
    if (const auto number = value.template get<uint64_t>(); std::in_range<T>(number)) return static_cast<T>(number);
  } else if (value.is_number_integer()) {
    if (const auto number = value.template get<int64_t>(); std::in_range<T>(number)) return static_cast<T>(number);
  }
  throw JsonError(fmt::format("{} is not a whole number from {} to {}",
                              value.is_number() ? value.dump() : value.type_name(), std::numeric_limits<T>::min(),
                              std::numeric_limits<T>::max()));
}

// The same of a list of them.
template <std::integral T, class Json>
std::vector<T> integers_of(const Json& list) {
  if (!list.is_array()) throw JsonError(fmt::format("{} is not a list of numbers", list.type_name()));
  std::vector<T> numbers;
  for (const Json& value : list) numbers.push_back(integer_of<T>(value));
  return numbers;
}

// The value as text, on one line or indented by `indent`. Texts in it that are not UTF-8, such as names of files, get
// replacement characters.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The same for standard output, which may be a terminal: in ASCII, so that no name in it steers one.
template <class Json>
std::string printed_json(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

extern template nlohmann::json parse_json(std::string_view, int64_t);
extern template nlohmann::ordered_json parse_json(std::string_view, int64_t);
extern template nlohmann::json try_parse_json(std::string_view);
extern template nlohmann::ordered_json try_parse_json(std::string_view);

}  // namespace nmoe
