// How near results of low precision are to others.
#pragma once

#include <cmath>

#include "support/tensors.h"

namespace nmoe::test {

// The ratio of signal to noise, in dB.
inline double signal_to_noise(Tensor actual, Tensor exact) {
  double signal = 0, noise = 0;
  for (int64_t i = 0; i < exact.num_elements(); ++i) {
    const double value = get(exact, i), error = get(actual, i) - value;
    signal += value * value;
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace nmoe::test
