#include "chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "chat/jinja/value.h"

namespace nmoe::jinja {
namespace {

bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool begins_name(char32_t c) { return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || c == U'_'; }

class Lexer {
 public:
  explicit Lexer(const Text& source) : text_(replace(replace(source, U"\r\n", U"\n", -1), U"\r", U"\n", -1)) {
    if (!text_.empty() && text_.back() == U'\n') text_.pop_back();
  }

  std::vector<Token> cut() {
    while (place_ < text_.size()) {
      const size_t tag = find_tag();
      const char32_t kind = tag < text_.size() ? text_[tag + 1] : U' ';
      const char32_t sign = tag + 2 < text_.size() ? text_[tag + 2] : U' ';
      add_data(tag, kind, sign);
      if (tag == text_.size()) break;
      advance(tag + (sign == U'-' || sign == U'+' ? 3 : 2));
      if (kind == U'#') {
        skip_comment();
      } else if (kind == U'%') {
        add(TokenKind::kBlockBegin);
        cut_tag(U"%}", TokenKind::kBlockEnd);
      } else {
        add(TokenKind::kOutputBegin);
        cut_tag(U"}}", TokenKind::kOutputEnd);
      }
    }
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, Text text = {}) { tokens_.push_back({kind, std::move(text), line_}); }
  bool at(TextView what) const { return TextView(text_).substr(place_, what.size()) == what; }
  char32_t peek(size_t offset = 0) const { return place_ + offset < text_.size() ? text_[place_ + offset] : U'\0'; }

  void advance(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(place_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), U'\n'));
    place_ = end;
  }

  size_t find_tag() const {
    for (size_t i = place_; i + 1 < text_.size(); ++i) {
      if (text_[i] == U'{' && (text_[i + 1] == U'{' || text_[i + 1] == U'%' || text_[i + 1] == U'#')) return i;
    }
    return text_.size();
  }

  void add_data(size_t tag, char32_t kind, char32_t sign) {
    TextView data = TextView(text_).substr(place_, tag - place_);
    if (tag < text_.size() && sign == U'-') {
      data = strip(data, Side::kRight);
    } else if (tag < text_.size() && sign != U'+' && kind != U'{') {
      // lstrip_blocks: a tag that is the first of its line takes what is before it along.
      const size_t newline = data.rfind(U'\n');
      const size_t begin = newline == TextView::npos ? 0 : newline + 1;
      const bool whole_line = newline != TextView::npos || line_begins_;
      if (whole_line && std::ranges::all_of(data.substr(begin), is_space)) data = data.substr(0, begin);
    }
    if (!data.empty()) add(TokenKind::kData, Text(data));
    advance(tag);
  }

  // After the end of a tag: "-" takes all white space along, a block without sign one new line (trim_blocks).
  void end_tag(char32_t sign, bool trims) {
    size_t end = place_;
    if (sign == U'-') {
      while (end < text_.size() && is_space(text_[end])) ++end;
    } else if (sign != U'+' && trims && peek() == U'\n') {
      ++end;
    }
    line_begins_ = end > place_ && text_[end - 1] == U'\n';
    advance(end);
  }

  void skip_comment() {
    const size_t begin = place_;
    const size_t end = text_.find(U"#}", begin);
    if (end == Text::npos) fail_at(line_, "a comment {# without #}");
    const char32_t sign = end > begin ? text_[end - 1] : U' ';
    advance(end + 2);
    end_tag(sign, /*trims=*/true);
  }

  void cut_tag(TextView end, TokenKind end_kind) {
    const int begin_line = line_;
    int open = 0;  // brackets
    while (true) {
      while (place_ < text_.size() && is_space(text_[place_])) advance(place_ + 1);
      if (place_ >= text_.size()) fail_at(begin_line, "a tag without ", encode(end));
      const char32_t sign = peek();
      const size_t sign_size = sign == U'-' || (sign == U'+' && end_kind == TokenKind::kBlockEnd) ? 1 : 0;
      if (open == 0 && TextView(text_).substr(place_ + sign_size, end.size()) == end) {
        add(end_kind);
        advance(place_ + sign_size + end.size());
        end_tag(sign_size == 0 ? U' ' : sign, end_kind == TokenKind::kBlockEnd);
        return;
      }
      cut_token();
      if (tokens_.back().kind != TokenKind::kOperator) continue;
      const char32_t bracket = tokens_.back().text.front();
      if (bracket == U'(' || bracket == U'[' || bracket == U'{') ++open;
      if ((bracket == U')' || bracket == U']' || bracket == U'}') && --open < 0) {
        fail_at(line_, "a ", encode(Text(1, bracket)), " that closes nothing");
      }
    }
  }

  void cut_token() {
    const char32_t c = peek();
    if (begins_name(c)) {
      size_t end = place_;
      while (end < text_.size() && (begins_name(text_[end]) || is_digit(text_[end]))) ++end;
      add(TokenKind::kName, text_.substr(place_, end - place_));
      return advance(end);
    }
    if (is_digit(c)) return cut_number();
    if (c == U'"' || c == U'\'') return cut_string();
    constexpr std::array<TextView, 6> kLong = {U"**", U"//", U"==", U"!=", U"<=", U">="};
    constexpr TextView kShort = U"+-*/%~[](){}<>=.:|,";
    size_t size = kShort.find(c) == TextView::npos ? 0 : 1;
    if (std::ranges::any_of(kLong, [&](TextView name) { return at(name); })) size = 2;
    if (size == 0) fail_at(line_, "the character ", encode(Text(1, c)), " has no place in a tag");
    add(TokenKind::kOperator, text_.substr(place_, size));
    advance(place_ + size);
  }

  void cut_number() {
    const bool after_dot = place_ > 0 && text_[place_ - 1] == U'.';
    Text digits;
    size_t end = place_;
    const auto take_digits = [&] {
      for (; end < text_.size() && (is_digit(text_[end]) || text_[end] == U'_'); ++end) {
        if (text_[end] != U'_') digits += text_[end];
      }
    };
    const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
    take_digits();
    bool real = false;
    if (!after_dot && end < text_.size() && text_[end] == U'.' && digit_at(end + 1)) {
      real = true;
      digits += text_[end++];
      take_digits();
    }
    if (!after_dot && end < text_.size() && (text_[end] == U'e' || text_[end] == U'E')) {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == U'+' || text_[end + 1] == U'-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        real = true;
        digits.append(text_, end, 1 + sign);
        end += 1 + sign;
        take_digits();
      }
    }
    if (end < text_.size() && begins_name(text_[end])) fail_at(line_, "a number that goes on as a name");
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    advance(end);
  }

  void cut_string() {
    const char32_t quote = peek();
    size_t end = place_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == U'\\' ? 2 : 1;
    if (end >= text_.size()) fail_at(line_, "a string without its closing quote");
    add(TokenKind::kString, unescape(TextView(text_).substr(place_ + 1, end - place_ - 1)));
    advance(end + 1);
  }

  // Python's escapes. One that it does not know stays as it is.
  Text unescape(TextView raw) const {
    constexpr TextView kNames = U"\\'\"abfnrtv";
    constexpr TextView kMeanings = U"\\'\"\a\b\f\n\r\t\v";
    Text result;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != U'\\') {
        result += raw[i];
        continue;
      }
      const char32_t c = raw[++i];
      const size_t known = kNames.find(c);
      if (known != TextView::npos) {
        result += kMeanings[known];
      } else if (c == U'x' || c == U'u' || c == U'U') {
        const size_t digits = c == U'x' ? 2 : c == U'u' ? 4 : 8;
        result += static_cast<char32_t>(number(raw.substr(i + 1, digits), digits, 16));
        i += digits;
      } else if (c >= U'0' && c <= U'7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < raw.size() && raw[i + digits] >= U'0' && raw[i + digits] <= U'7') ++digits;
        result += static_cast<char32_t>(number(raw.substr(i, digits), digits, 8));
        i += digits - 1;
      } else if (c == U'N') {
        fail_at(line_, "the escape \\N in a string is not supported");
      } else if (c != U'\n') {
        result += U'\\';
        result += c;
      }
    }
    return result;
  }

  uint32_t number(TextView digits, size_t count, uint32_t base) const {
    uint32_t value = 0;
    size_t good = 0;
    for (const char32_t c : digits) {
      const uint32_t digit = is_digit(c)              ? c - U'0'
                             : c >= U'a' && c <= U'f' ? c - U'a' + 10
                             : c >= U'A' && c <= U'F' ? c - U'A' + 10
                                                      : base;
      if (digit >= base) break;
      value = value * base + digit;
      ++good;
    }
    if (good != count || value > 0x10FFFF) fail_at(line_, "a bad escape in a string");
    return value;
  }

  Text text_;
  size_t place_ = 0;
  int line_ = 1;
  bool line_begins_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> cut_template(const Text& source) { return Lexer(source).cut(); }

}  // namespace nmoe::jinja
