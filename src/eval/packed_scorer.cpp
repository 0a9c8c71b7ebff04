#include "eval/packed_scorer.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "config/load.h"

namespace nmoe {
namespace {

constexpr int64_t kLeastShared = 16;  // tokens that are worth a piece of their own
constexpr int32_t kEmptyPiece = 64;   // rows of pieces that no text has, which cost little
constexpr int64_t kScored = Model::kScoredAtOnce;

int64_t rounded_up(int64_t count) { return (count + kScored - 1) / kScored * kScored; }

}  // namespace

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
  if (options_.max_tokens == 0) {
    options_.max_tokens = config_.model.max_positions > 0 ? config_.model.max_positions : config_.data.seq_len;
  }
  options_.num_rows = std::max(options_.num_rows, options_.max_tokens);
  const DeviceOptions where{
      .kind = options_.device, .num_threads = options_.num_threads, .compute_dtype = options_.compute_dtype};
  const StoragePlan plan = plan_storage(where, [this](Storage& storage) { make(storage); });
  device_ = make_device(where);
  check_free_memory(plan, *device_, "evaluation",
                    fmt::format("lower --context (now {} tokens), or free memory: the weights take {}, a pass {}",
                                options_.max_tokens, human_bytes(plan[ArenaKind::kParameters]),
                                human_bytes(plan[ArenaKind::kActivations])));
  storage_ = std::make_unique<Storage>(*device_, plan);
  model_ = make(*storage_);
}

std::unique_ptr<Model> PackedScorer::make(Storage& storage) {
  Arena& state = storage[ArenaKind::kStepState];
  Ops& ops = storage.device().ops();
  auto model = std::make_unique<Model>(config_.model, ops, options_.max_tokens);
  model->allocate(storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], state);
  const int64_t T = options_.num_rows;
  // Every row is a sequence: pieces know none.
  batch_ = {.num_seqs = T,
            .seq_len = 1,
            .tokens = state.allocate(DType::kI32, {T}),
            .positions = state.allocate(DType::kI32, {T}),
            .cu_seqlens = state.allocate(DType::kI32, {T + 1}),
            .parents = state.allocate(DType::kI32, {T + 1})};
  const int64_t scores = rounded_up(T);
  scored_ = {.rows = state.allocate(DType::kI32, {scores}),
             .targets = state.allocate(DType::kI32, {scores}),
             .losses = state.allocate(ops.stat_dtype(), {scores}),
             .predictions = state.allocate(DType::kI32, {scores})};
  if (ops.counting()) model->scores(batch_, storage[ArenaKind::kActivations], scored_);
  return model;
}

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

  device_->upload(batch_.tokens, texts.tokens.data());
  device_->upload(batch_.positions, texts.positions.data());
  device_->upload(batch_.cu_seqlens, bounds.data());
  device_->upload(batch_.parents, parents.data());
  const ScoredRows scored = {.rows = scored_.rows.rows(0, num_scores),
                             .targets = scored_.targets.rows(0, num_scores),
                             .losses = scored_.losses.rows(0, num_scores),
                             .predictions = scored_.predictions.rows(0, num_scores)};
  device_->upload(scored.rows, texts.scored_rows.data());
  device_->upload(scored.targets, texts.targets.data());
  model_->scores(batch_, (*storage_)[ArenaKind::kActivations], scored);
}

void PackedScorer::collect() {
  const auto count = std::ssize(running_.owners);
  if (count == 0) return;
  std::vector<float> losses(static_cast<size_t>(count));
  std::vector<int32_t> predictions(static_cast<size_t>(count));
  device_->download(losses.data(), scored_.losses.rows(0, count));
  device_->download(predictions.data(), scored_.predictions.rows(0, count));
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
