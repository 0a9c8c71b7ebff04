#include "config/toml_depth.h"

#include <algorithm>
#include <vector>

namespace nmoe {
namespace {

// Reads brackets, dots, strings and comments, and takes everything else for granted.
class DepthScanner {
 public:
  explicit DepthScanner(std::string_view toml) : toml_(toml) {}

  int64_t too_deep_line() {
    while (at_ < toml_.size()) {
      const char c = toml_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
      } else if (c == '#') {
        at_ = std::min(toml_.find('\n', at_), toml_.size());
      } else {
        ++at_;
        take(c);
      }
      if (depth() > kMaxTomlDepth) return line_;
    }
    return 0;
  }

 private:
  // A value's list or table that is open.
  struct Bracket {
    bool is_list;
    int64_t depth;  // its own
  };

  bool in_list() const { return !open_.empty() && open_.back().is_list; }
  // Of the key or value that is being read.
  int64_t depth() const {
    if (in_header_) return header_levels_ * (dots_ + 1);
    const int64_t around = open_.empty() ? header_depth_ : open_.back().depth;
    return around + dots_ + 1;
  }

  void take(char c) {
    switch (c) {
      case '\n':
        ++line_;
        if (open_.empty()) begin_statement();
        break;
      case '.':
        if (!in_value_) ++dots_;
        break;
      case '=':
        in_value_ = !in_header_;
        break;
      case '[':
      case '{':
        in_value_ ? open(c == '[') : begin_header();
        break;
      case ']':
      case '}':
        close();
        break;
      case ',':
        if (!open_.empty() && !in_list()) begin_key();
        break;
      default:
        break;
    }
  }

  void begin_statement() {
    in_header_ = false;
    begin_key();
  }
  void begin_key() {
    dots_ = 0;
    in_value_ = false;
  }

  void begin_header() {
    header_levels_ = in_header_ ? 2 : 1;  // the second bracket of two, or of what is no TOML
    in_header_ = true;
  }

  void open(bool is_list) {
    open_.push_back({.is_list = is_list, .depth = depth()});
    dots_ = 0;
    in_value_ = is_list;
  }
  void close() {
    if (in_header_) header_depth_ = depth();
    if (open_.empty()) return;
    open_.pop_back();
    dots_ = 0;
    in_value_ = true;  // behind a value is a comma, a bracket or the end of the statement
  }

  void skip_string(char quote) {
    const std::string_view rest = toml_.substr(at_);
    const size_t quotes = std::min({rest.find_first_not_of(quote), rest.size(), size_t{3}});
    at_ += quotes;
    if (quotes == 2) return;  // an empty one
    for (size_t closing = 0; at_ < toml_.size() && closing < quotes; ++at_) {
      const char c = toml_[at_];
      if (c == '\n' && quotes == 1) return;  // a fault
      if (c == '\n') ++line_;
      closing = c == quote ? closing + 1 : 0;
      if (c == '\\' && quote == '"' && at_ + 1 < toml_.size() && toml_[at_ + 1] != '\n') ++at_;
    }
    // A long string may end in one or two quotes of its own.
    for (int own = 0; own < 2 && quotes == 3 && at_ < toml_.size() && toml_[at_] == quote; ++own) ++at_;
  }

  const std::string_view toml_;
  size_t at_ = 0;
  int64_t line_ = 1;
  std::vector<Bracket> open_;
  bool in_value_ = false;  // rather than in a key or a header
  bool in_header_ = false;
  int64_t header_levels_ = 1;  // of each part
  int64_t header_depth_ = 0;   // of the table that statements stand in
  int64_t dots_ = 0;           // of the key so far
};

}  // namespace

int64_t too_deep_line(std::string_view toml) { return DepthScanner(toml).too_deep_line(); }

}  // namespace nmoe
