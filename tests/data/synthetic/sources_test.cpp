// Synthetic documents recomputed from what their tokens say.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "data/synthetic/kinds.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
};

Document document_of(const SyntheticSource& source, uint64_t index) {
  Document document;
  source.document(index, document.tokens, document.mask);
  return document;
}

std::vector<std::string> words_of(const SyntheticSource& source, const Document& document) {
  std::vector<std::string> words;
  for (const int32_t id : document.tokens) words.push_back(source.words().at(static_cast<size_t>(id)));
  return words;
}

std::unique_ptr<SyntheticSource> make(std::string_view kind, uint64_t seed, std::vector<std::string> settings = {}) {
  return make_synthetic_source(kind, seed, settings);
}

TEST(SyntheticSource, AnyDocumentInAnyOrder) {
  for (const std::string& kind : synthetic_kinds()) {
    SCOPED_TRACE(kind);
    const auto source = make(kind, 7), again = make(kind, 7), other = make(kind, 8);
    std::vector<Document> forwards;
    for (uint64_t index = 0; index < 20; ++index) forwards.push_back(document_of(*source, index));
    std::set<std::vector<int32_t>> distinct;
    for (uint64_t index = 20; index-- > 0;) {
      const Document document = document_of(*again, index);
      EXPECT_EQ(document.tokens, forwards[index].tokens);
      EXPECT_EQ(document.mask, forwards[index].mask);
      EXPECT_EQ(document.mask.size(), document.tokens.size());
      for (const int32_t id : document.tokens) EXPECT_LT(id, source->eos_id());
      distinct.insert(document.tokens);
    }
    EXPECT_GT(distinct.size(), 18u);
    EXPECT_NE(document_of(*other, 0).tokens, forwards[0].tokens);
    EXPECT_EQ(source->vocab_size(), source->eos_id() + 1);
  }
}

TEST(SyntheticSource, MeanLengthsAreTheFloors) {
  for (const std::string& kind : synthetic_kinds()) {
    SCOPED_TRACE(kind);
    const auto source = make(kind, 3);
    double sum = 0, squares = 0, targets = 0;
    constexpr int kDocuments = 2000;
    for (uint64_t index = 0; index < kDocuments; ++index) {
      const Document document = document_of(*source, index);
      const double tokens = static_cast<double>(document.tokens.size()) + 1;
      sum += tokens;
      squares += tokens * tokens;
      for (const uint8_t mask : document.mask) targets += mask;
    }
    const double mean = sum / kDocuments;
    const double error = std::sqrt(std::max(0.0, squares / kDocuments - mean * mean) / kDocuments);
    const EntropyFloor floor = source->floor();
    EXPECT_LE(std::abs(mean - floor.tokens_per_document), 4 * error + 1e-9);
    EXPECT_LE(std::abs(targets / kDocuments - floor.targets_per_document), 4 * error + 1e-9);
    EXPECT_GT(floor.nats_per_token(), 0.0);
    EXPECT_LT(floor.nats_per_token(), std::log(static_cast<double>(source->vocab_size())));
  }
}

TEST(SyntheticSource, SettingsAreChecked) {
  EXPECT_TRUE(contains(error_of([] { make("poetry", 1); }).what(), "poetry"));
  EXPECT_TRUE(contains(error_of([] { make("poetry", 1); }).remedy(), "cfg, khop or arithmetic"));
  EXPECT_TRUE(contains(error_of([] { make("cfg", 1, {"dept=3"}); }).remedy(), "depth"));
  EXPECT_TRUE(contains(error_of([] { make("cfg", 1, {"depth=3x"}); }).what(), "depth = 3x"));
  EXPECT_TRUE(contains(error_of([] { make("cfg", 1, {"depth"}); }).what(), "depth"));
  EXPECT_TRUE(contains(error_of([] { make("cfg", 1, {"unambiguous=1"}); }).remedy(), "true or false"));
  EXPECT_TRUE(contains(error_of([] { make("cfg", 1, {"depth=7", "productions=3", "symbols=5"}); }).what(), "double"));
  EXPECT_TRUE(contains(error_of([] { make("khop", 1, {"entities=65"}); }).remedy(), "pool"));
  EXPECT_TRUE(contains(error_of([] { make("arithmetic", 1, {"modulus=1"}); }).remedy(), "from 2 to"));
  const auto source = make("khop", 1, {"queries=2", "queries=3"});  // the last one counts
  EXPECT_EQ(source->settings().back(), (std::pair<std::string, int64_t>("queries", 3)));
}

TEST(KHop, AnswersFollowFromThePairs) {
  const auto source = make("khop", 5, {"entities=9", "pool=20", "max_hops=12", "queries=5"});
  std::set<std::string> hops_seen;
  for (uint64_t index = 0; index < 200; ++index) {
    const Document document = document_of(*source, index);
    const std::vector<std::string> words = words_of(*source, document);
    std::map<std::string, std::string> next;
    std::set<std::string> followers;
    ASSERT_EQ(words.size(), 9u * 2 + 5 * 3);
    for (size_t i = 0; i < 18; i += 2) {
      EXPECT_TRUE(next.emplace(words[i], words[i + 1]).second);
      followers.insert(words[i + 1]);
    }
    EXPECT_EQ(followers.size(), 9u);
    // One cycle: nine steps lead back and none fewer.
    std::string name = words[0];
    for (int step = 1; step <= 9; ++step) {
      name = next.at(name);
      EXPECT_EQ(name == words[0], step == 9);
    }
    for (size_t i = 18; i < words.size(); i += 3) {
      ASSERT_EQ(words[i].substr(0, 3), "hop");
      hops_seen.insert(words[i]);
      std::string answer = words[i + 1];
      for (int step = std::stoi(words[i].substr(3)); step > 0; --step) answer = next.at(answer);
      EXPECT_EQ(answer, words[i + 2]);
    }
    for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(document.mask[i], i >= 18 && i % 3 == 2 ? 1 : 0);
  }
  EXPECT_EQ(hops_seen.size(), 12u);
}

// Three names, two of them in a pair of pairs, one query of one or two hops: 6 * 1 * 4 documents, all equally likely.
TEST(KHop, TheFloorCountsAllDocuments) {
  const auto source = make("khop", 2, {"entities=2", "pool=3", "max_hops=2", "queries=1"});
  std::map<std::vector<int32_t>, int> counts;
  constexpr int kDocuments = 24'000;
  for (uint64_t index = 0; index < kDocuments; ++index) ++counts[document_of(*source, index).tokens];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [tokens, count] : counts) EXPECT_LE(std::abs(count - 1000), 5 * std::sqrt(1000.0));
  EXPECT_NEAR(source->floor().document_nats, std::log(24.0), 1e-12);
  EXPECT_NEAR(source->floor().tokens_per_document, 8.0, 1e-12);
  EXPECT_EQ(source->floor().nats_per_target(), 0.0);
}

// Evaluates prefix notation from its end, with a stack of operands.
int64_t value_of(const std::vector<std::string>& expression, int64_t modulus) {
  std::vector<int64_t> stack;
  for (auto word = expression.rbegin(); word != expression.rend(); ++word) {
    if (*word != "+" && *word != "-" && *word != "*") {
      stack.push_back(std::stoll(*word));
      continue;
    }
    const int64_t left = stack.back();
    stack.pop_back();
    const int64_t right = stack.back();
    const int64_t value = *word == "+" ? left + right : *word == "-" ? left - right : left * right;
    stack.back() = ((value % modulus) + modulus) % modulus;
  }
  EXPECT_EQ(stack.size(), 1u);
  return stack.back();
}

TEST(Arithmetic, ValuesAreThoseOfTheExpressions) {
  const auto source = make("arithmetic", 4, {"modulus=23", "max_operations=6"});
  std::set<size_t> lengths;
  for (uint64_t index = 0; index < 500; ++index) {
    const Document document = document_of(*source, index);
    const std::vector<std::string> words = words_of(*source, document);
    ASSERT_EQ(words[words.size() - 2], "=");
    EXPECT_EQ(std::to_string(value_of({words.begin(), words.end() - 2}, 23)), words.back());
    lengths.insert(words.size());
    for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(document.mask[i], i + 1 == words.size() ? 1 : 0);
  }
  EXPECT_EQ(lengths, (std::set<size_t>{5, 7, 9, 11, 13, 15}));
}

// All expressions of so many operations, with their probabilities.
std::map<std::string, double> expressions(int num_operations, int modulus) {
  std::map<std::string, double> all;
  if (num_operations == 0) {
    for (int number = 0; number < modulus; ++number) all[std::to_string(number) + ' '] = 1.0 / modulus;
    return all;
  }
  for (int in_left = 0; in_left < num_operations; ++in_left) {
    for (const auto& [left, p] : expressions(in_left, modulus)) {
      for (const auto& [right, q] : expressions(num_operations - 1 - in_left, modulus)) {
        for (const char* operation : {"+ ", "- ", "* "})
          all[operation + left + right] += p * q / (3.0 * num_operations);
      }
    }
  }
  return all;
}

TEST(Arithmetic, TheFloorIsTheEntropyOfTheListOfAllExpressions) {
  const auto source = make("arithmetic", 4, {"modulus=2", "max_operations=3"});
  double nats = 0, total = 0, tokens = 0;
  std::set<std::string> all;
  for (const int num_operations : {1, 2, 3}) {
    for (const auto& [text, p] : expressions(num_operations, 2)) {
      nats -= p / 3 * std::log(p / 3);
      total += p / 3;
      tokens += p / 3 * (2.0 * num_operations + 1 + 3);
      all.insert(text);
    }
  }
  EXPECT_NEAR(total, 1.0, 1e-12);
  EXPECT_NEAR(source->floor().document_nats, nats, 1e-10);
  EXPECT_NEAR(source->floor().tokens_per_document, tokens, 1e-10);
  for (uint64_t index = 0; index < 200; ++index) {
    std::string text;
    const std::vector<std::string> words = words_of(*source, document_of(*source, index));
    for (size_t i = 0; i + 2 < words.size(); ++i) text += words[i] + ' ';
    EXPECT_TRUE(all.contains(text)) << text;
  }
}

}  // namespace
}  // namespace nmoe
