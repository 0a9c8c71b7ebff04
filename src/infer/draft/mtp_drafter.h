// Guesses of the model's own module of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 5.4.3), used
// repeatedly: the first guess from the model's last state and the token that it drew, which is what the module does in
// training; each further one from the module's state and its guess before, as Megatron-Core and vLLM recycle it, behind
// the module's norm. They are drawn with the text's own random numbers (infer/draft/guess_passes.h).
//
// Of a text the module sees what the model's passes have run since it was first asked for guesses without a gap, from
// the last of them before on: of a prompt, what the last pass read. So there is nothing to be caught up on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "infer/draft/guess_passes.h"
#include "infer/draft/prediction_passes.h"

namespace nmoe {

class MtpDrafter final : public Drafter {
 public:
  // Error (usage): the module's states do not go back.
  explicit MtpDrafter(std::shared_ptr<PredictionPasses> passes);

  bool takes_time() const override { return true; }
  void ran(std::span<const RanRows> rows) override;
  std::vector<DraftPass> draft(std::span<const DraftedText> texts) override;
  void end(uint64_t id) override;

 private:
  struct Held {
    int64_t slot = 0;
    std::vector<int32_t> pages;
    int64_t begin = 0, end = 0;  // positions of the text that the module has seen: from 0 on in the slot
    uint64_t last_call = 0;
  };
  struct Going {
    const DraftedText* text;
    Held* held;
    int32_t source = 0;  // of the next guess
  };

  // The text with room for its guesses behind the model's last pass over it; null: there is none.
  Held* hold(const DraftedText& text, const RanRows& ran);
  bool evict();  // as ModelDrafter's
  // Of what the model has run.
  DraftPass run_first(std::span<Going> going);
  DraftPass run_next(std::span<Going> going);  // of the guesses before

  std::shared_ptr<PredictionPasses> passes_;
  GuessPasses guesses_;
  std::unordered_map<uint64_t, RanRows> ran_;  // in the model's last pass
  std::unordered_map<uint64_t, Held> texts_;
  std::vector<int64_t> free_slots_;
  std::vector<int32_t> free_pages_;
  uint64_t num_calls_ = 0;
};

}  // namespace nmoe
