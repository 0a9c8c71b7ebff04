// What a checkpoint that came from Hugging Face says about its use: the folder `huggingface` in it.
//
//   chat_template.jinja      how a conversation becomes text; else "chat_template" of tokenizer_config.json: a string,
//                            or a list of {"name", "template"}, of which "default" counts
//   tokenizer_config.json    "bos_token", "eos_token" and the like: a string, or {"content": string}; "add_bos_token"
//   tokenizer.json           what its post-processor (TemplateProcessing) puts in front of a text, where add_bos_token
//                            does not say; never what it puts behind, since a text is to go on
//   generation_config.json   "eos_token_id" (an id or a list), "temperature", "top_k", "top_p", "min_p",
//                            "repetition_penalty"
//   config.json              "eos_token_id", where generation_config.json says nothing of it
//
// Every file may be missing. Checkpoints that nmoe trained from the beginning have at most the template of the
// conversations that they were trained on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// null where the checkpoint says nothing.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
};

struct CheckpointSettings {
  std::string chat_template;                          // "": none
  std::string chat_template_file;                     // where it is, for messages
  std::map<std::string, std::string> special_tokens;  // by role: "bos_token", "eos_token", ...
  std::vector<int32_t> stop_ids;                      // ids that end a reply beside the end of a document; ascending
  std::vector<int32_t> begin_ids;  // begin a text that is to be continued; a conversation begins as its template says
  bool imported = false;           // the model, or the one that training began with, came from Hugging Face
  SamplingDefaults sampling;
};

// `checkpoint` is one checkpoint's own folder, `tokenizer` what is in it. Without the folder `huggingface`, eos_token
// is the name of the tokenizer's eos_id. Error (runtime) naming the file and the key that is not as above.
CheckpointSettings read_checkpoint_settings(const fs::path& checkpoint, const Tokenizer& tokenizer);
// The same of a folder that holds these files itself.
CheckpointSettings read_model_settings(const fs::path& folder, const Tokenizer& tokenizer);

// begin_ids and stop_ids of a checkpoint's model that came from Hugging Face; nothing of one that did not. Error as
// above.
std::optional<TextIds> imported_text_ids(const fs::path& checkpoint, const Tokenizer& tokenizer);

// The special tokens, by name, that such a folder's tokenizer puts in front of a text. Error as above.
std::vector<std::string> read_begin_tokens(const fs::path& folder);

}  // namespace nmoe
