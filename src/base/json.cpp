#include "base/json.h"

#include <fmt/format.h>

#include <array>
#include <type_traits>

namespace nmoe {

template <class Json>
Json parse_json(std::string_view text, int64_t max_values) {
  using Event = typename Json::parse_event_t;
  int64_t num_values = 0;
  std::array<int64_t, kMaxJsonDepth + 1> num_members{};  // of the objects that are open
  const auto guard = [&](int depth, Event event, Json&) {
    // The beginning of a list or object is told with the depth around it.
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth >= kMaxJsonDepth) throw JsonError(fmt::format("it has more than {} levels", kMaxJsonDepth));
    if ((begins || event == Event::value) && ++num_values > max_values) {
      throw JsonError(fmt::format("it has more than {} values", max_values));
    }
    if (event == Event::object_start) num_members[static_cast<size_t>(depth) + 1] = 0;
    if (std::is_same_v<Json, nlohmann::ordered_json> && event == Event::key &&
        ++num_members[static_cast<size_t>(depth)] > kMaxOrderedMembers) {
      throw JsonError(fmt::format("an object has more than {} members", kMaxOrderedMembers));
    }
    return true;
  };
  try {
    return Json::parse(text, guard);
  } catch (const typename Json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    throw JsonError(std::string(what.substr(what.find(']') + 2)));
  }
}

template <class Json>
Json try_parse_json(std::string_view text) {
  try {
    return parse_json<Json>(text);
  } catch (const JsonError&) {
    return Json(nlohmann::detail::value_t::discarded);
  }
}

template nlohmann::json parse_json(std::string_view, int64_t);
template nlohmann::ordered_json parse_json(std::string_view, int64_t);
template nlohmann::json try_parse_json(std::string_view);
template nlohmann::ordered_json try_parse_json(std::string_view);

}  // namespace nmoe
