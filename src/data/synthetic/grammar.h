// Layered context-free grammars, as in "Physics of Language Models: Part 1" (arXiv 2305.13673): the symbols of a level
// are rewritten into symbols of the next one, and those of the last level are terminals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

// The right-hand side of a rule: symbols of the next level.
using Production = std::vector<int32_t>;

// A symbol takes each of its productions with the same probability.
struct Grammar {
  // [level][symbol][production]. Level 0 has the root alone; the productions of the last are terminals.
  std::vector<std::vector<std::vector<Production>>> levels;
  int64_t num_terminals = 0;

  int64_t depth() const { return static_cast<int64_t>(levels.size()); }
};

struct GrammarShape {
  int64_t depth = 4;        // levels of rules
  int64_t symbols = 3;      // of every level but the root's, terminals included
  int64_t productions = 2;  // of every symbol
  bool unambiguous = true;  // draw again until is_unambiguous()
};

// A random grammar whose productions have two or three symbols. All productions of a level differ. Error (usage) when
// there are no such productions, or none unambiguous are found.
Grammar random_grammar(const GrammarShape& shape, uint64_t seed);

// Whether no two different sequences of the words make the same text when they are written without spaces: the test of
// Sardinas and Patterson (IRE Convention Record, 1953). Words are not empty.
bool is_uniquely_decodable(std::span<const Production> words);

// Whether the productions of every level together are uniquely decodable. Then every text has at most one derivation.
bool is_unambiguous(const Grammar& grammar);

// Exact means over the grammar's texts, by recursion over its symbols.
struct GrammarMeans {
  double tokens = 0.0;           // terminals of a text
  double derivation_nats = 0.0;  // entropy of derivations: that of texts too where the grammar is unambiguous
};
GrammarMeans grammar_means(const Grammar& grammar);

// The most that any derivation's -log probability can be, nats.
double max_derivation_nats(const Grammar& grammar);

}  // namespace nmoe
