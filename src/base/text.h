// Small text helpers for messages and reports.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nmoe {

// The candidate that fewest typing slips (a character added, left out or replaced, two neighbours
// swapped) turn into `word`; the first of equals. "" when it takes more than a slip in three
// characters.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "a", "b", "c" -> "a, b or c".
std::string join_or(std::span<const std::string> words);

// Without what it begins and ends with of these characters; a view of `text`.
std::string_view trimmed(std::string_view text, std::string_view characters = " ");

// The text with its control characters, but for line ends and tabs, as \x1b, and marks that turn the direction of
// writing as \u202e: what would steer a terminal is shown. Other bytes that are not UTF-8 stay as they are.
std::string terminal_safe(std::string_view text);

std::string human_bytes(int64_t bytes);  // 512 -> "512 B", 1536 -> "1.50 KiB", up to EiB
// 999 -> "999", 1234567 -> "1.23 M"; k, M, G, T, P, E, Z, Y, R, Q; beyond, and of small fractions, an exponent.
std::string human_count(double count);
// The same with the unit behind the prefix: 1234567 FLOP -> "1.23 MFLOP", 7 FLOP -> "7 FLOP".
std::string human_quantity(double count, std::string_view unit);
// "9.5us", "12.3ms", "3.2s", "1m15s", "2h03m", "1d04h", "12.50 years"; "-" for what is not finite.
std::string human_seconds(double s);

// "1.5 GiB", "512MiB", "2GB", "1073741824" -> bytes; the unit's case does not matter.
std::optional<int64_t> try_parse_bytes(std::string_view text);
// The same. Error (usage) when `text` is no size; `what` names the place.
int64_t parse_bytes(std::string_view text, std::string_view what);

// "1.5T", "100M", "250k", "0.1B" (B and G both 1e9), "123_456", "1e9" -> a whole number; nothing for what is none.
std::optional<int64_t> try_parse_count(std::string_view text);

}  // namespace nmoe
