// The plan of a run's data: how many sequences each stage takes from each source, and how long they are. Made before
// training, from the mixture, a profile and the sources' sizes; the stream follows from it alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/mixture.h"

namespace nmoe {

// What a plan needs to know of a source.
struct SourceFacts {
  std::string name;
  int64_t num_tokens = 0;   // of its training split
  std::string hash;         // names its content
  int64_t num_padding = 0;  // tokens of padding behind its documents, in the plan's alignment (data/stream/alignment.h)
};

struct PlannedSource {
  std::string name;
  std::string hash;
  int64_t num_tokens = 0;
  int64_t num_padding = 0;
  int64_t epoch_tokens() const { return num_tokens + num_padding; }
  // Sequences of `seq_len` tokens in an epoch: floor((epoch_tokens - 1) / seq_len).
  int64_t num_windows(int64_t seq_len) const { return num_tokens > 0 ? (epoch_tokens() - 1) / seq_len : 0; }
};

struct PlannedStage {
  std::string name;
  int64_t seq_len = 0;  // of all its sequences
  int64_t num_sequences = 0;
  std::vector<int64_t> quotas;  // by source; their sum is num_sequences
  std::vector<bool> capped;     // by source: its max_epochs left it less than its share
  // By source: the number of the first sequence it takes, in the source's order of sequences of seq_len tokens
  // (data/stream/order.h). If the stage before it took shorter or longer ones, the first that begins in the epoch at
  // or after the position where those ended.
  std::vector<int64_t> first;
};

struct StreamPlan {
  int64_t seq_len = 0;    // data.seq_len, for all stages without their own
  int64_t alignment = 1;  // of documents, which divides all stages' seq_len; 1: they begin anywhere
  std::vector<PlannedSource> sources;
  std::vector<PlannedStage> stages;

  int64_t num_sequences() const;
  int64_t num_tokens() const;    // padding included
  double padding_share() const;  // of them, if every source's sequences have their share of its padding
  // SHA-256 over the whole plan: equal plans with equal seeds give equal streams.
  std::string hash() const;
};

// The tokens of all stages together under the profile called `profile`. Error (usage) when there is none of that name.
int64_t profile_tokens(const Mixture& mixture, std::string_view profile, int64_t active_parameters);

// Scales the stages so that together they have `total_tokens`: stage s gets floor(scaled tokens / its seq_len)
// sequences. If the next stage's have another length, it ends with a whole step of `step_tokens`, which is a multiple
// of every length: sequences of two lengths are never in one step, and those that would begin such a step are left out.
// Source i of a stage gets the share p_i = w_i^(1 / temperature) / sum_j w_j^(1 / temperature), rounded to whole
// sequences by largest remainder (ties: the first source). A source that reaches its max_epochs contributes what is
// left of it, and the others share the rest in proportion to p. `sources` are in the order of mixture.sources. What
// counts tokens includes padding. Errors (usage), naming stage and source: a source shorter than a window, a stage
// shorter than a sequence (or the step it has to end with) or of 2^40 sequences and more, sources that cannot fill a
// stage.
StreamPlan make_stream_plan(const Mixture& mixture, const std::vector<SourceFacts>& sources, int64_t seq_len,
                            int64_t total_tokens, int64_t step_tokens, int64_t alignment = 1);

// One source, in one stage without end, for any number of epochs.
StreamPlan single_source_plan(const SourceFacts& source, int64_t seq_len, int64_t alignment = 1);
bool is_endless(const StreamPlan& plan);

// A table: per stage and source tokens, sequences, share, epochs over the source up to the stage's end, and which
// sources are exhausted.
std::string print_stream_plan(const StreamPlan& plan);

// A line that says what documents are aligned to, and the padding's share; "" if they begin anywhere.
std::string print_padding(const StreamPlan& plan);

}  // namespace nmoe
