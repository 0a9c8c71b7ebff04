// Tensors of ranks, and what their sum is to be.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/rng.h"
#include "parallel/communicator.h"

namespace nmoe::test {

template <class T>
Tensor view(std::vector<T>& values) {
  return {values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())}};
}

inline void sum(Communicator& ranks, Tensor tensor) { ranks.all_reduce_sum(std::span(&tensor, 1), Lane::kCompute); }

// A rank's values: of all sizes, so that the order of a sum shows in its last bits.
template <class T>
std::vector<T> values_of(int64_t rank, int64_t size) {
  const Philox random(static_cast<uint64_t>(rank), "values");
  std::vector<T> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = random.bits(i);
    const auto whole = static_cast<int32_t>(bits % 2000) - 1000;
    if constexpr (std::is_integral_v<T>) {
      values[i] = whole;
    } else {
      values[i] = std::ldexp(static_cast<T>(whole) / T{7}, static_cast<int>(bits / 2000 % 20));
    }
  }
  return values;
}

// ((rank 0 + rank 1) + rank 2) + ...
template <class T>
std::vector<T> sum_in_rank_order(int64_t count, int64_t size) {
  std::vector<T> sum = values_of<T>(0, size);
  for (int64_t rank = 1; rank < count; ++rank) {
    const std::vector<T> values = values_of<T>(rank, size);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

}  // namespace nmoe::test
