#include "research/sweep/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr int kMaxDepth = 64;  // of parentheses, signs and powers
constexpr const char* kRemedy =
    "write numbers, keys, + - * / ^, parentheses, sqrt, log2, round, floor, ceil, min and max";

using Function = double (*)(const std::vector<double>&);
struct Known {
  std::string_view name;
  size_t arguments;
  Function value;
};
constexpr auto kFunctions = std::to_array<Known>({
    {"sqrt", 1, [](const std::vector<double>& x) { return std::sqrt(x[0]); }},
    {"log2", 1, [](const std::vector<double>& x) { return std::log2(x[0]); }},
    {"round", 1, [](const std::vector<double>& x) { return std::round(x[0]); }},
    {"floor", 1, [](const std::vector<double>& x) { return std::floor(x[0]); }},
    {"ceil", 1, [](const std::vector<double>& x) { return std::ceil(x[0]); }},
    {"min", 2, [](const std::vector<double>& x) { return std::min(x[0], x[1]); }},
    {"max", 2, [](const std::vector<double>& x) { return std::max(x[0], x[1]); }},
});

// By recursive descent: sum, product, sign, power, atom.
class Parser {
 public:
  Parser(std::string_view text, const std::function<double(std::string_view)>& value_of)
      : text_(text), value_of_(value_of) {}

  double whole() {
    const double value = sum();
    if (peek() != '\0') throw fault(fmt::format("'{}' is not expected", peek()));
    return value;
  }

 private:
  Error fault(const std::string& what) const {
    return usage_error(fmt::format("\"{}\", column {}: {}", text_, at_ + 1, what), kRemedy);
  }
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) throw fault(fmt::format("there is no '{}'", wanted));
  }

  double sum() {
    double value = product();
    for (;;) {
      if (take('+')) {
        value += product();
      } else if (take('-')) {
        value -= product();
      } else {
        return value;
      }
    }
  }
  double product() {
    double value = sign();
    for (;;) {
      if (take('*')) {
        value *= sign();
      } else if (take('/')) {
        value /= sign();
      } else {
        return value;
      }
    }
  }
  double sign() {
    if (++depth_ > kMaxDepth) throw fault("it is nested too deep");
    const double value = take('-') ? -sign() : power();
    --depth_;
    return value;
  }
  double power() {
    const double value = atom();
    return take('^') ? std::pow(value, sign()) : value;
  }
  double atom() {
    if (take('(')) {
      const double value = sum();
      expect(')');
      return value;
    }
    const char next = peek();
    if (std::isdigit(static_cast<unsigned char>(next)) != 0 || next == '.') return number();
    if (std::isalpha(static_cast<unsigned char>(next)) != 0) return named();
    throw fault(next == '\0' ? "it ends where a value should be" : fmt::format("'{}' is no value", next));
  }
  double number() {
    double value = 0.0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) throw fault("this is no number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  double named() {
    const size_t begin = at_;
    const auto is_part = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (!take('(')) return value_of_(name);
    const auto* known = std::ranges::find(kFunctions, name, &Known::name);
    if (known == kFunctions.end()) {
      at_ = begin;
      throw fault(fmt::format("there is no function '{}'", name));
    }
    std::vector<double> arguments = {sum()};
    while (take(',')) arguments.push_back(sum());
    expect(')');
    if (arguments.size() != known->arguments) {
      throw fault(fmt::format("{} takes {} values, not {}", name, known->arguments, arguments.size()));
    }
    return known->value(arguments);
  }

  std::string_view text_;
  const std::function<double(std::string_view)>& value_of_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

double evaluate(std::string_view text, const std::function<double(std::string_view)>& value_of) {
  const double value = Parser(text, value_of).whole();
  if (!std::isfinite(value)) {
    throw usage_error(fmt::format("\"{}\" is {}", text, value), "let it have a finite value for every run");
  }
  return value;
}

}  // namespace nmoe
