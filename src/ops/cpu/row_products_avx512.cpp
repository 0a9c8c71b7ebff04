// Compiled for x86-64-v4 (ops/CMakeLists.txt), and called only on processors that have it.
#include "ops/cpu/avx512_vectors.h"
#include "ops/cpu/row_products.h"
#include "ops/cpu/row_products_tiles.h"

namespace nmoe::cpu {
namespace {}  // namespace

template <>
const RowProducts<float>& avx512_row_products<float>() {
  static constexpr RowProducts<float> kProducts{dot_rows_of<Floats>, combine_rows_of<Floats>};
  return kProducts;
}
template <>
const RowProducts<double>& avx512_row_products<double>() {
  static constexpr RowProducts<double> kProducts{dot_rows_of<Doubles>, combine_rows_of<Doubles>};
  return kProducts;
}

}  // namespace nmoe::cpu
