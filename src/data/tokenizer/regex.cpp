#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer;
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR pcre2_text(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

Error unusable(std::string_view pattern, const std::string& what) {
  return runtime_error(fmt::format("cannot use the split pattern '{}': {}", pattern, what),
                       "use a tokenizer with another pattern, or ask for support of this one");
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;
struct MatchDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDeleter>;

// `translated` is what PCRE2 gets, `pattern` what messages show.
Code compile(std::string_view translated, std::string_view pattern) {
  int error = 0;
  size_t offset = 0;
  Code code(pcre2_compile(pcre2_text(translated), translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error,
                          &offset, nullptr));
  if (!code) throw unusable(pattern, pcre2_message(error));
  // Without a JIT (a system that forbids writable code) matching is slower, the words the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

// The characters of `set` that `but` does not hold, as ranges inside a bracketed class.
template <class But>
std::string ranges_of(CharClass set, But&& but) {
  std::string ranges;
  const auto wanted = [&](char32_t c) { return (class_of(c) & set) != 0 && !but(c); };
  for (char32_t first = 0; first < kNumCodePoints; ++first) {
    if (!wanted(first)) continue;
    char32_t last = first;
    while (last + 1 < kNumCodePoints && wanted(last + 1)) ++last;
    ranges += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
    first = last;
  }
  return ranges;
}

// What `property` (such as \p{L}) lacks in PCRE2, which may know an older Unicode.
std::string missing_from(const std::string& property, CharClass set) {
  const Code code = compile(property, property);
  const MatchData match(pcre2_match_data_create_from_pattern(code.get(), nullptr));
  return ranges_of(set, [&](char32_t c) {
    std::string text;
    append_utf8(c, text);
    return pcre2_match(code.get(), pcre2_text(text), text.size(), 0, PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0;
  });
}

constexpr std::pair<std::string_view, CharClass> kProperties[] = {
    {"L", kLetter}, {"Lu", kLu},  {"Ll", kLl},    {"Lt", kLt},   {"Lm", kLm},
    {"Lo", kLo},    {"M", kMark}, {"N", kNumber}, {"P", kPunct}, {"S", kSymbol},
};

// Rewrites a pattern of Oniguruma for PCRE2: \s and properties become those of data/tokenizer/unicode.h. What the two
// read differently, and nothing here rewrites, is refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    for (place_ = 0; place_ < pattern_.size();) {
      if (pattern_[place_] == '\\') {
        escape();
      } else {
        plain();
      }
    }
    return std::move(out_);
  }

 private:
  bool here(std::string_view text) const { return pattern_.substr(place_).starts_with(text); }

  void copy(size_t size) {
    out_ += pattern_.substr(place_, size);
    place_ += size;
  }

  // Classes of characters, as an own bracketed class or within the one that is open.
  void add_class(const std::string& members, bool negated, size_t size) {
    out_ += in_brackets_ ? members : fmt::format("[{}{}]", negated ? "^" : "", members);
    place_ += size;
  }

  void plain() {
    if (in_brackets_) {
      if (here("&&") || (here("[") && !here("[:"))) throw unusable(pattern_, "it nests or intersects classes");
      if (here("[:")) return copy(std::min(pattern_.find(":]", place_), pattern_.size() - 2) + 2 - place_);
      if (here("]")) in_brackets_ = false;
      return copy(1);
    }
    if (here("(?R") || here("(?&") || here("(?P") || here("(?+") ||
        (here("(?") && place_ + 2 < pattern_.size() && pattern_[place_ + 2] >= '0' && pattern_[place_ + 2] <= '9')) {
      throw unusable(pattern_, "it calls itself");
    }
    if (here("}+")) throw unusable(pattern_, "Oniguruma does not take {n,m}+ for possessive");
    if (here("(?") &&
        pattern_.substr(place_, pattern_.find_first_of(":)", place_) - place_).find('m') != pattern_.npos) {
      const char kind = place_ + 2 < pattern_.size() ? pattern_[place_ + 2] : '\0';
      if (kind == 'i' || kind == 'm' || kind == 'x' || kind == '-')
        throw unusable(pattern_, "the option m is not supported");
    }
    if (here("[")) {
      in_brackets_ = true;
      copy(1);
      if (here("^")) copy(1);
      if (here("]")) throw unusable(pattern_, "a class begins with ]");
      return;
    }
    copy(1);
  }

  void escape() {
    const char kind = place_ + 1 < pattern_.size() ? pattern_[place_ + 1] : '\0';
    if (!in_brackets_ && ((kind >= '1' && kind <= '9') || kind == 'k' || kind == 'g')) {
      throw unusable(pattern_, "it refers back to what it matched, for which each word takes time as the text is long");
    }
    if (here("\\h") || here("\\H")) throw unusable(pattern_, "\\h is a hexadecimal digit to Oniguruma alone");
    static const std::string space = ranges_of(kSpace, [](char32_t) { return false; });
    if (here("\\s")) return add_class(space, /*negated=*/false, 2);
    if (here("\\S")) {
      // NOTE: PCRE2 takes U+180E for space, Unicode no longer does.
      return in_brackets_ ? add_class("\\S\\x{180e}", false, 2) : add_class(space, /*negated=*/true, 2);
    }
    for (const auto& [name, set] : kProperties) {
      const std::string property = fmt::format("\\p{{{}}}", name);
      const std::string complement = fmt::format("\\P{{{}}}", name);
      if (here(property)) return add_class(property + missing_from(property, set), /*negated=*/false, property.size());
      if (here(complement) && !in_brackets_) {
        return add_class(property + missing_from(property, set), /*negated=*/true, complement.size());
      }
    }
    copy(2);
  }

  std::string_view pattern_;
  size_t place_ = 0;
  bool in_brackets_ = false;
  std::string out_;
};

}  // namespace

struct Regex::Compiled {
  explicit Compiled(const std::string& pattern) : code(compile(Translator(pattern).translate(), pattern)) {}

  Code code;
};

Regex::Regex(const std::string& pattern) : pattern_(pattern), compiled_(std::make_unique<const Compiled>(pattern)) {}
Regex::~Regex() = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t begin) const {
  const pcre2_code* const code = compiled_->code.get();
  // A thread's own: of one pair of offsets, as groups do not matter here.
  thread_local const MatchData match(pcre2_match_data_create(1, nullptr));
  NMOE_CHECK(match != nullptr, "pcre2_match_data_create");
  const int result = pcre2_match(code, pcre2_text(text), text.size(), begin, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK,
                                 match.get(), nullptr);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw runtime_error(
        fmt::format("the split pattern '{}' gives up at byte {} of a text of {}: {}", pattern_, begin, text.size(),
                    pcre2_message(result)),
        "use a tokenizer with one of the patterns that are known, or cut the text into shorter documents");
  }
  const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(match.get());
  return Match{span[0], span[1]};
}

}  // namespace nmoe
