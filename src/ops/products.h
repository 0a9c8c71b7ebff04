// Who chooses the algorithms of a device's dense products: on CUDA a table and, for what it does not have, cuBLASLt's
// heuristic (ops/cuda/vendor/product_table.h). Elsewhere there is no choice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/cuda/vendor/product_table.h"
#include "ops/device.h"

namespace nmoe {

// Names all that choices follow from: library, kind of device and what the table has for both; "" where there is no
// choice. Where it is the same, the same products have the same bits.
std::string product_identity(const Device& device);

// The products that the process has computed on a device so far; none where there is no choice.
std::vector<cuda::ProductUse> products_of(const Device& device);

// What came since, of two such lists.
std::vector<cuda::ProductUse> products_since(const std::vector<cuda::ProductUse>& before,
                                             std::vector<cuda::ProductUse> now);

// Another table than the program's own, for devices that are made from here on. Error: parse_product_table's.
void use_product_table(std::string_view text, std::string_view name);

struct TunedProduct {
  cuda::ProductUse use;
  int num_candidates = 0;     // algorithms that were timed; 0: it is too short, or too small a part of all
  double heuristic_us = 0.0;  // of a call
  double chosen_us = 0.0;     // the same without a choice
  std::optional<cuda::ProductChoice> choice;
};
struct ProductTuning {
  std::string device;   // for which it counts, as ProductChoice has it
  int64_t library = 0;  // same
  std::vector<TunedProduct> products;
};
// Times algorithms of products on a device, which is idle but for this; `told` is called with each as it is done. Error
// (usage) where there is no choice.
ProductTuning tune_products(const Device& device, const std::vector<cuda::ProductUse>& uses,
                            const std::function<void(const TunedProduct&)>& told);

// `table` with what was found: for products that were timed, choices take the place of those that it had.
cuda::ProductTable merge_choices(cuda::ProductTable table, const ProductTuning& tuning);

}  // namespace nmoe
