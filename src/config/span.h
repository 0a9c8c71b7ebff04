// A length of the schedule (config.h, ScheduleConfig): a count, a share of the run, or the rest of it.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/value.h"

namespace nmoe {

class Span {
 public:
  enum class Kind { kCount, kShare, kRest };

  constexpr Span(int64_t count = 0) : count_(count) {}  // NOLINT(google-explicit-constructor): a length, mostly
  static constexpr Span share(double percent) { return {Kind::kShare, percent}; }
  static constexpr Span rest() { return {Kind::kRest, 0.0}; }

  constexpr bool is_none() const { return kind_ == Kind::kCount && count_ == 0; }
  // Whether it is a share or the rest, and so is not known before the run's length is.
  constexpr bool needs_length() const { return kind_ != Kind::kCount; }
  constexpr Kind kind() const { return kind_; }
  constexpr int64_t count() const { return count_; }     // 0 of shares and rests
  constexpr double percent() const { return percent_; }  // 0 of counts and rests

  bool operator==(const Span&) const = default;

  // As in TOML: 30, "5%" (above 0, up to 100) or "rest".
  Value value() const {
    if (kind_ == Kind::kCount) return count_;
    return kind_ == Kind::kRest ? std::string("rest") : fmt::format("{}%", percent_);
  }
  // Nothing if it is none.
  static std::optional<Span> of(const Value& value) {
    if (const auto* count = std::get_if<int64_t>(&value)) return Span(*count);
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return std::nullopt;
    if (*text == "rest") return rest();
    double percent = 0.0;
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, percent);
    if (error != std::errc() || std::string_view(stop, end) != "%") return std::nullopt;
    return percent > 0.0 && percent <= 100.0 ? std::optional(share(percent)) : std::nullopt;
  }

 private:
  constexpr Span(Kind kind, double percent) : kind_(kind), percent_(percent) {}

  Kind kind_ = Kind::kCount;
  int64_t count_ = 0;
  double percent_ = 0.0;
};

}  // namespace nmoe
