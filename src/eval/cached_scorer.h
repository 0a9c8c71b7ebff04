// A Scorer over the states of generation: prefixes that texts share are computed once.
//
// Every slot holds one group at a time, and one of its texts at a time. The prefix that all its texts share stays in
// the slot while their ends replace each other, as does a prefix shared with the next group. Where states do not go
// back, half of the slots read, and each of the others keeps a copy of what such a slot held behind the prefix, from
// which every text goes on. Calls have rows of all slots. Rows do not depend on each other (infer/cached_model.h), so
// neither slots nor sharing change a bit.
#pragma once

#include <memory>

#include "eval/scorer.h"
#include "infer/cached_model.h"

namespace nmoe {

class CachedScorer final : public Scorer {
 public:
  static constexpr int64_t kMaxScores = 2 * CachedModel::kMaxRows;
  static constexpr size_t kMaxTexts = 256;  // of a group

  // `model` has room for kMaxScores or more. share_prefixes = false: every text from its first token on; so it is, too,
  // where states do not go back and there is no second slot for copies.
  CachedScorer(std::shared_ptr<CachedModel> model, bool share_prefixes);
  ~CachedScorer() override;

  int64_t max_tokens() const override { return model_->capacity(); }
  void score(std::span<const std::vector<ScoredText>* const> groups,
             const std::function<void(size_t group, std::span<const TextScore> scores)>& done) override;
  int64_t computed_tokens() const override { return computed_tokens_; }

 private:
  struct Slot;

  void begin_group(Slot& slot, size_t index, const std::vector<ScoredText>& group) const;
  // How many tokens of the group's first text the slot need not read again, of `most`.
  int64_t reusable(const Slot& slot, std::span<const int32_t> first, int64_t most) const;
  // Where states do not go back: brings them to the position of the slot's next row, and keeps a copy behind a prefix.
  void set_states(Slot& slot, int32_t slot_index);
  // Adds as many of the slot's next rows as there is room for.
  void add_rows(Slot& slot, int32_t slot_index);
  void run_rows();

  std::shared_ptr<CachedModel> model_;
  bool share_prefixes_;
  bool copies_;  // a slot's prefix is kept in the slot slots_.size() behind it
  int64_t computed_tokens_ = 0;
  std::vector<Slot> slots_;
  // Of the next call:
  std::vector<CacheRow> rows_;
  std::vector<ScoredToken> scored_;
  std::vector<TextScore*> owners_;  // of each of `scored_`
};

}  // namespace nmoe
