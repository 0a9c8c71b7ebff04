// Batches of a run's global stream, and a rank's share of them.
//
// A step takes the next `batch` sequences of the schedule, all of one length. Every rank follows
// the whole schedule and reads its own slice of each step's sequences: rank r of R gets a
// contiguous part, the first (batch mod R) ranks one sequence more. So the stream is the same for
// any number of ranks and any division into microbatches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/shards/dataset.h"
#include "data/stream/order.h"
#include "data/stream/plan.h"
#include "data/stream/schedule.h"

namespace nmoe {

// [begin, end) of a step's sequences.
struct RankSlice {
  int64_t begin = 0;
  int64_t end = 0;
};
RankSlice rank_slice(int64_t batch, int64_t rank, int64_t num_ranks);

// A target without loss.
inline constexpr int32_t kNoTarget = -1;

// Reads sequences by reference. Immutable and thread-safe.
class SequenceReader {
 public:
  // `datasets` are the plan's sources, in its order, of one tokenizer, and must outlive the reader.
  SequenceReader(const StreamPlan& plan, std::span<const TokenDataset* const> datasets, Shuffle shuffle, uint64_t seed);

  int64_t seq_len() const { return seq_len_; }  // of the plan
  // Of an epoch, of so many tokens.
  int64_t num_windows(size_t source) const { return orders_[source].num_windows(seq_len_); }
  bool has_mask(size_t source) const { return orders_[source].has_mask(); }

  // Sequences of `seq_len` tokens. inputs and targets: [refs.size(), seq_len], row-major; targets[s, i] = inputs[s, i +
  // 1], with one token of look-ahead at the end, or kNoTarget where the dataset's mask or the alignment says not to
  // learn it. `ends`: [refs.size(), seq_len + 1], kEndsDocument or kEndsPadding (data/stream/documents.h) for a token
  // of the sequence or its look-ahead that is the last of one, else 0; ignored where it is empty. Errors:
  // SourceOrder::read.
  void read(std::span<const SequenceRef> refs, int64_t seq_len, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<uint8_t> ends) const;

 private:
  int64_t seq_len_;
  std::vector<SourceOrder> orders_;  // by source
};

// Sequence k of source 0 is window k of the dataset, in file order: a validation split from its beginning.
// Error (usage), naming the folder, when the dataset is shorter than a window. `alignment` of documents: as in a plan.
SequenceReader split_reader(const TokenDataset& dataset, int64_t seq_len, int64_t alignment = 1);

}  // namespace nmoe
