// A model as its config.json describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "hf/model_type.h"

namespace nmoe {

// Weights of an fp8 model are float8 e4m3 with one scale for each block of so many rows and columns.
constexpr int64_t kHfFp8Block = 128;

// What matrices are in files.
enum class HfFormat {
  kPlain,
  kFp8,    // in blocks of kHfFp8Block
  kMxFp4,  // experts, in blocks of 32 (hf/weights.h)
};
// What config.json's `scale_fmt` says scales are: any numbers ("float", or nothing), or powers of two ("ue8m0").
enum class HfScales { kNumbers, kPowersOfTwo };

struct HfModel {
  ModelType type = ModelType::kDeepseekV3;
  // vocab_size and max_positions are never 0. What config.json does not say (init, loss coefficients, bias_rate of
  // sigmoid routers) has its default; yarn too when its factor is 1.
  ModelConfig config;
  int64_t num_nextn_predict_layers = 0;  // modules that predict further tokens, kept as layers behind the last
  std::string prediction_layers;         // of a module, as a pattern; empty: one as the model's last
  std::string dtype;                     // of the weights: "bfloat16", "float16", "float32"; empty: not said
  HfFormat format = HfFormat::kPlain;
  HfScales scales = HfScales::kNumbers;  // of kFp8
  std::optional<int64_t> bos_id;
  std::vector<int64_t> eos_ids;
};

}  // namespace nmoe
