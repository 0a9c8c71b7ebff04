#include "base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace nmoe {
namespace {

// Optimal string alignment: Levenshtein's distance, and a swap of neighbours counts as one.
size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i - 2, i - 1 and i of the table whose [i][j] is the distance of the first i and j
  // characters.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

// `value` with a unit: the first that leaves fewer than `step` of it, as printed, or the last.
std::string with_unit(double value, double step, std::span<const std::string_view> units) {
  size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(value) >= step - 0.005) {
    value /= step;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, units[unit]);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// ASCII's, and those of Latin-1, which alone are such bytes in text that is not UTF-8.
bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Marks that change the order in which characters are shown (Unicode's Bidi_Control), and ends of lines that are none
// of ours.
bool turns_direction(uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

struct ByteUnit {
  std::string_view name;
  double bytes;
};
constexpr std::array kByteUnits = {
    ByteUnit{"", 1.0},    ByteUnit{"B", 1.0},      ByteUnit{"KB", 1e3}, ByteUnit{"KiB", 0x1p10},
    ByteUnit{"MB", 1e6},  ByteUnit{"MiB", 0x1p20}, ByteUnit{"GB", 1e9}, ByteUnit{"GiB", 0x1p30},
    ByteUnit{"TB", 1e12}, ByteUnit{"TiB", 0x1p40},
};

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    // As many slips at least as one is longer than the other: no need to look through what may be very long.
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (3 * (longer - shorter) > longer) continue;
    const size_t distance = edit_distance(word, candidate);
    if (3 * distance > std::max(word.size(), candidate.size())) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string join_or(std::span<const std::string> words) {
  if (words.empty()) return "";
  const std::span<const std::string> first = words.first(words.size() - 1);
  if (first.empty()) return words.back();
  return fmt::format("{} or {}", fmt::join(first, ", "), words.back());
}

std::string_view trimmed(std::string_view text, std::string_view characters) {
  const size_t begin = std::min(text.find_first_not_of(characters), text.size());
  return text.substr(begin, text.find_last_not_of(characters) + 1 - begin);
}

std::string terminal_safe(std::string_view text) {
  std::string shown;
  for_each_char(text, [&](uint32_t code, size_t place, size_t length) {
    const auto byte = static_cast<unsigned char>(text[place]);
    if (length == 1 && is_control(byte) && byte != '\n' && byte != '\t') {
      shown += fmt::format("\\x{:02x}", byte);
    } else if (is_control(code) && length > 1) {
      shown += fmt::format("\\x{:02x}", code);
    } else if (turns_direction(code)) {
      shown += fmt::format("\\u{:04x}", code);
    } else {
      shown += text.substr(place, length);
    }
  });
  return shown;
}

std::string human_bytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  return with_unit(static_cast<double>(bytes) / 1024.0, 1024.0, kUnits);
}

std::string human_count(double count) {
  static constexpr std::array<std::string_view, 10> kUnits = {"k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"};
  if (std::abs(count) >= 999.995e30) return fmt::format("{:.2e}", count);
  if (std::abs(count) >= 999.995) return with_unit(count / 1000.0, 1000.0, kUnits);
  if (count == std::trunc(count)) return fmt::format("{:.0f}", count);
  if (std::abs(count) < 0.095) return fmt::format("{:.2g}", count);
  return fmt::format("{:.2f}", count);
}

std::string human_quantity(double count, std::string_view unit) {
  const std::string number = human_count(count);
  const bool has_prefix = number.size() > 1 && number[number.size() - 2] == ' ';
  return fmt::format("{}{}{}", number, has_prefix ? "" : " ", unit);
}

std::string human_seconds(double s) {
  if (!std::isfinite(s)) return "-";
  if (s < 0.0) return "-" + human_seconds(-s);
  if (s == 0.0) return "0s";
  if (s < 0.99995e-6) return fmt::format("{:.1f}ns", s * 1e9);
  if (s < 0.99995e-3) return fmt::format("{:.1f}us", s * 1e6);
  if (s < 0.99995) return fmt::format("{:.1f}ms", s * 1e3);
  if (s < 59.95) return fmt::format("{:.1f}s", s);
  const double seconds = std::round(s);
  if (seconds < 3600.0) {
    return fmt::format("{:.0f}m{:02.0f}s", std::floor(seconds / 60.0), std::fmod(seconds, 60.0));
  }
  const double minutes = std::round(s / 60.0);
  if (minutes < 1440.0) {
    return fmt::format("{:.0f}h{:02.0f}m", std::floor(minutes / 60.0), std::fmod(minutes, 60.0));
  }
  const double hours = std::round(s / 3600.0);
  if (hours >= 24.0 * 1000.0) return human_quantity(s / (365.25 * 86400.0), "years");
  return fmt::format("{:.0f}d{:02.0f}h", std::floor(hours / 24.0), std::fmod(hours, 24.0));
}

std::optional<int64_t> try_parse_bytes(std::string_view text) {
  // from_chars also reads signs and "inf"; a size starts with a digit.
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front()))) return std::nullopt;
  const char* const end = text.data() + text.size();
  double number = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;

  std::string_view name(rest, static_cast<size_t>(end - rest));
  if (name.starts_with(' ')) name.remove_prefix(1);
  const auto unit =
      std::ranges::find_if(kByteUnits, [&](const ByteUnit& u) { return equal_ignoring_case(name, u.name); });
  if (unit == kByteUnits.end()) return std::nullopt;

  const double bytes = std::round(number * unit->bytes);
  if (!(bytes < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

int64_t parse_bytes(std::string_view text, std::string_view what) {
  if (const std::optional<int64_t> bytes = try_parse_bytes(text)) return *bytes;
  throw usage_error(fmt::format("{}: \"{}\" is not a number of bytes", what, text),
                    "write a number and a unit, such as \"8 GiB\", \"512MiB\" or \"2GB\"");
}

std::optional<int64_t> try_parse_count(std::string_view text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits), [](char c) { return c != '_'; });
  if (digits.empty() || !std::isdigit(static_cast<unsigned char>(digits.front()))) return std::nullopt;
  const char* const end = digits.data() + digits.size();
  double number = 0.0;
  const auto [rest, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc()) return std::nullopt;

  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.size() > 1) return std::nullopt;
  if (unit.size() == 1) {
    switch (unit.front()) {
      case 'k':
      case 'K':
        number *= 1e3;
        break;
      case 'M':
        number *= 1e6;
        break;
      case 'G':
      case 'B':
        number *= 1e9;
        break;
      case 'T':
        number *= 1e12;
        break;
      default:
        return std::nullopt;
    }
  }
  number = std::round(number);
  if (!(number < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace nmoe
