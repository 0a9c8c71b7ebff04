#include "infer/cached_model.h"

#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr int64_t kMaxSeen = 1 << 14;  // ids that are penalised at once
constexpr int64_t kDrawInputs = sizeof(TokenDraw) / sizeof(int32_t);
static_assert(sizeof(TokenDraw) % sizeof(int32_t) == 0 && alignof(TokenDraw) <= 4 * sizeof(int32_t));

// The numbers of rows that are recorded: few, so that there are few recordings.
int64_t recorded_rows(int64_t num_rows) {
  constexpr int64_t kStep = 16;
  if (num_rows > kStep / 2) return (num_rows + kStep - 1) / kStep * kStep;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_rows)));
}

}  // namespace

int64_t slots_of(int64_t asked) {
  constexpr int64_t kMostSlots = 1 << 16;
  if (asked >= 1 && asked <= kMostSlots) return asked;
  throw usage_error(fmt::format("{} sequences at a time", asked),
                    fmt::format("give a number from 1 to {}", kMostSlots));
}

int64_t context_of(const Config& config, int64_t asked) {
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  if (asked < 0 || asked > kLongest) {
    throw usage_error(fmt::format("a context of {} tokens", asked),
                      fmt::format("give a number from 0 (the model's own) to {}", kLongest));
  }
  if (asked > 0) return asked;
  return config.model.max_positions > 0 ? config.model.max_positions : config.data.seq_len;
}

CachedModel::CachedModel(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, SequenceModel& model,
                         const RunnerRoom& room, const CachedModelOptions& options)
    : config_(config),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      model_(model),
      ops_(model.ops()),
      device_(ops_.device()),
      activations_(room.activations),
      states_(make_states(model.states(), ops_, room.states, options.num_slots, options.capacity)) {
  allocate(room);
  if (ops_.counting()) {
    model_.cached_logits(input_rows(max_rows()), states_, activations_, input(3, max_logits()), logits_);
    model_.cached_scores(input_rows(max_rows()), states_, activations_, scored_);
    return;
  }
  host_inputs_.resize(static_cast<size_t>(inputs_.num_elements()));
  host_sampled_.resize(static_cast<size_t>(max_logits()));
  host_ids_.resize(static_cast<size_t>(options_.max_scores));
  host_logits_.resize(static_cast<size_t>(logits_.num_elements()));
}

void CachedModel::allocate(const RunnerRoom& room) {
  const bool has_sampler = device_.token_sampler() != nullptr;
  inputs_ = room.kept.allocate(DType::kI32, {4 * input_pitch() + (has_sampler ? kDrawInputs * max_logits() : 0)});
  logits_ = room.kept.allocate(DType::kF32, {max_logits(), model_.vocab_size()});
  if (has_sampler) {
    const Tensor draws = inputs_.rows(4 * input_pitch(), inputs_.dim(0));
    draws_ = Tensor(draws.raw(), DType::kU8, {draws.num_bytes()});
    seen_ = room.kept.allocate(DType::kI32, {kMaxSeen, 2});
    sampled_ = room.kept.allocate(DType::kI32, {max_logits()});
  }
  scored_ = {.rows = room.kept.allocate(DType::kI32, {options_.max_scores}),
             .targets = room.kept.allocate(DType::kI32, {options_.max_scores}),
             .losses = room.kept.allocate(DType::kF32, {options_.max_scores}),
             .predictions = room.kept.allocate(DType::kI32, {options_.max_scores})};
}

Tensor CachedModel::input(int64_t i, int64_t size) const {
  return inputs_.rows(i * input_pitch(), i * input_pitch() + size);
}

CachedRows CachedModel::input_rows(int64_t num_rows) const {
  return {.tokens = input(0, num_rows), .slots = input(1, num_rows), .positions = input(2, num_rows)};
}

// Rows on the host; those behind them, up to num_rows, belong to no sequence.
void CachedModel::fill_inputs(std::span<const CacheRow> rows, int64_t num_rows) {
  const auto pitch = static_cast<size_t>(input_pitch());
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    const CacheRow row = i < rows.size() ? rows[i] : CacheRow{.token = 0, .slot = -1, .position = 0};
    host_inputs_[i] = row.token, host_inputs_[pitch + i] = row.slot, host_inputs_[2 * pitch + i] = row.position;
  }
}

// Puts the logits of rows[wanted[0]], ... into logits_.
void CachedModel::enqueue(std::span<const CacheRow> rows, std::span<const int32_t> wanted) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_logits = static_cast<int64_t>(wanted.size());
  NMOE_CHECK(num_rows <= max_rows() && num_logits <= max_logits(), "{} rows, {} logits; room for {} and {}", num_rows,
             num_logits, max_rows(), max_logits());
  const bool all_wanted = num_rows == num_logits && num_rows > 0;
  const bool recorded = all_wanted && samples() && options_.records;
  const int64_t run_rows = recorded ? std::min({recorded_rows(num_rows), max_rows(), max_logits()}) : num_rows;
  const int64_t run_logits = recorded ? run_rows : num_logits;
  fill_inputs(rows, run_rows);
  for (int64_t i = 0; i < run_logits; ++i) {
    host_inputs_[static_cast<size_t>(3 * input_pitch() + i)] =
        i < num_logits ? wanted[static_cast<size_t>(i)] : static_cast<int32_t>(i);
  }
  device_.upload(inputs_, host_inputs_.data());

  const auto run = [this, run_rows, run_logits] {
    model_.cached_logits(input_rows(run_rows), states_, activations_, input(3, run_logits),
                         logits_.rows(0, run_logits));
  };
  if (!recorded) return run();
  Step& step = steps_[run_rows];
  if (!std::exchange(step.has_run, true)) return run();  // kernels are loaded at their first use
  if (step.recording == nullptr) step.recording = device_.record(run);
  step.recording->run();
}

std::span<const float> CachedModel::download_logits(int64_t num_logits) {
  if (num_logits == 0) return {};
  device_.download(host_logits_.data(), logits_.rows(0, num_logits));
  return std::span<const float>(host_logits_).first(static_cast<size_t>(num_logits * vocab_size()));
}

std::span<const float> CachedModel::run(std::span<const CacheRow> rows, std::span<const int32_t> wanted) {
  enqueue(rows, wanted);
  return download_logits(static_cast<int64_t>(wanted.size()));
}

CachedModel::Samples CachedModel::sample(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                                         std::span<const TokenDraw> draws, std::span<const SeenId> seen,
                                         bool with_logits) {
  const auto num_logits = static_cast<int64_t>(wanted.size());
  NMOE_CHECK(samples() && draws.size() == wanted.size(), "{} draws for {} rows", draws.size(), num_logits);
  const Tensor device_draws = draws_.rows(0, num_logits * static_cast<int64_t>(sizeof(TokenDraw)));
  const Tensor logits = logits_.rows(0, num_logits), tokens = sampled_.rows(0, num_logits);
  std::memcpy(host_inputs_.data() + 4 * input_pitch(), draws.data(), draws.size_bytes());
  enqueue(rows, wanted);
  Samples samples;
  if (with_logits) samples.logits = download_logits(num_logits);
  for (; !seen.empty(); seen = seen.subspan(std::min<size_t>(kMaxSeen, seen.size()))) {
    const Tensor some = seen_.rows(0, std::min<int64_t>(kMaxSeen, static_cast<int64_t>(seen.size())));
    device_.upload(some, seen.data());
    device_.token_sampler()->penalise_logits({.logits = logits, .draws = device_draws, .seen = some});
  }
  device_.token_sampler()->sample_tokens(
      {.logits = logits, .vocab = tokenizer_->vocab_size(), .draws = device_draws, .tokens = tokens});
  device_.download(host_sampled_.data(), tokens);
  samples.tokens = std::span<const int32_t>(host_sampled_).first(static_cast<size_t>(num_logits));
  return samples;
}

std::span<const TokenScore> CachedModel::score(std::span<const CacheRow> rows, std::span<const ScoredToken> scored) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_scores = static_cast<int64_t>(scored.size());
  NMOE_CHECK(num_rows <= max_rows() && num_scores <= options_.max_scores, "{} rows, {} scores; room for {} and {}",
             num_rows, num_scores, max_rows(), options_.max_scores);
  fill_inputs(rows, num_rows);
  device_.upload(inputs_, host_inputs_.data());
  const ScoredRows wanted = {.rows = scored_.rows.rows(0, num_scores),
                             .targets = scored_.targets.rows(0, num_scores),
                             .losses = scored_.losses.rows(0, num_scores),
                             .predictions = scored_.predictions.rows(0, num_scores)};
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].row;
  device_.upload(wanted.rows, host_ids_.data());
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].token;
  device_.upload(wanted.targets, host_ids_.data());
  model_.cached_scores(input_rows(num_rows), states_, activations_, wanted);
  host_scores_.resize(scored.size());
  if (scored.empty()) return {};
  host_losses_.resize(scored.size());
  device_.download(host_losses_.data(), wanted.losses);
  device_.download(host_ids_.data(), wanted.predictions);
  for (size_t i = 0; i < scored.size(); ++i) host_scores_[i] = {host_losses_[i], host_ids_[i]};
  return host_scores_;
}

}  // namespace nmoe
