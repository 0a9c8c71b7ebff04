// Who chooses the algorithms of a device's dense products: on CUDA a table and, for what it does not have, cuBLASLt's
// heuristic (product_table.h). Elsewhere there is no choice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/device.h"
#include "ops/products/product_table.h"

namespace nmoe {

// What came since, of two such lists.
std::vector<ProductUse> products_since(const std::vector<ProductUse>& before, std::vector<ProductUse> now);

// Another table than the program's own, for devices that are made from here on. Error: parse_product_table's.
void use_product_table(std::string_view text, std::string_view name);

struct TunedProduct {
  ProductUse use;
  int num_candidates = 0;     // algorithms that were timed; 0: it is too short, or too small a part of all
  double heuristic_us = 0.0;  // of a call
  double chosen_us = 0.0;     // the same without a choice
  std::optional<ProductChoice> choice;
};
struct ProductTuning {
  std::string device;   // for which it counts, as ProductChoice has it
  int64_t library = 0;  // same
  std::vector<TunedProduct> products;
};

// Of a device (Device::product_algorithms). Thread-safe, but for tune().
class ProductAlgorithms {
 public:
  virtual ~ProductAlgorithms() = default;
  // Names all that choices follow from: library, kind of device and what the table has for both. Where it is the same,
  // the same products have the same bits.
  virtual std::string identity() const = 0;
  // The products that the process has computed on the device so far.
  virtual std::vector<ProductUse> uses() const = 0;
  // Times algorithms of products on the device, which is idle but for this; `told` is called with each as it is done.
  virtual ProductTuning tune(const std::vector<ProductUse>& uses,
                             const std::function<void(const TunedProduct&)>& told) const = 0;
};

// The same of any device: "", none, and an error (usage) where there is no choice.
std::string product_identity(const Device& device);
std::vector<ProductUse> products_of(const Device& device);
ProductTuning tune_products(const Device& device, const std::vector<ProductUse>& uses,
                            const std::function<void(const TunedProduct&)>& told);

// `table` with what was found: for products that were timed, choices take the place of those that it had.
ProductTable merge_choices(ProductTable table, const ProductTuning& tuning);

}  // namespace nmoe
