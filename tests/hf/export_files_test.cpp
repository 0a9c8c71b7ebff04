#include "hf/export_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/tokenizer_json.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using AnyOrderJson = nlohmann::json;
using test::contains;

// 257 ids, the last of which ends documents.
std::shared_ptr<const Tokenizer> tokenizer_with(const char* post_processor) {
  BpeModel model = train_bpe_model({{"a", 1}}, 257);
  model.post_processor = post_processor;
  return make_bpe_tokenizer(std::move(model));
}

AnyOrderJson post_processor(const char* given, std::string_view begins_with) {
  return AnyOrderJson::parse(exported_tokenizer_json(*tokenizer_with(given), begins_with))["post_processor"];
}

// The tokens that a TemplateProcessing adds to a text and to a pair, and where. The format is that of Hugging Face's
// tokenizers, as the files of Llama 3 and of DeepSeek's coder have it.
const AnyOrderJson kPrepend = AnyOrderJson::parse(R"({
  "type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
  "pair": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
           {"SpecialToken": {"id": "<|endoftext|>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
  "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}}})");

TEST(ExportFiles, ReadersOfTheFolderStopWhereTurnsEnd) {
  const auto ids = [](const char* config, std::vector<int32_t> stops) {
    return AnyOrderJson::parse(with_stop_ids(config, stops))["eos_token_id"];
  };
  EXPECT_EQ(ids(R"({"eos_token_id": 5, "top_k": 3})", {7, 5, 6}), (AnyOrderJson{5, 7, 6}));
  EXPECT_EQ(ids(R"({"eos_token_id": [5, 6]})", {7}), (AnyOrderJson{5, 6, 7}));
  EXPECT_EQ(ids("{}", {7}), 7);
  EXPECT_EQ(ids("{}", {7, 8}), (AnyOrderJson{7, 8}));
  // Nothing to add: the bytes stay.
  const std::vector<int32_t> known = {5};
  EXPECT_EQ(with_stop_ids(R"({"eos_token_id":5 })", known), R"({"eos_token_id":5 })");
  EXPECT_TRUE(contains(test::error_of([&] { with_stop_ids("[]", known); }).what(), "generation_config.json"));

  const std::string config = with_chat_template(R"({"eos_token": "x", "chat_template": "old"})", "new");
  EXPECT_EQ(AnyOrderJson::parse(config), (AnyOrderJson{{"eos_token", "x"}, {"chat_template", "new"}}));
  EXPECT_EQ(with_chat_template(R"({"chat_template":"new" })", "new"), R"({"chat_template":"new" })");
}

TEST(ExportFiles, ThePostProcessorPutsTheTokenInFront) {
  EXPECT_EQ(post_processor("", kEosText), kPrepend);
  EXPECT_EQ(post_processor("", ""), AnyOrderJson());
}

TEST(ExportFiles, APostProcessorOfTheFilesOwnAddsNothingElse) {
  const char* offsets = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})";
  EXPECT_EQ(post_processor(offsets, ""), AnyOrderJson::parse(offsets));
  const AnyOrderJson both = {{"type", "Sequence"}, {"processors", {AnyOrderJson::parse(offsets), kPrepend}}};
  EXPECT_EQ(post_processor(offsets, kEosText), both);
  EXPECT_EQ(post_processor(both.dump().c_str(), kEosText), both);
  EXPECT_EQ(post_processor(both.dump().c_str(), ""), AnyOrderJson::parse(offsets));
  EXPECT_EQ(post_processor(R"({"type": "TemplateProcessing", "single": []})", ""), AnyOrderJson());
  EXPECT_EQ(post_processor(R"({"type": "BertProcessing", "sep": ["x", 1]})", kEosText), kPrepend);
}

// What stands there is still the same tokenizer.
TEST(ExportFiles, TheTokenizerReadsBackAsItWas) {
  const auto before = tokenizer_with("");
  const BpeModel after = bpe_from_json(exported_tokenizer_json(*before, kEosText), "tokenizer.json", "");
  EXPECT_EQ(make_bpe_tokenizer(after)->hash(), before->hash());
}

TEST(ExportFiles, TheTokenizersConfiguration) {
  const auto tokenizer = tokenizer_with("");
  const AnyOrderJson json = AnyOrderJson::parse(tokenizer_config_json(*tokenizer, kEosText, 64));
  EXPECT_EQ(json["model_max_length"], 64);
  for (const char* role : {"eos_token", "bos_token", "pad_token"}) EXPECT_EQ(json[role], kEosText) << role;
  EXPECT_EQ(json["add_bos_token"], true);
  EXPECT_EQ(AnyOrderJson::parse(tokenizer_config_json(*tokenizer, "", 64))["add_bos_token"], false);
}

TEST(ExportFiles, GenerationKnowsWhereATextEnds) {
  HfModel model;
  EXPECT_EQ(AnyOrderJson::parse(generation_config_json(model)), AnyOrderJson::object());
  model.bos_id = 7;
  model.eos_ids = {8};
  EXPECT_EQ(AnyOrderJson::parse(generation_config_json(model)),
            AnyOrderJson::parse(R"({"bos_token_id": 7, "eos_token_id": 8, "pad_token_id": 8})"));
  model.eos_ids = {8, 9};
  EXPECT_EQ(AnyOrderJson::parse(generation_config_json(model))["eos_token_id"], AnyOrderJson({8, 9}));
}

TEST(ExportFiles, TheModelCardSaysWhatIsKnown) {
  ModelCard card{.name = "small", .parameters = 2'800'000, .active_parameters = 1'200'000, .steps = 500};
  card.model.config.moe.num_experts = 16;
  card.model.dtype = "float32";
  card.has_tokenizer = true;
  card.begins_with = kEosText;
  card.weights_sha256 = "abc123";
  const std::string text = model_card(card);
  EXPECT_TRUE(text.starts_with("---\nlibrary_name: transformers\n")) << text;
  for (const char* part :
       {"\n# small\n", "2.80 M, of which a token uses 1.20 M", "500 steps", "`abc123`", "| 16 a layer",
        "`DeepseekV3ForCausalLM`", "AutoTokenizer", "puts `<|endoftext|>` in front", "licence"}) {
    EXPECT_TRUE(contains(text, part)) << part << " in\n" << text;
  }
  EXPECT_FALSE(contains(text, "README.base.md"));
  card.has_tokenizer = false;
  card.imported = card.has_base_card = true;
  EXPECT_FALSE(contains(model_card(card), "AutoTokenizer"));
  EXPECT_TRUE(contains(model_card(card), "README.base.md"));
  EXPECT_TRUE(contains(model_card(card), "trained further"));
}

}  // namespace
}  // namespace nmoe
