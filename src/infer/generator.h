// Text from a checkpoint, token by token.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/sampler.h"
#include "model/model.h"
#include "ops/backend.h"

namespace nmoe {

struct GenerateOptions {
  std::string prompt;  // empty: the start of a document
  int64_t max_tokens = 200;
  SamplingOptions sampling;
};

struct GenerateResult {
  int64_t tokens = 0;
  bool ended = false;  // the model ended the document itself
};

// A model loaded for generation. Every token runs the whole prefix again, of which the last seq_len tokens count.
class Generator {
 public:
  // `checkpoint` is a checkpoint folder or a folder of them (the latest). Errors: CheckpointReader.
  Generator(const std::filesystem::path& checkpoint, int num_threads);

  // Hands each piece of text to `emit` as it comes: whole UTF-8 characters, the prompt not included.
  GenerateResult generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

  const Config& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::span<const float> next_logits(std::span<const int32_t> context);

  Config config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Backend> ops_;
  Arena values_{"parameters"}, grads_{"gradients"}, state_{"state"}, activations_{"activations"};
  std::unique_ptr<Model> model_;
  Tensor tokens_;     // [seq_len] i32
  Tensor positions_;  // [seq_len] i32
  Tensor logits_;     // [1, V]
  std::vector<float> host_logits_;
};

}  // namespace nmoe
