// Evaluation on tasks during training ([eval]).
//
// Texts are scored by the engine's own forward pass, in place of a microbatch, as in validation; answers are written by
// generation from its weights (train/step/live_generation.h), as `n eval` writes them. No weight, statistic or input of
// a step changes.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "eval/evaluate.h"
#include "train/step/engine.h"

namespace nmoe {

// Scores texts with an engine. All ranks request the same texts: the rows of a pass are divided among them, each text
// is scored by one, and all ranks get all scores. A sequence holds one text or, with data.mask_documents, several.
class EngineScorer final : public Scorer {
 public:
  EngineScorer(Engine& engine, const Config& config);

  int64_t max_tokens() const override { return seq_len_; }
  void score(std::span<const std::vector<ScoredText>* const> groups,
             const std::function<void(size_t group, std::span<const TextScore> scores)>& done) override;
  int64_t computed_tokens() const override { return computed_tokens_; }

 private:
  struct Place {
    const ScoredText* text;
    size_t index;   // of the text, among all
    int64_t first;  // in its sequence
  };
  using Sequence = std::vector<Place>;

  std::vector<Sequence> place(std::span<const ScoredText* const> texts) const;
  // Scores this rank's sequences of a pass: at most a microbatch's.
  void run(std::span<const Sequence> sequences, std::vector<TextScore>& scores);

  Engine& engine_;
  int64_t seq_len_;
  int64_t num_seqs_;   // of a microbatch
  int64_t alignment_;  // of texts: data.align_documents
  int64_t computed_tokens_ = 0;
};

// The tasks of [eval], read and tokenized before the first step. Const: shared by the ranks of a process.
class InLoopEvaluation {
 public:
  // Null if eval.every is 0. Every text begins with `begin_ids`. Errors: find_task_suite's, TaskEvaluation's; usage,
  // where answers are to be written that are programs, that data.seq_len has no room for, or by several ranks.
  static std::unique_ptr<const InLoopEvaluation> make(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                                      std::vector<int32_t> begin_ids);

  EvalReport run(Engine& engine, const Config& config) const;

 private:
  InLoopEvaluation(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin_ids);

  struct Suite {
    TaskSuite description;
    std::vector<TaskEvaluation> tasks;
  };
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenRules rules_;
  std::vector<Suite> suites_;
};

}  // namespace nmoe
