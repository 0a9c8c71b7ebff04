// Guesses of a smaller model with the same tokenizer ("draft model"; arXiv 2211.17192), drawn with the random numbers
// that the text's own tokens will be drawn with (infer/draft/guess_passes.h).
//
// It has a cache of its own, of as many texts and positions as the model's. A text is read when guesses of it are asked
// for, as far as it has grown since: every token once, as long as it has a slot there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "infer/cache_slots.h"
#include "infer/cached_model.h"
#include "infer/draft/guess_passes.h"

namespace nmoe {

class ModelDrafter final : public Drafter {
 public:
  // For texts of `target`. Error (usage) where `model` has another tokenizer or other sizes of its cache, or states
  // that do not go back.
  ModelDrafter(std::shared_ptr<CachedModel> model, const CachedModel& target);

  bool takes_time() const override { return true; }
  int64_t num_unread(uint64_t id, int64_t num_tokens) const override;
  std::vector<DraftPass> draft(std::span<const DraftedText> texts) override;
  void end(uint64_t id) override;

 private:
  // What a slot holds of a text, or of what was guessed of it.
  struct Held {
    int64_t slot = 0;
    std::vector<int32_t> ids;
    int64_t num_sure = 0;  // of these, the first so many are the text's
    uint64_t last_call = 0;
  };
  struct Going {
    const DraftedText* text;
    Held* held;
    bool stopped = false;

    int64_t num_known() const { return std::ssize(text->tokens) + std::ssize(*text->drafts); }
    int32_t token_at(int64_t position) const;
    bool goes_on() const { return !stopped && std::ssize(*text->drafts) < text->max_drafts; }
  };

  // The slot of a text with room for its guesses; null: there is none.
  Held* hold(const DraftedText& text);
  bool enter(const DraftedText& text, int64_t num_positions);
  // Lets the text go that has not been asked for longest; false: all have been in this call.
  bool evict();
  // A pass of what the texts have yet to read; false: none has anything.
  bool run_pass(std::span<Going> going, std::vector<DraftPass>& passes);

  std::shared_ptr<CachedModel> model_;
  CacheSlots slots_;
  GuessPasses passes_;
  std::unordered_map<uint64_t, Held> texts_;
  uint64_t num_calls_ = 0;
};

}  // namespace nmoe
