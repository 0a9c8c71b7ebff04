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
#include "base/rng.h"
#include "checkpoint/safetensors.h"
#include "hf/binding.h"
#include "model/placed_weights.h"
#include "model/runner.h"
#include "model/weight_formats.h"

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
      if (!read_.contains(entry.name)) throw error(entry.name, "is not part of the model");
    }
  }

 private:
  SafetensorsFile file_;
  std::set<std::string> read_;
};

// What routers did, layer by layer.
struct Routing {
  std::vector<std::vector<float>> logits;     // [T, E] each
  std::vector<std::vector<int32_t>> choices;  // [T, K] each
};

// How a forward and backward is done.
struct PassOptions {
  bool rounds = false;             // whether products round as the run's precision says, or nothing
  double weight_error = 0.0;       // relative, random, of each element of weights that such products round
  const Routing* given = nullptr;  // whose logits routers have in place of their own; null: those
};

// The model with one batch and everything one step needs.
class Workspace {
 public:
  Workspace(const Config& config, WeightSet& weights, Storage& storage, int64_t num_seqs, int64_t seq_len,
            const PassOptions& options)
      : options_(options),
        device_(storage.device()),
        ops_(device_.ops()),
        weights_(weights),
        runner_(config.model, weights, device_, RunnerRoom::of(storage), {.max_positions = seq_len}),
        model_(runner_.model()) {
    Arena& state = storage[ArenaKind::kStepState];
    rounding_key_ = state.allocate(DType::kI64, {1});
    set_operand_formats(weights_, config, rounding_key_);
    for (Weight& weight : weights_.all()) weight.copies.in_act = !options.rounds;
    if (options.rounds) allocate_weight_codes(weights_, ops_, storage[ArenaKind::kWeightCodes]);
    const int64_t T = num_seqs * seq_len;
    batch_ = runner_.make_batch({.num_seqs = num_seqs, .seq_len = seq_len, .has_targets = true});
    losses_ = state.allocate(DType::kF32, {T});
    loss_scale_ = state.allocate(DType::kF64, {1});
    logits_ = state.allocate(DType::kF32, {T, config.model.vocab_size});
    if (options.given != nullptr) {
      for (size_t i = 0; i < model_.moe_layers().size(); ++i) {
        given_logits_.push_back(state.allocate(DType::kF32, {T, config.model.moe.num_experts}));
      }
    }
  }

  void load(const HfBinding& binding) {
    for (const MappedParameter& mapped : binding.parameters()) {
      std::vector<std::byte> bytes(static_cast<size_t>(mapped.shape.num_elements()) * sizeof(float));
      const std::span<const std::byte> read = binding.source(mapped, DType::kF32).read(0, bytes);
      std::vector<float> values(read.size() / sizeof(float));
      std::memcpy(values.data(), read.data(), read.size());
      if (options_.weight_error > 0.0 && weight(mapped.name).copies.format != OperandFormat::kAct) {
        const Philox random(/*seed=*/1, mapped.name);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] *= static_cast<float>(1.0 + options_.weight_error * random.normal(i));
        }
      }
      weight(mapped.name).upload(ops_, {0, std::ssize(values)}, values.data());
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
    device_.upload(batch_.rows[BatchRow::kTargets], targets.data());
    device_.upload(batch_.positions, positions.data());
  }
  void run() {
    const int64_t T = batch_.num_tokens();
    const double mean = 1.0 / static_cast<double>(T);
    constexpr int64_t kKey = 1;  // any, always the same
    device_.upload(rounding_key_, &kKey);
    device_.upload(loss_scale_, &mean);
    for (size_t i = 0; i < given_logits_.size() && !device_.counting(); ++i) {
      device_.upload(given_logits_[i], options_.given->logits[i].data());
    }
    routing_ = {};
    const StepScale scale = {.num_seqs = batch_.num_seqs, .num_tokens = T, .loss = loss_scale_};
    model_.begin_step();
    // The model itself never makes all logits.
    model_.forward_backward(batch_, scale, runner_.activations(), losses_,
                            {.inspect = [&](Intermediate what, int64_t, Tensor value, Tensor) {
                              if (what == Intermediate::kFinalNormOut) model_.head().forward(ops_, value, logits_);
                              if (what == Intermediate::kRouterLogits) route(value);
                              if (what == Intermediate::kExpertChoices) {
                                routing_.choices.push_back(download<int32_t>(value));
                              }
                            }});
  }

  double loss() const {
    const std::vector<float> losses = download<float>(losses_);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
  std::vector<float> logits() const { return download<float>(logits_); }
  std::vector<float> gradient(const std::string& name) { return download<float>(weight(name).grad); }
  const Routing& routing() const { return routing_; }
  // Whether the gradients of weights are products of rounded operands.
  bool rounds_gradients() const {
    return std::ranges::any_of(weights_.all(),
                               [](const Weight& weight) { return weight.copies.grad_format != OperandFormat::kAct; });
  }
  bool is_trained(const std::string& name) { return weight(name).spec.is_trained(); }

 private:
  Weight& weight(const std::string& name) { return weights_.at(name); }
  template <class T>
  std::vector<T> download(Tensor tensor) const {
    std::vector<T> values(static_cast<size_t>(tensor.num_elements()));
    device_.download(values.data(), tensor);
    return values;
  }
  // A layer's router is about to choose by these logits.
  void route(Tensor logits) {
    if (!given_logits_.empty()) ops_.copy({.source = given_logits_[routing_.logits.size()], .destination = logits});
    routing_.logits.push_back(download<float>(logits));
  }

  PassOptions options_;
  Device& device_;
  Ops& ops_;
  WeightSet& weights_;
  ModelRunner runner_;
  Model& model_;
  Batch batch_;
  Tensor rounding_key_;               // [1] i64
  Tensor losses_;                     // [T]
  Tensor loss_scale_;                 // [1] f64
  Tensor logits_;                     // [T, V]
  std::vector<Tensor> given_logits_;  // [T, E] of each router, where they are given
  Routing routing_;
};

// Larger, and NaN largest of all.
bool is_worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// Norms of a difference and of what is expected, over however many tensors.
struct Difference {
  double squares = 0.0, expected_squares = 0.0;

  void add(std::span<const float> actual, std::span<const float> expected) {
    for (size_t i = 0; i < actual.size(); ++i) {
      const double a = actual[i], e = expected[i];
      squares += (a - e) * (a - e);
      expected_squares += e * e;
    }
  }
  double relative() const { return squares == 0.0 ? 0.0 : std::sqrt(squares) / std::sqrt(expected_squares); }
};

double relative_error(std::span<const float> actual, std::span<const float> expected) {
  Difference difference;
  difference.add(actual, expected);
  return difference.relative();
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
    std::string name = std::string(kGradPrefix) + piece.tensor;
    if (!expectation.has(name)) name = std::string(kGradPrefix) + module_name(piece.tensor);
    const auto values = expectation.values<float>(name, piece.tensor_shape);
    for (int64_t i = 0; i < piece.num_elements; ++i) {
      result[static_cast<size_t>(piece.parameter_offset + i)] = values[static_cast<size_t>(piece.place_of(i))];
    }
  }
  return result;
}

// A parameter's gradient, piece by piece.
struct ComparedParameter {
  const MappedParameter* parameter;
  std::vector<Difference> pieces;  // as MappedParameter::pieces
};

ComparedParameter compare_pieces(const MappedParameter& parameter, std::span<const float> actual,
                                 std::span<const float> expected) {
  ComparedParameter compared{&parameter, std::vector<Difference>(parameter.pieces.size())};
  for (size_t i = 0; i < compared.pieces.size(); ++i) {
    const TensorPiece& piece = parameter.pieces[i];
    const auto begin = static_cast<size_t>(piece.parameter_offset), count = static_cast<size_t>(piece.num_elements);
    compared.pieces[i].add(actual.subspan(begin, count), expected.subspan(begin, count));
  }
  return compared;
}

// `rounding`: squares of a norm below which values say nothing.
GradientError worst_piece(const ComparedParameter& compared, double rounding) {
  const MappedParameter& parameter = *compared.parameter;
  GradientError worst = {.parameter = parameter.name, .tensor = parameter.pieces.front().tensor, .is_rounding = true};
  for (size_t i = 0; i < compared.pieces.size(); ++i) {
    const Difference& piece = compared.pieces[i];
    if (piece.squares < rounding && piece.expected_squares < rounding) continue;
    const double error = piece.relative();
    if (worst.is_rounding || is_worse(error, worst.relative)) {
      worst = {.parameter = parameter.name, .tensor = parameter.pieces[i].tensor, .relative = error};
    }
  }
  return worst;
}

// [B, S + 1]
Shape shape_of_ids(Expectation& expectation) {
  const Shape shape = expectation.entry("input_ids", DType::kI32).shape;
  if (shape.rank() == 2 && shape[0] >= 1 && shape[1] >= 2) return shape;
  throw expectation.error("input_ids", fmt::format("is {}, should be [sequences, positions + 1]", shape));
}

// The two sides of a comparison, and its passes.
class Comparison {
 public:
  explicit Comparison(const ParityOptions& options)
      : options_(options), binding_(options.model), expectation_(options.expected) {
    const Shape shape = shape_of_ids(expectation_);
    num_seqs_ = shape[0], seq_len_ = shape[1] - 1, vocab_ = binding_.model().config.vocab_size;
    ids_ = expectation_.values<int32_t>("input_ids", shape);
    const auto bad = std::ranges::find_if(ids_, [this](int32_t id) { return id < 0 || id >= vocab_; });
    if (bad != ids_.end()) {
      throw expectation_.error("input_ids", fmt::format("has {}, and the vocabulary {} ids", *bad, vocab_));
    }
    logits_ = expectation_.values<float>("logits", {num_seqs_, seq_len_, vocab_});
    loss_ = expectation_.values<float>("loss", {1})[0];
    run_.model = binding_.model().config;
    run_.run.precision = options.precision;
  }

  // Calls found(workspace) behind a pass.
  template <class Found>
  void pass(const PassOptions& pass, const Found& found) {
    const bool is_bf16 = options_.precision == Precision::kBf16 || (options_.device == "cuda" && pass.rounds);
    const DeviceOptions where = {.kind = options_.device,
                                 .num_threads = options_.num_threads,
                                 .compute_dtype = is_bf16 ? DType::kBF16 : DType::kF32};
    PlacedWeights placed(run_.model, {.device = where, .has_gradients = true, .work = "the comparison"},
                         [&](WeightSet& weights, Storage& storage) {
                           Workspace(run_, weights, storage, num_seqs_, seq_len_, pass).run();
                         });
    Workspace work(run_, placed.weights(), placed.storage(), num_seqs_, seq_len_, pass);
    work.load(binding_);
    work.set_batch(ids_);
    work.run();
    found(work);
  }
  ParityReport report(Workspace& work) {
    ParityReport report;
    report.loss = work.loss();
    report.expected_loss = loss_;
    report.logits = worst_logit(work.logits(), logits_, seq_len_, vocab_);
    for (const float logit : logits_) report.largest_logit = std::max(report.largest_logit, std::abs(double{logit}));
    Difference all;
    report.gradients = gradients(work, &all);
    report.all_gradients = all.relative();
    report.relative = errors(work, report.gradients);
    expectation_.check_all_read();
    return report;
  }
  RelativeErrors errors(Workspace& work) { return errors(work, gradients(work)); }
  int64_t top_k() const { return run_.model.moe.top_k; }

 private:
  // Worst first; `all`: all of them as one vector.
  std::vector<GradientError> gradients(Workspace& work, Difference* all = nullptr) {
    std::vector<ComparedParameter> parameters;
    Difference sum;
    for (const MappedParameter& parameter : binding_.parameters()) {
      if (!work.is_trained(parameter.name)) continue;
      const std::vector<float> expected = expected_gradient(expectation_, parameter);
      const std::vector<float> actual = work.gradient(parameter.name);
      parameters.push_back(compare_pieces(parameter, actual, expected));
      sum.add(actual, expected);
    }
    const double rounding = sum.expected_squares * kRoundingOfGradients * kRoundingOfGradients;
    std::vector<GradientError> errors;
    for (const ComparedParameter& compared : parameters) errors.push_back(worst_piece(compared, rounding));
    std::ranges::stable_sort(errors, is_worse, &GradientError::relative);
    if (all != nullptr) *all = sum;
    return errors;
  }
  RelativeErrors errors(Workspace& work, const std::vector<GradientError>& gradients) const {
    return {.logits = relative_error(work.logits(), logits_),
            .gradients = gradients.empty() ? 0.0 : gradients[gradients.size() / 2].relative};
  }

  const ParityOptions& options_;
  HfBinding binding_;
  Expectation expectation_;
  Config run_;
  int64_t num_seqs_ = 0, seq_len_ = 0, vocab_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;  // expected
  double loss_ = 0.0;
};

void add_choices(const Routing& own, const Routing& exact, int64_t top_k, LowPrecisionReport& report) {
  for (size_t layer = 0; layer < own.choices.size(); ++layer) {
    const std::vector<int32_t>&a = own.choices[layer], &b = exact.choices[layer];
    for (size_t token = 0; token < a.size(); token += static_cast<size_t>(top_k)) {
      const auto chosen = std::span(b).subspan(token, static_cast<size_t>(top_k));
      for (const int32_t expert : std::span(a).subspan(token, static_cast<size_t>(top_k))) {
        report.choices += 1;
        report.other_choices += std::ranges::find(chosen, expert) == chosen.end() ? 1 : 0;
      }
    }
  }
}

// What operands of `db` each, signal to noise, leave wrong of a product of both, relative.
double error_of_product(double db, double other_db) {
  return std::sqrt(std::pow(10.0, -db / 10.0) + std::pow(10.0, -other_db / 10.0));
}

}  // namespace

double ParityReport::loss_error() const { return std::abs(loss - expected_loss); }

bool LowPrecisionReport::as_expected() const {
  constexpr double kFactor = 2.0;
  return found.logits <= kFactor * expected.logits && found.gradients <= kFactor * expected.gradients;
}

double rounding_error_of_product(Precision precision) {
  return precision == Precision::kNvFp4 ? error_of_product(20.4, 19.1) : error_of_product(31.5, 31.5);
}

ParityReport compare_with_reference(const ParityOptions& options) {
  if (options.precision == Precision::kBf16 && options.device != "cuda") {
    throw usage_error("the CPU does not compute in bf16", "give --device cuda, or leave --precision out");
  }
  Comparison comparison(options);
  ParityReport report;
  if (!is_low(options.precision)) {
    comparison.pass({}, [&](Workspace& work) { report = comparison.report(work); });
    return report;
  }
  constexpr double kShare = 1.0 / 16.0;  // small enough for first order, large beside fp32's rounding
  LowPrecisionReport low;
  Routing exact;
  comparison.pass({}, [&](Workspace& work) { exact = work.routing(); });
  bool rounds_gradients = false;
  comparison.pass({.rounds = true}, [&](Workspace& work) {
    report = comparison.report(work);
    rounds_gradients = work.rounds_gradients();
    add_choices(work.routing(), exact, comparison.top_k(), low);
  });
  const double error = rounding_error_of_product(options.precision);
  comparison.pass({.weight_error = kShare * error, .given = &exact}, [&](Workspace& work) {
    const RelativeErrors errors = comparison.errors(work);
    low.expected = {.logits = errors.logits / kShare,
                    .gradients = std::hypot(errors.gradients / kShare, rounds_gradients ? error : 0.0)};
  });
  comparison.pass({.rounds = true, .given = &exact}, [&](Workspace& work) { low.found = comparison.errors(work); });
  report.low = low;
  return report;
}

}  // namespace nmoe
