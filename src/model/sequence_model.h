// What generation asks of a model: passes over rows of sequences whose earlier tokens it keeps states of
// (model/states.h). Model is one; generation knows no more of it than this.
#pragma once

#include <cstdint>
#include <vector>

#include "model/scored_rows.h"
#include "model/states.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

class SequenceModel {
 public:
  virtual ~SequenceModel() = default;
  virtual Ops& ops() const = 0;            // of its passes
  virtual int64_t vocab_size() const = 0;  // V, which may be padded
  // What its parts keep of a sequence.
  virtual std::vector<StateSpec> states() const = 0;
  // Runs rows through the model, each seeing the states of its slot, to which it is added. logits [L, V] = of the rows
  // `wanted` [L] i32 (of T); none if L is 0.
  virtual void cached_logits(const CachedRows& rows, const ModelStates& states, Arena& activations, Tensor wanted,
                             Tensor logits) = 0;
  // The same for losses; none if `scored` has no rows.
  virtual void cached_scores(const CachedRows& rows, const ModelStates& states, Arena& activations,
                             const ScoredRows& scored) = 0;
};

}  // namespace nmoe
