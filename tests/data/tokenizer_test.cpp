#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "data/test_data.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_splitter.h"

namespace nmoe {
namespace {

constexpr const char* kSample =
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must "
    "be in want of a wife.\nHowever little known the feelings or views of such a man may be on his "
    "first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding "
    "families, that he is considered the rightful property of some one or other of their "
    "daughters.\n";

std::map<std::string, int64_t> count_words(std::string_view text) {
  const WordSplitter splitter(std::vector<Split>{std::string(kSplitPattern)});
  WordCursor cursor(splitter, text);
  std::map<std::string, int64_t> counts;
  for (std::string_view word; cursor.next(word);) ++counts[std::string(word)];
  return counts;
}

// A model with merges of letters, of a long run, and inside UTF-8 sequences.
BpeModel sample_model() {
  auto counts = count_words(kSample);
  counts[" café"] = counts[" 😀😀"] = 50;
  counts[std::string(64, 'a')] = 50;
  counts["    "] = 50;
  return train_bpe_model({counts.begin(), counts.end()}, 300);
}

// Byte-pair encoding from its definition: scan for the lowest-ranked pair, merge its leftmost
// place.
std::vector<int32_t> encode_word_by_scanning(const BpeModel& model, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char byte : word) ids.push_back(static_cast<unsigned char>(byte));
  for (;;) {
    size_t best_rank = model.merges.size();
    size_t best_place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (model.merges[rank].left == ids[i] && model.merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_place = i;
        }
      }
    }
    if (best_rank == model.merges.size()) return ids;
    ids[best_place] = model.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

std::vector<std::string> adversarial_texts() {
  std::string every_byte(256, '\0');
  std::iota(every_byte.begin(), every_byte.end(), '\0');
  return {"",
          std::string(1, '\0'),
          every_byte,
          every_byte + every_byte,
          "<|endoftext|>",
          "The <|endoftext|> of it.",
          "👩‍👩‍👧‍👦 😀😀 café naïve 東京 ﷽ Ω≈ç√∫",
          "\xF0\x9F\x98",              // a cut emoji
          "\xC0\x80\xED\xA0\x80\xFF",  // overlong, surrogate, never a byte of UTF-8
          "a\xCC",
          "\r\n\r\n \t\n\v\f",
          std::string(5000, ' '),
          std::string(5000, '\n'),
          std::string(777, 'a') + std::string(778, 'b'),
          "\xE2\x80\xA8\xC2\xA0\xE1\xA0\x8E",  // line separator, no-break space, vowel separator
          random_bytes(10000, 1)};
}

TEST(Tokenizer, DecodesToTheSameBytes) {
  for (const auto& tokenizer : {byte_tokenizer(), make_bpe_tokenizer(sample_model())}) {
    for (const std::string& text : adversarial_texts()) {
      const auto ids = encode(*tokenizer, text);
      EXPECT_EQ(tokenizer->decode(ids), text) << tokenizer->name();
      EXPECT_EQ(std::ranges::count(ids, tokenizer->eos_id()), 0) << tokenizer->name();
      for (const int32_t id : ids) {
        ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size()) << tokenizer->name();
      }
    }
  }
}

TEST(Tokenizer, EncodeAppends) {
  for (const auto& tokenizer : {byte_tokenizer(), make_bpe_tokenizer(sample_model())}) {
    std::vector<int32_t> ids = {7};
    tokenizer->encode("ab", ids);
    tokenizer->encode("", ids);
    EXPECT_EQ(ids.front(), 7);
    EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(1)), "ab");
  }
}

TEST(ByteTokenizer, IdsAreByteValues) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(encode(*tokenizer, "A\xFF"), (std::vector<int32_t>{65, 255}));
  EXPECT_EQ(tokenizer->token_bytes(65), "A");
  EXPECT_EQ(tokenizer->token_bytes(256), "");
  EXPECT_THROW(tokenizer->token_bytes(257), CheckFailure);
}

TEST(Bpe, EncodesAsTheDefinitionSays) {
  const BpeModel model = sample_model();
  const auto tokenizer = make_bpe_tokenizer(model);
  std::vector<std::string> words = {std::string(200, 'a'), "aaaaa", "    "};
  for (const auto& [word, count] : count_words(kSample)) words.push_back(word);
  std::mt19937 random(3);  // words of the letters that most merges are about
  for (int i = 0; i < 200; ++i) {
    std::string& word = words.emplace_back();
    for (int length = 0; length < 30; ++length) word += "etaoinshra"[random() % 10];
  }
  for (const std::string& word : words) {
    EXPECT_EQ(encode(*tokenizer, word), encode_word_by_scanning(model, word)) << word;
  }
}

TEST(Bpe, WordsSeenBeforeDoNotMatter) {
  const BpeModel model = sample_model();
  const auto used = make_bpe_tokenizer(model);
  std::string many_words;  // more than the tokenizer can keep
  for (int i = 0; i < 200'000; ++i) {
    many_words += ' ';
    for (int rest = i; rest > 0; rest /= 26) many_words += static_cast<char>('a' + rest % 26);
  }
  encode(*used, many_words);
  for (const auto& [word, count] : count_words(std::string(kSample) + many_words.substr(0, 20000))) {
    const auto fresh = encode_word_by_scanning(model, word);
    ASSERT_EQ(encode(*used, word), fresh) << word;
    ASSERT_EQ(encode(*used, word), fresh) << word;
  }
}

TEST(Bpe, ThreadsShareATokenizer) {
  const auto tokenizer = make_bpe_tokenizer(sample_model());
  const auto expected = encode(*tokenizer, kSample);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += encode(*tokenizer, kSample) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// Of this thread alone, so that a busy machine does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Bpe, NoTextTakesQuadraticTime) {
  for (const KnownPattern& known : known_patterns()) {
    BpeModel model = sample_model();
    model.splits = {std::string(known.pattern)};
    const auto tokenizer = make_bpe_tokenizer(model);
    for (const std::string part :
         {"a", "A", " ", "\n", " \n", "\t ", "1", "!", "'", "東", "\u0301", "A\u0301", "\x01", "\xFF"}) {
      const auto seconds_for = [&](size_t size) {
        std::string text;
        while (text.size() < size) text += part;
        const double start = cpu_seconds();
        const auto ids = encode(*tokenizer, text);
        const double seconds = cpu_seconds() - start;
        EXPECT_EQ(tokenizer->decode(ids), text);
        return seconds;
      };
      // n log n: 44 times as long; quadratic: 1,024 times. 1 ms for what takes no time to speak of. What shares a core
      // with others may be slow once, but not every time.
      const auto is_fast = [&] { return seconds_for(1 << 18) <= 150 * seconds_for(1 << 13) + 1e-3; };
      EXPECT_TRUE(is_fast() || is_fast() || is_fast()) << known.name << ": '" << part << "'";
    }
  }
}

TEST(Bpe, HashTellsModelsApart) {
  const BpeModel model = sample_model();
  BpeModel reordered = model;
  std::swap(reordered.merges[3], reordered.merges[4]);
  EXPECT_EQ(make_bpe_tokenizer(model)->hash(), make_bpe_tokenizer(model)->hash());
  EXPECT_NE(make_bpe_tokenizer(model)->hash(), make_bpe_tokenizer(reordered)->hash());
  EXPECT_NE(make_bpe_tokenizer(model)->hash(), byte_tokenizer()->hash());
  EXPECT_EQ(make_bpe_tokenizer(model)->hash().size(), 64U);
}

class TokenizerFileTest : public FolderTest {
 protected:
  // Loading `json` must fail, and say so about `place`.
  void expect_unsupported(const std::string& json, const std::string& place) {
    const std::string path = write("tokenizer.json", json);
    expect_error(ErrorKind::kRuntime, place, [&] { load_tokenizer(path); });
  }
  // The sample's file with `from` replaced by `to`.
  static std::string edited(const std::string& from, const std::string& to) {
    std::string json = bpe_to_json(sample_model());
    const size_t place = json.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    return json.replace(place, from.size(), to);
  }
};

TEST_F(TokenizerFileTest, ReadsBackWhatItWrote) {
  for (const auto& tokenizer : {byte_tokenizer(), make_bpe_tokenizer(sample_model())}) {
    const auto loaded = load_tokenizer(write("tokenizer.json", tokenizer->json()));
    EXPECT_EQ(loaded->hash(), tokenizer->hash());
    EXPECT_EQ(loaded->json(), tokenizer->json());
    EXPECT_EQ(loaded->name(), tokenizer->name());
    for (const std::string& text : adversarial_texts()) {
      EXPECT_EQ(encode(*loaded, text), encode(*tokenizer, text));
    }
  }
  EXPECT_EQ(load_tokenizer("bytes"), byte_tokenizer());
}

TEST_F(TokenizerFileTest, WritesGpt2sNamesOfBytes) {
  const std::string json = bpe_to_json(sample_model());
  for (const char* entry : {"\"Ā\": 0,", "\"Ċ\": 10,", "\"Ġ\": 32,", "\"!\": 33,", "\"ÿ\": 255,", "\"Ń\": 173,",
                            "\"ġ\": 127,", "\"<|endoftext|>\": 299"}) {
    EXPECT_NE(json.find(entry), std::string::npos) << entry;
  }
}

TEST_F(TokenizerFileTest, ReadsMergesAsPairs) {
  BpeModel model = train_bpe_model({{"ab", 2}}, 258);
  std::string json = bpe_to_json(model);
  json.replace(json.find("\"a b\""), 5, "[\"a\", \"b\"]");
  EXPECT_EQ(bpe_from_json(json, "here").merges, model.merges);
}

TEST_F(TokenizerFileTest, RefusesWhatWouldEncodeDifferently) {
  expect_unsupported("", "not a JSON object");
  expect_unsupported("{\"type\": \"unigram\"}", "/pre_tokenizer does not end with ByteLevel");
  expect_unsupported(edited("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}"), "/normalizer");
  expect_unsupported(edited("\"truncation\": null", "\"truncation\": {\"max_length\": 512}"), "/truncation");
  expect_unsupported(edited("\"type\": \"Split\"", "\"type\": \"Metaspace\""), "/pre_tokenizer/pretokenizers/0");
  expect_unsupported(edited("\"Isolated\"", "\"Scattered\""), "/pre_tokenizer/pretokenizers/0/behavior");
  expect_unsupported(edited("\\\\p{N}{1,3}", "\\\\p{N}{1,3}+"), "possessive");
  expect_unsupported(edited("\\\\p{N}{1,3}", "("), "split pattern");
  expect_unsupported(edited("\"add_prefix_space\": false", "\"add_prefix_space\": true"),
                     "/pre_tokenizer/pretokenizers/1/add_prefix_space");
  expect_unsupported(edited("\"type\": \"BPE\"", "\"type\": \"Unigram\""), "/model/type");
  expect_unsupported(edited("\"byte_fallback\": false", "\"byte_fallback\": true"), "/model/byte_fallback");
  expect_unsupported(edited("\"dropout\": null", "\"dropout\": 0.1"), "/model/dropout");
  expect_unsupported(edited("\"lstrip\": false", "\"lstrip\": true"), "/added_tokens/0/lstrip");
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += "0,";
  expect_unsupported(edited("\"added_tokens\": [", "\"added_tokens\": [" + many), "at most 200000 are read");
  expect_unsupported(edited("\"<|endoftext|>\": 299", "\"<|endoftext|>\": 300"), "299");
  expect_unsupported(edited("\"Ā\": 0", "\"Ā\": 1"), "the same id, 1");
  expect_unsupported(edited("\"Ā\": 0", "\"東\": 0"), "not a byte-level token");
  expect_unsupported(edited("\"Ā\": 0", "\"xyz\": 0"), "no token for byte 0");
  expect_unsupported(edited("\"merges\": [", "\"merges\": [\"z q\", "), "z q");
  expect_error(ErrorKind::kRuntime, "missing.json", [&] { load_tokenizer((dir_ / "missing.json").string()); });
}

// A split of any behavior, by a text or a pattern, is written back as it is, and told apart.
TEST_F(TokenizerFileTest, SplitsOfAllKinds) {
  std::set<std::string> hashes;
  for (const char* behavior : {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    for (const bool invert : {false, true}) {
      auto file = nlohmann::json::parse(bpe_to_json(sample_model()));
      file["pre_tokenizer"]["pretokenizers"][0] = {
          {"type", "Split"}, {"pattern", {{"String", "a."}}}, {"behavior", behavior}, {"invert", invert}};
      const auto tokenizer = load_tokenizer(write("tokenizer.json", file.dump()));
      const bool removes = std::string_view(behavior) == "Removed";
      EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "xa.ab")), !removes ? "xa.ab" : invert ? "a." : "xab");
      EXPECT_EQ(load_tokenizer(write("again.json", tokenizer->json()))->hash(), tokenizer->hash());
      hashes.insert(tokenizer->hash());
    }
  }
  EXPECT_EQ(hashes.size(), 9U);  // isolated is the same, inverted or not
}

// Hugging Face's library normalizes such a token's text before it looks for it.
TEST_F(TokenizerFileTest, AnAddedTokenThatIsNotNormalized) {
  const std::string decomposed = "<cafe\u0301>", composed = "<caf\u00E9>";
  auto file = nlohmann::json::parse(bpe_to_json(sample_model()));
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"].push_back({{"id", 300}, {"content", decomposed}, {"special", false}, {"normalized", true}});
  const auto tokenizer = load_tokenizer(write("tokenizer.json", file.dump()));
  EXPECT_EQ(encode(*tokenizer, decomposed), (std::vector<int32_t>{300}));
  EXPECT_EQ(encode(*tokenizer, composed), (std::vector<int32_t>{300}));
}

// They took half a minute: a parser that looked through all of them for each.
TEST_F(TokenizerFileTest, ManyAddedTokens) {
  auto file = nlohmann::json::parse(bpe_to_json(sample_model()));
  for (int i = 0; i < 199'999; ++i) {
    file["added_tokens"].push_back(
        {{"id", 300 + i}, {"content", fmt::format("<|{}|>", i)}, {"special", i % 2 == 0}, {"normalized", i % 4 == 1}});
  }
  const std::string path = write("tokenizer.json", file.dump());
  const double start = cpu_seconds();
  const auto tokenizer = load_tokenizer(path);
  EXPECT_EQ(encode(*tokenizer, "<|199997|><|3|>"), (std::vector<int32_t>{200'297, 303}));
  EXPECT_FALSE(tokenizer->json().empty());
  EXPECT_LT(cpu_seconds() - start, 20.0);  // some seconds, but for builds that are not optimised
}

TEST_F(TokenizerFileTest, AFolderOfATokenizer) {
  write("model/tokenizer.json", bpe_to_json(sample_model()));
  EXPECT_EQ(load_tokenizer((dir_ / "model").string())->hash(), make_bpe_tokenizer(sample_model())->hash());
}

// Held to values: the tokenizer of a corpus must stay what it was when the corpus was made.
TEST_F(TokenizerFileTest, HashesStay) {
  const auto trained = make_bpe_tokenizer(train_bpe_model({{"ab", 2}, {"abc", 3}}, 259));
  EXPECT_EQ(trained->hash_with_end(trained->eos_id()),
            "e6016db5575ac993256229223a0020e31009df448b4b949ae6d5af62bba7b002");
  EXPECT_EQ(trained->hash(), "bdd112b2bbaf86cb1f99c7f3d1b6e24f4435489092f56e466d9c2a0178bc1e64");
  const auto other = make_bpe_tokenizer(sample_model());
  EXPECT_EQ(other->hash_with_end(other->eos_id()), "009b5b618022e279c1fa234713cfdb2167444cabc13d0fc7533d8af7362ea3b5");
  EXPECT_EQ(other->hash(), "b0a050b1fdff2786210f4a7da7162ff15c47a8d346ec12e2d65b16f1cbc46028");
}

TEST_F(TokenizerFileTest, WhichTokenEndsDocuments) {
  BpeModel model = sample_model();
  const auto add = [&](const char* text) {
    model.added.push_back({.text = text, .id = static_cast<int32_t>(model.tokens.size())});
    model.tokens.emplace_back();
  };
  add("<|im_end|>");
  EXPECT_EQ(load_tokenizer(write("one.json", bpe_to_json(model)))->eos_id(), 299);
  add("</s>");
  model.eos_id = 301;  // which the names would not tell: json() marks it
  const std::string marked = bpe_to_json(model);
  const auto loaded = load_tokenizer(write("marked.json", marked));
  EXPECT_EQ(loaded->eos_id(), 301);
  EXPECT_EQ(loaded->json(), marked);

  std::string json = marked;
  const std::string mark = ",\n      \"nmoe_end_of_text\": true";
  ASSERT_NE(json.find(mark), std::string::npos);
  const std::string path = write("ambiguous.json", json.erase(json.find(mark), mark.size()));
  expect_error(ErrorKind::kUsage, "several have a usual name", [&] { load_tokenizer(path); });
  EXPECT_EQ(load_tokenizer(path + "@<|im_end|>")->eos_id(), 300);
  EXPECT_EQ(load_tokenizer(path + "@<|im_end|>")->hash(), loaded->hash());  // no text becomes another id
  EXPECT_EQ(load_tokenizer(path + "@<|im_end|>")->hash_with_end(301), loaded->hash_with_end(301));
  EXPECT_NE(loaded->hash_with_end(300), loaded->hash_with_end(301));
  expect_error(ErrorKind::kUsage, "no special token '<|no|>'", [&] { load_tokenizer(path + "@<|no|>"); });
}

// As an import and a preparation from the same folder have it. Chat models name the end of a turn first, as Qwen3 does.
TEST_F(TokenizerFileTest, AModelsFilesEndDocumentsOnlyWhereItsTokenizerDoesNot) {
  BpeModel model = sample_model();
  const auto add = [&](const char* text) {
    model.added.push_back({.text = text, .id = static_cast<int32_t>(model.tokens.size())});
    model.tokens.emplace_back();
  };
  add("<|im_end|>");
  const auto end_of = [&](const std::string& suffix = "") {
    return load_tokenizer((dir_ / "model").string() + suffix)->eos_id();
  };
  write("model/tokenizer.json", bpe_to_json(model));
  write("model/config.json", R"({"eos_token_id": [300, 299]})");
  EXPECT_EQ(end_of(), 299);
  EXPECT_EQ(end_of("@<|im_end|>"), 300);
  EXPECT_EQ(load_tokenizer((dir_ / "model/tokenizer.json").string())->eos_id(), 299);

  // None has a usual name: what the files name is what there is, config.json first.
  std::string json = bpe_to_json(model);
  for (size_t at = json.find("<|endoftext|>"); at != std::string::npos; at = json.find("<|endoftext|>")) {
    json.replace(at, std::string("<|endoftext|>").size(), "<|text_ends|>");
  }
  write("model/tokenizer.json", json);
  EXPECT_EQ(end_of(), 300);
  const std::string kept = load_tokenizer((dir_ / "model").string())->json();
  EXPECT_EQ(load_tokenizer(write("kept.json", kept))->eos_id(), 300);  // a corpus has no such files
  fs::remove(dir_ / "model/config.json");
  write("model/generation_config.json", R"({"eos_token_id": 299})");
  EXPECT_EQ(end_of(), 299);
  fs::remove(dir_ / "model/generation_config.json");
  write("model/tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(end_of(), 300);
  write("model/tokenizer_config.json", R"({"eos_token": "no such token"})");
  expect_error(ErrorKind::kUsage, "none have a usual name", [&] { end_of(); });
}

// Special tokens are text unless allowed; added tokens that are not special always count.
TEST_F(TokenizerFileTest, TokensInsideText) {
  BpeModel model = sample_model();
  const auto add = [&](const char* text, bool special) {
    model.added.push_back(
        {.text = text, .id = static_cast<int32_t>(model.tokens.size()), .special = special, .in_vocab = false});
    model.tokens.emplace_back();
  };
  add("<|end", true);
  add("<|end|>", true);
  add("<think>", false);
  const auto tokenizer = load_tokenizer(write("tokenizer.json", bpe_to_json(model)));
  EXPECT_EQ(tokenizer->hash(), make_bpe_tokenizer(model)->hash());
  EXPECT_EQ(tokenizer->token_bytes(300), "");
  EXPECT_EQ(tokenizer->token_bytes(302), "<think>");

  const std::string text = "a<|end|><think><|end<|endoftext|>b";
  const auto ordinary = encode(*tokenizer, text);
  EXPECT_EQ(std::ranges::count(ordinary, 302), 1);
  EXPECT_EQ(tokenizer->decode(ordinary), text);
  for (const int32_t special : {299, 300, 301}) EXPECT_EQ(std::ranges::count(ordinary, special), 0);

  std::vector<int32_t> ids;
  tokenizer->encode(text, TokenFinder(tokenizer->special_tokens()), ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 301, 302, 300, 299, 'b'}));  // of <|end and <|end|> the longest
  ids.clear();
  const NamedToken allowed{"<|endoftext|>", 299};
  tokenizer->encode("<|end<|endoftext|>", TokenFinder({&allowed, 1}), ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'<', '|', 'e', 'n', 'd', 299}));
}

// A file may have very many of them, and a text very many of their first letters.
TEST(TokenFinderTest, ManyTokens) {
  std::vector<NamedToken> tokens;
  for (int32_t i = 0; i < 100000; ++i) tokens.push_back({fmt::format("<t{}>", i), i});
  const TokenFinder finder(tokens);
  const std::string text = std::string(200000, '<') + "<t99999><t9999><t1" + "<t12>";
  std::vector<int32_t> found;
  size_t plain = 0;
  finder.cut(
      text, [&](std::string_view part) { plain += part.size(); }, [&](int32_t id) { found.push_back(id); });
  EXPECT_EQ(found, (std::vector<int32_t>{99999, 9999, 12}));
  EXPECT_EQ(plain, 200000 + std::string("<t1").size());
}

TEST_F(TokenizerFileTest, PostProcessorIsKept) {
  BpeModel model = sample_model();
  model.post_processor = R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true})";
  const std::string json = bpe_to_json(model);
  EXPECT_EQ(load_tokenizer(write("tokenizer.json", json))->hash(), make_bpe_tokenizer(sample_model())->hash());
  EXPECT_NE(load_tokenizer((dir_ / "tokenizer.json").string())->json().find("\"trim_offsets\": false"),
            std::string::npos);
}

TEST(Normalize, FormC) {
  std::string storage;
  EXPECT_EQ(to_nfc("plain é", storage), "plain é");
  EXPECT_EQ(to_nfc("e\u0301", storage), "é");
  EXPECT_EQ(to_nfc("\u212B", storage), "Å");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11AB", storage), "한");
  EXPECT_EQ(to_nfc("a\u0301\u0323", storage), "ạ\u0301");
  EXPECT_EQ(to_nfc("e\xFF\u0301", storage), "e\xFF\u0301");  // an invalid byte stays, and parts what is around it
  EXPECT_EQ(to_nfc("e\u0301\xCC", storage), "é\xCC");
}

TEST(Normalize, NoTextTakesQuadraticTime) {
  for (const std::string part : {"\u0301\u0323", "\u0301\xFF", "\u0897", "e\u0301", "\uAC01"}) {
    const auto seconds_for = [&](size_t size) {
      std::string text = "a";
      while (text.size() < size) text += part;
      std::string storage;
      const double start = cpu_seconds();
      EXPECT_FALSE(to_nfc(text, storage).empty());
      return cpu_seconds() - start;
    };
    const auto is_fast = [&] { return seconds_for(1 << 18) <= 150 * seconds_for(1 << 13) + 1e-3; };
    EXPECT_TRUE(is_fast() || is_fast() || is_fast()) << part;  // quadratic: 1,024 times
  }
}

TEST(Bpe, NormalizesWhereTheModelSaysSo) {
  BpeModel model = sample_model();
  model.nfc = true;
  const auto tokenizer = make_bpe_tokenizer(model);
  EXPECT_EQ(encode(*tokenizer, " cafe\u0301"), encode(*tokenizer, " café"));
  EXPECT_NE(tokenizer->hash(), make_bpe_tokenizer(sample_model())->hash());
}

}  // namespace
}  // namespace nmoe
