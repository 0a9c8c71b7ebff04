#include "model/runner.h"

namespace nmoe {

ModelRunner::ModelRunner(const ModelConfig& config, WeightSet& weights, Device& device, const RunnerRoom& room,
                         const RunnerOptions& options)
    : device_(device),
      ops_(device.ops(options.arithmetic)),
      room_(room),
      model_(config, weights, ops_, options.max_positions, options.passes) {
  model_.allocate(room_.kept);
}

Batch ModelRunner::make_batch(const BatchForm& form) const {
  const int64_t T = form.num_seqs * form.seq_len;
  const auto ints = [&](int64_t count) { return room_.kept.allocate(DType::kI32, {count}); };
  Batch batch{.num_seqs = form.num_seqs, .seq_len = form.seq_len, .tokens = ints(T), .positions = {}};
  if (form.has_targets) batch.rows[BatchRow::kTargets] = ints(T);
  batch.positions = ints(T);
  if (form.has_documents || form.has_pieces) batch.cu_seqlens = ints(T + 1);
  if (form.has_pieces) batch.parents = ints(T + 1);
  return batch;
}

ScoredRows ModelRunner::make_scored_rows(int64_t count) const {
  return {.rows = room_.kept.allocate(DType::kI32, {count}),
          .targets = room_.kept.allocate(DType::kI32, {count}),
          .losses = room_.kept.allocate(ops_.stat_dtype(), {count}),
          .predictions = room_.kept.allocate(DType::kI32, {count})};
}

ModelStates ModelRunner::make_states(const StateSizes& sizes) const {
  return nmoe::make_states(model_.states(), ops_, room_.states, sizes);
}

}  // namespace nmoe
