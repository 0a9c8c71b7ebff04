#include "eval/packed_scorer.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "infer/load_model.h"

namespace nmoe {
namespace {

constexpr int64_t kLeastShared = 16;  // tokens that are worth a piece of their own
constexpr int32_t kEmptyPiece = 64;   // rows of pieces that no text has, which cost little
constexpr int64_t kScored = Model::kScoredAtOnce;

int64_t rounded_up(int64_t count) { return (count + kScored - 1) / kScored * kScored; }

}  // namespace

PackedScorer::Passes::Passes(const Config& config, const PackedScorerOptions& options, WeightSet& weights,
                             Storage& storage)
    : runner(config.model, weights, storage.device(), RunnerRoom::of(storage), {.max_positions = options.max_tokens}),
      // Every row is a sequence: pieces know none.
      batch(runner.make_batch({.num_seqs = options.num_rows, .has_pieces = true})),
      scored(runner.make_scored_rows(rounded_up(options.num_rows))) {
  if (runner.ops().counting()) runner.model().scores(batch, runner.activations(), scored);
}

PackedScorerOptions PackedScorer::complete(const Config& config, PackedScorerOptions options) {
  options.max_tokens = context_of(config, options.max_tokens);
  options.num_rows = std::max(options.num_rows, options.max_tokens);
  return options;
}

WeightsPlace PackedScorer::place() const {
  return {
      .device = {.kind = options_.device, .num_threads = options_.num_threads, .compute_dtype = options_.compute_dtype},
      .work = "evaluation",
      .remedy = [max_tokens = options_.max_tokens](const StoragePlan& plan) {
        return fmt::format("lower --context (now {} tokens), or free memory: the weights take {}, a pass {}",
                           max_tokens, human_bytes(plan[ArenaKind::kParameters]),
                           human_bytes(plan[ArenaKind::kActivations]));
      }};
}

PackedScorer::PackedScorer(const Config& config, const PackedScorerOptions& options, const CheckpointReader* reader)
    : config_(config),
      options_(complete(config_, options)),
      weights_(config_.model, place(),
               [this](WeightSet& weights, Storage& storage) { Passes(config_, options_, weights, storage); }),
      passes_(config_, options_, weights_.weights(), weights_.storage()) {
  if (reader != nullptr) {
    load_weights(*reader, weights_);
  } else {
    weights_.initialise(static_cast<uint64_t>(config_.run.seed), config_.model.init.truncation);
  }
}

PackedScorer::PackedScorer(const CheckpointReader& reader, const PackedScorerOptions& options)
    : PackedScorer(saved_config(reader), options, &reader) {}

PackedScorer::PackedScorer(const std::filesystem::path& checkpoint, const PackedScorerOptions& options)
    : PackedScorer(CheckpointReader::open(checkpoint), options) {}

PackedScorer::PackedScorer(const Config& config, const PackedScorerOptions& options)
    : PackedScorer(config, options, nullptr) {}

void PackedScorer::Texts::clear() {
  tokens.clear(), positions.clear(), pieces.clear();
  scored_rows.clear(), targets.clear(), owners.clear();
}

void PackedScorer::cut_path(int64_t position) {
  const auto first_position = [&](int32_t piece) {
    return next_.positions[static_cast<size_t>(next_.pieces[static_cast<size_t>(piece)].begin)];
  };
  while (!path_.empty() && first_position(path_.back()) >= position) path_.pop_back();
  if (path_.empty()) return;
  const int32_t cut = path_.back(), rest = static_cast<int32_t>(next_.pieces.size());
  const Piece whole = next_.pieces[static_cast<size_t>(cut)];
  const auto middle = static_cast<int32_t>(whole.begin + position - first_position(cut));
  if (middle >= whole.end) return;
  for (Piece& piece : next_.pieces) {
    if (piece.parent == cut) piece.parent = rest;
  }
  next_.pieces[static_cast<size_t>(cut)].end = middle;
  next_.pieces.push_back({.begin = middle, .end = whole.end, .parent = cut});
}

bool PackedScorer::place(const ScoredText& text, TextScore& score) {
  const int64_t size = std::ssize(text.tokens), num_rows = size - 1;  // the last token needs none
  NMOE_CHECK(text.begin >= 1 && text.begin < size && size <= max_tokens(), "{} tokens scored from {} on, room for {}",
             size, text.begin, max_tokens());
  int64_t shared = 0;
  if (options_.share_prefixes && last_ != nullptr) {
    const int64_t most = std::min(num_rows, std::ssize(last_rows_));
    const auto end = text.tokens.begin() + most;
    shared = std::mismatch(text.tokens.begin(), end, last_->tokens.begin()).first - text.tokens.begin();
    if (shared < kLeastShared) shared = 0;
  }
  const int64_t first = std::ssize(next_.tokens);
  if (first + num_rows - shared > options_.num_rows) return false;
  if (std::ssize(next_.owners) + size - text.begin > options_.num_rows) return false;

  cut_path(shared);
  last_rows_.resize(static_cast<size_t>(shared));
  if (shared < num_rows) {
    const auto end = static_cast<int32_t>(first + num_rows - shared);
    next_.pieces.push_back(
        {.begin = static_cast<int32_t>(first), .end = end, .parent = path_.empty() ? -1 : path_.back()});
    path_.push_back(static_cast<int32_t>(next_.pieces.size()) - 1);
    for (int64_t position = shared; position < num_rows; ++position) {
      last_rows_.push_back(static_cast<int32_t>(next_.tokens.size()));
      next_.tokens.push_back(text.tokens[static_cast<size_t>(position)]);
      next_.positions.push_back(static_cast<int32_t>(position));
    }
  }
  last_ = &text;
  for (auto at = static_cast<size_t>(text.begin); at < text.tokens.size(); ++at) {
    next_.scored_rows.push_back(last_rows_[at - 1]);
    next_.targets.push_back(text.tokens[at]);
    next_.owners.push_back(&score);
  }
  return true;
}

void PackedScorer::clear_next() {
  next_.clear();
  last_ = nullptr;
  last_rows_.clear(), path_.clear();
}

void PackedScorer::launch() {
  std::swap(next_, running_);
  clear_next();
  if (running_.owners.empty()) return;

  const auto T = static_cast<int32_t>(options_.num_rows);
  Texts& texts = running_;
  computed_tokens_ += std::ssize(texts.tokens);
  for (auto begin = static_cast<int32_t>(texts.tokens.size()); begin < T; begin += kEmptyPiece) {
    texts.pieces.push_back({.begin = begin, .end = std::min(begin + kEmptyPiece, T), .parent = -1});
  }
  for (auto row = static_cast<int32_t>(texts.tokens.size()), position = 0; row < T; ++row, ++position) {
    texts.tokens.push_back(0);
    texts.positions.push_back(position % kEmptyPiece);
  }
  // Pieces by their rows.
  std::vector<int32_t> order(texts.pieces.size()), place(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int32_t piece) { return texts.pieces[static_cast<size_t>(piece)].begin; });
  for (size_t i = 0; i < order.size(); ++i) place[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  std::vector<int32_t> bounds, parents;
  for (const int32_t index : order) {
    const Piece& piece = texts.pieces[static_cast<size_t>(index)];
    bounds.push_back(piece.begin);
    parents.push_back(piece.parent < 0 ? -1 : place[static_cast<size_t>(piece.parent)]);
  }
  bounds.resize(static_cast<size_t>(T) + 1, T);
  parents.resize(static_cast<size_t>(T) + 1, -1);
  const int64_t num_scores = rounded_up(std::ssize(texts.owners));
  texts.scored_rows.resize(static_cast<size_t>(num_scores), 0);
  texts.targets.resize(static_cast<size_t>(num_scores), -1);

  Device& device = weights_.device();
  device.upload(passes_.batch.tokens, texts.tokens.data());
  device.upload(passes_.batch.positions, texts.positions.data());
  device.upload(passes_.batch.cu_seqlens, bounds.data());
  device.upload(passes_.batch.parents, parents.data());
  const ScoredRows scored = {.rows = passes_.scored.rows.rows(0, num_scores),
                             .targets = passes_.scored.targets.rows(0, num_scores),
                             .losses = passes_.scored.losses.rows(0, num_scores),
                             .predictions = passes_.scored.predictions.rows(0, num_scores)};
  device.upload(scored.rows, texts.scored_rows.data());
  device.upload(scored.targets, texts.targets.data());
  passes_.runner.model().scores(passes_.batch, passes_.runner.activations(), scored);
}

void PackedScorer::collect() {
  const auto count = std::ssize(running_.owners);
  if (count == 0) return;
  std::vector<float> losses(static_cast<size_t>(count));
  std::vector<int32_t> predictions(static_cast<size_t>(count));
  weights_.device().download(losses.data(), passes_.scored.losses.rows(0, count));
  weights_.device().download(predictions.data(), passes_.scored.predictions.rows(0, count));
  for (size_t i = 0; i < losses.size(); ++i) {
    TextScore& score = *running_.owners[i];
    score.nats += static_cast<double>(losses[i]);
    score.greedy = score.greedy && predictions[i] == running_.targets[i];
    ++score.tokens;
  }
  running_.clear();
}

void PackedScorer::score(std::span<const std::vector<ScoredText>* const> groups,
                         const std::function<void(size_t group, std::span<const TextScore> scores)>& done) {
  std::vector<std::vector<TextScore>> scores(groups.size());
  clear_next();
  running_.clear();
  size_t first_open = 0, whole = 0;  // groups before `whole` are scored with the pass under way
  const auto turn = [&](size_t placed) {
    collect();
    const size_t finished = whole;
    launch();
    whole = placed;
    for (; first_open < finished; ++first_open) {
      done(first_open, scores[first_open]);
      scores[first_open] = {};
    }
  };
  for (size_t group = 0; group < groups.size(); ++group) {
    scores[group].resize(groups[group]->size());
    for (size_t i = 0; i < scores[group].size(); ++i) {
      const ScoredText& text = (*groups[group])[i];
      if (place(text, scores[group][i])) continue;
      turn(group);
      NMOE_CHECK(place(text, scores[group][i]), "an empty pass has no room for {} tokens", text.tokens.size());
    }
  }
  turn(groups.size());
  turn(groups.size());
}

}  // namespace nmoe
