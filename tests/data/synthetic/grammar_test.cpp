// Grammars small enough to write down every text they make: all probabilities against that list.
#include "data/synthetic/grammar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "data/synthetic/grammar_source.h"
#include "data/synthetic/prefix_parser.h"

namespace nmoe {
namespace {

using Text = std::vector<int32_t>;
using Language = std::map<Text, double>;  // every text with its probability

Language texts_of(const Grammar& grammar, size_t level, int32_t symbol) {
  if (level == grammar.levels.size()) return {{{symbol}, 1.0}};
  Language language;
  const auto& productions = grammar.levels[level][static_cast<size_t>(symbol)];
  for (const Production& production : productions) {
    Language made = {{{}, 1.0 / static_cast<double>(productions.size())}};
    for (const int32_t part : production) {
      Language longer;
      for (const auto& [start, p] : made) {
        for (const auto& [rest, q] : texts_of(grammar, level + 1, part)) {
          Text text = start;
          text.insert(text.end(), rest.begin(), rest.end());
          longer[text] += p * q;
        }
      }
      made = std::move(longer);
    }
    for (const auto& [text, p] : made) language[text] += p;
  }
  return language;
}
Language texts_of(const Grammar& grammar) { return texts_of(grammar, 0, 0); }

double prefix_probability(const Language& language, const Text& prefix) {
  double sum = 0;
  for (const auto& [text, p] : language) {
    if (text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin())) sum += p;
  }
  return sum;
}

double entropy(const Language& language) {
  double nats = 0;
  for (const auto& [text, p] : language) nats -= p * std::log(p);
  return nats;
}

// Among them grammars in which texts have several derivations.
std::vector<Grammar> small_grammars() {
  std::vector<Grammar> grammars;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    grammars.push_back(random_grammar({.depth = 2, .symbols = 2, .productions = 2, .unambiguous = false}, seed));
    grammars.push_back(random_grammar({.depth = 2, .symbols = 3, .productions = 2, .unambiguous = true}, seed));
    grammars.push_back(
        random_grammar({.depth = 3, .symbols = 3, .productions = 2, .unambiguous = seed % 2 == 0}, seed));
    grammars.push_back(random_grammar({.depth = 1, .symbols = 4, .productions = 3, .unambiguous = false}, seed));
  }
  return grammars;
}

TEST(PrefixParser, ProbabilitiesAreThoseOfTheListOfAllTexts) {
  for (const Grammar& grammar : small_grammars()) {
    const Language language = texts_of(grammar);
    double total = 0;
    PrefixParser parser(grammar);
    size_t checked = 0;
    for (const auto& [text, p] : language) {
      total += p;
      if (checked++ % (language.size() / 40 + 1) != 0) continue;
      parser.clear();
      EXPECT_EQ(parser.prefix_probability(), 1.0);
      Text prefix;
      for (const int32_t token : text) {
        parser.push(token);
        prefix.push_back(token);
        EXPECT_NEAR(parser.prefix_probability(), prefix_probability(language, prefix), 1e-12);
        const auto whole = language.find(prefix);
        EXPECT_NEAR(parser.text_probability(), whole == language.end() ? 0.0 : whole->second, 1e-12);
      }
    }
    EXPECT_NEAR(total, 1.0, 1e-12);
  }
}

TEST(PrefixParser, TokenNatsAddUpToTheTexts) {
  for (const Grammar& grammar : small_grammars()) {
    const Language language = texts_of(grammar);
    PrefixParser parser(grammar);
    size_t checked = 0;
    for (const auto& [text, p] : language) {
      if (checked++ % (language.size() / 40 + 1) != 0) continue;
      const std::vector<double> nats = parser.token_nats(text);
      ASSERT_EQ(nats.size(), text.size() + 1);
      double sum = 0;
      for (size_t i = 0; i < nats.size(); ++i) {
        const Text before(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i));
        const Text after(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(i + 1, text.size())));
        const double now = i < text.size() ? prefix_probability(language, after) : p;
        EXPECT_NEAR(nats[i], -std::log(now / prefix_probability(language, before)), 1e-10);
        sum += nats[i];
      }
      EXPECT_NEAR(sum, -std::log(p), 1e-10);
    }
  }
}

// p(next token | the parser's text) for each terminal and, last, for the end.
std::vector<double> next_probabilities(PrefixParser& parser, int64_t num_terminals) {
  const double before = parser.prefix_probability(), ends = parser.text_probability();
  std::vector<double> probabilities;
  for (int32_t token = 0; token < num_terminals; ++token) {
    parser.push(token);
    probabilities.push_back(parser.prefix_probability() / before);
    parser.pop();
  }
  probabilities.push_back(ends / before);
  return probabilities;
}

TEST(PrefixParser, NextProbabilitiesAreADistribution) {
  for (const Grammar& grammar : small_grammars()) {
    const Language language = texts_of(grammar);
    PrefixParser parser(grammar);
    const Text& text = std::next(language.begin(), static_cast<std::ptrdiff_t>(language.size() / 2))->first;
    Text prefix;
    for (size_t i = 0; i <= text.size(); ++i) {
      const std::vector<double> next = next_probabilities(parser, grammar.num_terminals);
      ASSERT_EQ(next.size(), static_cast<size_t>(grammar.num_terminals) + 1);
      const double before = prefix_probability(language, prefix);
      double total = 0;
      for (int32_t token = 0; token < grammar.num_terminals; ++token) {
        Text longer = prefix;
        longer.push_back(token);
        EXPECT_NEAR(next[static_cast<size_t>(token)], prefix_probability(language, longer) / before, 1e-10);
        total += next[static_cast<size_t>(token)];
      }
      EXPECT_NEAR(total + next.back(), 1.0, 1e-10);
      if (i == text.size()) break;
      parser.push(text[i]);
      prefix.push_back(text[i]);
    }
  }
}

TEST(PrefixParser, WhatTheGrammarDoesNotMakeIsImpossible) {
  // One text: 0 1 1.
  const Grammar grammar{.levels = {{{{0, 1, 1}}}}, .num_terminals = 2};
  PrefixParser parser(grammar);
  EXPECT_EQ(parser.token_nats(Text{0, 1, 1}), (std::vector<double>{0, 0, 0, 0}));
  EXPECT_EQ(parser.token_nats(Text{0, 1}), (std::vector<double>{0, 0, INFINITY}));
  EXPECT_EQ(parser.token_nats(Text{0, 0}), (std::vector<double>{0, INFINITY, INFINITY}));
  EXPECT_EQ(parser.token_nats(Text{0, 1, 1, 1}), (std::vector<double>{0, 0, 0, INFINITY, INFINITY}));
  EXPECT_EQ(parser.token_nats(Text{}), (std::vector<double>{INFINITY}));
}

TEST(Grammar, MeansAreThoseOfTheListOfAllTexts) {
  int num_ambiguous = 0;
  for (const Grammar& grammar : small_grammars()) {
    const Language language = texts_of(grammar);
    double tokens = 0, rarest = 1;
    for (const auto& [text, p] : language) {
      tokens += p * static_cast<double>(text.size());
      rarest = std::min(rarest, p);
    }
    const GrammarMeans means = grammar_means(grammar);
    EXPECT_NEAR(means.tokens, tokens, 1e-10);
    // A text with several derivations tells less than they do.
    EXPECT_GE(means.derivation_nats, entropy(language) - 1e-10);
    if (is_unambiguous(grammar)) {
      EXPECT_NEAR(means.derivation_nats, entropy(language), 1e-10);
    }
    EXPECT_GE(max_derivation_nats(grammar), -std::log(rarest) - 1e-10);
    num_ambiguous += means.derivation_nats > entropy(language) + 1e-6 ? 1 : 0;
  }
  EXPECT_GT(num_ambiguous, 0) << "the test has met no ambiguous grammar";
}

TEST(Grammar, UniqueDecodability) {
  const auto decodable = [](std::vector<Production> words) { return is_uniquely_decodable(words); };
  EXPECT_TRUE(decodable({{0, 0}, {0, 1}, {1}}));
  EXPECT_TRUE(decodable({{0}, {0, 1}, {1, 1}}));                                              // not a prefix code
  EXPECT_FALSE(decodable({{0}, {0, 1}, {1, 0}}));                                             // 0 10 = 01 0
  EXPECT_FALSE(decodable({{1}, {0, 1, 1}, {0, 1, 1, 1, 0}, {1, 1, 1, 0}, {1, 0, 0, 1, 1}}));  // 011 1 0 011 ...
  EXPECT_FALSE(decodable({{0, 1}, {0, 1}}));
  EXPECT_FALSE(decodable({{0, 0}, {0, 0, 0}}));  // 00 000 = 000 00
}

TEST(Grammar, ImpossibleShapesAreRefused) {
  EXPECT_THROW(random_grammar({.depth = 2, .symbols = 2, .productions = 7}, 1), Error);  // 12 productions in all
  EXPECT_THROW(random_grammar({.depth = 2, .symbols = 2, .productions = 6}, 1), Error);  // all 12: not decodable
  EXPECT_NO_THROW(random_grammar({.depth = 2, .symbols = 2, .productions = 6, .unambiguous = false}, 1));
}

GrammarSource source_of(uint64_t seed, std::vector<std::string> settings) {
  SettingReader reader("cfg", settings);
  return {seed, reader};
}

TEST(GrammarSource, TheFloorIsTheEntropyOfTheListOfAllTexts) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    for (const char* unambiguous : {"unambiguous=true", "unambiguous=false"}) {
      const GrammarSource source = source_of(seed, {"depth=2", unambiguous});
      const Language language = texts_of(source.grammar());
      double end_nats = 0, tokens = 1;
      for (const auto& [text, p] : language) {
        end_nats += p * std::log(prefix_probability(language, text) / p);
        tokens += p * static_cast<double>(text.size());
      }
      const EntropyFloor floor = source.floor();
      if (is_unambiguous(source.grammar())) {
        EXPECT_NEAR(floor.document_nats, entropy(language), 1e-10);
        EXPECT_EQ(floor.document_nats_error, 0.0);
      } else {
        EXPECT_LE(std::abs(floor.document_nats - entropy(language)), 4 * floor.document_nats_error + 1e-10);
      }
      EXPECT_LE(std::abs(floor.end_nats - end_nats), 4 * floor.end_nats_error + 1e-10);
      EXPECT_NEAR(floor.tokens_per_document, tokens, 1e-10);
      EXPECT_NEAR(floor.nats_per_token(), floor.document_nats / tokens, 1e-12);
    }
  }
}

TEST(GrammarSource, DocumentsComeAsOftenAsTheirProbabilitySays) {
  const GrammarSource source = source_of(2, {"depth=2"});
  const Language language = texts_of(source.grammar());
  constexpr int kDocuments = 20'000;
  std::map<Text, int> counts;
  Text text;
  std::vector<uint8_t> mask;
  for (uint64_t index = 0; index < kDocuments; ++index) {
    source.document(index, text, mask);
    EXPECT_EQ(mask, std::vector<uint8_t>(text.size(), 1));
    ++counts[text];
  }
  for (const auto& [seen, count] : counts) EXPECT_TRUE(language.contains(seen));
  for (const auto& [made, p] : language) {
    const double sigma = std::sqrt(kDocuments * p * (1 - p));
    EXPECT_LE(std::abs(counts[made] - kDocuments * p), 5 * sigma + 1e-9);
  }
}

// Texts of hundreds of tokens, far more than can be listed: what their exact probabilities average to is the floor.
TEST(GrammarSource, LongTextsAverageToTheFloor) {
  const GrammarSource source = source_of(5, {"depth=5", "productions=3", "symbols=4"});
  PrefixParser parser(source.grammar());
  double sum = 0, squares = 0;
  constexpr int kDocuments = 40;
  Text text;
  std::vector<uint8_t> mask;
  for (uint64_t index = 1000; index < 1000 + kDocuments; ++index) {
    source.document(index, text, mask);
    double nats = 0;
    for (const double x : parser.token_nats(text)) nats += x;
    sum += nats;
    squares += nats * nats;
  }
  const double mean = sum / kDocuments, error = std::sqrt((squares / kDocuments - mean * mean) / kDocuments);
  EXPECT_GT(mean, 20.0);
  EXPECT_LE(std::abs(mean - source.floor().document_nats), 4 * error);
}

}  // namespace
}  // namespace nmoe
