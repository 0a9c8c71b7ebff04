#include "data/tokenizer/oniguruma.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>

#include "data/tokenizer/code_point_set.h"
#include "data/tokenizer/pcre2_class.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/unicode_properties.h"

namespace nmoe {
namespace {

constexpr char32_t kNoCharacter = kNumCodePoints;
constexpr int kMaxDepth = 100;
constexpr int64_t kMaxCount = 1000;

std::invalid_argument unsupported(const std::string& what) { return std::invalid_argument(what); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

const CodePointSet& property(std::string_view name) {
  const CodePointSet* const set = find_property(name);
  if (set == nullptr) throw unsupported(fmt::format("the property '{}' is not known", name));
  return *set;
}

// Where letter case does not matter, Oniguruma takes these for several letters, as Unicode's full case folding does.
const CodePointSet& letters_of_several() {
  static const CodePointSet set({{0xDF, 0xDF},
                                 {0x130, 0x130},
                                 {0x149, 0x149},
                                 {0x1F0, 0x1F0},
                                 {0x390, 0x390},
                                 {0x3B0, 0x3B0},
                                 {0x587, 0x587},
                                 {0x1E96, 0x1E9A},
                                 {0x1E9E, 0x1E9E},
                                 {0x1F50, 0x1FFC},
                                 {0xFB00, 0xFB06},
                                 {0xFB13, 0xFB17}});
  return set;
}

// Word characters outside brackets: of Latin-1, Oniguruma takes superscripts and fractions for some there.
const CodePointSet& word_outside() {
  static const CodePointSet set = property("Word") | CodePointSet({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
  return set;
}

// What is in force at a place of the pattern.
struct Options {
  bool ignore_case = false;
  bool dot_all = false;  // (?m), as Oniguruma calls it
};

// A class in brackets, or an escape for one.
struct CharacterClass {
  CodePointSet set;
  bool negated = false;
  bool word = false;  // \w, \W or \p{Word}
  bool plain = true;  // neither complements nor intersections make up its set
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    body({}, 0);
    if (place_ < pattern_.size()) throw unsupported("a ) closes nothing");
    return std::move(out_);
  }

 private:
  // What a quantifier would apply to.
  enum class Last { kNothing, kItem, kAnchor, kQuantified };

  bool at_end() const { return place_ == pattern_.size(); }
  bool here(std::string_view text) const { return pattern_.substr(place_).starts_with(text); }
  bool take(std::string_view text) {
    if (!here(text)) return false;
    place_ += text.size();
    return true;
  }
  char peek(size_t ahead = 0) const { return place_ + ahead < pattern_.size() ? pattern_[place_ + ahead] : '\0'; }
  char32_t take_character() {
    const Character c = decode_utf8(pattern_.data() + place_);
    place_ += c.size;
    return c.code_point;
  }

  // Alternatives, up to a closing parenthesis or the end.
  void body(Options options, int depth) {
    if (depth > kMaxDepth) throw unsupported(fmt::format("groups are nested more than {} deep", kMaxDepth));
    last_ = Last::kNothing;
    previous_ = kNoCharacter;
    while (!at_end() && peek() != ')') {
      if (take("|")) {
        out_ += '|';
        last_ = Last::kNothing;
        previous_ = kNoCharacter;
      } else if (peek() == '(') {
        if (!group(options, depth)) return;
      } else if (!quantifier()) {
        item(options);
      }
    }
  }

  void end_item(Last last, char32_t literal = kNoCharacter) {
    last_ = last;
    previous_ = literal;
  }

  void item(Options options) {
    if (peek() == '\\') return escape(options);
    if (take("[")) {
      emit(bracketed(0), options);
      return end_item(Last::kItem);
    }
    if (take(".")) {
      out_ += options.dot_all ? "(?s:.)" : ".";
      return end_item(Last::kItem);
    }
    if (here("^") || here("$")) {
      out_ += peek();
      ++place_;
      return end_item(Last::kAnchor);
    }
    literal(take_character(), options);
  }

  void literal(char32_t c, Options options) {
    if (options.ignore_case) check_folding(c);
    out_ += pcre2_character(c);
    end_item(Last::kItem, c);
  }

  // Under (?i), "ss" is "ß" to Oniguruma, and "ﬁ" is "fi".
  void check_folding(char32_t c) const {
    const auto lower = [](char32_t of) { return of >= 'A' && of <= 'Z' ? of - 'A' + 'a' : of; };
    constexpr std::u32string_view kPairs[] = {U"ss", U"ff", U"fi", U"fl", U"st"};
    const char32_t pair[] = {lower(previous_), lower(c)};
    const bool joins = std::ranges::find(kPairs, std::u32string_view(pair, 2)) != std::end(kPairs) ||
                       property("M").contains(c) || c == U'\u02BC' || c == U'\u02BE';
    if (joins || letters_of_several().contains(c)) {
      throw unsupported("under (?i), one of its letters also stands for several others (as ß does for ss)");
    }
  }

  // ---- groups ----

  // False if the group was an option that holds up to the end of the alternatives, which it has translated.
  bool group(Options options, int depth) {
    ++place_;
    if (here("*")) throw unsupported("(*...) is a callout");
    if (!take("?")) return close(options, depth, "(?:", Last::kItem);
    if (take("#")) {
      const size_t end = pattern_.find(')', place_);
      if (end == std::string_view::npos) throw unsupported("a comment does not end");
      place_ = end + 1;
      return true;
    }
    for (const std::string_view kind : {"<=", "<!", "=", "!"}) {
      if (take(kind)) return close(options, depth, fmt::format("(?{}", kind), Last::kAnchor);
    }
    for (const std::string_view kind : {":", ">"}) {
      if (take(kind)) return close(options, depth, fmt::format("(?{}", kind), Last::kItem);
    }
    if (here("<") || here("'")) {
      name();
      return close(options, depth, "(?:", Last::kItem);
    }
    return option_group(options, depth);
  }

  bool close(Options options, int depth, std::string_view opening, Last last) {
    out_ += opening;
    body(options, depth + 1);
    if (!take(")")) throw unsupported("a group does not end");
    out_ += ')';
    end_item(last);
    return true;
  }

  void name() {
    const char end = peek() == '<' ? '>' : '\'';
    const size_t close = pattern_.find(end, ++place_);
    if (close == std::string_view::npos || close == place_) throw unsupported("a group's name does not end");
    place_ = close + 1;
  }

  bool option_group(Options options, int depth) {
    bool on = true;
    for (; !at_end() && peek() != ')' && peek() != ':'; ++place_) {
      if (peek() == '-' && on) {
        on = false;
      } else if (peek() == 'i') {
        options.ignore_case = on;
      } else if (peek() == 'm') {
        options.dot_all = on;
      } else {
        throw unsupported(fmt::format("(?{} is not supported", is_letter(peek()) ? std::string(1, peek()) : "..."));
      }
    }
    const std::string_view opening = options.ignore_case ? "(?i:" : "(?-i:";
    if (take(":")) return close(options, depth, opening, Last::kItem);
    if (!take(")")) throw unsupported("a group does not end");
    // NOTE: to Oniguruma, a(?i)b|c is a(?i:b|c).
    out_ += opening;
    body(options, depth + 1);
    out_ += ')';
    return false;
  }

  // ---- quantifiers ----

  bool quantifier() {
    std::string_view kind;
    for (const std::string_view simple : {"*", "+", "?"}) {
      if (here(simple)) kind = simple;
    }
    std::optional<Interval> interval;
    if (kind.empty()) interval = take_interval();
    if (kind.empty() && !interval) return false;
    if (last_ == Last::kNothing) throw unsupported("a quantifier stands behind nothing");
    if (last_ == Last::kAnchor) throw unsupported("a quantifier stands behind an anchor or a look around");
    if (last_ == Last::kQuantified) throw unsupported("a quantifier stands behind another");
    if (interval) {
      out_ += fmt::format("{{{},{}}}", interval->min, interval->max < 0 ? "" : std::to_string(interval->max));
      if (here("+")) throw unsupported("Oniguruma does not take {n,m}+ for possessive");
      if (here("?") && interval->min == interval->max) throw unsupported("Oniguruma does not take {n}? for lazy");
      if (take("?")) out_ += '?';
    } else {
      out_ += kind;
      ++place_;
      if (here("?") || here("+")) {
        out_ += peek();
        ++place_;
      }
    }
    end_item(Last::kQuantified);
    return true;
  }

  struct Interval {
    int64_t min;
    int64_t max;  // -1: none
  };
  // {n}, {n,}, {n,m} or {,m}; anything else after { is text.
  std::optional<Interval> take_interval() {
    if (peek() != '{') return std::nullopt;
    const size_t end = pattern_.find('}', place_);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view inside = pattern_.substr(place_ + 1, end - place_ - 1);
    const size_t comma = inside.find(',');
    const auto low = count_of(inside.substr(0, comma));
    const auto high = comma == std::string_view::npos ? low : count_of(inside.substr(comma + 1));
    if (!low || !high || (*low < 0 && *high < 0)) return std::nullopt;
    place_ = end + 1;
    const Interval interval{std::max<int64_t>(*low, 0), *high};
    if (std::max(interval.min, interval.max) > kMaxCount) {
      throw unsupported(fmt::format("it counts to more than {}", kMaxCount));
    }
    if (interval.max >= 0 && interval.max < interval.min) throw unsupported("a count's bounds are the wrong way round");
    return interval;
  }
  // -1 for no digits, nothing for what are none.
  static std::optional<int64_t> count_of(std::string_view digits) {
    if (digits.empty()) return -1;
    if (!std::ranges::all_of(digits, is_digit) || digits.size() > 9) return std::nullopt;
    int64_t count = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), count);
    return count;
  }

  // ---- escapes ----

  void escape(Options options) {
    if (pattern_.size() - place_ < 2) throw unsupported("it ends with \\");
    if (const auto set = class_escape()) {
      // NOTE: outside brackets, \p{Lu} means upper case even under (?i).
      const std::string members =
          pcre2_class(set->word ? word_outside() : set->set, set->negated, /*ignore_case=*/false);
      out_ += options.ignore_case ? fmt::format("(?-i:{})", members) : members;
      return end_item(Last::kItem);
    }
    if (const auto c = character_escape()) return literal(*c, options);
    const char kind = peek(1);
    place_ += 2;
    if (kind == 'b' || kind == 'B') {
      const std::string word = pcre2_class(word_outside(), /*negated=*/false, /*ignore_case=*/false);
      out_ += kind == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                          : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
      return end_item(Last::kAnchor);
    }
    if (kind == 'A' || kind == 'z' || kind == 'Z' || kind == 'G') {
      out_ += {'\\', kind};
      return end_item(Last::kAnchor);
    }
    if (kind == 'R' || kind == 'N' || kind == 'O') {
      out_ += kind == 'R' ? "(?>\\r\\n|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])" : kind == 'N' ? "[^\\n]" : "(?s:.)";
      return end_item(Last::kItem);
    }
    if ((kind >= '1' && kind <= '9') || kind == 'k' || kind == 'g') {
      throw unsupported("it refers back to what it matched, for which each word takes time as the text is long");
    }
    throw unsupported(fmt::format("\\{} is not supported", kind));
  }

  // \w, \p{L} and the like; nothing, and no step, for other escapes.
  std::optional<CharacterClass> class_escape() {
    const char kind = peek(1);
    std::string_view name;
    switch (kind) {
      case 'w':
      case 'W':
        name = "Word";
        break;
      case 'd':
      case 'D':
        name = "Digit";
        break;
      case 's':
      case 'S':
        name = "Space";
        break;
      case 'h':
      case 'H':
        name = "XDigit";
        break;
      case 'p':
      case 'P':
        return property_escape();
      default:
        return std::nullopt;
    }
    place_ += 2;
    return CharacterClass{.set = property(name), .negated = kind < 'a', .word = name == "Word"};
  }

  CharacterClass property_escape() {
    bool negated = peek(1) == 'P';
    place_ += 2;
    const size_t end = pattern_.find('}', place_);
    if (!take("{") || end == std::string_view::npos) throw unsupported("\\p without {...}");
    if (take("^")) negated = !negated;
    const CodePointSet& set = property(pattern_.substr(place_, end - place_));
    place_ = end + 1;
    return {.set = set, .negated = negated, .word = &set == &property("Word")};
  }

  // The character that an escape stands for, inside brackets and out; nothing, and no step, for other escapes.
  std::optional<char32_t> character_escape() {
    const char kind = peek(1);
    constexpr std::string_view kLetters = "tnrfvae";
    constexpr char32_t kMeant[] = {'\t', '\n', '\r', '\f', '\v', '\a', 0x1B};
    if (const size_t found = kLetters.find(kind); found != std::string_view::npos && kind != '\0') {
      place_ += 2;
      return kMeant[found];
    }
    if (kind == 'x' || kind == 'u' || kind == '0') return numeric_escape(kind);
    if (is_letter(kind) || is_digit(kind)) return std::nullopt;
    ++place_;
    return take_character();
  }

  char32_t numeric_escape(char kind) {
    place_ += 2;
    std::string_view digits;
    if (kind == 'x' && take("{")) {
      const size_t end = std::min(pattern_.find('}', place_), pattern_.size());
      digits = pattern_.substr(place_, end - place_);
      place_ = end;
      if (!take("}")) throw unsupported("\\x{ does not end");
    } else {
      const size_t most = kind == 'u' ? 4 : 2;
      size_t size = 0;
      const auto is_one = [&](char c) {
        return kind == '0' ? c >= '0' && c <= '7' : is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      };
      while (size < most && is_one(peek(size))) ++size;
      digits = pattern_.substr(place_, size);
      place_ += size;
      if (kind == 'u' && size < most) throw unsupported("\\u has fewer than four digits");
      if (kind == '0' && digits.empty()) digits = "0";
    }
    uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, kind == '0' ? 8 : 16);
    const bool is_byte = kind == '0' || (kind == 'x' && pattern_[place_ - 1] != '}');
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value >= kNumCodePoints ||
        (value >= 0xD800 && value < 0xE000) || (is_byte && value >= 0x80)) {
      throw unsupported(fmt::format("\\{}{} is not a character", kind, digits));
    }
    return value;
  }

  // ---- classes in brackets ----

  // Behind the opening bracket.
  CharacterClass bracketed(int depth) {
    if (depth > kMaxDepth) throw unsupported(fmt::format("classes are nested more than {} deep", kMaxDepth));
    CharacterClass result;
    result.negated = take("^");
    if (here("]")) throw unsupported("a class begins with ]");
    std::optional<CodePointSet> intersection;
    CodePointSet set;
    while (!take("]")) {
      if (at_end()) throw unsupported("a class does not end");
      if (take("&&")) {
        intersection = intersection ? *intersection & set : set;
        set = {};
        result.plain = false;
        continue;
      }
      const CharacterClass member = class_member(depth);
      result.plain &= member.plain && !member.negated;
      set |= member.negated ? ~member.set : member.set;
    }
    result.set = intersection ? *intersection & set : set;
    return result;
  }

  CharacterClass class_member(int depth) {
    if (here("[:")) return posix_bracket();
    if (take("[")) return bracketed(depth + 1);
    if (here("\\")) {
      if (pattern_.size() - place_ < 2) throw unsupported("it ends with \\");
      const bool is_property = peek(1) == 'p' || peek(1) == 'P';
      if (auto escaped = class_escape()) {
        check_no_range();
        if (is_property) return *escaped;
        // \W and the like have all cases of what they have.
        return {.set = escaped->negated ? ~escaped->set : escaped->set};
      }
    }
    const char32_t first = class_character();
    if (peek() != '-' || peek(1) == ']') return {.set = CodePointSet({{first, first}})};
    ++place_;
    if (here("[") || here("&&")) throw unsupported("a range in a class has no end");
    const char32_t last = class_character();
    if (last < first) throw unsupported("a range in a class is the wrong way round");
    check_no_range();
    return {.set = CodePointSet({{first, last}})};
  }

  // A hyphen behind a class or a range would be read differently by different versions.
  void check_no_range() const {
    if (peek() == '-' && peek(1) != ']') throw unsupported("a range in a class has no beginning");
  }

  char32_t class_character() {
    if (at_end()) throw unsupported("a class does not end");
    if (!here("\\")) return take_character();
    if (take("\\b")) return '\b';
    if (const auto c = character_escape()) return *c;
    throw unsupported(fmt::format("\\{} in a class is not supported", peek(1)));
  }

  CharacterClass posix_bracket() {
    place_ += 2;
    const bool negated = take("^");
    const size_t end = pattern_.find(":]", place_);
    const std::string_view name = pattern_.substr(place_, std::min(end, pattern_.size()) - place_);
    const CodePointSet* const set = end == std::string_view::npos ? nullptr : find_posix_bracket(name);
    if (set == nullptr) throw unsupported(fmt::format("the class [:{}:] is not known", name.substr(0, 20)));
    place_ = end + 2;
    return {.set = *set, .negated = negated};
  }

  void emit(const CharacterClass& members, Options options) {
    if (options.ignore_case) {
      // Other cases of a complement's members are not the complement of other cases.
      if (!members.plain) throw unsupported("under (?i), a class has others or complements in it");
      const CodePointSet letters({{'A', 'Z'}, {'a', 'z'}});
      if (!members.negated && !members.set.includes(letters) && !(members.set & letters_of_several()).empty()) {
        throw unsupported("under (?i), a class has a letter that also stands for several others (as ß does for ss)");
      }
    }
    out_ += pcre2_class(members.set, members.negated, options.ignore_case);
  }

  std::string_view pattern_;
  size_t place_ = 0;
  Last last_ = Last::kNothing;
  char32_t previous_ = kNoCharacter;  // the literal before this place, if one is
  std::string out_;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) {
  if (valid_utf8_size(pattern) != pattern.size()) throw unsupported("it is not valid UTF-8");
  return Translator(pattern).translate();
}

}  // namespace nmoe
