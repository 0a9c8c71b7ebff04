// The logarithm of a sum of exponentials, as operations leave it (LogitSums, contracts/head.h) and losses and
// log-probabilities are made of it.
#pragma once

#include <cstdint>

namespace nmoe {

// Of a row of logits x: log(sum of exp(x)) is `log` + `highest`.
template <class Real>
struct LogSumOf {
  Real highest = 0;  // of the logits; a NaN is passed over here, and makes the others NaN
  Real sum = 0;      // of exp(x - highest)
  Real log = 0;      // of that

  Real log_z() const { return log + highest; }
  // The loss of the id with this logit.
  Real loss(Real logit) const { return log - (logit - highest); }
  Real logprob(Real logit) const { return -loss(logit); }
};
using LogSum = LogSumOf<float>;
constexpr int64_t kLogSumMembers = sizeof(LogSum) / sizeof(float);

// The CPU's. `logits` become exp(logit - highest). Their sum has lanes of the compiler's vectors, and depends on `size`
// and the values alone.
template <class Real>
LogSumOf<Real> log_sum_of(Real* logits, int64_t size);

}  // namespace nmoe
