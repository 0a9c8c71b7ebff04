// Passes of a model's own module of multi-token prediction (model/prediction_module.h), for guesses: with states of its
// own, in pages of their own, beside those of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "infer/cached_model.h"
#include "model/model.h"

namespace nmoe {

// The module as a model of rows: what row t goes on from is set beforehand.
class PredictionModel final : public SequenceModel {
 public:
  // Of `model`, whose cached passes of up to max_rows rows leave their states here from now on. Passes want the logits
  // of up to max_logits rows.
  PredictionModel(Model& model, Arena& kept, int64_t max_rows, int64_t max_logits);

  // For the next pass: row t goes on from what row sources[t] of the model's last pass left or, from max_rows on, from
  // what wanted row sources[t] - max_rows of the module's last pass left.
  void set_sources(std::span<const int32_t> sources);
  int64_t max_rows() const { return sources_.dim(0); }

  Ops& ops() const override { return model_.ops(); }
  int64_t vocab_size() const override { return model_.vocab_size(); }
  std::vector<StateSpec> states() const override { return model_.prediction_states(); }
  void cached_logits(const CachedRows& rows, const ModelStates& states, Arena& activations, Tensor wanted,
                     Tensor logits) override;
  void cached_scores(const CachedRows& rows, const ModelStates& states, Arena& activations,
                     const ScoredRows& scored) override;  // of no rows

 private:
  Model& model_;
  Tensor hidden_;   // [max_rows + max_logits, D] act
  Tensor sources_;  // [max_rows] i32
};

struct PredictionPasses {
  // Beside `target`, the model's, with its sizes. Everything outlives it.
  PredictionPasses(const Config& config, const std::shared_ptr<const Tokenizer>& tokenizer, Model& the_model,
                   const CachedModel& target, const RunnerRoom& room, int64_t cache_positions);

  PredictionModel model;
  CachedModel cached;
};

}  // namespace nmoe
