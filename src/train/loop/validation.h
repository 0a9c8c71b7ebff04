// Loss on held-out text, and the share of right answers if a mask marks answers.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <vector>

#include "data/stream/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "train/step/engine.h"

namespace nmoe {

// [V]: the bytes of text that each token id stands for; 0 for special tokens.
std::vector<int32_t> token_byte_counts(const Tokenizer& tokenizer);

// Loss is over all targets that are learned. Some stand for no text: special tokens, such as those that end a turn or a
// document. Bits per byte are of the others, whose bytes are counted.
struct ValidationResult {
  double nats = 0.0;   // of all targets
  int64_t tokens = 0;  // number of targets
  double text_nats = 0.0;
  int64_t bytes = 0;  // of the text that targets stand for
  int64_t special = 0;
  int64_t special_predicted = 0;  // with a mask: the special targets that were the likeliest
  int64_t answers = 0;            // counted (train/loop/answers.h): 0 without a mask
  int64_t answers_correct = 0;

  double loss() const;           // nats per token
  double bits_per_byte() const;  // text_nats / (ln 2 * bytes), of which there must be some
  double special_share() const;  // of the targets
  double special_loss() const;   // nats per special target, of which there must be some
  double special_predicted_share() const;
  double answers_correct_share() const;  // of those counted, of which there must be some
  ValidationResult& operator+=(const ValidationResult& other);
};

// The first max_seqs windows of a split (data/stream/loader.h: split_reader); 0: all of them. Every rank calls this,
// evaluates a contiguous range of the windows and gets the result for all. Nats are summed in the windows' order, then
// in that of ranks. Answers do not depend on how the windows are divided (train/loop/answers.h).
ValidationResult validate(Engine& engine, const SequenceReader& split, const std::vector<int32_t>& token_bytes,
                          int64_t max_seqs, int64_t microbatch_seqs);

}  // namespace nmoe
