// Optimizers. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>
#include <vector>

#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

// Stochastic rounding of moments, and of gradients (contracts/gradient.h), in BF16 (ops/moment_rounding.h), and of
// moments in 8 bits (ops/moment_codes.h). Random bits
// belong to the elements of whole tensors: they do not depend on which of these elements this rank has, or where.
struct MomentRounding {
  Tensor key;           // [1] i64, different for each step
  uint64_t stream = 0;  // different for each tensor
  int64_t first = 0;    // index, in the whole tensor, of the first element passed; with matrices 0
  Tensor matrices;      // [n] i32: the indices, in a stack of matrices of equal size, of the n that are passed;
                        // undefined: the elements are one range
};

// AdamW with decoupled decay (arXiv 1711.05101): m and v are updated, then
//   w -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)
// The same bits on every device.
struct AdamWStep {
  Tensor w, low;              // updated
  Tensor grad;                // stat, or BF16, which is widened; read only
  Tensor m, v;                // stat, or BF16 both, or U8 both: codes; updated
  Tensor m_scales, v_scales;  // [blocks] u8, of codes, whose blocks begin with each matrix; else undefined. Updated
  Tensor grad_scale;          // [1] f64: gradients are first multiplied by it (clipping). Not finite: nothing changes
  Tensor rates;               // [3] f64: lr, 1 / (1 - beta1^t) and 1 / (1 - beta2^t) for step t, from 1
  MomentRounding random;      // for moments in BF16 or codes, of which `first` begins a block
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
};
// Many tensors at once, which do not overlap.
struct AdamWSteps {
  std::vector<AdamWStep> all;
};

// Muon, the Moonlight recipe (arXiv 2502.16982, section 2): for every matrix of a [batch, rows, cols] stack,
//   m = momentum * m + g;  u = g + momentum * m (Nesterov);  o = NewtonSchulz5(u), quintic, `iterations` times;
//   w -= lr * (0.2 * sqrt(max(rows, cols)) * o + weight_decay * w)
// A momentum in BF16 has the same bits on every device, from the same gradients.
//
// With s the shorter side and x [s, .] = u / (|u| + 1e-7), in the Frobenius norm, transposed if it is tall, an
// iteration is
//   G = x x^T;  P = b G + c G G;  x = a x + P x
// In MuonProducts::kBf16 x at first, and G, P and x of each iteration, are rounded to BF16 once each, to nearest; sums
// are stat, in the product's order. Otherwise nothing is rounded but by CUDA's products of BF16 weights, whose factors
// are TF32.
struct MuonStep {
  Tensor w, low;          // [rows, cols] or [batch, rows, cols], updated
  Tensor grad;            // same, stat or BF16, which is widened
  Tensor momentum;        // same, stat or BF16, updated
  Tensor grad_scale;      // [1] f64, as for AdamW
  Tensor rates;           // [1] f64 or more: lr
  MomentRounding random;  // for a momentum in BF16; each of its matrices is one or more of Muon's
  double beta = 0.95, weight_decay = 0.0;
  int iterations = 5;
  MuonProducts products = MuonProducts::kDevice;
};

}  // namespace nmoe
