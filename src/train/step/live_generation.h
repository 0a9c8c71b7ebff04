// Generation from the weights that an engine trains, between two of its steps: in the same process, without a copy of
// them, and in memory of the steps' activations, which are empty then. Nothing of a step changes. On a GPU passes are
// recorded as any generation's (infer/cached_model.h); recordings hold addresses in that memory, and go with it.
//
// Where ranks share the experts, no rank has all weights, and none generates in this way (is_possible).
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/cached_model.h"
#include "infer/engine.h"
#include "train/step/engine.h"

namespace nmoe {

// What a run generates between its steps.
struct LiveGenerationNeeds {
  int64_t capacity = 0;  // positions of a sequence; 0: it generates nothing

  explicit operator bool() const { return capacity > 0; }
};
// train.sample_prompts, up to data.seq_len tokens with what is written, and the tasks of [eval] whose answers are
// written, which may be as long as that. Known before anything is tokenized: a token stands for a byte or more. Errors:
// find_task_suite's.
LiveGenerationNeeds live_generation_needs(const Config& config);
// Of the tokens of a prompt, those that begin a text.
constexpr int64_t kMostBeginIds = 16;

// Host memory that it takes beside arenas while it lives.
int64_t live_generation_host_bytes(const Config& config);

class LiveGeneration {
 public:
  static constexpr int64_t kSequences = 8;  // at a time

  // Whether all weights are on the engine's rank.
  static bool is_possible(const Engine& engine) { return !engine.shares_experts(); }

  // Until it is gone, the engine makes no pass. Made on a counting engine, it makes its largest passes: a plan has
  // them, and needs no tokenizer. `config` is the engine's.
  LiveGeneration(const Config& config, Engine& engine, std::shared_ptr<const Tokenizer> tokenizer,
                 const LiveGenerationNeeds& needs);
  LiveGeneration(const LiveGeneration&) = delete;
  LiveGeneration& operator=(const LiveGeneration&) = delete;

  CachedModel& model() { return *cached_; }
  InferenceEngine& engine() { return inference_; }

 private:
  ArenaScope scope_;
  ModelRunner runner_;
  std::shared_ptr<CachedModel> cached_;
  InferenceEngine inference_;
};

}  // namespace nmoe
