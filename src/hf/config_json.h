// A model's config.json, as Hugging Face's transformers writes and reads it, to and from ModelConfig.
//
// Every key of a config.json is modelled (read into HfModel, or fixed to the one value that nmoe computes), harmless
// (changes no weight and no result: named in config_json.cpp) or refused: a key that is not known is an error, and so
// is a value that nmoe would compute differently. Where transformers 5.17 and DeepSeek's original code disagree on what
// a value means, it is refused too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hf/hf_model.h"

namespace nmoe {

// Reads the text of a config.json; `path` stands for it in messages. Error (runtime) naming the key when the text is
// not JSON, when a key is missing or contradicts another; or naming all keys that are unknown or ask for what nmoe does
// not have. Of a type that is not read, it says what that would need, as far as is known.
HfModel from_config_json(std::string_view text, const std::string& path);

// The text of a config.json that transformers loads as `model`, readable by from_config_json: what that returns has the
// same weights and computes the same. With `base`, the text of the config.json that the model came from (same type),
// everything in it stays that does not say otherwise than `model`: keys without meaning to nmoe, their order, and the
// way modelled keys are written. Error (usage) not_expressible.
std::string to_config_json(const HfModel& model, std::string_view base = {});

// A type that computes what `config` does, or comes nearest to it.
ModelType nearest_type(const ModelConfig& config);

// What makes `config` no model of this type, a key each: "model.window = 16: deepseek_v3 has no windows". Nothing where
// it is one. Layouts of rotated pairs are no obstacle: hf/tensor_map.h.
std::vector<std::string> obstacles_to(const ModelConfig& config, ModelType type);
// The Error (usage) that names all of them, of which there are some.
Error not_expressible(ModelType type, const std::vector<std::string>& obstacles);

}  // namespace nmoe
