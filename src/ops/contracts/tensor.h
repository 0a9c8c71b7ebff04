// Filling, copying and reducing tensors, and the two halves of a BF16 weight. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

struct Fill {
  Tensor x;  // = value; any dtype
  double value = 0.0;
};

// Random numbers std * z, with z from a standard normal distribution truncated to |z| <= truncation: element i is draw
// first + i of Philox(seed, stream) (base/rng.h). The same bits on every device.
struct TruncatedNormal {
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t first = 0;
  double std = 1.0;
  double truncation = 3.0;
};
struct FillTruncatedNormal {
  Tensor x;  // = stat
  TruncatedNormal draws;
};

// Between two tensors of equal size, each in the device's memory or in mapped memory of the host (Device). Between the
// two, another lane may compute, and a third copy in the other direction, at the same time.
struct Copy {
  Tensor source;
  Tensor destination;  // =
};

// Converts between a weight and its master, [n] stat in the device's memory. `low` is undefined if w is stat; it may be
// in mapped memory of the host.
struct SplitWeight {
  Tensor master;
  Tensor w, low;  // =
};
struct JoinWeight {
  Tensor w, low;
  Tensor master;  // =
};

// For measuring time on a lane, by the device's clock in nanoseconds: what passes between a call with `begin` and the
// next one without is added to `sum`.
struct AddTime {
  Tensor sum;    // [1] f64 +=; not touched with begin
  Tensor begun;  // [1] i64: the clock; = with begin
  bool begin = false;
};

struct Sum {
  Tensor x;    // act or stat
  Tensor out;  // [1] f64 += sum of x
};
struct SumOfSquares {
  Tensor x;           // act or stat
  Tensor out;         // [1] f64 += sum of x^2
  Tensor parts = {};  // f64: the sums of the squares of parts of x, where they are known; x is not read then
};
// Of many tensors at once. Those with the same `out` must be consecutive, and are added in this order.
struct SumsOfSquares {
  std::vector<SumOfSquares> all;
};
// Adds elements one after the other, so that the bits depend only on their order.
struct SumInOrder {
  Tensor x;           // [N] f64
  Tensor out;         // = [1] f64
  Tensor order = {};  // [N] i32: indices of the elements in the order to add them; undefined: as stored
};
struct CountNonFinite {
  Tensor x;    // apart
  Tensor out;  // [1] i32 += number of NaN and infinities
};

// The factor that clips the global gradient norm: scale = min(1, max_norm / sqrt(sum_squares)), or 1 when max_norm is
// 0. If sum_squares or loss_sum is not finite, `stopped` becomes 1; as long as it is not 0, scale is NaN.
struct ClipScale {
  Tensor sum_squares;  // [1] f64
  Tensor loss_sum;     // [1] f64
  double max_norm = 0.0;
  Tensor scale;    // = [1] f64
  Tensor stopped;  // [1] i32
};

}  // namespace nmoe
