#include "infer/load_engine.h"

#include <algorithm>
#include <utility>

#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "infer/load_model.h"
#include "model/spec/spec.h"

namespace nmoe {
namespace {

void check_drafting(const Config& config, const InferenceOptions& options) {
  const ModelSpec spec = describe_model(config.model);
  const GenerationArithmetic arithmetic = options.arithmetic.value_or(config.generation.arithmetic);
  const bool goes_back = std::ranges::all_of(
      spec.parts(), [arithmetic](const DescribedPart& part) { return part.traits.state_in(arithmetic).goes_back(); });
  check_draft_target(options.draft, goes_back, config.model.mtp.depth > 0);
}

LoadOptions load_options(const InferenceOptions& options) {
  return {.device = options.device,
          .num_threads = options.num_threads,
          .cached = {.num_slots = options.max_sequences,
                     .capacity = options.max_context,
                     .cache_positions = options.cache_positions,
                     .max_drafts = most_drafts(options.draft)},
          .arithmetic = options.arithmetic,
          .predicts = options.draft.kind == DraftKind::kMtp};
}

// With the model that drafts, if one does.
EngineModels with_drafting(LoadedModel loaded, const InferenceOptions& options) {
  EngineModels models{.model = std::move(loaded.model), .drafting = {.predictions = std::move(loaded.predictions)}};
  if (options.draft.kind != DraftKind::kModel) return models;
  LoadOptions load = load_options(options);
  load.cached.capacity = models.model->capacity();
  load.cached.max_drafts = 0;
  load.arithmetic = std::nullopt;
  load.work = "drafting by " + options.draft.checkpoint;
  models.drafting.model = load_cached_model(options.draft.checkpoint, load);
  return models;
}

}  // namespace

EngineModels load_engine_models(const std::filesystem::path& checkpoint, const InferenceOptions& options) {
  check_drafting(saved_config(CheckpointReader::open(checkpoint)), options);
  return with_drafting(load_model(checkpoint, load_options(options)), options);
}

EngineModels random_engine_models(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                  const InferenceOptions& options) {
  check_drafting(config, options);
  return with_drafting(random_model(config, std::move(tokenizer), load_options(options)), options);
}

InferenceEngine::InferenceEngine(const std::filesystem::path& checkpoint, const InferenceOptions& options)
    : InferenceEngine(load_engine_models(checkpoint, options), options.draft) {}

InferenceEngine::InferenceEngine(EngineModels models, const DraftOptions& draft)
    : InferenceEngine(std::move(models.model), draft, std::move(models.drafting)) {}

}  // namespace nmoe
