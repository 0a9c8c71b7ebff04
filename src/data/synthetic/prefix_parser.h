// Exact probabilities of the texts of a layered grammar, token by token: the inside algorithm (Baker, 1979) and its
// extension to prefixes (Jelinek and Lafferty, "Computation of the probability of initial substring generation by
// stochastic context-free grammars", 1991), a column of the chart for every token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/synthetic/grammar.h"

namespace nmoe {

// Holds a text; tokens come and go at its end. Adding token n takes O(n^2) per rule, less where a symbol cannot span
// that many tokens. Not thread-safe.
class PrefixParser {
 public:
  // `grammar` must outlive the parser, and the least probability of a text be a normal double.
  explicit PrefixParser(const Grammar& grammar);

  void push(int32_t token);
  void pop();
  void clear() { columns_.clear(); }
  int64_t size() const { return static_cast<int64_t>(columns_.size()); }

  // That a text is this one: all of it.
  double text_probability() const;
  // That a text begins with this one, or is it.
  double prefix_probability() const;

  // -log p(token | tokens before) for each token of a text and, last, for its end: size + 1 values, infinite from where
  // the text leaves the language. Clears the parser.
  std::vector<double> token_nats(std::span<const int32_t> text);

 private:
  // Letters: i, m, n positions between tokens; s a symbol, numbered over all levels, terminals last.
  struct Rule {
    int64_t left;
    std::vector<int64_t> right;
    double probability;
  };
  // Of the spans [i, n) with i < n, for the n of this column: [i][s], row-major.
  struct Column {
    int32_t token = 0;
    std::vector<double> inside;  // s makes exactly the tokens of the span
    std::vector<double> prefix;  // what s makes begins with them
  };
  // The same two for the right-hand side of a rule from some symbol on.
  struct Pair {
    double inside = 0.0;
    double prefix = 0.0;
  };
  Pair sequence(const Column& column, int64_t i, int64_t n, int64_t first, const std::vector<Pair>& rest) const;
  size_t cell(int64_t i, int64_t s) const { return static_cast<size_t>(i * num_symbols_ + s); }

  int64_t num_symbols_ = 0;
  int64_t first_terminal_ = 0;
  std::vector<Rule> rules_;                  // those of the last level first
  std::vector<int64_t> shortest_, longest_;  // of what a symbol makes
  std::vector<Column> columns_;              // column n - 1 has the spans that end at n
};

}  // namespace nmoe
