// Checks an explicit backward against central differences, in double precision.
//
//   const Tensor y = pool.zeros({3, 4}), dy = pool.normal({3, 4}), x = ..., dx = ...;
//   ops->some_backward(x, dy, dx);
//   const auto loss = [&] { ops->some_forward(x, y); return dot(y, dy); };
//   EXPECT_TRUE(gradient_matches(loss, x, dx));
#pragma once

#include <functional>

#include "support/tensors.h"

namespace nmoe::test {

// sum_i a_i b_i: with a constant b, the scalar whose gradient with respect to a is b.
inline double dot(Tensor a, Tensor b) {
  NMOE_CHECK(a.num_elements() == b.num_elements(), "dot of {} and {}", a.shape(), b.shape());
  double result = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) result += get(a, i) * get(b, i);
  return result;
}

// d loss / d x by the five-point central difference, whose error is O(step^4). `loss` computes from
// the present contents of x, which are left as they were.
inline std::vector<double> numeric_gradient(const std::function<double()>& loss, Tensor x, double step = 1e-3) {
  NMOE_CHECK(x.dtype() == DType::kF64, "gradients are checked in F64, not {}", dtype_name(x.dtype()));
  std::vector<double> gradient;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    const double centre = get(x, i);
    const auto loss_at = [&](double offset) {
      set(x, i, centre + offset * step);
      return loss();
    };
    const double near_slope = loss_at(1) - loss_at(-1);
    const double far_slope = loss_at(2) - loss_at(-2);
    set(x, i, centre);
    gradient.push_back((8 * near_slope - far_slope) / (12 * step));
  }
  return gradient;
}

// Whether `gradient` is d loss / d x. The default tolerance leaves three digits for the difference
// quotient's own error, which is near 1e-10 for losses and values of order one.
inline ::testing::AssertionResult gradient_matches(const std::function<double()>& loss, Tensor x, Tensor gradient,
                                                   double tolerance = 1e-7) {
  if (x.shape() != gradient.shape()) {
    return ::testing::AssertionFailure() << fmt::format("a gradient of {} for {}", gradient.shape(), x.shape());
  }
  return near(gradient, numeric_gradient(loss, x), tolerance);
}

}  // namespace nmoe::test
