// Passes of a model whose logits give guesses, drawn as the text's own next tokens will be: by the same options and
// with the same random numbers, so that where two models nearly agree their tokens do, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "infer/cached_model.h"
#include "infer/draft/drafter.h"

namespace nmoe {

// Of texts that a drafter holds, by id, the one that has not been asked for longest; end(): all have been in this call.
template <class Texts>
auto least_recently_asked(Texts& texts, uint64_t this_call) {
  const auto oldest = std::ranges::min_element(texts, {}, [](const auto& text) { return text.second.last_call; });
  return oldest == texts.end() || oldest->second.last_call == this_call ? texts.end() : oldest;
}

class GuessPasses {
 public:
  explicit GuessPasses(CachedModel& model) : model_(model) {}

  // Runs the rows and appends a guess to each of `texts` from the logits of wanted[i]; none where the largest is not
  // finite.
  DraftPass run(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                std::span<const DraftedText* const> texts);

 private:
  void draw(std::span<const CacheRow> rows, std::span<const int32_t> wanted, std::span<const DraftedText* const> texts);
  void sample(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
              std::span<const DraftedText* const> texts);

  CachedModel& model_;
  Sampler sampler_;
  std::vector<int32_t> seen_;
};

}  // namespace nmoe
