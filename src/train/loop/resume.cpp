#include "train/loop/resume.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/saved_config.h"
#include "config/layers.h"
#include "config/load.h"
#include "config/training_keys.h"
#include "data/shards/corpus_folder.h"
#include "hf/files.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

// How the model of `saved` computes otherwise than `model`, in what may not change when training goes on with
// its weights; rotation wavelengths, routing losses and rates may.
std::string other_model(const ModelConfig& saved, ModelConfig model) {
  take_training_keys(model, saved);
  model.rope.theta = saved.rope.theta;
  model.yarn = saved.yarn;
  model.max_positions = saved.max_positions;
  return explain_difference(saved, model);
}

// A manifest's hash proves nothing, and where experts are goes into memory by the model's sizes.
void check_places(const CheckpointReader& reader, const Config& config) {
  const ExpertPlacement& places = reader.info().experts.places;
  const std::vector<LayerSpec> layers = all_layer_specs(config.model);
  const auto num_experts = static_cast<size_t>(config.model.moe.num_experts);
  const bool fit = count_parts(layers, PartKind::kMoe) == std::ssize(places) &&
                   std::ranges::all_of(places, [&](const auto& layer) { return layer.size() == num_experts; });
  if (places.empty() || fit) return;
  throw runtime_error(fmt::format("the places of experts in '{}' are not those of its model",
                                  (reader.path() / "manifest.json").string()),
                      "move this checkpoint away to resume from the one before it");
}

// The tokenizer first: the size of the vocabulary follows from it.
void check_start(const CheckpointReader& reader, const Config& config, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr && !reader.tokenizer_json().empty() && reader.tokenizer()->hash() != tokenizer->hash()) {
    throw usage_error(
        fmt::format("the data was prepared with another tokenizer than that of {}", reader.path().string()),
        fmt::format("prepare it with that one: n prep ... --tokenizer {}", reader.path().string()));
  }
  if (const std::string difference = other_model(saved_config(reader).model, config.model); !difference.empty()) {
    throw usage_error(fmt::format("the configuration is not of the model that {} holds (its values first):\n{}",
                                  reader.path().string(), difference),
                      "remove these keys: without them, [model] is the checkpoint's");
  }
}

std::vector<CheckpointReader::Wanted> wanted(std::span<const StateTensor> tensors) {
  std::vector<CheckpointReader::Wanted> all;
  for (const StateTensor& tensor : tensors) all.push_back({tensor.name, tensor.dtype, tensor.shape()});
  return all;
}

}  // namespace

void check_starting_checkpoint(const Config& config, const Tokenizer* tokenizer) {
  check_start(CheckpointReader::open(config.model.init.from), config, tokenizer);
}

void check_name_is_free(const Config& config, const fs::path& folder) {
  if (!latest_checkpoint(folder)) return;
  throw usage_error(fmt::format("{} already holds checkpoints of a run named \"{}\"", folder.string(), config.run.name),
                    "add --resume to go on with it, or choose another run.name");
}

std::string warn_of_other_products(const std::string& before, const std::string& now) {
  if (before.empty() || now.empty() || before == now) return "";
  return fmt::format(
      "warning: dense products were computed by other algorithms until here ({}; now {}): this run's bits "
      "are no longer those of one that was never interrupted. With that device, library and program it "
      "goes on to the bit",
      before, now);
}

TrainingStart::TrainingStart(const Config& config, const TrainingData& data, const StreamPlan& plan,
                             const fs::path& folder, bool resume) {
  if (!resume) check_name_is_free(config, folder);
  if (const auto latest = latest_checkpoint(folder)) {
    resume_from(CheckpointReader::open(*latest), config, data, plan);
    return;
  }
  if (!config.model.init.from.empty()) {
    const CheckpointReader reader = CheckpointReader::open(config.model.init.from);
    check_start(reader, config, data.tokenizer.get());
    start_from(reader);
  }
  carry_chat_template(data);
}

void TrainingStart::resume_from(const CheckpointReader& reader, const Config& config, const TrainingData& data,
                                const StreamPlan& plan) {
  const CheckpointInfo& info = reader.info();
  if (info.config_fingerprint != config_fingerprint(config)) {
    throw usage_error(fmt::format("the configuration is not the one that {} was trained with (its values first):\n{}",
                                  reader.path().string(), explain_difference(saved_config(reader), config)),
                      "undo these changes, or choose another run.name to start afresh");
  }
  if (info.data_fingerprint != data_fingerprint(data, plan)) {
    const std::string place =
        data.mixture ? fmt::format("profile {} of {}", config.data.profile, config.data.mixture) : config.data.path;
    throw usage_error(
        fmt::format("the data of {} is not what {} was trained on", place, reader.path().string()),
        "restore data.path, or data.mixture and data.profile, or choose another run.name to start afresh");
  }
  if (reader.optimizer().empty()) {
    throw usage_error(fmt::format("{} has weights alone, without an optimizer's state", reader.path().string()),
                      "choose another run.name, and begin with these weights by model.init.from");
  }
  check_places(reader, config);
  checkpoint_ = reader.path();
  resumes_ = true;
  progress_ = {.steps = info.step, .tokens = info.step * step_tokens(config)};
  tokens_ = info.tokens;
  if (info.flops >= 0.0) flops_ = info.flops;
  cursor_ = info.cursor;
  run_id_ = info.run_id;
  arithmetic_changes_ = info.arithmetic_changes;
  product_identity_ = info.product_identity;
  carried_ = reader.carried();
}

void TrainingStart::start_from(const CheckpointReader& reader) {
  checkpoint_ = reader.path();
  carried_ = reader.carried();
  if (reader.tokenizer_json().empty()) {  // from now on it is the data's
    std::erase_if(carried_, [](const CarriedFile& file) { return is_tokenizer_file(file.name); });
  }
}

// From now on it is what the model knows, whatever the model it began with knew.
void TrainingStart::carry_chat_template(const TrainingData& data) {
  fs::path carried;
  for (const DataSource& source : data.sources) {
    const fs::path file = source.train.dir().parent_path() / kChatTemplateFile;
    if (!fs::exists(file)) continue;
    if (!carried.empty() && read_file(carried) != read_file(file)) {
      throw usage_error(
          fmt::format("'{}' and '{}' write conversations in different ways", carried.string(), file.string()),
          "prepare all conversations of a mixture with one --chat-template");
    }
    carried = file;
  }
  if (carried.empty()) return;
  std::erase_if(carried_, [](const CarriedFile& file) { return file.name == kChatTemplateFile; });
  carried_.push_back({std::string(kChatTemplateFile), carried, ""});
}

void TrainingStart::apply(Engine& engine) const {
  if (checkpoint_.empty()) {
    engine.initialise();
    return;
  }
  const CheckpointReader reader = CheckpointReader::open(checkpoint_);
  if (resumes_) engine.place_experts(reader.info().experts);
  if (resumes_ && !engine.restore_precision(reader.info().precision)) {
    throw runtime_error(fmt::format("the formats of layers in '{}' are not those of its model",
                                    (reader.path() / "manifest.json").string()),
                        "move this checkpoint away to resume from the one before it");
  }
  const StateRing& ring = engine.state_ring();
  reader.check_model(wanted(ring.model()));
  if (resumes_) reader.check_optimizer(wanted(ring.optimizer()));
  engine.restore([&](std::span<const NamedPart> parts) { reader.load_parts(parts); },
                 resumes_ ? Engine::Restored::kAll : Engine::Restored::kModel);
}

}  // namespace nmoe
