// Guesses of what texts go on with, so that the model reads several tokens of a text in one pass (speculative decoding;
// arXiv 2211.17192). The engine keeps a guess only where it is the token that it draws there itself, so that guesses
// change no text, only how long it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/sampler.h"
#include "infer/seen_ids.h"

namespace nmoe {

constexpr int64_t kMostDrafts = 16;  // of a text at a time

enum class DraftKind {
  kNone,
  kNgram,  // what followed the last tokens where they came before (infer/draft/ngram_drafter.h)
  kMtp,    // the model's own module of multi-token prediction (infer/draft/mtp_drafter.h)
  kModel,  // another, smaller model (infer/draft/model_drafter.h)
};
struct DraftOptions {
  DraftKind kind = DraftKind::kNone;
  std::string checkpoint = {};  // of kModel: its folder, or a folder of them (the latest)
  // Tokens that are guessed of a text at a time, at most kMostDrafts; nothing: as many as pay, and none where none do
  // (infer/draft/draft_control.h).
  std::optional<int64_t> tokens = {};
};
// Error (usage) for a number of tokens that is out of range, or of no drafter.
void check_drafts(const DraftOptions& options);
// Of a text at a time; 0: none.
int64_t most_drafts(const DraftOptions& options);

struct DraftedText {
  uint64_t id = 0;                            // the text's, as long as it goes on
  std::span<const int32_t> tokens;            // its prompt and output so far
  const SamplingOptions* sampling = nullptr;  // how the tokens that follow will be drawn,
  int64_t num_written = 0;                    // the first of them as the output's so many-th
  const SeenIds* seen = nullptr;              // of `tokens`, where there is a repetition penalty
  int64_t max_drafts = 0;
  std::vector<int32_t>* drafts = nullptr;  // = up to so many guesses of the tokens that follow
};

// A pass that a drafter made for its guesses.
struct DraftPass {
  int64_t rows = 0;
  double seconds = 0.0;
};

// Rows of a text in a pass of the model: from that row of the pass on, from that position of the text on.
struct RanRows {
  uint64_t id = 0;
  int64_t first_row = 0, position = 0, count = 0;
};

// Not thread-safe.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Whether guesses take time: then only those are asked for that are run, and of the texts that they are asked of.
  virtual bool takes_time() const { return false; }
  // Of a text of so many tokens, those that are to be read before there is a guess.
  virtual int64_t num_unread(uint64_t /*id*/, int64_t /*num_tokens*/) const { return 0; }
  // From one call to the next a text only grows. Returns the passes that were made.
  virtual std::vector<DraftPass> draft(std::span<const DraftedText> texts) = 0;
  // The model runs, or has run, a pass of these.
  virtual void ran(std::span<const RanRows> /*rows*/) {}
  virtual void end(uint64_t id) = 0;  // of a text, whether it was ever drafted or not
};

}  // namespace nmoe
