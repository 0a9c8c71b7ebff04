#include "hf/parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "config/layers.h"
#include "hf/binding.h"
#include "model/model.h"
#include "model/operand_formats.h"
#include "ops/storage.h"

namespace nmoe {
namespace {

constexpr std::string_view kGradPrefix = "grad.";

// The expectation file, tensor by tensor. It remembers which were read.
class Expectation {
 public:
  explicit Expectation(const fs::path& path) : file_(path) {}

  Error error(const std::string& name, const std::string& what) const {
    return runtime_error(fmt::format("'{}': {} {}", file_.path().string(), name, what),
                         "write it for this model, as scripts/hf_fixture.py does");
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  const SafetensorsFile::Entry& entry(const std::string& name, DType dtype) {
    const SafetensorsFile::Entry* entry = file_.find(name);
    if (entry == nullptr) throw error(name, "is missing");
    if (entry->dtype != dtype) {
      throw error(name, fmt::format("is {}, not {}", dtype_name(entry->dtype), dtype_name(dtype)));
    }
    read_.insert(name);
    return *entry;
  }
  template <class T>
  std::vector<T> values(const std::string& name, const Shape& shape) {
    const SafetensorsFile::Entry& found = entry(name, DTypeOf<T>::value);
    if (found.shape != shape) throw error(name, fmt::format("is {}, should be {}", found.shape, shape));
    const std::span<const std::byte> bytes = file_.bytes(found);
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  void check_all_read() const {
    for (const SafetensorsFile::Entry& entry : file_.entries()) {
      if (!read_.contains(entry.name)) throw error(entry.name, "is no part of the model");
    }
  }

 private:
  SafetensorsFile file_;
  std::set<std::string> read_;
};

// The model with one batch and everything one step needs.
class Workspace {
 public:
  Workspace(const Config& config, Storage& storage, int64_t num_seqs, int64_t seq_len)
      : device_(storage.device()),
        ops_(device_.ops()),
        activations_(storage[ArenaKind::kActivations]),
        model_(config.model, ops_, seq_len) {
    Arena& state = storage[ArenaKind::kStepState];
    model_.allocate(storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], state);
    rounding_key_ = state.allocate(DType::kI64, {1});
    set_operand_formats(model_.weights(), config, rounding_key_);
    allocate_weight_codes(model_.weights(), ops_, storage[ArenaKind::kWeightCodes]);
    const int64_t T = num_seqs * seq_len;
    batch_ = {.num_seqs = num_seqs,
              .seq_len = seq_len,
              .tokens = state.allocate(DType::kI32, {T}),
              .targets = state.allocate(DType::kI32, {T}),
              .positions = state.allocate(DType::kI32, {T})};
    losses_ = state.allocate(DType::kF32, {T});
    loss_scale_ = state.allocate(DType::kF64, {1});
    logits_ = state.allocate(DType::kF32, {T, config.model.vocab_size});
  }

  void load(const HfBinding& binding) {
    for (const MappedParameter& mapped : binding.parameters()) {
      std::vector<std::byte> bytes(static_cast<size_t>(mapped.shape.num_elements()) * sizeof(float));
      const std::span<const std::byte> values = binding.source(mapped, DType::kF32).read(0, bytes);
      weight(mapped.name).upload(ops_, values.data());
    }
  }
  // ids [B, S + 1]
  void set_batch(std::span<const int32_t> ids) {
    std::vector<int32_t> tokens, targets, positions;
    const auto S = static_cast<size_t>(batch_.seq_len);
    for (size_t begin = 0; begin < ids.size(); begin += S + 1) {
      const auto sequence = ids.subspan(begin, S + 1);
      tokens.insert(tokens.end(), sequence.begin(), sequence.end() - 1);
      targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
      positions.resize(tokens.size());
      std::iota(positions.end() - batch_.seq_len, positions.end(), 0);
    }
    device_.upload(batch_.tokens, tokens.data());
    device_.upload(batch_.targets, targets.data());
    device_.upload(batch_.positions, positions.data());
  }
  void run() {
    const int64_t T = batch_.num_tokens();
    const double mean = 1.0 / static_cast<double>(T);
    constexpr int64_t kKey = 1;  // any, always the same
    device_.upload(rounding_key_, &kKey);
    device_.upload(loss_scale_, &mean);
    const StepScale scale = {.num_seqs = batch_.num_seqs, .num_tokens = T, .loss = loss_scale_};
    model_.begin_step();
    // The model itself never makes all logits.
    model_.forward_backward(batch_, scale, activations_, losses_,
                            [&](Intermediate what, int64_t, Tensor value, Tensor) {
                              if (what == Intermediate::kFinalNormOut) model_.head().forward(ops_, value, logits_);
                            });
  }

  double loss() const {
    const std::vector<float> losses = download(losses_);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
  std::vector<float> logits() const { return download(logits_); }
  std::vector<float> gradient(const std::string& name) { return download(weight(name).grad); }
  bool is_trained(const std::string& name) { return weight(name).spec.is_trained(); }

 private:
  Weight& weight(const std::string& name) { return model_.weights().at(name); }
  std::vector<float> download(Tensor tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    device_.download(values.data(), tensor);
    return values;
  }

  Device& device_;
  Ops& ops_;
  Arena& activations_;
  Model model_;
  Batch batch_;
  Tensor rounding_key_;  // [1] i64
  Tensor losses_;        // [T]
  Tensor loss_scale_;    // [1] f64
  Tensor logits_;        // [T, V]
};

// Larger, and NaN largest of all.
bool is_worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

double relative_error(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0, reference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    difference += (a - e) * (a - e);
    reference += e * e;
  }
  if (difference == 0.0) return 0.0;
  return std::sqrt(difference) / std::sqrt(reference);
}

LogitError worst_logit(std::span<const float> actual, std::span<const float> expected, int64_t seq_len, int64_t vocab) {
  LogitError worst;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!is_worse(difference, worst.difference)) continue;
    const auto row = static_cast<int64_t>(i) / vocab;
    worst = {difference, row / seq_len, row % seq_len, static_cast<int64_t>(i) % vocab};
  }
  return worst;
}

// What is expected of a parameter's gradient, in its own layout.
std::vector<float> expected_gradient(Expectation& expectation, const MappedParameter& parameter) {
  const std::string fused = fused_expert_name(parameter.pieces.front().tensor);
  if (!fused.empty() && expectation.has(std::string(kGradPrefix) + fused)) {
    return expectation.values<float>(std::string(kGradPrefix) + fused, parameter.shape);
  }
  std::vector<float> result(static_cast<size_t>(parameter.shape.num_elements()));
  for (const TensorPiece& piece : parameter.pieces) {
    const auto values = expectation.values<float>(std::string(kGradPrefix) + piece.tensor, piece.tensor_shape);
    std::copy_n(values.begin() + piece.tensor_offset, piece.num_elements, result.begin() + piece.parameter_offset);
  }
  return result;
}

GradientError worst_piece(const MappedParameter& parameter, std::span<const float> actual,
                          std::span<const float> expected) {
  GradientError worst = {parameter.name, parameter.pieces.front().tensor, 0.0};
  for (const TensorPiece& piece : parameter.pieces) {
    const auto begin = static_cast<size_t>(piece.parameter_offset), count = static_cast<size_t>(piece.num_elements);
    const double error = relative_error(actual.subspan(begin, count), expected.subspan(begin, count));
    if (is_worse(error, worst.relative)) worst = {parameter.name, piece.tensor, error};
  }
  return worst;
}

// [B, S + 1]
Shape shape_of_ids(Expectation& expectation) {
  const Shape shape = expectation.entry("input_ids", DType::kI32).shape;
  if (shape.rank() == 2 && shape[0] >= 1 && shape[1] >= 2) return shape;
  throw expectation.error("input_ids", fmt::format("is {}, should be [sequences, positions + 1]", shape));
}

}  // namespace

double ParityReport::loss_error() const { return std::abs(loss - expected_loss); }

double ParityReport::median_gradient() const {
  return gradients.empty() ? 0.0 : gradients[gradients.size() / 2].relative;
}

double expected_rounding_error(Precision precision, int64_t num_products) {
  const double product_db = (precision == Precision::kNvFp4 ? 20.4 : 31.5) - 10.0 * std::log10(2.0);
  return std::pow(10.0, -product_db / 20.0) * std::sqrt(static_cast<double>(num_products));
}

ParityReport compare_with_reference(const ParityOptions& options) {
  const HfBinding binding(options.model);
  const ModelConfig& config = binding.model().config;
  Expectation expectation(options.expected);
  const Shape ids_shape = shape_of_ids(expectation);
  const int64_t B = ids_shape[0], S = ids_shape[1] - 1, V = config.vocab_size;
  const auto ids = expectation.values<int32_t>("input_ids", ids_shape);
  if (const auto bad = std::ranges::find_if(ids, [V](int32_t id) { return id < 0 || id >= V; }); bad != ids.end()) {
    throw expectation.error("input_ids", fmt::format("has {}, and the vocabulary {} ids", *bad, V));
  }
  const auto expected_logits = expectation.values<float>("logits", {B, S, V});
  const double expected_loss = expectation.values<float>("loss", {1})[0];

  Config run;
  run.model = config;
  run.run.precision = options.precision;
  const bool is_bf16 = options.device == "cuda" && is_low(options.precision);
  const DeviceOptions where = {.kind = options.device,
                               .num_threads = options.num_threads,
                               .compute_dtype = is_bf16 ? DType::kBF16 : DType::kF32};
  const StoragePlan plan = plan_storage(where, [&](Storage& storage) { Workspace(run, storage, B, S).run(); });
  const auto device = make_device(where);
  Storage storage(*device, plan);
  Workspace work(run, storage, B, S);
  work.load(binding);
  work.set_batch(ids);
  work.run();

  ParityReport report;
  report.loss = work.loss();
  report.expected_loss = expected_loss;
  const std::vector<float> logits = work.logits();
  report.logits = worst_logit(logits, expected_logits, S, V);
  report.logits_relative = relative_error(logits, expected_logits);
  // A mixer's into heads and out of them, MLA's through a latent between; a feed-forward part's two.
  for (const LayerSpec& layer : layer_specs(config)) report.num_products += layer.mixer == MixerKind::kMla ? 5 : 4;
  for (const MappedParameter& parameter : binding.parameters()) {
    if (!work.is_trained(parameter.name)) continue;
    const std::vector<float> expected = expected_gradient(expectation, parameter);
    report.gradients.push_back(worst_piece(parameter, work.gradient(parameter.name), expected));
  }
  expectation.check_all_read();
  std::ranges::stable_sort(report.gradients, is_worse, &GradientError::relative);
  return report;
}

}  // namespace nmoe
