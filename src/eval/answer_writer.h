// Answers that a model writes to prompts, as many at a time as generation has sequences.
//
// An answer depends on the model, its prompt and its seed alone (infer/engine.h): neither their order nor what else is
// being generated changes a byte.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/journal.h"
#include "eval/task.h"
#include "infer/engine.h"

namespace nmoe {

struct AnswerPrompt {
  const std::vector<int32_t>* tokens = nullptr;
  uint64_t seed = 0;  // of its first sample; the next ones have the next seeds
};

class AnswerWriter {
 public:
  // `stop_ids` end an answer, as does the tokenizer's eos_id.
  AnswerWriter(InferenceEngine& engine, std::vector<int32_t> stop_ids)
      : engine_(engine), stop_ids_(std::move(stop_ids)) {}

  // Writes spec.samples answers to each prompt. Calls `done` with prompts whose answers are complete, by their
  // index, in no particular order. Errors: InferenceEngine's.
  struct Written {
    size_t prompt = 0;
    std::vector<WrittenAnswer> answers;
  };
  void write(std::span<const AnswerPrompt> prompts, const GenerationSpec& spec,
             const std::function<void(std::vector<Written> written)>& done);
  // Tokens that the model has computed so far, including those of prompts that were not in the cache.
  int64_t computed_tokens() const { return computed_tokens_; }

 private:
  InferenceEngine& engine_;
  std::vector<int32_t> stop_ids_;
  int64_t computed_tokens_ = 0;
};

}  // namespace nmoe
