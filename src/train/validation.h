// Loss on held-out text.
#pragma once

#include <cstdint>
#include <vector>

#include "data/stream/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "train/engine.h"

namespace nmoe {

// How many bytes of text each token id stands for; special tokens 0. [V]
std::vector<int32_t> token_byte_counts(const Tokenizer& tokenizer);

struct ValidationResult {
  double loss = 0.0;           // nats per token
  double bits_per_byte = 0.0;  // total nats / (ln 2 * total bytes)
  int64_t tokens = 0;          // targets counted; those that stand for no text (end of document) are not
  int64_t bytes = 0;
};

// The first max_seqs windows of the split in file order; 0: all of them.
ValidationResult validate(Engine& engine, const SequenceLoader& loader, const std::vector<int32_t>& token_bytes,
                          int64_t max_seqs, int64_t microbatch_seqs);

}  // namespace nmoe
