// How the products of a step are added to a gradient in BF16 (ops/contracts/gradient.h): with which random bits. They
// belong to the step's key, the weight, the shard of the step's batch that a product is of (QuantisedCopies::shard),
// its number among that shard's products, and the element of the whole tensor: to no number of ranks, and no place of
// an expert. Where one product gives a step's gradient, it is rounded to nearest.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <map>

#include "ops/ops.h"

namespace nmoe {

class GradientSum {
 public:
  // `stream`: of the random bits, different for every weight.
  explicit GradientSum(uint64_t stream) : stream_(stream) {}

  Tensor key;                // [1] i64, different for each step
  int64_t num_products = 0;  // that give a step's gradient, those of overflow apart (RoutedRows); set before each step

  void begin_step() { num_added_.clear(); }
  // Of the next product, which is of this shard; experts: as for QuantisedCopies. `accumulate`: it is added to others.
  MomentRounding next(int64_t shard, Tensor experts, bool accumulate) {
    NMOE_CHECK(num_products > 0 && key.defined(), "gradients are rounded in steps of {} products", num_products);
    constexpr uint64_t kMostOfShard = uint64_t{1} << 20;
    const uint64_t number = static_cast<uint64_t>(shard) * kMostOfShard + num_added_[shard]++;
    if (num_products == 1 && !accumulate) return {};
    return {.key = key, .stream = stream_ + number, .first = 0, .matrices = experts};
  }

 private:
  uint64_t stream_;
  std::map<int64_t, uint64_t> num_added_;  // products in this step, by shard
};

}  // namespace nmoe
