#include "data/tokenizer/word_tokenizer.h"

#include <array>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool is_word(std::string_view text) {
  constexpr std::string_view kCharacters =
      "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";
  return !text.empty() && text.find_first_not_of(kCharacters) == std::string_view::npos && text != kEosText;
}

class WordTokenizer final : public Tokenizer {
 public:
  explicit WordTokenizer(std::vector<std::string> words)
      : eos_{{std::string(kEosText), static_cast<int32_t>(words.size())}} {
    for (std::string& word : words) {
      NMOE_CHECK(is_word(word), "\"{}\" is not a word", word);
      const bool is_new = ids_.emplace(word, static_cast<int32_t>(texts_.size())).second;
      NMOE_CHECK(is_new, "the word \"{}\" twice", word);
      texts_.push_back(std::move(word) + ' ');
    }
  }

  std::string_view name() const override { return "words"; }
  std::vector<std::string> patterns() const override { return {"white space"}; }
  std::span<const NamedToken> special_tokens() const override { return eos_; }

  using Tokenizer::encode;

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    for (size_t begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
      const std::string word(text.substr(begin, end - begin));
      const auto found = ids_.find(word);
      if (found == ids_.end()) {
        throw runtime_error(
            fmt::format("the text has the word \"{}\" at byte {}, which is none of the {} words there are", word, begin,
                        texts_.size()),
            "`n tokenizer info` tells the size of the vocabulary; tokenizer.json lists its words");
      }
      out.push_back(found->second);
      begin = text.find_first_not_of(kSpaces, end);
    }
  }

  std::string_view token_bytes(int32_t id) const override {
    NMOE_CHECK(id >= 0 && id < vocab_size(), "id {} of {}", id, vocab_size());
    return id == eos_id() ? std::string_view() : texts_[static_cast<size_t>(id)];
  }

  int64_t vocab_size() const override { return eos_id() + 1; }
  int32_t eos_id() const override { return eos_[0].id; }

  std::string hash() const override {
    Sha256 sha;
    sha.update("nmoe words 1\n");
    for (const std::string& text : texts_) sha.update(text);
    return sha.finish();
  }

  std::string hash_with_end(int32_t /*eos_id*/) const override { return hash(); }

  std::string json() const override {
    ordered_json::object_t vocab;
    for (size_t id = 0; id < texts_.size(); ++id) vocab.emplace_back(texts_[id].substr(0, texts_[id].size() - 1), id);
    vocab.emplace_back(std::string(kEosText), eos_id());
    const ordered_json end_of_text = {{"id", eos_id()},  {"content", kEosText}, {"single_word", false},
                                      {"lstrip", false}, {"rstrip", false},     {"normalized", false},
                                      {"special", true}};
    const ordered_json file = {{"version", "1.0"},
                               {"truncation", nullptr},
                               {"padding", nullptr},
                               {"added_tokens", ordered_json::array({end_of_text})},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                               {"post_processor", nullptr},
                               {"decoder", nullptr},
                               // The format wants an unknown word; this one is in no vocabulary, so there is none.
                               {"model", {{"type", "WordLevel"}, {"vocab", std::move(vocab)}, {"unk_token", "<unk>"}}}};
    return file.dump(2) + '\n';
  }

 private:
  std::vector<std::string> texts_;  // with their space
  std::unordered_map<std::string, int32_t> ids_;
  std::array<NamedToken, 1> eos_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_word_tokenizer(std::vector<std::string> words) {
  return std::make_shared<const WordTokenizer>(std::move(words));
}

std::shared_ptr<const Tokenizer> word_tokenizer_from_json(std::string_view text, std::string_view path) {
  if (text.find("\"WordLevel\"") == std::string_view::npos) return nullptr;  // before parsing a large vocabulary
  const json file = try_parse_json<json>(text);
  const json::json_pointer type("/model/type"), vocabulary("/model/vocab");
  if (!file.is_object() || !file.contains(type) || file[type] != "WordLevel") return nullptr;
  const auto refuse = [&](const std::string& what) {
    return runtime_error(fmt::format("cannot use tokenizer '{}': {}", path, what),
                         "use one that `n data synthesize` wrote");
  };
  if (!file.contains(vocabulary) || !file[vocabulary].is_object() || file[vocabulary].empty()) {
    throw refuse("/model/vocab is not a vocabulary");
  }
  const json& vocab = file[vocabulary];
  std::vector<std::string> words(vocab.size());
  for (const auto& [word, id] : vocab.items()) {
    if (!is_word(word) && word != kEosText)
      throw refuse(fmt::format("/model/vocab has '{}', which is not a word", word));
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab.size() || !words[id.get<size_t>()].empty()) {
      throw refuse(fmt::format("/model/vocab gives '{}' the id {}: not one of 0 to {}, each once", word, id.dump(),
                               vocab.size() - 1));
    }
    words[id.get<size_t>()] = word;
  }
  if (words.back() != kEosText) throw refuse(fmt::format("its last id is not {}", kEosText));
  words.pop_back();
  auto tokenizer = make_word_tokenizer(std::move(words));
  if (parse_json<json>(tokenizer->json()) != file) throw refuse("it has more than words");
  return tokenizer;
}

}  // namespace nmoe
