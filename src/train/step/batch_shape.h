// How a step's tokens are divided into sequences and microbatches. Every step has the same number of tokens; if a stage
// of a mixture has its own sequence length, the number of sequences per step changes accordingly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "config/mixture.h"
#include "model/batch.h"
#include "rdep/capacity.h"

namespace nmoe {

struct BatchShape {
  int64_t seq_len = 0;
  int64_t batch_seqs = 0;       // of a step, of all ranks together
  int64_t microbatch_seqs = 0;  // per forward and backward pass; times parallel.ranks, divides batch_seqs

  int64_t microbatch_tokens() const { return microbatch_seqs * seq_len; }
  int64_t num_microbatches(int64_t num_ranks) const { return batch_seqs / (num_ranks * microbatch_seqs); }
  // What a microbatch of one of W ranks holds: the m-th of rank i is microbatch m * W + i of the step.
  SequencePart part(int64_t rank, int64_t num_ranks, int64_t microbatch) const {
    return {.first_seq = (microbatch * num_ranks + rank) * microbatch_seqs, .whole_len = seq_len};
  }
};

// Tokens of an optimizer step, of all ranks together.
int64_t step_tokens(const Config& config);

// The shape of steps whose sequences have `seq_len` tokens. For data.seq_len, train.batch_seqs and
// train.microbatch_seqs define it. Microbatches of another length have the same number of tokens or fewer, but at least
// one sequence; with parallel.logical_shards, the number of microbatches is the same.
BatchShape batch_shape(const Config& config, int64_t seq_len);
// The shapes of an engine's steps, one for each sequence length, of which data.seq_len is the first; none: that alone.
std::vector<BatchShape> batch_shapes(const Config& config, std::span<const int64_t> seq_lens);
// Of a rank's optimizer state in host memory, the bytes that are to be written back beside a step's first forward, in
// microbatches of that shape. None where inputs of blocks are sent to the host meanwhile, on the same lane: each would
// wait for all of that.
int64_t state_bytes_beside_forward(const Config& config, const BatchShape& shape);
// What ranks exchange at most, in microbatches of these shapes.
ExchangeLimits exchange_limits(const Config& config, std::span<const BatchShape> shapes);

// The sequence lengths of a run: data.seq_len, then every other one of a stage of `mixture` (null: no mixture). Errors
// (usage), naming the stage: sequences that do not fill a step, that cannot be divided equally among ranks, that are no
// multiples of data.align_documents, or that are longer than the model is meant for.
std::vector<int64_t> sequence_lengths(const Config& config, const Mixture* mixture);

}  // namespace nmoe
