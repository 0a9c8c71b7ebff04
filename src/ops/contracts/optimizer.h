// Optimizers. Letters and conventions: ops/ops.h.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// AdamW with decoupled decay (arXiv 1711.05101): m, v updated, then
//   w -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)
struct AdamWStep {
  Tensor w, low;      // updated
  Tensor grad;        // stat; read only
  Tensor m, v;        // stat; updated
  Tensor grad_scale;  // [1] f64: gradients are multiplied by it first (clipping). Not finite: nothing is changed
  Tensor rates;       // [3] f64: lr, 1 / (1 - beta1^t) and 1 / (1 - beta2^t) for step t, from 1
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
};

// Muon, the Moonlight recipe (arXiv 2502.16982, section 2): for every matrix of a [batch, rows, cols] stack,
//   m = momentum * m + g;  u = g + momentum * m (Nesterov);  o = NewtonSchulz5(u), quintic, `iterations` times;
//   w -= lr * (0.2 * sqrt(max(rows, cols)) * o + weight_decay * w)
struct MuonStep {
  Tensor w, low;      // [rows, cols] or [batch, rows, cols], updated
  Tensor grad;        // same, stat
  Tensor momentum;    // same, stat, updated
  Tensor grad_scale;  // [1] f64, as for AdamW
  Tensor rates;       // [1] f64 or more: lr
  double beta = 0.95, weight_decay = 0.0;
  int iterations = 5;
};

}  // namespace nmoe
