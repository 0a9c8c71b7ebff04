// Finds algorithms of dense products that are faster than the library's first choices.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "config/config.h"
#include "ops/products/products.h"

namespace nmoe {

struct TuneBench {
  std::string device;
  SoftwareVersions software;
  ProductTuning tuning;
};

// Runs a few steps of each configuration, as bench_train does, to see which products they are made of, then times those
// (ops/products/products.h); `told` is called with each when it is done. Error (usage) unless all run on CUDA.
TuneBench bench_tune(std::span<const Config> configs, const std::function<void(const TunedProduct&)>& told);

}  // namespace nmoe
