#include "ops/products/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace nmoe {

void use_product_table(std::string_view text, std::string_view name) {
  set_product_table(parse_product_table(text, name));
}

std::vector<ProductUse> products_since(const std::vector<ProductUse>& before, std::vector<ProductUse> now) {
  for (ProductUse& use : now) {
    const auto known = std::ranges::find(before, use.problem, &ProductUse::problem);
    if (known == before.end()) continue;
    use.plain -= known->plain;
    use.added -= known->added;
  }
  std::erase_if(now, [](const ProductUse& use) { return use.calls() == 0; });
  return now;
}

ProductTable merge_choices(ProductTable table, const ProductTuning& tuning) {
  for (const TunedProduct& product : tuning.products) {
    if (product.num_candidates == 0) continue;
    std::erase_if(table, [&](const ProductChoice& choice) {
      return choice.device == tuning.device && choice.library == tuning.library &&
             choice.problem == product.use.problem;
    });
    if (product.choice) table.push_back(*product.choice);
  }
  return table;
}

std::string product_identity(const Device& device) {
  const ProductAlgorithms* algorithms = device.product_algorithms();
  return algorithms == nullptr ? "" : algorithms->identity();
}

std::vector<ProductUse> products_of(const Device& device) {
  const ProductAlgorithms* algorithms = device.product_algorithms();
  return algorithms == nullptr ? std::vector<ProductUse>() : algorithms->uses();
}

ProductTuning tune_products(const Device& device, const std::vector<ProductUse>& uses,
                            const std::function<void(const TunedProduct&)>& told) {
  if (const ProductAlgorithms* algorithms = device.product_algorithms()) return algorithms->tune(uses, told);
  throw usage_error(fmt::format("{} has one algorithm for a product: there is nothing to tune", device.description()),
                    "set run.device = \"cuda\"");
}

}  // namespace nmoe
