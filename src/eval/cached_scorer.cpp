#include "eval/cached_scorer.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace nmoe {

// Positions [0, shared) are the same in all texts of its group and come first, as rows of the first text; then the rest
// of each text. The last token of a text needs no row.
struct CachedScorer::Slot {
  bool busy = false;
  size_t index = 0;  // of the group
  const std::vector<ScoredText>* group = nullptr;
  int64_t shared = 0;
  size_t text = 0;       // whose rows come next, behind the shared ones
  int64_t position = 0;  // of the next row
  bool reading_shared = false;
  std::vector<int32_t> tokens;  // what the states have seen, by position
  std::vector<int32_t> copied;  // what those of the copy have seen
  int64_t held = 0;             // the position behind which the states are; -1: any
  std::vector<TextScore> scores;

  int64_t end() const {  // of the rows of this part
    return reading_shared ? shared : std::ssize((*group)[text].tokens) - 1;
  }
  bool finished() const { return text == group->size(); }
  // Passes on to the next part that has rows.
  void advance() {
    while (!finished() && position >= end()) {
      if (reading_shared) {
        reading_shared = false;
      } else {
        ++text;
      }
      position = shared;
    }
  }
};

namespace {

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t size = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(size);
  return std::mismatch(a.begin(), end, b.begin()).first - a.begin();
}

}  // namespace

CachedScorer::CachedScorer(std::shared_ptr<CachedModel> model, bool share_prefixes)
    : model_(std::move(model)),
      share_prefixes_(share_prefixes && (model_->goes_back() || model_->num_slots() > 1)),
      copies_(share_prefixes_ && !model_->goes_back()),
      slots_(static_cast<size_t>(copies_ ? model_->num_slots() / 2 : model_->num_slots())) {}

CachedScorer::~CachedScorer() = default;

int64_t CachedScorer::reusable(const Slot& slot, std::span<const int32_t> first, int64_t most) const {
  if (!share_prefixes_) return 0;
  if (!copies_) return std::min(common_prefix(slot.tokens, first), most);
  const auto size = std::ssize(slot.copied);
  return size <= most && common_prefix(slot.copied, first) == size ? size : 0;
}

void CachedScorer::set_states(Slot& slot, int32_t slot_index) {
  if (model_->goes_back()) return;
  const auto copy_index = static_cast<int64_t>(std::ssize(slots_)) + slot_index;
  if (copies_ && slot.held != slot.position && slot.position > 0) {
    NMOE_CHECK(std::ssize(slot.copied) == slot.position, "states behind {} tokens, copied behind {}", slot.position,
               slot.copied.size());
    model_->copy_slot(copy_index, slot_index);
  }
  slot.held = slot.position;  // a row at position 0 goes on from nothing
  if (!copies_ || slot.reading_shared || slot.shared == 0 || slot.position != slot.shared) return;
  const std::span prefix(slot.tokens.data(), static_cast<size_t>(slot.shared));
  if (std::ranges::equal(slot.copied, prefix)) return;
  model_->copy_slot(slot_index, copy_index);
  slot.copied.assign(prefix.begin(), prefix.end());
}

void CachedScorer::begin_group(Slot& slot, size_t index, const std::vector<ScoredText>& group) const {
  NMOE_CHECK(!group.empty() && group.size() <= kMaxTexts, "group {} has {} texts", index, group.size());
  slot.index = index;
  slot.group = &group;
  slot.busy = true;
  slot.text = 0;
  slot.scores.assign(group.size(), {});
  const std::vector<int32_t>& first = group.front().tokens;
  // A row that is scored has to be run again, whatever is in the cache.
  int64_t shared = std::numeric_limits<int64_t>::max(), most_reusable = shared;
  for (const ScoredText& text : group) {
    const int64_t size = std::ssize(text.tokens);
    NMOE_CHECK(text.begin >= 1 && text.begin < size && size <= max_tokens(), "{} tokens scored from {} on, room for {}",
               size, text.begin, max_tokens());
    shared = std::min({shared, size - 1, common_prefix(first, text.tokens)});
    most_reusable = std::min(most_reusable, text.begin - 1);
  }
  slot.shared = share_prefixes_ ? shared : 0;
  slot.reading_shared = true;
  slot.position = reusable(slot, first, std::min(most_reusable, slot.shared));
  slot.held = -1;
  if (copies_ && slot.position > 0) slot.tokens = slot.copied;
  slot.advance();
}

void CachedScorer::add_rows(Slot& slot, int32_t slot_index) {
  set_states(slot, slot_index);
  const std::vector<ScoredText>& group = *slot.group;
  const size_t first_text = slot.reading_shared ? 0 : slot.text;
  const size_t end_text = slot.reading_shared ? group.size() : slot.text + 1;
  const std::vector<int32_t>& tokens = group[first_text].tokens;
  const int64_t end = std::min(slot.end(), slot.position + model_->max_rows() - std::ssize(rows_));
  slot.tokens.resize(static_cast<size_t>(slot.position));
  for (; slot.position < end; ++slot.position) {
    if (scored_.size() + end_text - first_text > static_cast<size_t>(model_->max_scores())) return;
    const auto row = static_cast<int32_t>(rows_.size());
    for (size_t text = first_text; text < end_text; ++text) {
      if (slot.position + 1 < group[text].begin) continue;
      scored_.push_back({row, group[text].tokens[static_cast<size_t>(slot.position + 1)]});
      owners_.push_back(&slot.scores[text]);
    }
    const int32_t token = tokens[static_cast<size_t>(slot.position)];
    rows_.push_back({.token = token, .slot = slot_index, .position = static_cast<int32_t>(slot.position)});
    slot.tokens.push_back(token);
    slot.held = slot.position + 1;
  }
}

void CachedScorer::run_rows() {
  const std::span<const TokenScore> scores = model_->score(rows_, scored_);
  for (size_t i = 0; i < scored_.size(); ++i) {
    TextScore& owner = *owners_[i];
    owner.nats += static_cast<double>(scores[i].nats);
    owner.greedy = owner.greedy && scores[i].likeliest == scored_[i].token;
    ++owner.tokens;
  }
  computed_tokens_ += std::ssize(rows_);
  rows_.clear();
  scored_.clear();
  owners_.clear();
}

void CachedScorer::score(std::span<const std::vector<ScoredText>* const> groups,
                         const std::function<void(size_t group, std::span<const TextScore> scores)>& done) {
  size_t next = 0;
  for (;;) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (!slot.busy && next < groups.size()) {
        begin_group(slot, next, *groups[next]);
        ++next;
      }
      if (slot.busy) add_rows(slot, static_cast<int32_t>(i));
    }
    if (rows_.empty()) return;
    run_rows();
    for (Slot& slot : slots_) {
      if (!slot.busy) continue;
      slot.advance();
      if (!slot.finished()) continue;
      slot.busy = false;
      done(slot.index, slot.scores);
    }
  }
}

}  // namespace nmoe
