#include "data/tokenizer/bpe_train.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "data/compressed.h"
#include "data/test_data.h"

namespace nmoe {
namespace {

// The example of Sennrich et al. (arXiv 1508.07909, section 3.2), worked out by hand with ties
// going to the lowest ids.
TEST(BpeTrain, MergesOfAKnownExample) {
  const std::vector<WordCount> words = {{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}};
  const BpeModel model = train_bpe_model(words, 256 + 7 + 1);
  const std::vector<std::string> learned(model.tokens.begin() + 256, model.tokens.end());
  EXPECT_EQ(learned, (std::vector<std::string>{"es", "est", "lo", "low", "ew", "new", "newest", ""}));
  EXPECT_EQ(model.merges, (std::vector<BpeMerge>{{'e', 's', 256},
                                                 {256, 't', 257},
                                                 {'l', 'o', 258},
                                                 {258, 'w', 259},
                                                 {'e', 'w', 260},
                                                 {'n', 260, 261},
                                                 {261, 257, 262}}));
  EXPECT_EQ(model.eos_id, 263);
}

TEST(BpeTrain, OverlappingPairs) {
  // aaaaa: the pair occurs at four places, and merging from the left leaves (aa)(aa)a.
  const BpeModel model = train_bpe_model({{"aaaaa", 2}}, 256 + 3 + 1);
  EXPECT_EQ(model.merges, (std::vector<BpeMerge>{{'a', 'a', 256}, {256, 'a', 257}, {256, 257, 258}}));
}

TEST(BpeTrain, StopsWhenNoPairOccursTwice) {
  const BpeModel model = train_bpe_model({{"ab", 3}, {"cd", 1}}, 1000);
  EXPECT_EQ(model.merges, (std::vector<BpeMerge>{{'a', 'b', 256}}));
}

// The same rules with everything counted again for every merge.
BpeModel train_by_recounting(std::vector<WordCount> words, int64_t vocab_size) {
  BpeModel model;
  for (int byte = 0; byte < 256; ++byte) model.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::vector<int32_t>> ids;
  for (const auto& [word, count] : words) {
    auto& list = ids.emplace_back();
    for (const char byte : word) list.push_back(static_cast<unsigned char>(byte));
  }
  while (static_cast<int64_t>(model.tokens.size()) < vocab_size - 1) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (size_t w = 0; w < words.size(); ++w) {
      for (size_t i = 0; i + 1 < ids[w].size(); ++i) {
        counts[{ids[w][i], ids[w][i + 1]}] += words[w].second;
      }
    }
    const auto best = std::ranges::max_element(counts, {}, [](const auto& e) { return e.second; });
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const std::string bytes = model.tokens[static_cast<size_t>(left)] + model.tokens[static_cast<size_t>(right)];
    const auto known = std::ranges::find(model.tokens, bytes);
    const auto result = static_cast<int32_t>(known - model.tokens.begin());
    if (known == model.tokens.end()) model.tokens.push_back(bytes);
    model.merges.push_back({left, right, result});
    for (auto& list : ids) {
      for (size_t i = 0; i + 1 < list.size(); ++i) {
        if (list[i] != left || list[i + 1] != right) continue;
        list[i] = result;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return model;
}

TEST(BpeTrain, IncrementalCountsEqualRecounting) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::map<std::string, int64_t> counts;  // few letters: many ties, overlaps and equal results
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (size_t length = random() % 12; length > 0; --length) word += "abc"[random() % 3];
      counts[word] += 1 + static_cast<int64_t>(random() % 4);
    }
    const std::vector<WordCount> words(counts.begin(), counts.end());
    const BpeModel expected = train_by_recounting(words, 420);
    const BpeModel model = train_bpe_model(words, 420);
    ASSERT_EQ(model.merges, expected.merges);
    ASSERT_GT(model.merges.size(), 50U);
  }
}

class BpeTrainFilesTest : public FolderTest {};

TEST_F(BpeTrainFilesTest, ThreadsDoNotMatter) {
  std::mt19937 random(9);
  for (int file = 0; file < 3; ++file) {
    std::string text;
    while (text.size() < 1'500'000) {  // more than one block
      for (size_t length = 1 + random() % 6; length > 0; --length) text += "etaoin"[random() % 6];
      text += random() % 9 == 0 ? "\n" : " ";
    }
    write(fmt::format("{}.txt", file), text);
  }
  BpeTrainOptions options{.inputs = {dir_.string()}, .vocab_size = 600, .threads = 1};
  const TrainedBpe one = train_bpe(options);
  options.threads = 3;
  const TrainedBpe three = train_bpe(options);
  EXPECT_EQ(one.tokenizer->json(), three.tokenizer->json());
  EXPECT_EQ(one.tokenizer->vocab_size(), 600);
  EXPECT_EQ(one.tokenizer->eos_id(), 599);
  EXPECT_EQ(one.report.words, three.report.words);
  EXPECT_GE(one.report.bytes, 4'500'000);
}

// Whatever file documents come in, it is their text that is learned, not JSON's syntax or compressed bytes.
TEST_F(BpeTrainFilesTest, EveryKindOfFileGivesTheSameTokenizer) {
  std::string text;
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    const std::string document = fmt::format("the {} of the {}\n", i * 37 % 91, i * 53 % 89);
    text += document;
    lines += fmt::format("{{\"id\": {}, \"body\": \"{}\\n\"}}\n", i, document.substr(0, document.size() - 1));
  }
  const auto learn = [](const std::string& path) {
    return train_bpe({.inputs = {path}, .records = {.text_field = "body"}, .vocab_size = 300}).tokenizer->json();
  };
  const std::string expected = learn(write("a.txt", text));
  EXPECT_EQ(learn(write("a.jsonl", lines)), expected);
  EXPECT_EQ(learn(write("a.json", lines)), expected);
  EXPECT_EQ(learn(write("a.txt.gz", gzip(text))), expected);
  EXPECT_EQ(learn(write("a.jsonl.gz", gzip(lines))), expected);
  write("folder/b.jsonl", lines);
  EXPECT_EQ(learn((dir_ / "folder").string()), expected);
}

TEST_F(BpeTrainFilesTest, BadRecordsAreErrorsUnlessAllowed) {
  const std::string path = write("a.jsonl", "{\"text\": \"ababab ababab\"}\n{\"body\": 1}\n");
  BpeTrainOptions options{.inputs = {path}, .vocab_size = 258};
  expect_error(ErrorKind::kRuntime, "a.jsonl', line 2: no field \"text\"", [&] { train_bpe(options); });
  options.skip_bad = 1;
  EXPECT_EQ(train_bpe(options).report.bad_records, 1);
  expect_error(ErrorKind::kRuntime, "the text is not valid UTF-8",
               [&] { train_bpe({.inputs = {write("b.txt", "ab\xE9 abab")}, .vocab_size = 258}); });
}

TEST_F(BpeTrainFilesTest, EmptyFilesTeachNothing) {
  const std::string text = write("a.txt", "abababab");
  const std::string alone = train_bpe({.inputs = {text}, .vocab_size = 258}).tokenizer->hash();
  for (const char* name : {"empty.txt", "empty.jsonl", "empty.json", "empty.parquet"}) {
    const TrainedBpe trained = train_bpe({.inputs = {write(name, ""), text}, .vocab_size = 258});
    EXPECT_EQ(trained.tokenizer->hash(), alone) << name;
    EXPECT_EQ(trained.report.bad_records, 0) << name;
    EXPECT_EQ(trained.report.left_out.empty, std::vector<fs::path>{dir_ / name});
  }
}

TEST_F(BpeTrainFilesTest, SpecialTokensAreTheLastIds) {
  const std::string path = write("small.txt", "<|im_end|> <|im_end|> <|im_end|>");
  const auto tokenizer =
      train_bpe({.inputs = {path}, .vocab_size = 262, .specials = {"<|im_start|>", "<|im_end|>"}}).tokenizer;
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->eos_id(), 259);
  const auto loaded = load_tokenizer(write("tokenizer.json", tokenizer->json()));
  EXPECT_EQ(loaded->hash(), tokenizer->hash());
  const auto specials = loaded->special_tokens();
  EXPECT_EQ(std::vector(specials.begin(), specials.end()),
            (std::vector<NamedToken>{{"<|endoftext|>", 259}, {"<|im_start|>", 260}, {"<|im_end|>", 261}}));
  std::vector<int32_t> ids;
  loaded->encode("<|im_end|>", ids);
  EXPECT_GT(ids.size(), 1U);  // in a text it is text
}

TEST_F(BpeTrainFilesTest, Errors) {
  const std::string path = write("small.txt", "abab");
  expect_error(ErrorKind::kUsage, "vocabulary of 258", [&] {
    train_bpe({.inputs = {path}, .vocab_size = 258, .specials = {"a", "b"}});
  });
  expect_error(ErrorKind::kUsage, "special token \"<|endoftext|>\" is there already",
               [&] { train_bpe({.inputs = {path}, .vocab_size = 300, .specials = {"<|endoftext|>"}}); });
  expect_error(ErrorKind::kUsage, "vocabulary of 256", [&] { train_bpe({.inputs = {path}, .vocab_size = 256}); });
  expect_error(ErrorKind::kUsage, "too few for a vocabulary of 1000: after 258 ids",
               [&] { train_bpe({.inputs = {path}, .vocab_size = 1000}); });
  expect_error(ErrorKind::kUsage, "nothing.txt",
               [&] { train_bpe({.inputs = {(dir_ / "nothing.txt").string()}, .vocab_size = 300}); });
}

}  // namespace
}  // namespace nmoe
