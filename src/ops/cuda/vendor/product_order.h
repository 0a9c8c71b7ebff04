// Whether an algorithm of cuBLASLt's has the order of sums of forward products (ops/contracts/linear.h), which is that
// of our own products of generation (kernels/products/invariant_products.h): found by computing a product by both.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/cuda/vendor/cublaslt.h"

namespace nmoe::cuda {

// Of products on Hopper that are forward ones (is_forward), of rows of x and w in whole 16 bytes, whose factors are 1:
// those that our own products compute by tensor cores.
bool has_one_order(const GemmProblem& problem);

// What both compute is up to kCheckedRows rows and columns of the problem's depth, types and alignments; an algorithm
// that does not split sums adds up every element alike. Operands are the same every time: the second half of each sum
// takes away what the first half adds, so that what is left is what roundings on the way left. Another order shows in
// almost every element.
//
// Works in `workspace`, the problem's, on the context's stream, and waits for it: some 0.1 ms. kUnknown in a recording,
// which cannot wait; kNotMade where the workspace has no room for the part, or cuBLASLt refuses the algorithm for it.
constexpr int64_t kCheckedRows = 256;
SumOrder order_of_sums(Context& ctx, const GemmProblem& problem, const ProductAlgorithm& algorithm, void* workspace);

}  // namespace nmoe::cuda
