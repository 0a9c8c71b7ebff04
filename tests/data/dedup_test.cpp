#include "data/prep/dedup.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "data/test_data.h"

namespace nmoe {
namespace {

TEST(Dedup, DigestIsTheHeadOfSha256) {
  const std::string hex = sha256_hex("some text");
  EXPECT_EQ(fmt::format("{:016x}{:016x}", digest_of("", "some text").high, digest_of("", "some text").low),
            hex.substr(0, 32));
  EXPECT_FALSE(digest_of("ab", "c") == digest_of("a", "bc"));
  EXPECT_FALSE(digest_of("ab", "c") == digest_of("", "abc"));
}

TEST(Dedup, SetAgainstTheStandardOne) {
  std::mt19937_64 random(3);
  DigestSet set;
  std::set<std::pair<uint64_t, uint64_t>> reference;
  for (int i = 0; i < 20'000; ++i) {
    // Many that differ in one half only, and zero.
    const Digest digest{random() % 100, random() % 100};
    EXPECT_EQ(set.insert(digest), reference.insert({digest.high, digest.low}).second);
  }
  EXPECT_EQ(set.size(), static_cast<int64_t>(reference.size()));
}

// Random words, a share of them replaced.
std::vector<std::string> random_words(size_t count, std::mt19937& random) {
  std::vector<std::string> words(count);
  for (std::string& word : words) {
    for (size_t i = 2 + random() % 7; i > 0; --i) word += static_cast<char>('a' + random() % 26);
  }
  return words;
}
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

std::set<std::string> shingles(const std::string& text) {
  std::set<std::string> all;
  const size_t length = kShingleChars;
  if (text.size() < length) return {text};
  for (size_t i = 0; i + length <= text.size(); ++i) all.insert(text.substr(i, length));
  return all;
}
double jaccard(const std::string& a, const std::string& b) {
  const auto x = shingles(a);
  const auto y = shingles(b);
  size_t both = 0;
  for (const std::string& shingle : x) both += y.count(shingle);
  return static_cast<double>(both) / static_cast<double>(x.size() + y.size() - both);
}

// What two signatures say of it.
double resemblance(const Signature& a, const Signature& b) {
  int equal = 0;
  for (size_t i = 0; i < kPermutations; ++i) equal += a[i] == b[i] ? 1 : 0;
  return static_cast<double>(equal) / kPermutations;
}

// The estimate is unbiased, with the variance of 128 independent draws.
TEST(NearDedup, EstimatesTheJaccardIndex) {
  std::mt19937 random(11);
  double sum = 0;
  double sum_squares = 0;
  constexpr int kPairs = 400;
  for (int pair = 0; pair < kPairs; ++pair) {
    auto words = random_words(200, random);
    const std::string a = joined(words);
    for (size_t changes = 1 + random() % 40; changes > 0; --changes) words[random() % words.size()] = "other";
    const std::string b = joined(words);
    const double truth = jaccard(a, b);
    const double estimate = resemblance(signature_of("", a), signature_of("", b));
    const double z = (estimate - truth) / std::sqrt(truth * (1 - truth) / kPermutations + 1e-6);
    EXPECT_LE(std::abs(z), 5) << truth << " " << estimate;
    sum += z;
    sum_squares += z * z;
  }
  EXPECT_LE(std::abs(sum / kPairs), 0.2);       // standard error 0.05
  EXPECT_NEAR(sum_squares / kPairs, 1.0, 0.3);  // standard error 0.07
}

TEST(NearDedup, ShinglesAreOfCharacters) {
  // 13 characters of three bytes: one shingle, as in a text of 13 letters; one more makes two.
  std::string text;
  for (int i = 0; i < 13; ++i) text += "\xE4\xBD" + std::string(1, static_cast<char>(0x80 + i));
  const Signature one = signature_of("", text);
  Signature two = signature_of("", text + "\xE4\xBD\xBF");
  const Signature second = signature_of("", text.substr(3) + "\xE4\xBD\xBF");
  for (size_t i = 0; i < kPermutations; ++i) EXPECT_EQ(two[i], std::min(one[i], second[i]));
  EXPECT_EQ(signature_of("ab", "c"), signature_of("", "abc"));
  EXPECT_NE(signature_of("", "abc"), signature_of("", "abd"));
}

TEST(NearDedup, FindsWhatIsNearAndKeepsTheFirst) {
  std::mt19937 random(12);
  constexpr double kThreshold = 0.82;
  NearDuplicates kept(kThreshold);
  std::vector<Signature> reference;  // of those kept, compared one by one
  int near = 0;
  int wrong = 0;
  std::vector<std::vector<std::string>> originals;
  for (int i = 0; i < 1500; ++i) {
    std::vector<std::string> words;
    if (originals.empty() || random() % 2 == 0) {
      words = random_words(150, random);
      originals.push_back(words);
    } else {
      words = originals[random() % originals.size()];
      for (size_t changes = random() % 12; changes > 0; --changes) words[random() % words.size()] = "changed";
    }
    const Signature signature = signature_of("", joined(words));
    std::optional<int64_t> expected;
    for (size_t j = 0; j < reference.size() && !expected; ++j) {
      if (resemblance(reference[j], signature) >= kThreshold) expected = static_cast<int64_t>(j);
    }
    near += expected ? 1 : 0;
    const std::optional<int64_t> found = kept.add(signature);
    // Banding misses one pair in 200 million at the threshold; 16 bits an entry add almost nothing.
    wrong += found == expected ? 0 : 1;
    if (!expected) reference.push_back(signature);
  }
  EXPECT_GT(near, 300);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(kept.size(), static_cast<int64_t>(reference.size()));

  // What is put back answers as it did.
  NearDuplicates restored(kThreshold);
  for (const Signature& signature : reference) restored.insert(signature);
  for (size_t i = 0; i < reference.size(); ++i) EXPECT_EQ(restored.add(reference[i]), static_cast<int64_t>(i));
}

TEST(NearDedup, EqualAtThresholdOne) {
  NearDuplicates kept(1.0);
  const std::string text = "a text that is long enough for a few shingles";
  EXPECT_FALSE(kept.add(signature_of("", text)));
  EXPECT_TRUE(kept.add(signature_of("", text)));
  EXPECT_FALSE(kept.add(signature_of("", text + " and another word")));
}

// Thousands of documents with everything but a little in common stay quick to tell apart.
TEST(NearDedup, BoilerplateDoesNotMakeItQuadratic) {
  std::mt19937 random(13);
  NearDuplicates kept(0.99);
  const std::string boilerplate = joined(random_words(100, random));
  int dropped = 0;
  for (int i = 0; i < 4000; ++i) {
    dropped += kept.add(signature_of("", boilerplate + joined(random_words(20, random)))) ? 1 : 0;
  }
  EXPECT_EQ(dropped, 0);
}

}  // namespace
}  // namespace nmoe
