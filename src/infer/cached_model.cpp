#include "infer/cached_model.h"

#include <algorithm>
#include <limits>

#include "base/process.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "config/load.h"

namespace nmoe {

CachedModel::CachedModel(const fs::path& checkpoint, const CachedModelOptions& options) : options_(options) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  config_ = parse_config(reader.config_toml(), (reader.path() / "config.toml").string());
  tokenizer_ = reader.tokenizer();
  set_up();
  std::vector<NamedTensor> weights;
  for (const Weight& weight : model_->weights().all()) weights.push_back({weight.spec.name, weight.value});
  reader.load_model(weights);
}

CachedModel::CachedModel(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                         const CachedModelOptions& options)
    : config_(config), tokenizer_(std::move(tokenizer)), options_(options) {
  set_up();
  model_->initialise(static_cast<uint64_t>(config_.run.seed));
}

void CachedModel::set_up() {
  constexpr int64_t kMostSlots = 1 << 16;
  if (options_.num_slots < 1 || options_.num_slots > kMostSlots) {
    throw usage_error(fmt::format("{} sequences at a time", options_.num_slots),
                      fmt::format("give a number from 1 to {}", kMostSlots));
  }
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  if (options_.capacity < 0 || options_.capacity > kLongest) {
    throw usage_error(fmt::format("a context of {} tokens", options_.capacity),
                      fmt::format("give a number from 0 (the model's own) to {}", kLongest));
  }
  if (options_.capacity == 0) {
    options_.capacity = config_.model.max_positions > 0 ? config_.model.max_positions : config_.data.seq_len;
  }
  const DeviceOptions where{.num_threads = options_.num_threads, .batch_invariant = true};
  StoragePlan plan = plan_storage(where, [this](Storage& storage) { make(storage); });
  plan.leave_out(ArenaKind::kGradients);  // none are made
  const int64_t needed = plan.total();
  const int64_t available = available_memory_bytes();
  if (needed > available) {
    throw usage_error(
        fmt::format("generation needs {}, this machine's free memory is {}", human_bytes(needed),
                    human_bytes(available)),
        fmt::format("lower the sequences at a time (now {}) or the context (now {} tokens): their cache takes "
                    "{}, the weights take {}",
                    options_.num_slots, options_.capacity, human_bytes(plan[ArenaKind::kCache]),
                    human_bytes(plan[ArenaKind::kParameters])));
  }
  device_ = make_device(where);
  storage_ = std::make_unique<Storage>(*device_, plan);
  model_ = make(*storage_);
  host_ids_.resize(static_cast<size_t>(std::max({max_rows(), max_logits(), options_.max_scores})));
  host_logits_.resize(static_cast<size_t>(logits_.num_elements()));
}

std::unique_ptr<Model> CachedModel::make(Storage& storage) {
  Arena& state = storage[ArenaKind::kStepState];
  Ops& ops = storage.device().ops();
  auto model = std::make_unique<Model>(config_.model, ops, options_.capacity);
  model->allocate(storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], state);
  cache_ = model->make_cache(storage[ArenaKind::kCache], options_.num_slots, options_.capacity);
  tokens_ = state.allocate(DType::kI32, {max_rows()});
  slots_ = state.allocate(DType::kI32, {max_rows()});
  positions_ = state.allocate(DType::kI32, {max_rows()});
  wanted_ = state.allocate(DType::kI32, {max_logits()});
  logits_ = state.allocate(DType::kF32, {max_logits(), config_.model.vocab_size});
  const int64_t scores = options_.max_scores;
  scored_ = {.rows = state.allocate(DType::kI32, {scores}),
             .targets = state.allocate(DType::kI32, {scores}),
             .losses = state.allocate(DType::kF32, {scores}),
             .predictions = state.allocate(DType::kI32, {scores})};
  if (ops.counting()) {
    const CachedRows rows = {tokens_, slots_, positions_};
    model->cached_logits(rows, cache_, storage[ArenaKind::kActivations], wanted_, logits_);
    model->cached_scores(rows, cache_, storage[ArenaKind::kActivations], scored_);
  }
  return model;
}

CachedRows CachedModel::upload_rows(std::span<const CacheRow> rows) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto upload = [&](Tensor tensor, auto&& value) {
    for (size_t i = 0; i < rows.size(); ++i) host_ids_[i] = value(rows[i]);
    device_->upload(tensor, host_ids_.data());
    return tensor;
  };
  return {.tokens = upload(tokens_.rows(0, num_rows), [](const CacheRow& row) { return row.token; }),
          .slots = upload(slots_.rows(0, num_rows), [](const CacheRow& row) { return row.slot; }),
          .positions = upload(positions_.rows(0, num_rows), [](const CacheRow& row) { return row.position; })};
}

std::span<const float> CachedModel::run(std::span<const CacheRow> rows, std::span<const int32_t> wanted) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_logits = static_cast<int64_t>(wanted.size());
  NMOE_CHECK(num_rows <= max_rows() && num_logits <= max_logits(), "{} rows, {} logits; room for {} and {}", num_rows,
             num_logits, max_rows(), max_logits());
  const CachedRows device_rows = upload_rows(rows);
  const Tensor device_wanted = wanted_.rows(0, num_logits), logits = logits_.rows(0, num_logits);
  device_->upload(device_wanted, wanted.data());
  model_->cached_logits(device_rows, cache_, (*storage_)[ArenaKind::kActivations], device_wanted, logits);
  if (num_logits == 0) return {};
  device_->download(host_logits_.data(), logits);

  const int64_t padded = config_.model.vocab_size, vocab = tokenizer_->vocab_size();
  for (int64_t row = 1; row < num_logits && vocab < padded; ++row) {
    std::copy_n(host_logits_.data() + row * padded, vocab, host_logits_.data() + row * vocab);
  }
  return std::span<const float>(host_logits_).first(static_cast<size_t>(num_logits * vocab));
}

std::span<const TokenScore> CachedModel::score(std::span<const CacheRow> rows, std::span<const ScoredToken> scored) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_scores = static_cast<int64_t>(scored.size());
  NMOE_CHECK(num_rows <= max_rows() && num_scores <= options_.max_scores, "{} rows, {} scores; room for {} and {}",
             num_rows, num_scores, max_rows(), options_.max_scores);
  const CachedRows device_rows = upload_rows(rows);
  const ScoredRows wanted = {.rows = scored_.rows.rows(0, num_scores),
                             .targets = scored_.targets.rows(0, num_scores),
                             .losses = scored_.losses.rows(0, num_scores),
                             .predictions = scored_.predictions.rows(0, num_scores)};
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].row;
  device_->upload(wanted.rows, host_ids_.data());
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].token;
  device_->upload(wanted.targets, host_ids_.data());
  model_->cached_scores(device_rows, cache_, (*storage_)[ArenaKind::kActivations], wanted);
  host_scores_.resize(scored.size());
  if (scored.empty()) return {};
  host_losses_.resize(scored.size());
  device_->download(host_losses_.data(), wanted.losses);
  device_->download(host_ids_.data(), wanted.predictions);
  for (size_t i = 0; i < scored.size(); ++i) host_scores_[i] = {host_losses_[i], host_ids_[i]};
  return host_scores_;
}

}  // namespace nmoe
