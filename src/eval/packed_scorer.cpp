#include "eval/packed_scorer.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "config/load.h"

namespace nmoe {

PackedScorer::PackedScorer(const std::filesystem::path& checkpoint, const PackedScorerOptions& options)
    : options_(options) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  config_ = parse_config(reader.config_toml(), (reader.path() / "config.toml").string());
  set_up();
  std::vector<float> values;
  for (Weight& weight : model_->weights().all()) {
    values.resize(static_cast<size_t>(weight.spec.shape.num_elements()));
    reader.load(weight.spec.name, Tensor(values.data(), DType::kF32, weight.spec.shape));
    weight.upload(device_->ops(), values.data());
  }
}

PackedScorer::PackedScorer(const Config& config, const PackedScorerOptions& options)
    : config_(config), options_(options) {
  set_up();
  model_->initialise(static_cast<uint64_t>(config_.run.seed));
}

void PackedScorer::set_up() {
  if (options_.seq_len == 0) {
    options_.seq_len = config_.model.max_positions > 0 ? config_.model.max_positions : config_.data.seq_len;
  }
  const DeviceOptions where{
      .kind = options_.device, .num_threads = options_.num_threads, .compute_dtype = options_.compute_dtype};
  const StoragePlan plan = plan_storage(where, [this](Storage& storage) { make(storage); });
  device_ = make_device(where);
  storage_ = std::make_unique<Storage>(*device_, plan);
  model_ = make(*storage_);
  clear();
}

std::unique_ptr<Model> PackedScorer::make(Storage& storage) {
  Arena& state = storage[ArenaKind::kStepState];
  Ops& ops = storage.device().ops();
  auto model = std::make_unique<Model>(config_.model, ops, options_.seq_len);
  model->allocate(storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], state);
  const int64_t T = options_.num_seqs * options_.seq_len;
  batch_ = {.num_seqs = options_.num_seqs,
            .seq_len = options_.seq_len,
            .tokens = state.allocate(DType::kI32, {T}),
            .targets = {},
            .positions = state.allocate(DType::kI32, {T}),
            .cu_seqlens = state.allocate(DType::kI32, {T + 1})};
  scored_ = {.rows = state.allocate(DType::kI32, {T}),
             .targets = state.allocate(DType::kI32, {T}),
             .losses = state.allocate(ops.stat_dtype(), {T}),
             .predictions = state.allocate(DType::kI32, {T})};
  if (ops.counting()) model->scores(batch_, storage[ArenaKind::kActivations], scored_);
  return model;
}

void PackedScorer::clear() {
  used_.assign(static_cast<size_t>(options_.num_seqs), 0);
  documents_.clear();
}

bool PackedScorer::place(const ScoredText& text, TextScore& score) {
  // The last token needs no row, but so has every text one of its own.
  const int64_t size = std::ssize(text.tokens);
  NMOE_CHECK(text.begin >= 1 && text.begin < size && size <= options_.seq_len,
             "{} tokens scored from {} on, room for {}", size, text.begin, options_.seq_len);
  const auto sequence = std::ranges::find_if(used_, [&](int64_t used) { return used + size <= options_.seq_len; });
  if (sequence == used_.end()) return false;
  documents_.push_back({&text, &score, (sequence - used_.begin()) * options_.seq_len + *sequence});
  *sequence += size;
  return true;
}

void PackedScorer::run() {
  const int64_t S = options_.seq_len, T = batch_.num_tokens();
  std::vector<int32_t> tokens(static_cast<size_t>(T)), positions(tokens.size());
  std::vector<int32_t> bounds;  // of documents; what is left of a sequence is one, too
  for (int64_t sequence = 0; sequence < options_.num_seqs; ++sequence) {
    bounds.push_back(static_cast<int32_t>(sequence * S));
    if (const int64_t used = used_[static_cast<size_t>(sequence)]; used < S && used > 0) {
      bounds.push_back(static_cast<int32_t>(sequence * S + used));
    }
  }
  std::vector<int32_t> rows, targets;
  for (const Document& document : documents_) {
    const ScoredText& text = *document.text;
    if (document.first % S != 0) bounds.push_back(static_cast<int32_t>(document.first));
    std::ranges::copy(text.tokens, tokens.begin() + document.first);
    for (auto at = static_cast<size_t>(text.begin); at < text.tokens.size(); ++at) {
      rows.push_back(static_cast<int32_t>(document.first + static_cast<int64_t>(at) - 1));
      targets.push_back(text.tokens[at]);
    }
    computed_tokens_ += std::ssize(text.tokens);
  }
  std::ranges::sort(bounds);
  for (size_t i = 0; i < bounds.size(); ++i) {
    const int64_t end = i + 1 < bounds.size() ? bounds[i + 1] : T;
    for (int64_t at = bounds[i]; at < end; ++at)
      positions[static_cast<size_t>(at)] = static_cast<int32_t>(at - bounds[i]);
  }
  bounds.resize(static_cast<size_t>(T) + 1, static_cast<int32_t>(T));
  device_->upload(batch_.tokens, tokens.data());
  device_->upload(batch_.positions, positions.data());
  device_->upload(batch_.cu_seqlens, bounds.data());
  const auto num_scored = static_cast<int64_t>(rows.size());
  const ScoredRows scored = {.rows = scored_.rows.rows(0, num_scored),
                             .targets = scored_.targets.rows(0, num_scored),
                             .losses = scored_.losses.rows(0, num_scored),
                             .predictions = scored_.predictions.rows(0, num_scored)};
  device_->upload(scored.rows, rows.data());
  device_->upload(scored.targets, targets.data());
  model_->scores(batch_, (*storage_)[ArenaKind::kActivations], scored);
  std::vector<float> losses(rows.size());
  std::vector<int32_t> predictions(rows.size());
  device_->download(losses.data(), scored.losses);
  device_->download(predictions.data(), scored.predictions);
  size_t at = 0;
  for (const Document& document : documents_) {
    const int64_t count = std::ssize(document.text->tokens) - document.text->begin;
    for (int64_t i = 0; i < count; ++i, ++at) {
      document.score->nats += static_cast<double>(losses[at]);
      document.score->greedy = document.score->greedy && predictions[at] == targets[at];
      ++document.score->tokens;
    }
  }
  clear();
}

void PackedScorer::score(std::span<const std::vector<ScoredText>* const> groups,
                         const std::function<void(size_t group, std::span<const TextScore> scores)>& done) {
  std::vector<std::vector<TextScore>> scores(groups.size());
  size_t first_open = 0;  // groups from here on have texts in the next pass, or none placed
  const auto finish = [&](size_t end) {
    run();
    for (; first_open < end; ++first_open) {
      done(first_open, scores[first_open]);
      scores[first_open] = {};
    }
  };
  for (size_t group = 0; group < groups.size(); ++group) {
    scores[group].resize(groups[group]->size());
    for (size_t i = 0; i < scores[group].size(); ++i) {
      const ScoredText& text = (*groups[group])[i];
      if (place(text, scores[group][i])) continue;
      finish(group);
      NMOE_CHECK(place(text, scores[group][i]), "an empty pass has no room for {} tokens", text.tokens.size());
    }
  }
  if (!documents_.empty()) finish(groups.size());
}

}  // namespace nmoe
