#include "bench/tune_bench.h"

#include <map>

#include "base/error.h"
#include "bench/train_bench.h"
#include "ops/factory.h"
#include "train/step/engine.h"

namespace nmoe {

TuneBench bench_tune(std::span<const Config> configs, const std::function<void(const TunedProduct&)>& told) {
  NMOE_CHECK(!configs.empty(), "products of no configuration");
  for (const Config& config : configs) {
    if (config.run.device == "cuda") continue;
    throw usage_error(fmt::format("run.device = \"{}\": there is nothing to tune on it", config.run.device),
                      "add --set run.device=cuda");
  }
  std::map<GemmProblem, ProductUse> used;
  for (const Config& config : configs) {
    for (const ProductUse& use : bench_train(config, /*warmup=*/1, /*steps=*/1).products) {
      ProductUse& all = used.emplace(use.problem, ProductUse{.problem = use.problem}).first->second;
      all.plain += use.plain;
      all.added += use.added;
    }
  }
  std::vector<ProductUse> uses;
  uses.reserve(used.size());
  for (const auto& [problem, use] : used) uses.push_back(use);
  const auto device = make_device(device_options(configs[0].run, /*num_ranks=*/1, /*rank=*/0));
  return {
      .device = device->description(), .software = device->software(), .tuning = tune_products(*device, uses, told)};
}

}  // namespace nmoe
