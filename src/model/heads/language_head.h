// The language-model head: from normed hidden states to logits, to log-probabilities of given tokens, and back.
//
// T rows of a pass, D model width, V vocabulary.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet must outlive it.
#pragma once

#include "model/heads/objectives.h"
#include "model/parts/linear.h"
#include "model/pass.h"
#include "model/scored_rows.h"
#include "model/weight_set.h"

namespace nmoe {

class LanguageHead {
 public:
  // The weight [V, D] of that name.
  LanguageHead(WeightSet& weights, std::string_view name) : linear_(weights, name) {}

  // logits [T, V] = of every row of normed [T, D], or [L, V] = of the rows `rows` [L] i32.
  void logits(const Pass& pass, Tensor normed, Tensor rows, Tensor logits) const;
  // `scored` = of rows of normed [T, D].
  void scores(const Pass& pass, Tensor normed, const ScoredRows& scored) const;
  // The negative log-probabilities of the batch's targets, losses [T] stat =, and, if `predictions` is defined, the
  // likeliest next tokens, [T] i32 =.
  void losses(const Pass& pass, Tensor normed, Tensor losses, Tensor predictions) const;
  // losses [objectives, T] stat = the token losses of each; dx [T, D] = the gradient of their sums, each times its
  // element of pass.scale.loss, to normed [T, D]; the weight's gradient likewise, as model/parameter.h says.
  void forward_backward(const Pass& pass, Tensor normed, const Objectives& objectives, Tensor losses, Tensor dx) const;

  // What forward_backward does for the next token, for a further depth: losses [T] stat =, predictions [T] i32 =
  // (undefined: not wanted), each gradient that of the sum of losses times scale [1] f64. With `detached` the weight's
  // gradient stays as it is.
  struct Ahead {
    Tensor targets, scale, losses, predictions;
    bool detached = false;
  };
  void forward_backward_ahead(const Pass& pass, Tensor normed, const Ahead& ahead, Tensor dx) const;

  const Linear& linear() const { return linear_; }

 private:
  Linear linear_;
};

}  // namespace nmoe
