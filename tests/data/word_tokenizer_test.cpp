#include "data/tokenizer/word_tokenizer.h"

#include "data/test_data.h"

namespace nmoe {
namespace {

TEST(WordTokenizer, WordsAndBack) {
  const auto tokenizer = make_word_tokenizer({"0", "1", "hop1", "+"});
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->eos_id(), 4);
  EXPECT_EQ(encode(*tokenizer, "  + 0\n1\thop1 "), (std::vector<int32_t>{3, 0, 1, 2}));
  EXPECT_EQ(encode(*tokenizer, " \n"), std::vector<int32_t>());
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{2, 0, 4, 3}), "hop1 0 + ");
}

TEST(WordTokenizer, KnowsItsWordsOnly) {
  const auto tokenizer = make_word_tokenizer({"0", "1"});
  for (const char* text : {"0 2", "01", "0 <|endoftext|>"}) {
    expect_error(ErrorKind::kRuntime, "none of the 2 words", [&] { encode(*tokenizer, text); });
  }
  for (const auto& words : std::vector<std::vector<std::string>>{{""}, {"a b"}, {"a", "a"}, {"<|endoftext|>"}, {"é"}}) {
    EXPECT_THROW(make_word_tokenizer(words), CheckFailure);
  }
}

TEST(WordTokenizer, OtherWordsHaveOtherHashes) {
  const std::string hash = make_word_tokenizer({"0", "1"})->hash();
  EXPECT_EQ(hash, make_word_tokenizer({"0", "1"})->hash());
  EXPECT_NE(hash, make_word_tokenizer({"1", "0"})->hash());
  EXPECT_NE(hash, make_word_tokenizer({"01"})->hash());
}

class WordTokenizerFile : public FolderTest {};

TEST_F(WordTokenizerFile, ReadsWhatItWrote) {
  const auto tokenizer = make_word_tokenizer({"7", "a\"b", "\\", "#"});
  const auto again = load_tokenizer(write("tokenizer.json", tokenizer->json()));
  EXPECT_EQ(again->hash(), tokenizer->hash());
  EXPECT_EQ(again->json(), tokenizer->json());
  EXPECT_EQ(again->name(), "words");
  EXPECT_EQ(encode(*again, "# \\ a\"b 7"), (std::vector<int32_t>{3, 2, 1, 0}));
}

TEST_F(WordTokenizerFile, AnotherShapeIsRefused) {
  const std::string good = make_word_tokenizer({"zero", "one"})->json();
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& what) {
    std::string text = good;
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    const std::string file = write("tokenizer.json", text.replace(place, from.size(), to));
    expect_error(ErrorKind::kRuntime, what, [&] { load_tokenizer(file); });
    expect_error(ErrorKind::kRuntime, "tokenizer.json", [&] { load_tokenizer(file); });
  };
  refused("\"zero\": 0", "\"zero\": 1", "the id 1");
  refused("\"zero\": 0", "\"zero\": -1", "the id -1");
  refused("\"zero\": 0", "\"ze ro\": 0", "'ze ro'");
  refused("\"one\": 1,\n      \"<|endoftext|>\": 2", "\"one\": 2,\n      \"<|endoftext|>\": 1", "last id");
  refused("\"normalizer\": null", "\"normalizer\": {}", "more than words");
  refused("WhitespaceSplit", "Whitespace", "more than words");
}

}  // namespace
}  // namespace nmoe
