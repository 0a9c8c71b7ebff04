// The ids of tiktoken and of Hugging Face's tokenizers, as scripts/tokenizer_vectors.py wrote them (which says what the
// files hold), against those of this program.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "data/test_data.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

using nlohmann::json;

constexpr char32_t kPage = 256;        // code points in a text of the sweep
constexpr char32_t kDigestPages = 64;  // texts of the sweep in a digest

fs::path fixture(const std::string& name) {
  return fs::path(NMOE_SOURCE_DIR) / "tests/data/fixtures/tokenizers" / name;
}

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }

std::string utf8(char32_t c) {
  std::string text;
  append_utf8(c, text);
  return text;
}

std::vector<std::string> read_texts() {
  std::vector<std::string> texts;
  for (const json& parts : json::parse(read_file(fixture("texts.json")))) {
    std::string& text = texts.emplace_back();
    for (const json& part : parts) {
      const auto once = (part.is_array() ? part[0] : part).get<std::string>();
      for (int times = part.is_array() ? part[1].get<int>() : 1; times > 0; --times) text += once;
    }
  }
  return texts;
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> list = read_texts();
  return list;
}

const json& vectors() {
  static const json file = json::parse(read_file(fixture("vectors.json")));
  return file;
}

std::string sweep_text(char32_t page) {
  std::string text;
  for (char32_t code_point = page * kPage; code_point < (page + 1) * kPage; ++code_point) {
    if (is_surrogate(code_point)) continue;
    const std::string c = utf8(code_point);
    text += "x" + c + " " + c + c + "1\n'" + c + "A" + c + "\n";
  }
  return text;
}

class Digest {
 public:
  void add(std::span<const int32_t> ids) { hash_.update(ids.data(), ids.size_bytes()); }
  std::string finish(size_t num_digits = 16) { return hash_.finish().substr(0, num_digits); }

 private:
  Sha256 hash_;
};

void expect_texts(const Tokenizer& tokenizer, const json& expected) {
  constexpr size_t kDigits = 8;
  const auto digests = expected["digests"].get<std::string>();
  ASSERT_EQ(digests.size(), kDigits * texts().size());
  for (size_t i = 0; i < texts().size(); ++i) {
    Digest digest;
    const auto ids = encode(tokenizer, texts()[i]);
    digest.add(ids);
    EXPECT_EQ(digest.finish(kDigits), digests.substr(kDigits * i, kDigits))
        << "text " << i << ": " << texts()[i].substr(0, 200);
    const auto all = expected["ids"].find(std::to_string(i));
    if (all != expected["ids"].end()) {
      EXPECT_EQ(ids, all->get<std::vector<int32_t>>()) << texts()[i];
    }
  }
}

// Every code point, in several contexts.
void expect_sweep(const Tokenizer& tokenizer, const json& expected) {
  for (size_t i = 0; i < expected["sweep"].size(); ++i) {
    Digest digest;
    for (char32_t page = 0; page < kDigestPages; ++page) {
      digest.add(encode(tokenizer, sweep_text(static_cast<char32_t>(i) * kDigestPages + page)));
    }
    EXPECT_EQ(digest.finish(), expected["sweep"][i].get<std::string>())
        << "from U+" << std::hex << i * kDigestPages * kPage;
  }
}

void expect_file(const Tokenizer& tokenizer, const json& expected) {
  const fs::path path = fs::path(NMOE_SOURCE_DIR) / "../shared/text/tinyshakespeare.txt";
  if (!fs::exists(path)) return;
  const auto ids = encode(tokenizer, read_file(path));
  Digest digest;
  digest.add(ids);
  EXPECT_EQ(ids.size(), expected["file"]["count"].get<size_t>());
  EXPECT_EQ(digest.finish(), expected["file"]["digest"].get<std::string>());
}

void expect_allowed(const Tokenizer& tokenizer, const json& expected) {
  const TokenFinder all(tokenizer.special_tokens());
  for (const json& pair : expected["allowed"]) {
    std::vector<int32_t> ids;
    const auto text = pair[0].get<std::string>();
    tokenizer.encode(text, all, ids);
    EXPECT_EQ(ids, pair[1].get<std::vector<int32_t>>()) << text;
  }
}

// ---- tiktoken ----

// The rank file of an encoding, "" where this machine has none.
std::string ranks_of(const std::string& encoding) {
  const std::map<std::string, std::vector<std::string>> places = {
      {"gpt2", {"../shared/tokenizers/gpt2.tiktoken", "third_party/tokenizers/r50k_base.tiktoken"}},
      {"cl100k_base", {"third_party/tokenizers/cl100k_base.tiktoken"}},
      {"o200k_base", {"third_party/tokenizers/o200k_base.tiktoken"}},
      {"o200k_harmony", {"third_party/tokenizers/o200k_base.tiktoken"}}};
  for (const std::string& place : places.at(encoding)) {
    const fs::path path = fs::path(NMOE_SOURCE_DIR) / place;
    if (fs::exists(path)) return path.string();
  }
  return "";
}

class TiktokenVectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string ranks = ranks_of(GetParam());
    if (ranks.empty()) GTEST_SKIP() << "no ranks of " << GetParam() << ": run scripts/setup.sh --tokenizers";
    tokenizer_ = load_tokenizer(GetParam() + ":" + ranks);
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TiktokenVectors, SameIds) {
  const json& expected = vectors()["encodings"][GetParam()];
  EXPECT_EQ(tokenizer_->vocab_size(), expected["n_vocab"].get<int64_t>());
  EXPECT_EQ(tokenizer_->eos_id(), expected["eos"].get<int32_t>());
  std::map<std::string, int32_t> named;
  for (const NamedToken& token : tokenizer_->special_tokens()) {
    if (!token.text.starts_with("<|reserved")) named[token.text] = token.id;
  }
  EXPECT_EQ(named, (expected["specials"].get<std::map<std::string, int32_t>>()));
  expect_allowed(*tokenizer_, expected);
  if (!expected.contains("digests")) return;  // o200k_harmony: o200k_base but for the special tokens
  expect_texts(*tokenizer_, expected);
  expect_sweep(*tokenizer_, expected);
  expect_file(*tokenizer_, expected);
}

TEST_P(TiktokenVectors, AsATokenizerJsonItIsTheSame) {
  test::TempDir dir;
  const fs::path path = dir.path() / "tokenizer.json";
  write_file_atomically(path, tokenizer_->json());
  const auto read_back = load_tokenizer(path.string());
  EXPECT_EQ(read_back->hash(), tokenizer_->hash());
  EXPECT_EQ(read_back->eos_id(), tokenizer_->eos_id());
}

INSTANTIATE_TEST_SUITE_P(Encodings, TiktokenVectors,
                         testing::Values("gpt2", "cl100k_base", "o200k_base", "o200k_harmony"),
                         [](const auto& test) { return test.param; });

// ---- Hugging Face ----

class HuggingFaceVectors : public testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceVectors, SameIds) {
  const json& expected = vectors()["variants"][GetParam()];
  json file = expected["head"];
  file["model"] = json::parse(read_file(fixture("model.json")));
  file["model"]["ignore_merges"] = expected["ignore_merges"];
  test::TempDir dir;
  write_file_atomically(dir.path() / "tokenizer.json", file.dump());
  const auto tokenizer = load_tokenizer(dir.path().string());
  expect_texts(*tokenizer, expected);
  expect_sweep(*tokenizer, expected);
  expect_file(*tokenizer, expected);
  expect_allowed(*tokenizer, expected);

  const fs::path written = dir.path() / "written.json";
  write_file_atomically(written, tokenizer->json());
  EXPECT_EQ(load_tokenizer(written.string())->hash(), tokenizer->hash());
}

INSTANTIATE_TEST_SUITE_P(Variants, HuggingFaceVectors,
                         testing::Values("gpt2", "gpt2_split", "llama3", "cl100k", "o200k", "o200k_removed", "qwen2",
                                         "deepseek_v3", "starcoder", "digit_runs", "unusual"),
                         [](const auto& test) { return test.param; });

// ---- Unicode ----

// unicode.txt's name of the class.
std::string name_of(CharClass char_class) {
  const std::pair<CharClass, const char*> names[] = {{kLu, "Lu"},    {kLl, "Ll"},  {kLt, "Lt"},    {kLm, "Lm"},
                                                     {kLo, "Lo"},    {kMark, "M"}, {kNumber, "N"}, {kPunct, "P"},
                                                     {kSymbol, "S"}, {kSpace, "s"}};
  for (const auto& [set, name] : names) {
    if ((char_class & set) != 0) return name;
  }
  return "-";
}

TEST(UnicodeVectors, ClassesAreThoseOfBothLibraries) {
  std::istringstream file(read_file(fixture("unicode.txt")));
  std::vector<std::pair<char32_t, std::string>> runs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, name;
    words >> first >> name;
    if (first == "#") continue;
    if (first == "-") {
      EXPECT_EQ(line, "- 0 =") << "the two libraries differ";
      continue;
    }
    runs.emplace_back(static_cast<char32_t>(std::stoul(first, nullptr, 16)), name);
  }
  ASSERT_GT(runs.size(), 1000U);
  for (size_t i = 0; i < runs.size(); ++i) {
    const char32_t end = i + 1 < runs.size() ? runs[i + 1].first : kNumCodePoints;
    for (char32_t c = runs[i].first; c < end; ++c) {
      if (is_surrogate(c)) continue;
      ASSERT_EQ(name_of(class_of(c)), runs[i].second) << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(UnicodeVectors, NormalizesAsHuggingFaceDoes) {
  const json& expected = vectors()["nfc"];
  constexpr char32_t kSlice = 4096;
  for (char32_t begin = 0; begin < kNumCodePoints; begin += kSlice) {
    std::string all;
    for (char32_t c = begin; c < begin + kSlice; ++c) {
      if (is_surrogate(c)) continue;
      std::string storage;
      if (c % kSlice != 0) all += "\n";
      all += to_nfc("a\u0301" + utf8(c) + "\u0323" + utf8(c) + "\u0301", storage);
    }
    EXPECT_EQ(sha256_hex(all).substr(0, 16), expected[begin / kSlice].get<std::string>())
        << "from U+" << std::hex << static_cast<uint32_t>(begin);
  }
}

}  // namespace
}  // namespace nmoe
