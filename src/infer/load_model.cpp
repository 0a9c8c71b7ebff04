#include "infer/load_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "config/layers.h"
#include "infer/draft/prediction_passes.h"

namespace nmoe {
namespace {

// A cached model with the weights that it runs.
struct OwnModel {
  OwnModel(const Config& the_config, const std::shared_ptr<const Tokenizer>& tokenizer, const LoadOptions& options,
           const WeightsPlace& place)
      : config(the_config),
        weights(config.model, place,
                [&](WeightSet& all, Storage& storage) {
                  ModelRunner rehearsed(config.model, all, storage.device(), RunnerRoom::of(storage),
                                        generation_runner(options.cached.capacity, config.generation.arithmetic));
                  const CachedModel model(config, tokenizer, rehearsed.model(), RunnerRoom::of(storage),
                                          options.cached);
                  make_predictions(config, tokenizer, rehearsed.model(), model, storage, options);
                }),
        runner(config.model, weights.weights(), weights.device(), RunnerRoom::of(weights.storage()),
               generation_runner(options.cached.capacity, config.generation.arithmetic)),
        cached(config, tokenizer, runner.model(), RunnerRoom::of(weights.storage()), options.cached),
        predictions(make_predictions(config, tokenizer, runner.model(), cached, weights.storage(), options)) {}

  static std::unique_ptr<PredictionPasses> make_predictions(const Config& config,
                                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                                            Model& model, const CachedModel& cached, Storage& storage,
                                                            const LoadOptions& options) {
    if (!options.predicts || config.model.mtp.depth == 0) return nullptr;
    return std::make_unique<PredictionPasses>(config, tokenizer, model, cached, RunnerRoom::of(storage),
                                              options.cached.cache_positions);
  }

  Config config;
  PlacedWeights weights;
  ModelRunner runner;
  CachedModel cached;
  std::unique_ptr<PredictionPasses> predictions;
};

int64_t positions_of(const CachedModelOptions& options) {
  return options.cache_positions > 0 ? options.cache_positions : options.num_slots * options.capacity;
}

std::shared_ptr<OwnModel> make_model(const Config& given, const std::shared_ptr<const Tokenizer>& tokenizer,
                                     LoadOptions options) {
  const Config config = with_arithmetic(given, options.arithmetic);
  options.cached.num_slots = slots_of(options.cached.num_slots);
  options.cached.capacity = context_of(config, options.cached.capacity);
  options.cached.cache_positions = cache_positions_of(options.cached.cache_positions);
  const DType dtype = generation_dtype(config, options.device);
  // Member by member: of designated ones GCC 12 warns that they may not be initialised.
  WeightsPlace place;
  place.device = {.kind = options.device, .num_threads = options.num_threads, .compute_dtype = dtype};
  place.work = options.work;
  place.remedy = [&](const StoragePlan& plan) {
    return fmt::format(
        "lower the sequences at a time (now {}), the context (now {} tokens) or the cached positions of all "
        "sequences together (now {}): the cache takes {}, the weights take {}",
        options.cached.num_slots, options.cached.capacity, positions_of(options.cached),
        human_bytes(plan[ArenaKind::kCache]), human_bytes(plan[ArenaKind::kParameters]));
  };
  return std::make_shared<OwnModel>(config, tokenizer, options, place);
}

// Each keeps all of it.
LoadedModel loaded(const std::shared_ptr<OwnModel>& model) {
  LoadedModel parts{.model = {model, &model->cached}, .predictions = nullptr};
  if (model->predictions != nullptr) parts.predictions = {model, model->predictions.get()};
  return parts;
}

}  // namespace

Config with_arithmetic(Config config, const std::optional<GenerationArithmetic>& arithmetic) {
  if (!arithmetic) return config;
  const std::vector<PartSpec> parts = parts_of(layer_specs(config.model));
  if (std::ranges::none_of(parts, [](const PartSpec& part) { return part.kind == PartKind::kMla; })) {
    throw usage_error("no layer has mla, which alone generates in two ways", "leave --arithmetic out");
  }
  config.generation.arithmetic = *arithmetic;
  return config;
}

RunnerOptions generation_runner(int64_t capacity, GenerationArithmetic arithmetic) {
  return {.max_positions = capacity, .arithmetic = Arithmetic::kBatchInvariant, .passes = {.generation = arithmetic}};
}

DType generation_dtype(const Config& config, const std::string& device) {
  return device == "cpu" || config.run.precision == Precision::kFp32 ? DType::kF32 : DType::kBF16;
}

void load_weights(const CheckpointReader& reader, PlacedWeights& placed) {
  std::vector<NamedTensor> tensors;
  for (const Weight& weight : placed.weights().all()) tensors.push_back({weight.spec.name, weight.value});
  if (!placed.device().memory_use()) return reader.load_model(tensors);  // they are in the host's memory
  if (reader.model().size() != tensors.size()) {
    throw usage_error(fmt::format("checkpoint '{}' has {} tensors, its configuration's model {}",
                                  reader.path().string(), reader.model().size(), tensors.size()),
                      "take a checkpoint as n train or n import wrote it");
  }
  std::vector<float> values;
  for (Weight& weight : placed.weights().all()) {
    values.resize(static_cast<size_t>(weight.shard.shape.num_elements()));
    reader.load(weight.spec.name, Tensor(values.data(), DType::kF32, weight.shard.shape));
    placed.set(weight, values.data());
  }
}

LoadedModel load_model(const std::filesystem::path& checkpoint, const LoadOptions& options) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  const auto model = make_model(saved_config(reader), reader.tokenizer(), options);
  load_weights(reader, model->weights);
  return loaded(model);
}

LoadedModel random_model(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, const LoadOptions& options) {
  const auto model = make_model(config, tokenizer, options);
  model->weights.initialise(static_cast<uint64_t>(config.run.seed), config.model.init.truncation);
  return loaded(model);
}

std::shared_ptr<CachedModel> load_cached_model(const std::filesystem::path& checkpoint, const LoadOptions& options) {
  return load_model(checkpoint, options).model;
}

std::shared_ptr<CachedModel> random_cached_model(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                                 const LoadOptions& options) {
  return random_model(config, std::move(tokenizer), options).model;
}

}  // namespace nmoe
