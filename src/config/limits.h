// Which values keys take, for descriptions of keys: each limit says whether it contains a value, and what it is as the
// end of "must be ...".
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/text.h"

namespace nmoe {

inline constexpr int64_t kNoMax = std::numeric_limits<int64_t>::max();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Flags {
  bool contains(bool) const { return true; }
  std::string describe() const { return "true or false"; }
};
inline constexpr Flags kFlag;

// Both ends included.
struct Integers {
  int64_t min;
  int64_t max = kNoMax;

  bool contains(int64_t x) const { return min <= x && x <= max; }
  std::string describe() const {
    if (max == kNoMax) return fmt::format("an integer of at least {}", min);
    return fmt::format("an integer from {} to {}", min, max);
  }
};

// Finite numbers.
struct Reals {
  double min;
  double below = kInfinity;  // excluded
  bool min_excluded = false;

  bool contains(double x) const { return std::isfinite(x) && x < below && (min_excluded ? x > min : x >= min); }
  std::string describe() const {
    std::string text = fmt::format("a finite number {} {}", min_excluded ? "above" : "of at least", min);
    if (below < kInfinity) text += fmt::format(" and below {}", below);
    return text;
  }
};

// Sizes of tensor dimensions: a product of three still fits 64 bits.
inline constexpr int64_t kMaxSize = 1 << 20;
inline constexpr Integers kSize = {1, kMaxSize};
inline constexpr Integers kSizeOrNone = {0, kMaxSize};
// Steps and tokens: a sum of several still fits 64 bits.
inline constexpr Integers kSpan = {0, 1'000'000'000'000'000};
// The slots of a ring of so few bytes (train/step/state_ring.h) still have room for what is copied at once.
inline constexpr Integers kStagingBytes = {1 << 16, 1'000'000'000'000'000};

inline constexpr Reals kNonNegative = {.min = 0.0};
inline constexpr Reals kPositive = {.min = 0.0, .min_excluded = true};
inline constexpr Reals kAtLeastOne = {.min = 1.0};
inline constexpr Reals kBelowOne = {.min = 0.0, .below = 1.0};

struct Zero {
  bool contains(double x) const { return x == 0.0; }
  std::string describe() const { return "0"; }
};
inline constexpr Zero kZero;

struct Texts {
  const char* allowed;
  bool (*accepts)(const std::string&);

  bool contains(const std::string& text) const { return accepts(text); }
  std::string describe() const { return allowed; }
};
inline constexpr Texts kAnyText = {"a string", [](const std::string&) { return true; }};
inline constexpr Texts kModuleLayers = {"a pattern of layers, or empty: one layer as the model's last",
                                        [](const std::string&) { return true; }};
// Whether it is one, config/validate.h says, with the place of what is wrong.
inline constexpr Texts kLayerPattern = {"a pattern of layers, or empty: then the keys below describe them",
                                        [](const std::string&) { return true; }};
inline constexpr Texts kBasePattern = {"a pattern of layers, or empty", [](const std::string&) { return true; }};
inline constexpr Texts kSomeText = {"a string that is not empty",
                                    [](const std::string& text) { return !text.empty(); }};
// Lists of strings.
struct TextLists {
  const char* allowed;
  size_t max_size;  // of the list

  bool contains(const std::vector<std::string>& list) const {
    return list.size() <= max_size && std::ranges::none_of(list, &std::string::empty);
  }
  std::string describe() const { return allowed; }
};
inline constexpr TextLists kCommand = {"a list of strings that are not empty", 1024};
inline constexpr TextLists kPrompts = {"a list of up to 64 strings that are not empty", 64};

// A run's name becomes a file's.
inline constexpr Texts kFileName = {
    "a string of up to 255 letters, digits, '.', '_' and '-' that starts with neither '.' nor '-'",
    [](const std::string& text) {
      constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
      return !text.empty() && text.size() <= 255 && text[0] != '.' && text[0] != '-' &&
             text.find_first_not_of(kCharacters) == std::string::npos;
    }};
inline constexpr Texts kBytesOrNone = {"a size such as \"8 GiB\" or \"512MiB\", or empty", [](const std::string& text) {
                                         return text.empty() || try_parse_bytes(text).value_or(0) > 0;
                                       }};

}  // namespace nmoe
