// Guesses from the text itself: its last tokens are looked for further up, and what followed them there is the guess
// ("prompt lookup"). Of the longest run that is found the latest place counts. A guess that reaches the text's end goes
// on with itself, as texts that repeat themselves do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "infer/draft/drafter.h"

namespace nmoe {

// Where runs of a text's tokens came last, so that one is found in constant time.
class NgramIndex {
 public:
  static constexpr size_t kShortest = 2, kLongest = 5;

  // Up to max_drafts guesses of what follows `tokens`, which begin with those of the last call.
  void draft(std::span<const int32_t> tokens, int64_t max_drafts, std::vector<int32_t>& drafts);

 private:
  // The place behind the latest earlier run that is the last `size` tokens; 0: there is none.
  size_t find(std::span<const int32_t> tokens, size_t size) const;

  size_t num_indexed_ = 0;  // places in front of which runs are known
  std::array<std::unordered_map<uint64_t, uint32_t>, kLongest - kShortest + 1> places_;  // by a run's hash
};

class NgramDrafter : public Drafter {
 public:
  std::vector<DraftPass> draft(std::span<const DraftedText> texts) override;
  void end(uint64_t id) override { texts_.erase(id); }

 private:
  std::unordered_map<uint64_t, NgramIndex> texts_;
};

}  // namespace nmoe
