#include "data/synthetic/grammar.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <set>

#include "base/error.h"
#include "data/synthetic/draws.h"

namespace nmoe {
namespace {

constexpr int64_t kShortest = 2, kLongest = 3;  // of productions

// One draw of the productions of a level, by symbol.
std::vector<std::vector<Production>> draw_level(Draws& draws, int64_t num_symbols, int64_t num_productions,
                                                int64_t num_symbols_below) {
  std::set<Production> taken;
  std::vector<std::vector<Production>> level(static_cast<size_t>(num_symbols));
  for (std::vector<Production>& productions : level) {
    while (static_cast<int64_t>(productions.size()) < num_productions) {
      Production production(static_cast<size_t>(kShortest + draws.below(kLongest - kShortest + 1)));
      for (int32_t& symbol : production) symbol = static_cast<int32_t>(draws.below(num_symbols_below));
      if (taken.insert(production).second) productions.push_back(std::move(production));
    }
  }
  return level;
}

std::vector<Production> all_productions(const std::vector<std::vector<Production>>& level) {
  std::vector<Production> all;
  for (const std::vector<Production>& productions : level)
    all.insert(all.end(), productions.begin(), productions.end());
  return all;
}

// What is left of `word` after `start`, where it begins with it.
std::optional<Production> rest_after(const Production& start, const Production& word) {
  if (start.size() > word.size() || !std::equal(start.begin(), start.end(), word.begin())) return std::nullopt;
  return Production(word.begin() + static_cast<std::ptrdiff_t>(start.size()), word.end());
}

}  // namespace

// A dangling suffix is what one sequence of words is ahead of another that has the same text so far. Two sequences make
// the same text when a dangling suffix is a word.
bool is_uniquely_decodable(std::span<const Production> words) {
  const std::set<Production> distinct(words.begin(), words.end());
  if (distinct.size() != words.size()) return false;
  std::set<Production> seen;
  std::deque<Production> pending;
  const auto add = [&](const Production& start, const Production& word) {
    const std::optional<Production> rest = rest_after(start, word);
    if (rest && seen.insert(*rest).second) pending.push_back(*rest);
  };
  for (const Production& a : words) {
    for (const Production& b : words) {
      if (a != b) add(a, b);
    }
  }
  while (!pending.empty()) {
    const Production suffix = pending.front();
    pending.pop_front();
    if (distinct.contains(suffix)) return false;
    for (const Production& word : words) {
      add(suffix, word);
      add(word, suffix);
    }
  }
  return true;
}

bool is_unambiguous(const Grammar& grammar) {
  return std::ranges::all_of(grammar.levels,
                             [](const auto& level) { return is_uniquely_decodable(all_productions(level)); });
}

Grammar random_grammar(const GrammarShape& shape, uint64_t seed) {
  constexpr uint64_t kAttempts = 20'000;
  const int64_t n = shape.symbols, num_possible = n * n + n * n * n;
  if (n * shape.productions > num_possible) {
    throw usage_error(fmt::format("{} symbols have {} productions of two or three symbols, not {} each", n,
                                  num_possible, shape.productions),
                      "lower productions or raise symbols");
  }
  Grammar grammar{.levels = {}, .num_terminals = n};
  for (int64_t depth = 0; depth < shape.depth; ++depth) {
    for (uint64_t attempt = 0;; ++attempt) {
      if (attempt == kAttempts) {
        throw usage_error(
            fmt::format("no unambiguous grammar is found with symbols = {}, productions = {}", n, shape.productions),
            "lower productions, raise symbols, or set unambiguous=false");
      }
      Draws draws(seed, fmt::format("synthetic.grammar.{}", depth), attempt);
      auto level = draw_level(draws, depth == 0 ? 1 : n, shape.productions, n);
      if (shape.unambiguous && !is_uniquely_decodable(all_productions(level))) continue;
      grammar.levels.push_back(std::move(level));
      break;
    }
  }
  return grammar;
}

GrammarMeans grammar_means(const Grammar& grammar) {
  std::vector<GrammarMeans> below(static_cast<size_t>(grammar.num_terminals), {.tokens = 1.0});
  for (auto level = grammar.levels.rbegin(); level != grammar.levels.rend(); ++level) {
    std::vector<GrammarMeans> means;
    for (const std::vector<Production>& productions : *level) {
      const double probability = 1.0 / static_cast<double>(productions.size());
      GrammarMeans mean{.tokens = 0.0, .derivation_nats = -std::log(probability)};
      for (const Production& production : productions) {
        for (const int32_t symbol : production) {
          mean.tokens += probability * below[static_cast<size_t>(symbol)].tokens;
          mean.derivation_nats += probability * below[static_cast<size_t>(symbol)].derivation_nats;
        }
      }
      means.push_back(mean);
    }
    below = std::move(means);
  }
  return below.front();
}

double max_derivation_nats(const Grammar& grammar) {
  std::vector<double> below(static_cast<size_t>(grammar.num_terminals), 0.0);
  for (auto level = grammar.levels.rbegin(); level != grammar.levels.rend(); ++level) {
    std::vector<double> most;
    for (const std::vector<Production>& productions : *level) {
      double worst = 0.0;
      for (const Production& production : productions) {
        double sum = 0.0;
        for (const int32_t symbol : production) sum += below[static_cast<size_t>(symbol)];
        worst = std::max(worst, sum);
      }
      most.push_back(worst + std::log(static_cast<double>(productions.size())));
    }
    below = std::move(most);
  }
  return below.front();
}

}  // namespace nmoe
