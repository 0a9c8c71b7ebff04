#include "data/tokenizer/split_pattern.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekV3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCjkPattern = "[一-龥\u3040-ゟ゠-ヿ]+";

// One character of the text, and where the next begins.
struct Char {
  CharClass char_class;
  const char* next;
};

Char char_at(const char* p) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) return {kAsciiClasses[byte], p + 1};
  const Character character = decode_utf8(p);
  return {class_of(character.code_point), p + character.size};
}

// Whether a character of `set` is at `p`, which may be the end.
bool at(const char* p, const char* end, CharClass set) { return p != end && (char_at(p).char_class & set) != 0; }

// The end of the run of characters of `set` from `p`.
const char* skip(const char* p, const char* end, CharClass set) {
  while (p != end) {
    const Char c = char_at(p);
    if ((c.char_class & set) == 0) break;
    p = c.next;
  }
  return p;
}

// Of the run of characters that are not of `set`.
const char* skip_others(const char* p, const char* end, CharClass set) {
  while (p != end) {
    const Char c = char_at(p);
    if ((c.char_class & set) != 0) break;
    p = c.next;
  }
  return p;
}

const char* skip_bytes(const char* p, const char* end, std::string_view set) {
  while (p != end && set.find(*p) != std::string_view::npos) ++p;
  return p;
}

const char* skip_numbers(const char* p, const char* end, int limit) {
  for (; limit > 0 && at(p, end, kNumber); --limit) p = char_at(p).next;
  return p;
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// 's|'t|'re|'ve|'m|'ll|'d, of any case if so asked; `p` if there is none.
const char* contraction(const char* p, const char* end, bool any_case) {
  if (end - p < 2 || *p != '\'') return p;
  const auto letter = [&](std::ptrdiff_t i) {
    if (i >= end - p) return '\0';
    const char c = p[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? p + 3 : p;
    case 'l':
      return letter(2) == 'l' ? p + 3 : p;
    default:
      // NOTE: the long s, U+017F, is another case of s.
      return any_case && std::string_view(p + 1, end).starts_with("\u017F") ? p + 3 : p;
  }
}

// What a pattern ends with, in this order.
struct SpaceRule {
  bool to_end = false;     // \s+\z
  bool line_ends = false;  // \s*[\r\n]+
                           // always: \s+(?!\S)|\s+
};

// `p` if it is no space.
const char* space(const char* p, const char* end, SpaceRule rule) {
  const char* const begin = p;
  const char* last = p;              // the last space character
  const char* after_line = nullptr;  // the end of the last line end
  for (; p != end; p = char_at(p).next) {
    const CharClass char_class = char_at(p).char_class;
    if ((char_class & kSpace) == 0) break;
    last = p;
    if ((char_class & kNewline) != 0) after_line = p + 1;
  }
  if (rule.to_end && p == end) return end;
  if (rule.line_ends && after_line != nullptr) return after_line;
  return p == end || last == begin ? p : last;
}

// \p{L}+ with at most one character before it that is no letter, number or line end; `p` if there is none.
const char* prefixed_letters(const char* p, const char* end) {
  const Char c = char_at(p);
  if ((c.char_class & kLetter) != 0) return skip(c.next, end, kLetter);
  if ((c.char_class & (kNumber | kNewline)) == 0 && at(c.next, end, kLetter)) return skip(c.next, end, kLetter);
  return p;
}

constexpr CharClass kWordOrSpace = kSpace | kLetter | kNumber;

//  ?[^\s\p{L}\p{N}]+ and then bytes of `tail`; `p` if there is none.
const char* punctuation(const char* p, const char* end, std::string_view tail) {
  const char* const first = *p == ' ' ? p + 1 : p;
  const char* const last = skip_others(first, end, kWordOrSpace);
  return last == first ? p : skip_bytes(last, end, tail);
}

const char* match_gpt2(const char* p, const char* end) {
  if (const char* q = contraction(p, end, /*any_case=*/false); q != p) return q;
  const char* const first = *p == ' ' ? p + 1 : p;
  if (at(first, end, kLetter)) return skip(first, end, kLetter);
  if (at(first, end, kNumber)) return skip(first, end, kNumber);
  if (const char* q = punctuation(p, end, ""); q != p) return q;
  return space(p, end, {});
}

template <int max_numbers, bool space_to_end>
const char* match_cl100k(const char* p, const char* end) {
  if (const char* q = contraction(p, end, /*any_case=*/true); q != p) return q;
  if (const char* q = prefixed_letters(p, end); q != p) return q;
  if (const char* q = skip_numbers(p, end, max_numbers); q != p) return q;
  if (const char* q = punctuation(p, end, "\r\n"); q != p) return q;
  return space(p, end, {.to_end = space_to_end, .line_ends = true});
}

constexpr CharClass kUpperLike = kLu | kLt | kLm | kLo | kMark;
constexpr CharClass kLowerLike = kLl | kLm | kLo | kMark;

// [upper-like]*[lower-like]+ at `p`, with what backtracking finds: where no lower-case letter follows the run of
// upper-like characters, the match ends after the last of them that is lower-like too. `p` if there is none.
const char* capitalized(const char* p, const char* end) {
  const char* const begin = p;
  const char* after_lower_like = begin;
  while (p != end) {
    const Char c = char_at(p);
    if ((c.char_class & kUpperLike) == 0) {
      return (c.char_class & kLl) != 0 ? skip(c.next, end, kLowerLike) : after_lower_like;
    }
    p = c.next;
    if ((c.char_class & kLowerLike) != 0) after_lower_like = p;
  }
  return after_lower_like;
}

// [upper-like]+[lower-like]* at `p`; `p` if there is none.
const char* upper(const char* p, const char* end) {
  const char* const q = skip(p, end, kUpperLike);
  return q == p ? p : skip(q, end, kLowerLike);
}

// `word`, with [^\r\n\p{L}\p{N}]? before it: a regular expression tries to take that character first. `p` if there is
// none.
template <const char* (*word)(const char*, const char*)>
const char* prefixed(const char* p, const char* end) {
  const Char c = char_at(p);
  if ((c.char_class & (kLetter | kNumber | kNewline)) == 0) {
    if (const char* q = word(c.next, end); q != c.next) return q;
  }
  return word(p, end);
}

const char* match_o200k(const char* p, const char* end) {
  const char* word_end = prefixed<capitalized>(p, end);
  if (word_end == p) word_end = prefixed<upper>(p, end);
  if (word_end != p) return contraction(word_end, end, /*any_case=*/true);
  if (const char* q = skip_numbers(p, end, 3); q != p) return q;
  if (const char* q = punctuation(p, end, "\r\n/"); q != p) return q;
  return space(p, end, {.line_ends = true});
}

const char* match_deepseek_v3(const char* p, const char* end) {
  constexpr CharClass kSign = kPunct | kSymbol;
  const Char c = char_at(p);
  if (static_cast<unsigned char>(*p) < 0x80 && (c.char_class & kSign) != 0 && c.next != end &&
      is_ascii_letter(*c.next)) {
    return std::find_if_not(c.next, end, is_ascii_letter);
  }
  constexpr CharClass kWord = kLetter | kMark;
  if ((c.char_class & (kNewline | kLetter | kSign)) == 0 && at(c.next, end, kWord)) return skip(c.next, end, kWord);
  if ((c.char_class & kWord) != 0) return skip(p, end, kWord);
  const char* const first = *p == ' ' ? p + 1 : p;
  if (at(first, end, kSign)) return skip_bytes(skip(first, end, kSign), end, "\r\n");
  return space(p, end, {.line_ends = true});
}

template <int max_numbers>
const char* match_numbers(const char* p, const char* end) {
  return skip_numbers(p, end, max_numbers);
}

const char* match_cjk(const char* p, const char* end) {
  while (p != end) {
    const Character c = decode_utf8(p);
    const bool ideograph = c.code_point >= 0x4E00 && c.code_point <= 0x9FA5;
    const bool kana = c.code_point >= 0x3040 && c.code_point <= 0x30FF;
    if (!ideograph && !kana) break;
    p += c.size;
  }
  return p;
}

constexpr int kAnyNumber = std::numeric_limits<int>::max();
constexpr KnownPattern kKnown[] = {
    {"gpt2", kGpt2Pattern, match_gpt2},
    {"cl100k", kCl100kPattern, match_cl100k<3, true>},
    {"llama3", kSplitPattern, match_cl100k<3, false>},
    {"qwen2", kQwen2Pattern, match_cl100k<1, false>},
    {"o200k", kO200kPattern, match_o200k},
    {"deepseek_v3", kDeepSeekV3Pattern, match_deepseek_v3},
    {"cjk", kCjkPattern, match_cjk},
    {"digits_by_3", R"(\p{N}{1,3})", match_numbers<3>},
    {"digits", kDigitPattern, match_numbers<1>},
    {"numbers", kNumberPattern, match_numbers<kAnyNumber>},
};

}  // namespace

std::span<const KnownPattern> known_patterns() { return kKnown; }

const KnownPattern* find_known_pattern(std::string_view pattern) {
  const auto* found = std::ranges::find(kKnown, pattern, &KnownPattern::pattern);
  return found == std::end(kKnown) ? nullptr : found;
}

}  // namespace nmoe
