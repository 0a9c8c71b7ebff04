#include "data/synthetic/prefix_parser.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace nmoe {

PrefixParser::PrefixParser(const Grammar& grammar) {
  std::vector<int64_t> first_of_level;
  for (const auto& level : grammar.levels) {
    first_of_level.push_back(num_symbols_);
    num_symbols_ += static_cast<int64_t>(level.size());
  }
  first_of_level.push_back(num_symbols_);
  first_terminal_ = num_symbols_;
  num_symbols_ += grammar.num_terminals;
  shortest_.assign(static_cast<size_t>(num_symbols_), 1);
  longest_.assign(static_cast<size_t>(num_symbols_), 1);

  for (size_t level = grammar.levels.size(); level-- > 0;) {
    for (size_t symbol = 0; symbol < grammar.levels[level].size(); ++symbol) {
      const auto left = static_cast<size_t>(first_of_level[level]) + symbol;
      shortest_[left] = std::numeric_limits<int64_t>::max();
      const std::vector<Production>& productions = grammar.levels[level][symbol];
      for (const Production& production : productions) {
        Rule rule{.left = static_cast<int64_t>(left),
                  .right = {},
                  .probability = 1.0 / static_cast<double>(productions.size())};
        int64_t least = 0, most = 0;
        for (const int32_t part : production) {
          rule.right.push_back(first_of_level[level + 1] + part);
          least += shortest_[static_cast<size_t>(rule.right.back())];
          most += longest_[static_cast<size_t>(rule.right.back())];
        }
        shortest_[left] = std::min(shortest_[left], least);
        longest_[left] = std::max(longest_[left], most);
        rules_.push_back(std::move(rule));
      }
    }
  }
}

// Symbol `first` at [i, m), then what `rest` has for [m, n), over all m. That the whole begins with the span is:
// `first` alone does, or it ends at an m inside the span and the rest goes on from there.
PrefixParser::Pair PrefixParser::sequence(const Column& column, int64_t i, int64_t n, int64_t first,
                                          const std::vector<Pair>& rest) const {
  Pair pair{.inside = rest.empty() ? column.inside[cell(i, first)] : 0.0, .prefix = column.prefix[cell(i, first)]};
  if (rest.empty()) return pair;
  const int64_t begin = i + shortest_[static_cast<size_t>(first)];
  const int64_t end = std::min(n - 1, i + longest_[static_cast<size_t>(first)]);
  for (int64_t m = begin; m <= end; ++m) {
    const double made = columns_[static_cast<size_t>(m - 1)].inside[cell(i, first)];
    pair.inside += made * rest[static_cast<size_t>(m)].inside;
    pair.prefix += made * rest[static_cast<size_t>(m)].prefix;
  }
  return pair;
}

void PrefixParser::push(int32_t token) {
  NMOE_CHECK(token >= 0 && token < num_symbols_ - first_terminal_, "terminal {} of {}", token,
             num_symbols_ - first_terminal_);
  const int64_t n = size() + 1;
  Column column{
      .token = token, .inside = std::vector<double>(cell(n, 0), 0.0), .prefix = std::vector<double>(cell(n, 0), 0.0)};
  const size_t last = cell(n - 1, first_terminal_ + token);
  column.inside[last] = column.prefix[last] = 1.0;

  std::vector<Pair> rest, whole;
  for (const Rule& rule : rules_) {  // from the terminals up: what a rule needs of this column is there
    const int64_t longest = longest_[static_cast<size_t>(rule.left)];
    const bool is_root = rule.left == 0;
    const int64_t first_start = is_root ? 0 : std::max<int64_t>(0, n - longest);
    rest.clear();
    for (auto part = rule.right.rbegin(); part != rule.right.rend(); ++part) {
      // Only the root starts nowhere but at 0.
      const bool is_whole = std::next(part) == rule.right.rend();
      const int64_t end = is_whole && is_root ? 1 : n;
      whole.assign(static_cast<size_t>(n), {});
      for (int64_t i = first_start; i < end; ++i) whole[static_cast<size_t>(i)] = sequence(column, i, n, *part, rest);
      std::swap(rest, whole);
    }
    for (int64_t i = first_start; i < n; ++i) {
      column.inside[cell(i, rule.left)] += rule.probability * rest[static_cast<size_t>(i)].inside;
      column.prefix[cell(i, rule.left)] += rule.probability * rest[static_cast<size_t>(i)].prefix;
    }
  }
  columns_.push_back(std::move(column));
}

void PrefixParser::pop() {
  NMOE_CHECK(!columns_.empty(), "pop from an empty text");
  columns_.pop_back();
}

double PrefixParser::text_probability() const { return columns_.empty() ? 0.0 : columns_.back().inside[cell(0, 0)]; }

double PrefixParser::prefix_probability() const { return columns_.empty() ? 1.0 : columns_.back().prefix[cell(0, 0)]; }

std::vector<double> PrefixParser::token_nats(std::span<const int32_t> text) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  clear();
  std::vector<double> nats;
  double before = 1.0;
  const auto add = [&](double now) {
    nats.push_back(now > 0.0 ? std::log(before / now) : kNever);
    before = now;
  };
  for (const int32_t token : text) {
    push(token);
    add(prefix_probability());
  }
  add(text_probability());
  clear();
  return nats;
}

}  // namespace nmoe
