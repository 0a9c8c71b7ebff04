// Texts that a model generates during training, from train.sample_prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/sampler.h"
#include "track/run_files.h"
#include "train/step/engine.h"
#include "train/step/live_generation.h"

namespace nmoe {

// By generation from the engine's weights between two steps (train/step/live_generation.h), by rank 0. Where ranks
// share experts, each token costs a forward pass of all ranks over a microbatch, for all prompts that fit at once,
// since no rank has all weights and there is no cache. Tokens are sampled at temperature kSampleTemperature with top-p
// kSampleTopP, seeded by the run's seed, the step and the prompt. No weight, statistic or input of a step changes.
inline constexpr double kSampleTemperature = 0.8, kSampleTopP = 0.95;

class SampleTexts {
 public:
  // Of a run's prompts, tokenized behind `begin_ids`. Error (usage) for one that leaves no room in data.seq_len.
  SampleTexts(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, std::span<const int32_t> begin_ids);

  bool empty() const { return prompts_.empty(); }
  // All ranks call it; rank 0 gets the texts, in the order of the prompts. A text ends with its document, where no
  // logit is finite, or behind data.seq_len tokens with its prompt.
  std::vector<SampleText> write(Engine& engine, int64_t step) const;

 private:
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
  };
  SamplingOptions sampling(int64_t step, size_t prompt) const;
  SampleText text_of(size_t prompt, std::span<const int32_t> written) const;
  std::vector<SampleText> write_live(Engine& engine, int64_t step) const;
  void write_some(Engine& engine, int64_t step, size_t first, std::vector<SampleText>& texts) const;

  Config config_;
  LiveGenerationNeeds needs_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Prompt> prompts_;
};

}  // namespace nmoe
