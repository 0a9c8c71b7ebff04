// How a step's tokens are cut into sequences and microbatches. Every step has the same number of tokens; a stage of a
// mixture may have sequences of a length of its own, and then as many of them as make up a step.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "config/mixture.h"

namespace nmoe {

struct BatchShape {
  int64_t seq_len = 0;
  int64_t batch_seqs = 0;       // of a step, of all ranks together
  int64_t microbatch_seqs = 0;  // of a forward/backward; times parallel.ranks, divides batch_seqs

  int64_t microbatch_tokens() const { return microbatch_seqs * seq_len; }
  int64_t num_microbatches(int64_t num_ranks) const { return batch_seqs / (num_ranks * microbatch_seqs); }
};

// Tokens of an optimizer step, of all ranks together.
int64_t step_tokens(const Config& config);

// Of steps whose sequences have `seq_len` tokens: that of train.batch_seqs and train.microbatch_seqs for data.seq_len.
// A microbatch of another length has as many tokens or fewer, but at least one sequence; with
// parallel.logical_shards, as many microbatches as those.
BatchShape batch_shape(const Config& config, int64_t seq_len);

// The lengths that sequences of a run have: data.seq_len, then each other one that a stage of `mixture` has (null:
// there is none). Errors (usage), naming the stage: sequences that do not fill a step, that ranks cannot share equally,
// or that are longer than the model is meant for.
std::vector<int64_t> sequence_lengths(const Config& config, const Mixture* mixture);

}  // namespace nmoe
