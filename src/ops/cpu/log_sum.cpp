#include "ops/log_sum.h"

#include <cmath>

#include "ops/cpu/vector_math.h"

namespace nmoe {

template <class Real>
LogSumOf<Real> log_sum_of(Real* logits, int64_t size) {
  const Real highest = cpu::highest_of(logits, size);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    logits[i] = cpu::exp_approx(logits[i] - highest);
    sum += logits[i];
  }
  return {.highest = highest, .sum = sum, .log = std::log(sum)};
}

template LogSumOf<float> log_sum_of(float*, int64_t);
template LogSumOf<double> log_sum_of(double*, int64_t);

}  // namespace nmoe
