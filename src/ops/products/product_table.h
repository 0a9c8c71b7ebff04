// The table of dense products: by which of cuBLASLt's algorithms a product is computed where the library's own first
// choice is slower. `n bench tune` writes it, product_table.jsonl beside this file is compiled into the program, and no
// run ever times anything. What the table does not have, cuBLASLt's heuristic chooses.
//
// A line is a choice, which counts for one kind of device, one version of the library and one product:
//
//   {"device": "NVIDIA H200", "cublaslt": 130100, "rows": 65536, "cols": 768, "depth": 384, "transposed": "b",
//    "input": "BF16", "output": "BF16", "align": [256, 256, 256], "workspace": 33554432,
//    "algorithm": {"id": 66, "tile": 0, "stages": 0, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 1,
//                  "inner_shape": 0, "cluster_shape": 0}, "gain": 0.031}
//
// (on one line). "batch" is left out where it is 0, "tf32" and "device_scales" where they are false. Empty lines and
// those that begin with # say nothing. Known without CUDA.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/products/gemm_problem.h"

namespace nmoe {

// An algorithm by the attributes that cuBLASLt restores it from (CUBLASLT_ALGO_CONFIG_*), in its own numbers.
struct ProductAlgorithm {
  int32_t id = 0;
  uint32_t tile = 0, stages = 0;
  int32_t split_k = 1;
  uint32_t reduction = 0;  // 0: none; 2: parts of a sum meet in the workspace as F32, in one order
  uint32_t swizzle = 0, custom = 0;
  uint16_t inner_shape = 0, cluster_shape = 0;

  auto operator<=>(const ProductAlgorithm&) const = default;
};

// Whether the same operands give the same bits every time: no atomics, no rounding between parts of a sum.
bool is_deterministic(const ProductAlgorithm& algorithm);

// Whether it may have the order of sums of forward products (ops/contracts/linear.h): not where it splits them, nor is
// it cuBLASLt's algorithm 16, whose sums are in another order. What has it is known of a device
// (ops/cuda/vendor/product_order.h).
bool may_keep_order(const ProductAlgorithm& algorithm);

// How often a product was computed, without and with something added, and whether as a table says.
struct ProductUse {
  GemmProblem problem;
  int64_t plain = 0, added = 0;
  bool from_table = false;

  int64_t calls() const { return plain + added; }
};

struct ProductChoice {
  std::string device;   // as CUDA names it
  int64_t library = 0;  // cublasLtGetVersion()
  GemmProblem problem;  // not of blocks
  ProductAlgorithm algorithm;
  double gain = 0.0;  // share of the heuristic's time that was saved when it was measured; for readers
};
using ProductTable = std::vector<ProductChoice>;
using ProductChoices = std::map<GemmProblem, ProductAlgorithm>;

// Error (runtime) with file (`name`), line and remedy for a line that is not a choice, names an algorithm that is not
// deterministic or that may not keep the order of a forward product, or a product that an earlier line has.
ProductTable parse_product_table(std::string_view text, std::string_view name);

// The reverse, in the order of device, version and product, behind a line that says what it is.
std::string print_product_table(ProductTable table);

// What a table has for a device and a version of the library.
ProductChoices choices_for(const ProductTable& table, std::string_view device, int64_t library);

// Names choices: 12 hexadecimal digits of a hash, the same in whichever order and with whichever gains they were
// written.
std::string digest_of(const ProductChoices& choices);

// The table that is in use: product_table.jsonl, unless another was set.
const ProductTable& product_table();

// Another from here on, for devices that are not made yet; not while another thread asks for it.
void set_product_table(ProductTable table);

}  // namespace nmoe
