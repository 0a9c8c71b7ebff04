// What a text that is to be continued is for a model.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "chat/checkpoint_settings.h"
#include "infer/engine.h"

namespace nmoe {

// An imported model's text begins with its begin_ids; a model trained here knows how documents begin
// (InferenceEngine::encode_prompt). Of an imported model never empty: nothing at all is eos_id.
std::vector<int32_t> encode_prompt(const CheckpointSettings& settings, const InferenceEngine& engine,
                                   std::string_view text);

}  // namespace nmoe
