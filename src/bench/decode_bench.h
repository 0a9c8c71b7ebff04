// How fast a model writes, and how much faster than one that runs the whole text again for every token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/engine.h"

namespace nmoe {

struct DecodeBench {
  // Requests of `context` random ids each that write together, sampled as n generate does: all that a user waits for.
  struct Batch {
    int64_t sequences = 0;
    int64_t context = 0;
    double prompt_tokens_per_s = 0.0;  // until all have been read
    double tokens_per_s = 0.0;         // of all together, while all write
    // What a step that gives each a token has to read: weights of what all tokens pass and of as many experts as even
    // routing touches on average, and the cache.
    double bytes_per_step = 0.0;
    double bytes_per_s() const { return bytes_per_step * tokens_per_s / static_cast<double>(sequences); }
  };
  // Prompts that are read, with nothing written but a token each.
  struct Prompts {
    int64_t prompts = 0;
    int64_t tokens = 0;  // of all
    double tokens_per_s = 0.0;
  };
  std::string device;
  std::vector<Batch> batches;  // none where prompts are timed
  std::optional<Prompts> prompts;

  // On the CPU. One text of `tokens` tokens, from its first: by the engine, and by a forward of everything so far for
  // every token (products that need not be batch invariant, logits of the last position alone; no sampling). Medians of
  // runs that alternate.
  int64_t tokens = 0;  // 0: not measured
  double text_ms = 0.0;
  double rerun_text_ms = 0.0;  // from forwards of 16 lengths
  double last_token_ms = 0.0;  // the token at position `tokens`: a mean over the last eighth of the text
  double rerun_last_token_ms = 0.0;
};

struct DecodeBenchOptions {
  std::string device = "cpu";  // InferenceOptions
  int num_threads = 0;
  int64_t tokens = 256;          // of the longest text
  std::vector<int64_t> batches;  // texts written at a time; empty: 1, 4 and 16 on the CPU, 1, 16 and 256 else
  // Where there are any, they alone are timed: of evenly spread lengths in a random order, min_prompt to max_prompt
  // tokens, kPromptSlots at a time.
  static constexpr int64_t kPromptSlots = 32;
  int64_t prompts = 0;
  int64_t min_prompt = 256, max_prompt = 4096;
  int64_t pass_rows = 0;  // CachedModelOptions::max_rows
};

// Random weights of `config` (model.vocab_size set) where `checkpoint` is empty. Errors: InferenceEngine.
DecodeBench bench_decode(const std::string& checkpoint, const Config& config,
                         std::shared_ptr<const Tokenizer> tokenizer, const DecodeBenchOptions& options);

}  // namespace nmoe
