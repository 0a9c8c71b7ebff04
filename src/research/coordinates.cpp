#include "research/coordinates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "config/scaling.h"
#include "config/schema.h"
#include "config/validate.h"
#include "model/spec/cost.h"
#include "ops/factory.h"
#include "parallel/rank.h"
#include "train/loop/batch_stream.h"
#include "train/loop/training_data.h"
#include "train/plan/engine_plan.h"
#include "train/step/engine.h"

namespace nmoe {
namespace {

// What goes with the width; sizes that are 0 stay so.
constexpr const char* kWidths[] = {"dim",
                                   "num_heads",
                                   "dense_dim",
                                   "mla.q_lora_rank",
                                   "mla.kv_lora_rank",
                                   "gqa.num_kv_heads",
                                   "mamba2.num_heads",
                                   "gated_deltanet.num_key_heads",
                                   "gated_deltanet.num_value_heads",
                                   "moe.expert_dim",
                                   "moe.latent_dim",
                                   "moe.shared_dim"};
constexpr const char* kDepths[] = {"num_layers", "num_dense_layers"};

void multiply(Config& config, std::span<const char* const> keys, double factor, const std::vector<std::string>& used) {
  for (const BaseSize& size : base_sizes()) {
    const std::string key = size.key();
    if (std::ranges::find(keys, key) == keys.end() || std::ranges::find(used, key) == used.end()) continue;
    int64_t& value = size.of(config.model);
    const double wanted = static_cast<double>(value) * factor;
    if (wanted != std::floor(wanted) || (value > 0 && wanted < 1.0)) {
      throw usage_error(fmt::format("model.{} = {} times {} is no whole number", key, value, factor),
                        "choose other --widths and --depths");
    }
    if (config.model.scaling.rule != ScalingRule::kNone && factor != 1.0) {
      config.model.scaling.base.sizes.try_emplace(key, value);
    }
    value = static_cast<int64_t>(wanted);
  }
}

std::vector<std::string> keys_in_use(Config config) {
  std::vector<std::string> used;
  for (const Field& field : describe(config)) {
    constexpr std::string_view kModel = "model.";
    if (field.used() && field.key.starts_with(kModel)) used.push_back(field.key.substr(kModel.size()));
  }
  return used;
}

// The values that are looked at, in the order in which a pass has them first.
using Values = std::vector<std::pair<std::string, std::vector<float>>>;

std::vector<float>& values_of(Values& all, const std::string& what) {
  auto found = std::ranges::find(all, what, &Values::value_type::first);
  if (found == all.end()) found = all.insert(found, {what, {}});
  return found->second;
}

void append(const Tensor& x, std::vector<float>& to) {
  const int64_t width = x.shape().row_elements();
  for (int64_t row = 0; row < x.num_elements() / width; ++row) {
    const float* const from = x.rows_data<float>() + row * x.stride();
    to.insert(to.end(), from, from + width);
  }
}

// What a batch makes of the weights as they are.
Values look(Engine& engine, const Config& config, std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  Values values;
  const int64_t last = config.model.num_layers - 1;
  engine.model().watch([&](Intermediate what, int64_t layer, const Tensor& value, const Tensor&) {
    if (what == Intermediate::kEmbeddingOut) append(value, values_of(values, "embedding"));
    if (what == Intermediate::kRouterLogits) append(value, values_of(values, "router logits"));
    if (what == Intermediate::kAttentionHeads) append(value, values_of(values, "attention heads"));
    if (what == Intermediate::kFeedForwardOut && layer == last) append(value, values_of(values, "residual stream"));
  });
  std::vector<float> losses(tokens.size());
  engine.evaluate(tokens, targets, losses);
  engine.model().watch({});
  std::vector<int32_t> ends;
  for (int64_t seq = 1; seq <= config.train.microbatch_seqs; ++seq) {
    ends.push_back(static_cast<int32_t>(seq * config.data.seq_len - 1));
  }
  engine.next_logits(tokens, ends, values_of(values, "logits"));
  return values;
}

double root_mean_square(size_t count, const std::function<double(size_t)>& value) {
  double sum = 0.0;
  for (size_t i = 0; i < count; ++i) sum += value(i) * value(i);
  return std::sqrt(sum / static_cast<double>(count));
}

std::vector<Coordinate> compare(const Values& before, const Values& after) {
  std::vector<Coordinate> coordinates;
  for (const auto& [what, values] : after) {
    const std::vector<float>& first = std::ranges::find(before, what, &Values::value_type::first)->second;
    coordinates.push_back(
        {.what = what,
         .size = root_mean_square(values.size(), [&](size_t i) { return values[i]; }),
         .change = root_mean_square(values.size(), [&](size_t i) { return double{values[i]} - double{first[i]}; })});
  }
  return coordinates;
}

void train_model(const Config& config, const TrainingData& data, int64_t steps, CoordinateModel& model) {
  const StreamPlan plan = plan_training_data(config, data, model_cost(config.model).active_parameters);
  const DeviceOptions options = device_options(config.run);
  const StoragePlan storage_plan = plan_engine_storage(config);
  const std::unique_ptr<Device> device = make_device(options);
  Storage storage(*device, storage_plan);
  Engine engine(config, {*device, single_rank()}, storage);
  engine.initialise();
  BatchStream stream(config, data, plan);
  std::vector<int32_t> tokens, targets;
  Values before;
  for (int64_t step = 1; step <= steps; ++step) {
    stream.next();
    const Microbatch microbatch = stream.microbatch(0);
    if (step == 1) {
      tokens.assign(microbatch.tokens.begin(), microbatch.tokens.end());
      targets.assign(stream.targets().begin(), stream.targets().end());
      before = look(engine, config, tokens, targets);
    }
    engine.load(0, microbatch);
    engine.step({.steps = step, .tokens = step * std::ssize(tokens)},
                {stream.num_targets(), stream.num_targets_ahead(config.model.mtp.depth)});
    const StepResult result = engine.result();
    if (!result.finite) {
      throw runtime_error(
          fmt::format("step {} of the model {} times as wide and {} times as deep has a loss or gradient "
                      "that is not finite",
                      step, model.width, model.depth),
          "lower the learning rates, or set model.scaling.rule");
    }
    model.loss = result.loss(kNextToken);
  }
  model.coordinates = compare(before, look(engine, config, tokens, targets));
}

double slope(const std::vector<std::pair<double, double>>& points) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [size, value] : points) {
    const double x = std::log(size), y = std::log(value);
    n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  const double spread = n * sxx - sx * sx;
  return spread > 0.0 && std::isfinite(sxy) ? (n * sxy - sx * sy) / spread : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<CoordinateSlopes> coordinate_slopes(const std::vector<CoordinateModel>& models) {
  std::vector<CoordinateSlopes> slopes;
  if (models.empty()) return slopes;
  for (const Coordinate& named : models.front().coordinates) {
    const auto fit = [&](double CoordinateModel::*along, double CoordinateModel::*fixed, double Coordinate::*value) {
      std::vector<std::pair<double, double>> points;
      for (const CoordinateModel& model : models) {
        const auto found = std::ranges::find(model.coordinates, named.what, &Coordinate::what);
        if (model.*fixed == 1.0 && found != model.coordinates.end()) points.emplace_back(model.*along, (*found).*value);
      }
      return slope(points);
    };
    using Model = CoordinateModel;
    slopes.push_back({.what = named.what,
                      .size_by_width = fit(&Model::width, &Model::depth, &Coordinate::size),
                      .change_by_width = fit(&Model::width, &Model::depth, &Coordinate::change),
                      .size_by_depth = fit(&Model::depth, &Model::width, &Coordinate::size),
                      .change_by_depth = fit(&Model::depth, &Model::width, &Coordinate::change)});
  }
  return slopes;
}

Config resized(const Config& config, double width, double depth) {
  if (!config.model.layers.empty()) {
    throw usage_error("model.layers has the widths and the number of layers written out, which are to be multiplied",
                      "describe the layers by keys: model.num_layers, model.attention, ...");
  }
  Config result = config;
  const std::vector<std::string> used = keys_in_use(config);
  multiply(result, kWidths, width, used);
  multiply(result, kDepths, depth, used);
  if (const std::vector<Issue> issues = find_issues(result); !issues.empty()) {
    throw usage_error(fmt::format("{} times as wide and {} times as deep: {}", width, depth, issues.front().what),
                      issues.front().remedy);
  }
  return result;
}

std::vector<CoordinateModel> check_coordinates(const Config& config, const CoordinateOptions& options,
                                               const std::function<void(std::string_view)>& tell) {
  if (config.run.device != "cpu") {
    throw usage_error("coordinates are looked at on the CPU alone", "set run.device = \"cpu\"");
  }
  const TrainingData data = open_training_data(config);
  Config base = resolve_vocab_size(config, *data.tokenizer);
  base.optim.schedule = {};
  base.optim.offload = Offload::kNone;
  base.train.batch_seqs = base.train.microbatch_seqs = options.seqs;
  base.train.steps = options.steps;
  base.train.tokens = 0;
  base.train.epochs = 0.0;
  base.train.sample_prompts.clear();
  base.parallel = {};
  base.data.mask_documents = false;
  base.data.align_documents = 1;
  std::vector<CoordinateModel> models;
  const auto add = [&](double width, double depth) {
    const auto is_same = [&](const CoordinateModel& model) { return model.width == width && model.depth == depth; };
    if (std::ranges::any_of(models, is_same)) return;
    const Config sized = resized(base, width, depth);
    CoordinateModel& model = models.emplace_back(
        CoordinateModel{.width = width, .depth = depth, .dim = sized.model.dim, .layers = sized.model.num_layers});
    if (tell) tell(fmt::format("model.dim = {}, model.num_layers = {}\n", model.dim, model.layers));
    train_model(sized, data, options.steps, model);
  };
  for (const double width : options.widths) add(width, 1.0);
  for (const double depth : options.depths) add(1.0, depth);
  return models;
}

}  // namespace nmoe
