#include "base/json.h"

#include <fmt/format.h>

#include <array>
#include <type_traits>

namespace nmoe {
namespace {

// Goes through a text without making values of it, and throws JsonError at what is beyond the bounds. (The library's
// own parser with a callback looks through all of a list again behind each object in it.)
class Bounds {
 public:
  Bounds(bool ordered, int64_t max_values) : ordered_(ordered), max_values_(max_values) {}

  bool null() { return count_value(); }
  bool boolean(bool) { return count_value(); }
  bool number_integer(int64_t) { return count_value(); }
  bool number_unsigned(uint64_t) { return count_value(); }
  // An integer that no 64 bits hold comes as a fraction, too: its digits would be lost without a word.
  bool number_float(double, const std::string& text) {
    if (text.find_first_of(".eE") == std::string::npos) {
      throw JsonError(fmt::format("the integer {} has more than 64 bits", shortened(text)));
    }
    return count_value();
  }
  bool string(const std::string&) { return count_value(); }
  bool binary(const std::vector<uint8_t>&) { return count_value(); }
  bool start_object(size_t) {
    open();
    num_members_[static_cast<size_t>(depth_)] = 0;
    return true;
  }
  bool key(const std::string&) {
    if (ordered_ && ++num_members_[static_cast<size_t>(depth_)] > kMaxOrderedMembers) {
      throw JsonError(fmt::format("an object has more than {} members", kMaxOrderedMembers));
    }
    return true;
  }
  bool end_object() { return close(); }
  bool start_array(size_t) {
    open();
    return true;
  }
  bool end_array() { return close(); }
  // What is no JSON, the parser tells.
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) { return false; }

 private:
  static std::string shortened(const std::string& digits) {
    constexpr size_t kShown = 40;
    return digits.size() <= kShown ? digits : digits.substr(0, kShown) + "...";
  }
  bool count_value() {
    if (++num_values_ > max_values_) throw JsonError(fmt::format("it has more than {} values", max_values_));
    return true;
  }
  void open() {
    if (++depth_ > kMaxJsonDepth) throw JsonError(fmt::format("it has more than {} levels", kMaxJsonDepth));
    count_value();
  }
  bool close() {
    --depth_;
    return true;
  }

  const bool ordered_;
  const int64_t max_values_;
  int64_t num_values_ = 0;
  int depth_ = 0;
  std::array<int64_t, kMaxJsonDepth + 1> num_members_{};  // of the objects that are open, by depth
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, int64_t max_values) {
  Bounds bounds(std::is_same_v<Json, nlohmann::ordered_json>, max_values);
  nlohmann::json::sax_parse(text, &bounds);
  try {
    return Json::parse(text);
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
