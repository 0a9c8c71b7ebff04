// What an exported model's folder has beside config.json and weights: how text begins and ends, and what the model is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "hf/config_json.h"

namespace nmoe {

// generation_config.json: the ids with which generate() begins, ends and fills up.
std::string generation_config_json(const HfModel& model);

// tokenizer.json as transformers reads it. `begins_with`, unless empty, is the special token that it is to put in front
// of every text: only a post-processor does that, since PreTrainedTokenizerFast does not act on "add_bos_token" in
// every version. One that the file has and that adds tokens of its own is replaced: training never saw those.
std::string exported_tokenizer_json(const Tokenizer& tokenizer, std::string_view begins_with);

// tokenizer_config.json of a tokenizer that nmoe trained with.
std::string tokenizer_config_json(const Tokenizer& tokenizer, std::string_view begins_with, int64_t max_positions);

// A generation_config.json with `stop_ids` among its "eos_token_id", behind those that it has; the same text where it
// has all. Error (runtime), naming the file, where it is no such JSON.
std::string with_stop_ids(const std::string& generation_config, std::span<const int32_t> stop_ids);

// A tokenizer_config.json with this "chat_template"; the same text where it has it. Error as above.
std::string with_chat_template(const std::string& tokenizer_config, const std::string& chat_template);

// What a model card can say without being told.
struct ModelCard {
  std::string name;
  HfModel model;
  int64_t parameters = 0;
  int64_t active_parameters = 0;  // for a token
  int64_t steps = 0;              // of optimizer, here
  int64_t tokens = 0;             // trained on, here
  std::string version;            // nmoe's, that trained it
  std::string weights_sha256;
  bool has_tokenizer = false;
  std::string begins_with;  // as above
  bool has_chat_template = false;
  bool imported = false;  // training went on from another model, whose own card is README.base.md if it had one
  bool has_base_card = false;
};
// README.md, with the metadata in front that Hugging Face's hub reads. What nmoe cannot know (text, terms, evaluation)
// is left to its reader, by name.
std::string model_card(const ModelCard& card);

}  // namespace nmoe
