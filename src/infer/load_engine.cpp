// Engines over models of checkpoints.
#include <utility>

#include "infer/engine.h"
#include "infer/load_model.h"

namespace nmoe {

InferenceEngine::Models InferenceEngine::load_models(const std::filesystem::path& checkpoint,
                                                     const InferenceOptions& options) {
  check_drafts(options.draft);
  LoadOptions load{.device = options.device,
                   .num_threads = options.num_threads,
                   .cached = {.num_slots = options.max_sequences,
                              .capacity = options.max_context,
                              .cache_positions = options.cache_positions,
                              .max_drafts = most_drafts(options.draft)},
                   .arithmetic = options.arithmetic,
                   .predicts = options.draft.kind == DraftKind::kMtp};
  auto [model, predictions] = load_model(checkpoint, load);
  Models models{.model = std::move(model), .drafting = {.predictions = std::move(predictions)}};
  if (options.draft.kind != DraftKind::kModel) return models;
  load.cached.capacity = models.model->capacity();
  load.cached.max_drafts = 0;
  load.arithmetic = std::nullopt;
  load.work = "drafting by " + options.draft.checkpoint;
  models.drafting.model = load_cached_model(options.draft.checkpoint, load);
  return models;
}

InferenceEngine::InferenceEngine(const std::filesystem::path& checkpoint, const InferenceOptions& options)
    : InferenceEngine(load_models(checkpoint, options), options.draft) {}

InferenceEngine::InferenceEngine(Models models, const DraftOptions& draft)
    : InferenceEngine(std::move(models.model), draft, std::move(models.drafting)) {}

}  // namespace nmoe
