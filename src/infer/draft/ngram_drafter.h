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

// Where runs of a text's tokens came last, so that one is found in constant time: in 32 to 64 bytes a token.
class NgramIndex {
 public:
  static constexpr size_t kShortest = 2, kLongest = 5;
  // Places that a call makes known, so that no step waits for a long prompt: the rest follows with the next calls.
  static constexpr size_t kMostPlaces = 16'384;

  // Up to max_drafts guesses of what follows `tokens`, which begin with those of the last call.
  void draft(std::span<const int32_t> tokens, int64_t max_drafts, std::vector<int32_t>& drafts);

 private:
  // Of runs of `size` tokens the place behind the latest, in an open table of a power of two by their hashes, at most
  // half full. 0: free.
  struct Places {
    size_t size;
    std::vector<uint32_t> slots;

    // The slot of the run in front of `place`, or the one that it would take.
    size_t slot_of(std::span<const int32_t> tokens, size_t place) const;
    void reserve(std::span<const int32_t> tokens);
  };

  // The place behind the latest earlier run that is the last of `tokens`; 0: there is none.
  static size_t find(const Places& places, std::span<const int32_t> tokens);

  size_t num_indexed_ = 0;  // places in front of which runs are known
  std::array<Places, kLongest - kShortest + 1> places_ = {{{2, {}}, {3, {}}, {4, {}}, {5, {}}}};
};

class NgramDrafter : public Drafter {
 public:
  std::vector<DraftPass> draft(std::span<const DraftedText> texts) override;
  void end(uint64_t id) override { texts_.erase(id); }

 private:
  std::unordered_map<uint64_t, NgramIndex> texts_;
};

}  // namespace nmoe
