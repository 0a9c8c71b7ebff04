#include "data/tokenizer/tiktoken.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "data/test_data.h"
#include "data/tokenizer/bpe_train.h"

namespace nmoe {
namespace {

std::string to_base64(std::string_view bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j)
      bits = bits << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    for (int digit = 3; digit >= 0; --digit) text += kDigits[bits >> 6 * digit & 63];
  }
  for (size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

std::string rank_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) file += fmt::format("{} {}\n", to_base64(tokens[rank]), rank);
  return file;
}

// Tokens of many overlaps: all bytes, then what merging words of three letters finds.
std::vector<std::string> sample_tokens() {
  std::mt19937 random(2);
  std::vector<WordCount> words;
  for (int i = 0; i < 200; ++i) {
    std::string word;
    for (size_t length = 2 + random() % 14; length > 0; --length) word += "abc"[random() % 3];
    words.emplace_back(word, 1 + random() % 5);
  }
  auto tokens = train_bpe_model(words, 500).tokens;
  tokens.pop_back();  // the end of sequence
  return tokens;
}

// tiktoken's own rule: a word that is a token is that token; otherwise the neighbours that make the token of lowest
// rank are joined, the leftmost of equal ones.
std::vector<int32_t> encode_by_ranks(const std::vector<std::string>& tokens, const std::string& word) {
  const auto rank_of = [&](const std::string& bytes) {
    const auto found = std::ranges::find(tokens, bytes);
    return found == tokens.end() ? std::numeric_limits<int32_t>::max() : static_cast<int32_t>(found - tokens.begin());
  };
  if (rank_of(word) < static_cast<int32_t>(tokens.size())) return {rank_of(word)};
  std::vector<std::string> parts;
  for (const char byte : word) parts.emplace_back(1, byte);
  for (;;) {
    size_t best = 0;
    int32_t best_rank = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t rank = rank_of(parts[i] + parts[i + 1]);
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == std::numeric_limits<int32_t>::max()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(rank_of(part));
  return ids;
}

TEST(Tiktoken, MergesAreWhatRanksMean) {
  auto tokens = sample_tokens();
  tokens.emplace_back("zyzzyva");  // no two tokens make it: only a whole word can be it
  const auto tokenizer = make_bpe_tokenizer(bpe_from_tiktoken(rank_file(tokens), "here", "gpt2"));
  std::mt19937 random(4);
  std::vector<std::string> words = {"zyzzyva", "zyzzyvas", "azyzzyva"};
  words.insert(words.end(), tokens.begin() + 256, tokens.end());
  for (int i = 0; i < 500; ++i) {
    std::string& word = words.emplace_back();
    for (size_t length = 1 + random() % 60; length > 0; --length) word += "abc"[random() % 3];
  }
  for (const std::string& word : words) {
    std::vector<int32_t> ids;
    tokenizer->encode(word, ids);
    ASSERT_EQ(ids, encode_by_ranks(tokens, word)) << word;
  }
}

TEST(Tiktoken, SpecialTokensOfAnEncoding) {
  const auto tokenizer = make_bpe_tokenizer(bpe_from_tiktoken(rank_file(sample_tokens()), "here", "o200k_harmony"));
  EXPECT_EQ(tokenizer->vocab_size(), 201'088);
  EXPECT_EQ(tokenizer->eos_id(), 199'999);
  const auto specials = tokenizer->special_tokens();
  ASSERT_EQ(specials.size(), 201'088U - 199'998U);
  EXPECT_EQ(specials[3], (NamedToken{"<|reserved_200001|>", 200'001}));
  EXPECT_EQ(specials[8], (NamedToken{"<|start|>", 200'006}));
  EXPECT_EQ(specials.back(), (NamedToken{"<|reserved_201087|>", 201'087}));
  EXPECT_EQ(tokenizer->token_bytes(150'000), "");  // of no rank in this file
  EXPECT_EQ(tokenizer->token_bytes(200'001), "");
}

class TiktokenFileTest : public FolderTest {
 protected:
  void expect_unusable(const std::string& file, const std::string& part) {
    const std::string path = write("ranks.tiktoken", file);
    expect_error(ErrorKind::kRuntime, part, [&] { load_tokenizer("gpt2:" + path); });
  }
};

TEST_F(TiktokenFileTest, Errors) {
  const std::string good = rank_file(sample_tokens());
  expect_unusable(good + "YWFhYWFh\n", "line 500 is 'YWFhYWFh'");
  expect_unusable(good + "YWFhYWFh x\n", "line 500");
  expect_unusable(good + "YWFhYWF 499\n", "line 500");
  expect_unusable(good + "YWFhYWFhYWFhYWFhYWFhYWFh 3\n", "line 500 is the second one of rank 3");
  expect_unusable(good + "YQ== 499\n", "line 500 repeats the token of rank 97");
  expect_unusable(good + "YWFhYWFhYWFhYWFhYWFhYWFh 50256\n", "rank 50256 is the id of <|endoftext|>");
  expect_unusable(good.substr(good.find('\n') + 1), "byte 0 has no token");
  expect_unusable("", "byte 0 has no token");

  const std::string path = write("mine.tiktoken", good);
  expect_error(ErrorKind::kUsage, "known by its SHA-256", [&] { load_tokenizer(path); });
  expect_error(ErrorKind::kUsage, "no encoding 'gpt5'", [&] { load_tokenizer("gpt5:" + path); });
  expect_error(ErrorKind::kRuntime, "no.tiktoken", [&] { load_tokenizer("gpt2:no.tiktoken"); });
  EXPECT_EQ(load_tokenizer("r50k_base:" + path)->hash(), load_tokenizer("gpt2:" + path)->hash());
  std::string with_returns = good;
  for (size_t i = 0; (i = with_returns.find('\n', i)) != std::string::npos; i += 2) with_returns.insert(i, "\r");
  EXPECT_EQ(load_tokenizer("gpt2:" + write("dos.tiktoken", with_returns))->hash(),
            load_tokenizer("gpt2:" + path)->hash());
}

}  // namespace
}  // namespace nmoe
