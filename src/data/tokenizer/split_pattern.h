// The split patterns of known tokenizers, as functions: several times as fast as a regular expression, and of one
// version of Unicode (data/tokenizer/unicode.h). tests/data/split_pattern_test.cpp holds each against PCRE2.
#pragma once

#include <span>
#include <string_view>

namespace nmoe {

// The split pattern of new tokenizers: GPT-4's (cl100k_base) as Llama 3 spells it. In order: English contractions; a
// word with at most one non-letter before it (usually its space); up to three digits; punctuation with its space and
// line ends; line ends with the space before them; space, less the last one, which goes with the word that follows.
inline constexpr std::string_view kSplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The others that tiktoken's encodings need, spelled so that Oniguruma (of Hugging Face's tokenizers) and PCRE2 mean
// what tiktoken means.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// kSplitPattern, but that space up to the end of the text is one word, line ends or not.
inline constexpr std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Each digit, and each run of digits (of what is \p{N}).
inline constexpr std::string_view kDigitPattern = R"(\p{N})";
inline constexpr std::string_view kNumberPattern = R"(\p{N}+)";

struct KnownPattern {
  std::string_view name;     // such as "gpt2", for people
  std::string_view pattern;  // as tokenizer.json files spell it
  // The end of the pattern's match at `begin`, or `begin` if there is none there. [begin, end) is valid UTF-8, begin <
  // end. Takes time linear in the match, but for the look ahead.
  const char* (*match)(const char* begin, const char* end);
};

std::span<const KnownPattern> known_patterns();

// Null if no pattern is spelled so.
const KnownPattern* find_known_pattern(std::string_view pattern);

}  // namespace nmoe
