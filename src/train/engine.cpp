#include "train/engine.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/factory.h"

namespace nmoe {
namespace {

// The intermediates (Pass::inspect) with which a phase of a step ends.
struct PhaseEnd {
  std::string_view value;
  std::string_view phase;
};
constexpr PhaseEnd kPhaseEnds[] = {
    {"zero_gradients", "zero gradients"},
    {"embedding_out", "embedding"},
    {"attention_out", "attention forward"},
    {"mlp_out", "feed-forward forward"},
    {"losses", "head and loss"},
    {"mlp_gradient", "feed-forward backward"},
    {"attention_gradient", "attention backward"},
};

}  // namespace

std::span<const std::string_view> step_phases() {
  static const auto phases = [] {
    std::array<std::string_view, std::size(kPhaseEnds) + 1> names;
    std::ranges::transform(kPhaseEnds, names.begin(), &PhaseEnd::phase);
    names.back() = "update";
    return names;
  }();
  return phases;
}

Engine::Engine(const Config& config, Backend& ops, const EngineMemory* memory)
    : config_(config), ops_(ops), model_(config_.model, ops, config_.data.seq_len, config_.train.recompute) {
  if (memory != nullptr) {
    parameters_.reserve(ops.memory(), memory->parameters);
    gradients_.reserve(ops.memory(), memory->gradients);
    optimizer_state_.reserve(ops.memory(), memory->optimizer);
    activations_.reserve(ops.memory(), memory->activations);
    step_state_.reserve(ops.memory(), memory->step_state);
    staging_bytes_ = memory->checkpoint_staging;
    ops.scratch().reserve(ops.memory(), memory->scratch);
  }
  model_.allocate(parameters_, gradients_, step_state_);
  optimizer_ = std::make_unique<Optimizer>(config_.optim, model_.parameters(), ops, optimizer_state_);

  allocate_batches();
  losses_ = step_state_.allocate(ops.stat_dtype(), {batches_[0].num_tokens()});
  predictions_ = step_state_.allocate(DType::kI32, {batches_[0].num_tokens()});
  loss_scale_ = step_state_.allocate(DType::kF64, {1});
  loss_sum_ = step_state_.allocate(DType::kF64, {1});
  square_sum_ = step_state_.allocate(DType::kF64, {1});
  grad_scale_ = step_state_.allocate(DType::kF64, {1});
  bad_count_ = step_state_.allocate(DType::kI32, {1});
}

void Engine::allocate_batches() {
  const int64_t num_seqs = config_.train.microbatch_seqs, seq_len = config_.data.seq_len, T = num_seqs * seq_len;
  std::vector<int32_t> positions(static_cast<size_t>(T));
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % seq_len);
  }
  Tensor shared_positions;  // without documents, all microbatches have the same
  if (!masks_documents()) {
    shared_positions = step_state_.allocate(DType::kI32, {T});
    ops_.upload(shared_positions, positions.data());
  }
  for (int64_t i = 0; i < config_.train.batch_seqs / num_seqs; ++i) {
    batches_.push_back({.num_seqs = num_seqs,
                        .seq_len = seq_len,
                        .tokens = step_state_.allocate(DType::kI32, {T}),
                        .targets = step_state_.allocate(DType::kI32, {T}),
                        .positions = masks_documents() ? step_state_.allocate(DType::kI32, {T}) : shared_positions,
                        .cu_seqlens = masks_documents() ? step_state_.allocate(DType::kI32, {T + 1}) : Tensor()});
  }
  cu_seqlens_.resize(masks_documents() ? static_cast<size_t>(T + 1) : 0);
}

void Engine::allocate_staging() {
  if (!ops_.counting()) staging_.reserve(ops_.host_memory(), staging_bytes_);
  for (const Parameter& parameter : model_.parameters().all()) {
    staged_.model.push_back({parameter.name, staging_.allocate(ops_.stat_dtype(), parameter.shape)});
  }
  for (const NamedTensor& state : optimizer_->state()) {
    staged_.optimizer.push_back({state.name, staging_.allocate(state.tensor.dtype(), state.tensor.shape())});
  }
}

void Engine::initialise() { model_.initialise(static_cast<uint64_t>(config_.run.seed)); }

StepScale Engine::step_scale() const {
  const int64_t tokens = config_.train.batch_seqs * config_.data.seq_len;
  return {.num_seqs = config_.train.batch_seqs, .num_tokens = tokens, .loss = loss_scale_};
}

// Fills the first rows of the batch's tensors, and makes it so many sequences.
void Engine::upload_batch(Batch& batch, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                          const Documents& documents) {
  const int64_t T = static_cast<int64_t>(inputs.size());
  NMOE_CHECK(targets.size() == inputs.size() && T % config_.data.seq_len == 0 && T <= batch.num_tokens(),
             "a microbatch of {} inputs and {} targets, at most {} tokens", inputs.size(), targets.size(),
             batch.num_tokens());
  batch.num_seqs = T / config_.data.seq_len;
  batch.tokens = batch.tokens.rows(0, T);
  batch.targets = batch.targets.rows(0, T);
  batch.positions = batch.positions.rows(0, T);
  ops_.upload(batch.tokens, inputs.data());
  ops_.upload(batch.targets, targets.data());
  NMOE_CHECK(documents.empty() != masks_documents(),
             "data.mask_documents is {}, and a microbatch came with {} documents", masks_documents(),
             documents.cu_seqlens.size());
  if (masks_documents()) {
    NMOE_CHECK(documents.positions.size() == inputs.size() && documents.cu_seqlens.size() <= cu_seqlens_.size(),
               "{} positions and {} document bounds for {} inputs", documents.positions.size(),
               documents.cu_seqlens.size(), inputs.size());
    std::ranges::fill(std::ranges::copy(documents.cu_seqlens, cu_seqlens_.begin()).out, cu_seqlens_.end(),
                      static_cast<int32_t>(T));
    ops_.upload(batch.cu_seqlens, cu_seqlens_.data());
    ops_.upload(batch.positions, documents.positions.data());
  }
}

void Engine::load(int64_t index, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  const Documents& documents) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  NMOE_CHECK(static_cast<int64_t>(inputs.size()) == batch.num_tokens(), "a microbatch of {} tokens, not {}",
             inputs.size(), batch.num_tokens());
  upload_batch(batch, inputs, targets, documents);
}

void Engine::enqueue_gradients(const Model::Inspector& inspect) {
  model_.begin_step();
  ops_.fill(loss_sum_, 0.0);
  if (inspect) inspect("zero_gradients", loss_sum_);
  for (const Batch& batch : batches_) {
    model_.forward_backward(batch, step_scale(), activations_, losses_, inspect);
    ops_.sum(losses_, loss_sum_);
  }
}

void Engine::enqueue_update() {
  ops_.fill(square_sum_, 0.0);
  for (const Parameter& parameter : model_.parameters().all()) {
    if (parameter.grad.defined()) ops_.sum_of_squares(parameter.grad, square_sum_);
  }
  ops_.clip_scale(square_sum_, loss_sum_, config_.optim.clip_norm, grad_scale_);
  optimizer_->step(grad_scale_);
  model_.update_router_bias(grad_scale_);
}

void Engine::set_step(const Progress& progress, int64_t num_targets) {
  num_targets_ = std::max<int64_t>(1, num_targets);  // a step without any has loss 0
  const double scale = 1.0 / static_cast<double>(num_targets_);
  ops_.upload(loss_scale_, &scale);
  optimizer_->set_rates(progress);
}

void Engine::step(const Progress& progress, int64_t num_targets) {
  set_step(progress, num_targets);
  const auto work = [this] {
    enqueue_gradients();
    enqueue_update();
  };
  // The first step is not recorded: libraries load their kernels then, which a recording cannot hold.
  if (!warm_) {
    work();
    warm_ = true;
    return;
  }
  if (!step_) step_ = ops_.record(work);
  step_->run();
}

void Engine::step_in_phases(const Progress& progress, int64_t num_targets,
                            const std::function<void(std::string_view phase)>& done) {
  set_step(progress, num_targets);
  enqueue_gradients([&](std::string_view name, Tensor) {
    for (const PhaseEnd& end : kPhaseEnds) {
      if (!name.ends_with(end.value)) continue;
      result();  // waits
      done(end.phase);
    }
  });
  result();
  done("embedding");  // its gradient; that of earlier microbatches was in the next one's turn
  enqueue_update();
  result();
  done("update");
}

StepResult Engine::result() const {
  double loss_sum = 0, square_sum = 0;
  ops_.download(&loss_sum, loss_sum_);
  ops_.download(&square_sum, square_sum_);
  StepResult result{.loss = loss_sum / static_cast<double>(num_targets_), .grad_norm = std::sqrt(square_sum)};
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return result;
}

std::vector<RouterHealth> Engine::router_health() const {
  std::vector<RouterHealth> result;
  for (const Moe* moe : model_.moe_layers()) {
    RouterHealth health;
    health.counts.resize(static_cast<size_t>(config_.model.moe.num_experts));
    double aux[2] = {0, 0};
    ops_.download(health.counts.data(), moe->stats().counts);
    ops_.download(aux, moe->stats().aux_loss);
    ops_.download(&health.entropy, moe->stats().entropy);
    std::vector<float> bias(health.counts.size());
    ops_.download(bias.data(), moe->router_bias().value);
    const auto [low, high] = std::minmax_element(bias.begin(), bias.end());
    health.bias_range = static_cast<double>(*high) - static_cast<double>(*low);
    health.balance_loss = aux[0];
    health.z_loss = aux[1];
    health.entropy /= static_cast<double>(step_scale().num_tokens);
    result.push_back(std::move(health));
  }
  return result;
}

std::string Engine::find_non_finite() {
  std::string first;
  const auto look = [&](std::string_view name, Tensor value) {
    if (!first.empty() || (value.dtype() != ops_.compute_dtype() && value.dtype() != ops_.stat_dtype())) return;
    int32_t count = 0;
    ops_.fill(bad_count_, 0.0);
    ops_.count_non_finite(value, bad_count_);
    ops_.download(&count, bad_count_);
    if (count > 0) {
      first = fmt::format("{} ({} of {} values are not finite)", name, count, value.num_elements());
    }
  };
  for (const Parameter& parameter : model_.parameters().all()) look("weight " + parameter.name, parameter.value);
  for (const Batch& batch : batches_) {
    model_.begin_step();
    model_.forward_backward(batch, step_scale(), activations_, losses_, look);
    for (const Parameter& parameter : model_.parameters().all()) {
      if (parameter.grad.defined()) look("gradient of " + parameter.name, parameter.grad);
    }
    if (!first.empty()) break;
  }
  return first;
}

void Engine::evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets, std::span<float> losses,
                      const Documents& documents, std::span<int32_t> predictions) {
  NMOE_CHECK(losses.size() == inputs.size() && (predictions.empty() || predictions.size() == inputs.size()),
             "{} losses and {} predictions for {} inputs", losses.size(), predictions.size(), inputs.size());
  Batch batch = batches_[0];  // its tensors: the step that was loaded there is over
  upload_batch(batch, inputs, targets, documents);
  const Tensor batch_losses = losses_.rows(0, batch.num_tokens());
  const Tensor batch_predictions = predictions.empty() ? Tensor() : predictions_.rows(0, batch.num_tokens());
  model_.forward(batch, activations_, batch_losses, batch_predictions);
  ops_.download(losses.data(), batch_losses);
  if (!predictions.empty()) ops_.download(predictions.data(), batch_predictions);
}

const StateTensors& Engine::staging() {
  if (staged_.model.empty()) allocate_staging();
  return staged_;
}

const StateTensors& Engine::stage() {
  staging();
  const auto& parameters = model_.parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) download_parameter(ops_, parameters[i], staged_.model[i].tensor.raw());
  const auto& state = optimizer_->state();
  for (size_t i = 0; i < state.size(); ++i) ops_.download(staged_.optimizer[i].tensor.raw(), state[i].tensor);
  return staged_;
}

void Engine::restore() {
  const auto& parameters = model_.parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) upload_parameter(ops_, parameters[i], staged_.model[i].tensor.raw());
  const auto& state = optimizer_->state();
  for (size_t i = 0; i < state.size(); ++i) ops_.upload(state[i].tensor, staged_.optimizer[i].tensor.raw());
}

EngineMemory Engine::used() const {
  return {.parameters = parameters_.high_water(),
          .gradients = gradients_.high_water(),
          .optimizer = optimizer_state_.high_water(),
          .activations = activations_.high_water(),
          .step_state = step_state_.high_water(),
          .scratch = ops_.scratch().high_water(),
          .checkpoint_staging = staging_.high_water()};
}

std::unique_ptr<Backend> make_backend(const RunConfig& run) {
  const bool is_fp32 =
      run.precision == Precision::kFp32 || (run.precision == Precision::kDevice && run.device == "cpu");
  return make_backend({.device = run.device,
                       .num_threads = static_cast<int>(run.threads),
                       .compute_dtype = is_fp32 ? DType::kF32 : DType::kBF16});
}

EngineMemory measure_memory(const Config& config) {
  const auto ops = make_backend(config.run);
  Engine engine(config, *ops, nullptr);
  const std::vector<int32_t> ids(static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len));
  std::vector<float> losses(ids.size());
  Documents documents;
  if (config.data.mask_documents) {
    find_documents(ids, config.train.microbatch_seqs, config.data.seq_len, /*eos_id=*/-1, documents);
  }
  for (int64_t i = 0; i < engine.num_microbatches(); ++i) engine.load(i, ids, ids, documents);
  engine.step({.steps = 1, .tokens = 1}, 1);
  engine.evaluate(ids, ids, losses, documents);
  engine.stage();
  return engine.used();
}

}  // namespace nmoe
