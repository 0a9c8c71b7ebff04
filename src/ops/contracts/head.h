// The language-model head. Letters and conventions: ops/ops.h.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// The head fused with losses of its logits: softmax cross-entropy, and z-loss (arXiv 2204.02311, section 5). Logits
// exist only for chunks of rows at a time, as stat; what gradients are made of may be their exponentials in act, each
// relative to the highest logit near it. Losses are LogSumOf's (ops/log_sum.h) of LogitSums' sums, with the
// same bits, whether gradients are computed or not.
struct HeadLoss {
  Tensor x;            // [T, D]
  Tensor w;            // [V, D]
  Tensor targets;      // [T] i32; negative: no loss at this position
  Tensor grad_scale;   // [1] f64, dloss/d(token loss): 1 / (number of target tokens in the whole step)
  Tensor losses;       // = [T] stat: token losses in nats, times their weights; 0 where there is no target
  Tensor dx;           // = [T, D]; undefined: loss only, no gradients, grad_scale undefined too
  Tensor dw;           // = [V, D] stat; undefined: not wanted, as without dx
  Tensor predictions;  // = [T] i32: the id of the largest logit, the lowest id of several; undefined: not wanted
  bool accumulate_dw = false;
  Tensor weights = {};   // [T] stat, by which token losses are multiplied; undefined: 1
  Tensor z_losses = {};  // = [T] stat: log(sum of exp(logit))^2, 0 where there is no target; undefined: not wanted
  Tensor z_scale = {};   // [1] f64, dloss/d(z loss); undefined where gradients or z losses are not wanted
};

// What log-probabilities of generation are made of. The order of a row's sum of exponentials depends on V alone. On the
// CPU it is log_sum_of's (ops/log_sum.h). On CUDA a row is cut into tiles of 192 logits, the last maybe fewer. Of a
// tile, a lane of 32 has those at 2 l and 2 l + 1 of every 64; it adds exp(x - m), m the tile's highest logit, in
// ascending order, and lanes 16, 8, 4, 2 and 1 apart are added. Of a row, a lane has every 32nd tile, in ascending
// order fma(sum of the tile, exp(m - m of the row), sum), and lanes are added as before.
struct LogitSums {
  Tensor logits;  // [N, V] stat
  Tensor sums;    // = [N, 3] stat: of each row the members of a LogSumOf (ops/log_sum.h), in their order
};

}  // namespace nmoe
