// JSON that others wrote. This is the one place of the program that parses it into values, within bounds: the parser
// itself does not recurse, but whatever copies, compares or prints a value does, and some 100,000 levels would overflow
// its stack.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

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

// `Json` is nlohmann::json or nlohmann::ordered_json. JsonError for what is no JSON, is beyond the bounds above, or
// has more than `max_values` values (a value takes up to a hundred bytes, and two bytes of text can make one).
template <class Json>
Json parse_json(std::string_view text, int64_t max_values = std::numeric_limits<int64_t>::max());

// The same; a discarded value (is_discarded(), of no type that could be asked for) instead of a JsonError.
template <class Json>
Json try_parse_json(std::string_view text);

extern template nlohmann::json parse_json(std::string_view, int64_t);
extern template nlohmann::ordered_json parse_json(std::string_view, int64_t);
extern template nlohmann::json try_parse_json(std::string_view);
extern template nlohmann::ordered_json try_parse_json(std::string_view);

}  // namespace nmoe
