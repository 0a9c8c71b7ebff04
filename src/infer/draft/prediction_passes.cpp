#include "infer/draft/prediction_passes.h"

#include <algorithm>

#include "base/error.h"

namespace nmoe {

PredictionModel::PredictionModel(Model& model, Arena& kept, int64_t max_rows, int64_t max_logits)
    : model_(model),
      hidden_(kept.allocate(model.ops().compute_dtype(), {max_rows + max_logits, model.config().dim})),
      sources_(kept.allocate(DType::kI32, {max_rows})) {
  model_.keep_cached_states(hidden_.rows(0, max_rows));
  if (model_.ops().counting()) return;
  const std::vector<int32_t> firsts(static_cast<size_t>(max_rows));  // of rows that belong to no sequence
  model_.ops().device().upload(sources_, firsts.data());
}

void PredictionModel::set_sources(std::span<const int32_t> sources) {
  if (!sources.empty()) model_.ops().device().upload(sources_.rows(0, std::ssize(sources)), sources.data());
}

void PredictionModel::cached_logits(const CachedRows& rows, const ModelStates& states, Arena& activations,
                                    Tensor wanted, Tensor logits) {
  model_.cached_predictions({.rows = rows,
                             .sources = sources_.rows(0, rows.tokens.dim(0)),
                             .hidden = hidden_,
                             .made = hidden_.rows(max_rows(), max_rows() + wanted.dim(0))},
                            states, activations, wanted, logits);
}

void PredictionModel::cached_scores(const CachedRows& rows, const ModelStates& states, Arena& activations,
                                    const ScoredRows& scored) {
  NMOE_CHECK(scored.rows.dim(0) == 0, "{} scores of a module that drafts", scored.rows.dim(0));
  cached_logits(rows, states, activations, scored.rows, {});
}

PredictionPasses::PredictionPasses(const Config& config, const std::shared_ptr<const Tokenizer>& tokenizer,
                                   Model& the_model, const CachedModel& target, const RunnerRoom& room,
                                   int64_t cache_positions)
    : model(the_model, room.kept, target.max_rows(), std::max(CachedModel::kMaxLogits, target.num_slots())),
      cached(config, tokenizer, model, room,
             {.num_slots = target.num_slots(),
              .capacity = target.capacity(),
              .cache_positions = cache_positions,
              .max_rows = target.max_rows()}) {}

}  // namespace nmoe
