#include "ops/products.h"

namespace nmoe {

void use_product_table(std::string_view text, std::string_view name) {
  cuda::set_product_table(cuda::parse_product_table(text, name));
}

cuda::ProductTable merge_choices(cuda::ProductTable table, const ProductTuning& tuning) {
  for (const TunedProduct& product : tuning.products) {
    if (product.num_candidates == 0) continue;
    std::erase_if(table, [&](const cuda::ProductChoice& choice) {
      return choice.device == tuning.device && choice.library == tuning.library && choice.problem == product.problem;
    });
    if (product.choice) table.push_back(*product.choice);
  }
  return table;
}

}  // namespace nmoe
