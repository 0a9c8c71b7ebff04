#include "ops/products.h"

#include <algorithm>

namespace nmoe {

void use_product_table(std::string_view text, std::string_view name) {
  cuda::set_product_table(cuda::parse_product_table(text, name));
}

std::vector<cuda::ProductUse> products_since(const std::vector<cuda::ProductUse>& before,
                                             std::vector<cuda::ProductUse> now) {
  for (cuda::ProductUse& use : now) {
    const auto known = std::ranges::find(before, use.problem, &cuda::ProductUse::problem);
    if (known == before.end()) continue;
    use.plain -= known->plain;
    use.added -= known->added;
  }
  std::erase_if(now, [](const cuda::ProductUse& use) { return use.calls() == 0; });
  return now;
}

cuda::ProductTable merge_choices(cuda::ProductTable table, const ProductTuning& tuning) {
  for (const TunedProduct& product : tuning.products) {
    if (product.num_candidates == 0) continue;
    std::erase_if(table, [&](const cuda::ProductChoice& choice) {
      return choice.device == tuning.device && choice.library == tuning.library &&
             choice.problem == product.use.problem;
    });
    if (product.choice) table.push_back(*product.choice);
  }
  return table;
}

}  // namespace nmoe
