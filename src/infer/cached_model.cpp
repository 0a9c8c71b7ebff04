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

// The numbers of rows of other passes on a GPU, whose products have algorithms that are chosen by it.
int64_t padded_rows(int64_t num_rows) {
  constexpr int64_t kMany = 512, kStep = 256;
  return num_rows < kMany ? num_rows : (num_rows + kStep - 1) / kStep * kStep;
}

int64_t rows_of(const CachedModelOptions& options, const Device& device) {
  const int64_t least = std::max(CachedModel::kMaxRows, 2 * options.num_slots);
  if (options.max_rows > 0) return std::max(least, options.max_rows);
  if (!device.memory_use()) return least;  // rows gain nothing by being many
  return std::max(least, std::min(CachedModel::kMaxDeviceRows, options.num_slots * options.capacity));
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

int64_t cache_positions_of(int64_t asked) {
  constexpr int64_t kMost = int64_t{std::numeric_limits<int32_t>::max()} * kPagePositions;
  if (asked >= 0 && asked <= kMost) return asked;
  throw usage_error(fmt::format("{} cached positions", asked),
                    fmt::format("give a number from 0 (as many as all sequences have) to {}", kMost));
}

namespace {

StateSizes sizes_of(const CachedModelOptions& options) {
  if (options.cache_positions == 0) return {.num_slots = options.num_slots, .capacity = options.capacity};
  const int64_t num_pages = (options.cache_positions + kPagePositions - 1) / kPagePositions;
  return {.num_slots = options.num_slots,
          .capacity = std::min(options.capacity, num_pages * kPagePositions),
          .num_pages = num_pages};
}

}  // namespace

CachedModel::CachedModel(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, SequenceModel& model,
                         const RunnerRoom& room, const CachedModelOptions& options)
    : config_(config),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      model_(model),
      ops_(model.ops()),
      device_(ops_.device()),
      activations_(room.activations),
      states_(make_states(model.states(), ops_, room.states, sizes_of(options))) {
  if (device_.token_sampler() != nullptr && model_.vocab_size() > kMostSampledIds) {
    throw usage_error(
        fmt::format("model.vocab_size is {}: generation on a GPU samples from up to {} ids", model_.vocab_size(),
                    kMostSampledIds),
        "generate on the CPU (--device cpu); in a run, leave out train.sample_prompts and tasks of [eval] "
        "that write answers");
  }
  options_.max_rows = rows_of(options, device_);
  allocate(room);
  if (ops_.counting()) {
    model_.cached_logits(input_rows(max_rows()), states_, activations_, input(3, max_logits(), max_rows()), logits_);
    ops_.logit_sums({.logits = logits_, .sums = sums_});
    model_.cached_scores(input_rows(max_rows()), states_, activations_, scored_);
    return;
  }
  host_pages_ = own_pages(states_.sizes);
  if (std::ssize(host_pages_) > num_pages()) std::ranges::fill(host_pages_, 0);
  changed_end_ = std::ssize(host_pages_);
  host_inputs_.resize(static_cast<size_t>(inputs_.num_elements()));
  host_sampled_.resize(static_cast<size_t>(max_logits()));
  host_ids_.resize(static_cast<size_t>(options_.max_scores));
  host_logits_.resize(static_cast<size_t>(logits_.num_elements()));
  host_picked_.resize(static_cast<size_t>(max_logits()));
  host_sums_.resize(static_cast<size_t>(max_logits()));
}

void CachedModel::allocate(const RunnerRoom& room) {
  const bool has_sampler = device_.token_sampler() != nullptr;
  inputs_ = room.kept.allocate(DType::kI32, {num_draw_inputs() + 4 * input_pitch(max_rows())});
  logits_ = room.kept.allocate(DType::kF32, {max_logits(), model_.vocab_size()});
  sums_ = room.kept.allocate(DType::kF32, {max_logits(), kLogSumMembers});
  if (has_sampler) {
    const Tensor draws = inputs_.rows(0, num_draw_inputs());
    draws_ = Tensor(draws.raw(), DType::kU8, {draws.num_bytes()});
    seen_ = room.kept.allocate(DType::kI32, {kMaxSeen, 2});
    sampled_ = room.kept.allocate(DType::kI32, {max_logits()});
    picked_ids_ = room.kept.allocate(DType::kI32, {max_logits(), 2});
    picked_ = room.kept.allocate(DType::kF32, {max_logits()});
  }
  scored_ = {.rows = room.kept.allocate(DType::kI32, {options_.max_scores}),
             .targets = room.kept.allocate(DType::kI32, {options_.max_scores}),
             .losses = room.kept.allocate(DType::kF32, {options_.max_scores}),
             .predictions = room.kept.allocate(DType::kI32, {options_.max_scores})};
}

void CachedModel::set_pages(int64_t slot, int64_t first_block, std::span<const int32_t> pages) {
  const int64_t num_blocks = states_.sizes.num_blocks(), begin = slot * num_blocks + first_block;
  const int64_t end = begin + std::ssize(pages);
  NMOE_CHECK(slot >= 0 && slot < num_slots() && first_block >= 0 && first_block + std::ssize(pages) <= num_blocks,
             "blocks from {} of slot {} on, {} of them; the pages are {}", first_block, slot, pages.size(),
             states_.pages.shape());
  NMOE_CHECK(std::ranges::all_of(pages, [&](int32_t page) { return page >= 0 && page < num_pages(); }),
             "a page for slot {} is none of {}", slot, num_pages());
  if (pages.empty()) return;
  std::ranges::copy(pages, host_pages_.begin() + begin);
  const bool had_changes = changed_begin_ < changed_end_;
  changed_begin_ = had_changes ? std::min(changed_begin_, begin) : begin;
  changed_end_ = had_changes ? std::max(changed_end_, end) : end;
}

void CachedModel::upload_pages() {
  if (changed_begin_ == changed_end_) return;
  const Tensor all = states_.pages.reshape({states_.pages.num_elements()});
  device_.upload(all.rows(changed_begin_, changed_end_), host_pages_.data() + changed_begin_);
  changed_begin_ = changed_end_ = 0;
}

void CachedModel::copy_slot(int64_t from, int64_t to) {
  const int64_t num_blocks = states_.sizes.num_blocks();
  const int32_t* const source = host_pages_.data() + from * num_blocks;
  const int32_t* const destination = host_pages_.data() + to * num_blocks;
  const auto goes_on = [&](int64_t block) {
    return source[block] == source[block - 1] + 1 && destination[block] == destination[block - 1] + 1;
  };
  for (int64_t begin = 0, end = 0; begin < num_blocks; begin = end) {
    for (end = begin + 1; end < num_blocks && goes_on(end);) ++end;
    states_.copy_pages(ops_, source[begin], destination[begin], end - begin);
  }
  states_.copy_fixed(ops_, from, to);
}

int64_t CachedModel::num_draw_inputs() const {
  return device_.token_sampler() != nullptr ? kDrawInputs * max_logits() : 0;
}

int64_t CachedModel::input_pitch(int64_t num_rows) const {
  const int64_t few = std::max({kMaxRows, 2 * options_.num_slots, max_logits()});
  return num_rows <= few ? few : std::max(max_rows(), max_logits());
}

Tensor CachedModel::input(int64_t i, int64_t size, int64_t num_rows) const {
  const int64_t begin = num_draw_inputs() + i * input_pitch(num_rows);
  return inputs_.rows(begin, begin + size);
}

CachedRows CachedModel::input_rows(int64_t num_rows) const {
  return {.tokens = input(0, num_rows, num_rows),
          .slots = input(1, num_rows, num_rows),
          .positions = input(2, num_rows, num_rows)};
}

void CachedModel::upload_inputs(int64_t num_rows) {
  device_.upload(inputs_.rows(0, num_draw_inputs() + 4 * input_pitch(num_rows)), host_inputs_.data());
}

int32_t* CachedModel::host_input(int64_t i, int64_t num_rows) {
  return host_inputs_.data() + num_draw_inputs() + i * input_pitch(num_rows);
}

int64_t CachedModel::plain_rows(int64_t num_rows) const {
  return samples() ? std::min(padded_rows(num_rows), max_rows()) : num_rows;
}

// Rows on the host; those behind them, up to num_rows, belong to no sequence.
void CachedModel::fill_inputs(std::span<const CacheRow> rows, int64_t num_rows) {
  int32_t *const tokens = host_input(0, num_rows), *const slots = host_input(1, num_rows),
                 *const positions = host_input(2, num_rows);
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    const CacheRow row = i < rows.size() ? rows[i] : CacheRow{.token = 0, .slot = -1, .position = 0};
    tokens[i] = row.token, slots[i] = row.slot, positions[i] = row.position;
  }
}

// Puts the logits of rows[wanted[0]], ... into logits_.
void CachedModel::enqueue(std::span<const CacheRow> rows, std::span<const int32_t> wanted) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_logits = static_cast<int64_t>(wanted.size());
  NMOE_CHECK(num_rows <= max_rows() && num_logits <= max_logits(), "{} rows, {} logits; room for {} and {}", num_rows,
             num_logits, max_rows(), max_logits());
  const bool all_wanted = num_rows == num_logits && num_rows > 0;
  const bool recorded = all_wanted && samples() && options_.records;
  const int64_t run_rows =
      recorded ? std::min({recorded_rows(num_rows), max_rows(), max_logits()}) : plain_rows(num_rows);
  const int64_t run_logits = recorded ? run_rows : num_logits;
  fill_inputs(rows, run_rows);
  int32_t* const host_wanted = host_input(3, run_rows);
  for (int64_t i = 0; i < run_logits; ++i) {
    host_wanted[i] = i < num_logits ? wanted[static_cast<size_t>(i)] : static_cast<int32_t>(i);
  }
  upload_inputs(run_rows);
  upload_pages();

  const auto run = [this, run_rows, run_logits] {
    model_.cached_logits(input_rows(run_rows), states_, activations_, input(3, run_logits, run_rows),
                         logits_.rows(0, run_logits));
  };
  if (!recorded) return run();
  Step& step = steps_[run_rows];
  if (!std::exchange(step.has_run, true)) return run();  // kernels are loaded at their first use
  if (step.recording == nullptr) step.recording = device_.record(run);
  step.recording->run();
}

void CachedModel::download_sums(int64_t num_logits) {
  const Tensor sums = sums_.rows(0, num_logits);
  ops_.logit_sums({.logits = logits_.rows(0, num_logits), .sums = sums});
  device_.download(host_sums_.data(), sums);
}

void CachedModel::download_logits(int64_t begin, int64_t end) {
  device_.download(host_logits_.data() + begin * vocab_size(), logits_.rows(begin, end));
}

void CachedModel::download_all(std::span<const ToldLogits> told) {
  for (size_t begin = 0, end = 0; begin < told.size(); begin = end + 1) {
    for (end = begin; end < told.size() && told[end].what == ToldLogits::kAll;) ++end;
    if (begin < end) download_logits(static_cast<int64_t>(begin), static_cast<int64_t>(end));
  }
}

void CachedModel::download_one(std::span<const ToldLogits> told) {
  host_picked_ids_.clear();
  for (size_t i = 0; i < told.size(); ++i) {
    const int32_t id = told[i].id >= 0 ? told[i].id : host_sampled_[i];
    if (told[i].what == ToldLogits::kOne && id >= 0) host_picked_ids_.push_back({static_cast<int32_t>(i), id});
  }
  if (host_picked_ids_.empty()) return;
  const int64_t count = std::ssize(host_picked_ids_);
  const Tensor ids = picked_ids_.rows(0, count), picked = picked_.rows(0, count);
  device_.upload(ids, host_picked_ids_.data());
  device_.token_sampler()->pick_logits({.logits = logits_.rows(0, std::ssize(told)), .ids = ids, .picked = picked});
  device_.download(host_picked_.data(), picked);
  for (size_t i = 0; i < host_picked_ids_.size(); ++i) {
    const auto [row, id] = host_picked_ids_[i];
    host_logits_[static_cast<size_t>(row * vocab_size() + id)] = host_picked_[i];
  }
}

LogitRows CachedModel::host_logits(int64_t num_logits, bool with_sums) const {
  const auto count = static_cast<size_t>(num_logits), vocab = static_cast<size_t>(vocab_size());
  return {.logits = std::span<const float>(host_logits_).first(count * vocab),
          .sums = std::span<const LogSum>(host_sums_).first(with_sums ? count : 0),
          .vocab = vocab};
}

LogitRows CachedModel::run(std::span<const CacheRow> rows, std::span<const int32_t> wanted, bool with_sums) {
  enqueue(rows, wanted);
  const int64_t num_logits = std::ssize(wanted);
  if (num_logits == 0) return {};
  if (with_sums) download_sums(num_logits);
  download_logits(0, num_logits);
  return host_logits(num_logits, with_sums);
}

CachedModel::Samples CachedModel::sample(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                                         std::span<const TokenDraw> draws, std::span<const IdOfRow> seen,
                                         std::span<const ToldLogits> told) {
  const auto num_logits = static_cast<int64_t>(wanted.size());
  NMOE_CHECK(samples() && draws.size() == wanted.size() && (told.empty() || told.size() == wanted.size()),
             "{} draws for {} rows, {} of them told", draws.size(), num_logits, told.size());
  const Tensor device_draws = draws_.rows(0, num_logits * static_cast<int64_t>(sizeof(TokenDraw)));
  const Tensor logits = logits_.rows(0, num_logits), tokens = sampled_.rows(0, num_logits);
  std::memcpy(host_inputs_.data(), draws.data(), draws.size_bytes());
  enqueue(rows, wanted);
  if (!told.empty()) download_sums(num_logits);
  download_all(told);
  for (; !seen.empty(); seen = seen.subspan(std::min<size_t>(kMaxSeen, seen.size()))) {
    const Tensor some = seen_.rows(0, std::min<int64_t>(kMaxSeen, static_cast<int64_t>(seen.size())));
    device_.upload(some, seen.data());
    device_.token_sampler()->penalise_logits({.logits = logits, .draws = device_draws, .seen = some});
  }
  device_.token_sampler()->sample_tokens(
      {.logits = logits, .vocab = tokenizer_->vocab_size(), .draws = device_draws, .tokens = tokens});
  device_.download(host_sampled_.data(), tokens);
  download_one(told);
  return {.tokens = std::span<const int32_t>(host_sampled_).first(static_cast<size_t>(num_logits)),
          .logits = told.empty() ? LogitRows() : host_logits(num_logits, /*with_sums=*/true)};
}

std::span<const TokenScore> CachedModel::score(std::span<const CacheRow> rows, std::span<const ScoredToken> scored) {
  const auto num_rows = static_cast<int64_t>(rows.size()), num_scores = static_cast<int64_t>(scored.size());
  NMOE_CHECK(num_rows <= max_rows() && num_scores <= options_.max_scores, "{} rows, {} scores; room for {} and {}",
             num_rows, num_scores, max_rows(), options_.max_scores);
  const int64_t run_rows = plain_rows(num_rows);
  fill_inputs(rows, run_rows);
  upload_inputs(run_rows);
  upload_pages();
  const ScoredRows wanted = {.rows = scored_.rows.rows(0, num_scores),
                             .targets = scored_.targets.rows(0, num_scores),
                             .losses = scored_.losses.rows(0, num_scores),
                             .predictions = scored_.predictions.rows(0, num_scores)};
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].row;
  device_.upload(wanted.rows, host_ids_.data());
  for (size_t i = 0; i < scored.size(); ++i) host_ids_[i] = scored[i].token;
  device_.upload(wanted.targets, host_ids_.data());
  model_.cached_scores(input_rows(run_rows), states_, activations_, wanted);
  host_scores_.resize(scored.size());
  if (scored.empty()) return {};
  host_losses_.resize(scored.size());
  device_.download(host_losses_.data(), wanted.losses);
  device_.download(host_ids_.data(), wanted.predictions);
  for (size_t i = 0; i < scored.size(); ++i) host_scores_[i] = {host_losses_[i], host_ids_[i]};
  return host_scores_;
}

}  // namespace nmoe
