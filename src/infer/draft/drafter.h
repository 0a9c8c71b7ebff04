// Guesses of what texts go on with, so that the model reads several tokens of a text in one pass (speculative decoding;
// arXiv 2211.17192). The engine keeps a guess only where it is the token that it draws there itself, so that guesses
// change no text, only how long it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nmoe {

constexpr int64_t kMostDrafts = 16;  // of a text at a time

enum class DraftKind {
  kNone,
  kNgram,  // what followed the last tokens where they came before (infer/draft/ngram_drafter.h)
};
struct DraftOptions {
  DraftKind kind = DraftKind::kNone;
  // Tokens that are guessed of a text at a time, at most kMostDrafts; nothing: as many as pay, and none where none do
  // (infer/draft/draft_control.h).
  std::optional<int64_t> tokens = {};
};
// Error (usage) for a number of tokens that is out of range.
void check_drafts(const DraftOptions& options);
// Of a text at a time; 0: none.
int64_t most_drafts(const DraftOptions& options);

struct DraftedText {
  uint64_t id = 0;                  // the text's, as long as it goes on
  std::span<const int32_t> tokens;  // its prompt and output so far
  int64_t max_drafts = 0;
  std::vector<int32_t>* drafts = nullptr;  // = up to so many guesses of the tokens that follow
};

// Not thread-safe.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // From one call to the next a text only grows.
  virtual void draft(std::span<const DraftedText> texts) = 0;
  virtual void end(uint64_t id) = 0;  // of a text, whether it was ever drafted or not
};
}  // namespace nmoe
