// The language-model head. Letters and conventions: ops/ops.h.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// The head fused with losses of its logits: softmax cross-entropy, and z-loss (arXiv 2204.02311, section 5). Logits
// exist only for chunks of rows at a time: as act if gradients are computed, else as stat. On the CPU the sum of
// exponentials is log_sum_of's (ops/log_sum.h), which generation takes its log-probabilities from, too.
struct HeadLoss {
  Tensor x;            // [T, D]
  Tensor w;            // [V, D]
  Tensor targets;      // [T] i32; negative: no loss at this position
  Tensor grad_scale;   // [1] f64, dloss/d(token loss): 1 / (number of target tokens in the whole step)
  Tensor losses;       // = [T] stat: token losses in nats, times their weights; 0 where there is no target
  Tensor dx;           // = [T, D]; undefined: loss only, no gradients, grad_scale undefined too
  Tensor dw;           // = [V, D] stat; undefined with dx
  Tensor predictions;  // = [T] i32: the id of the largest logit, the lowest id of several; undefined: not wanted
  bool accumulate_dw = false;
  Tensor weights = {};   // [T] stat, by which token losses are multiplied; undefined: 1
  Tensor z_losses = {};  // = [T] stat: log(sum of exp(logit))^2, 0 where there is no target; undefined: not wanted
  Tensor z_scale = {};   // [1] f64, dloss/d(z loss); undefined where gradients or z losses are not wanted
};

}  // namespace nmoe
