// Weights that are read or drawn for generation and scores alone, on a device of their own.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/cached_model.h"
#include "model/placed_weights.h"

namespace nmoe {

class CheckpointReader;
struct PredictionPasses;

struct LoadOptions {
  std::string device = "cpu";  // "cpu", or "cuda" in bf16, in fp32 where run.precision says so
  int num_threads = 0;         // 0: one per available CPU
  CachedModelOptions cached = {};
  std::optional<GenerationArithmetic> arithmetic = {};  // in place of the configuration's generation.arithmetic
  bool predicts = false;                                // LoadedModel::predictions are wanted
  std::string work = "generation";                      // what the memory is for, in errors
};

// The configuration with that generation.arithmetic, if one is given. Error (usage) where no layer has mla, which alone
// generates in two ways.
Config with_arithmetic(Config config, const std::optional<GenerationArithmetic>& arithmetic);

// How a runner generates: batch-invariant, in that arithmetic.
RunnerOptions generation_runner(int64_t capacity, GenerationArithmetic arithmetic);

// The weights, configuration and tokenizer of a checkpoint, or of the latest in a folder of them. The result keeps what
// it runs on. All memory is taken here. Errors: CheckpointReader's; usage, when options are out of their range or, with
// what to lower, when the machine has too little.
std::shared_ptr<CachedModel> load_cached_model(const std::filesystem::path& checkpoint, const LoadOptions& options);
// The same, with passes of its first module of multi-token prediction, if they are wanted and there is one.
struct LoadedModel {
  std::shared_ptr<CachedModel> model;
  std::shared_ptr<PredictionPasses> predictions;
};
LoadedModel load_model(const std::filesystem::path& checkpoint, const LoadOptions& options);
// The same with random weights by config.run.seed. config.model.vocab_size is set.
std::shared_ptr<CachedModel> random_cached_model(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                                 const LoadOptions& options);
LoadedModel random_model(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, const LoadOptions& options);

// Gives weights the values of a checkpoint. Errors: CheckpointReader's; usage, where it has other tensors.
void load_weights(const CheckpointReader& reader, PlacedWeights& placed);
// The compute dtype of generation on that kind of device.
DType generation_dtype(const Config& config, const std::string& device);

}  // namespace nmoe
