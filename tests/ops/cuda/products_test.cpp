// Whose algorithms dense products are computed by: the table's, or else the heuristic's. Needs a GPU: label gpu.
#include "ops/products/products.h"

#include "ops/cuda/cuda_test.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/vendor/product_tuning.h"

namespace nmoe::test {
namespace {

using cuda::CublasLt;

constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

class CudaProducts : public CudaTest {
 protected:
  CudaProducts() {
    TensorPool pool(DType::kF32);
    a_ = up(pool.normal({kRows, kDepth}), DType::kBF16);
    b_ = up(pool.normal({kCols, kDepth}), DType::kBF16);
    workspace_ = up(pool.zeros({kProductWorkspaceBytes / 4}));
  }

  // a b^T.
  Tensor multiply(CublasLt& library) {
    TensorPool pool(DType::kF32);
    const Tensor d = up(pool.full({kRows, kCols}, NAN), DType::kBF16);
    library.multiply(kProblem, {.a = a_.raw(), .b = b_.raw(), .d = d.raw(), .workspace = workspace_.raw()},
                     static_cast<cuda::CudaOps&>(gpu()).context().stream);
    wait();
    return down(d);
  }
  // The heuristic's `which`-th algorithm as the table's.
  ProductTable table_with(const CublasLt& library, size_t which) const {
    const auto algorithms = library.candidates(kProblem, 16);
    return {{.device = library.device(),
             .library = library.version(),
             .problem = kProblem,
             .algorithm = algorithms.at(which % algorithms.size()),
             .gain = 0.1}};
  }
  static bool from_table(CublasLt& library) {
    const auto uses = library.uses();
    EXPECT_EQ(uses.size(), 1U);
    return uses.at(0).from_table;
  }
  static void expect_same_bits(Tensor a, Tensor b) {
    for (int64_t i = 0; i < a.num_elements(); ++i) ASSERT_EQ(get(a, i), get(b, i)) << "element " << i;
  }

  static constexpr int64_t kRows = 640, kCols = 384, kDepth = 512;
  static constexpr GemmProblem kProblem = {.rows = kRows,
                                           .cols = kCols,
                                           .depth = kDepth,
                                           .input = DType::kBF16,
                                           .output = DType::kBF16,
                                           .transpose_b = true,
                                           .align_a = 256,
                                           .align_b = 256,
                                           .align_d = 256,
                                           .workspace_bytes = kProductWorkspaceBytes};
  Tensor a_, b_, workspace_;
};

// Rounded once to BF16, of sums in another order.
TEST_F(CudaProducts, TheTablesAlgorithmsAreUsedAndRight) {
  CublasLt plain{ProductTable{}};
  const Tensor expected = multiply(plain);
  EXPECT_FALSE(from_table(plain));
  const size_t count = plain.candidates(kProblem, 16).size();
  ASSERT_GT(count, 1U);
  for (size_t which = 0; which < count; ++which) {
    SCOPED_TRACE(which);
    CublasLt library(table_with(plain, which));
    EXPECT_TRUE(near(multiply(library), expected, 8e-3));
    EXPECT_TRUE(from_table(library));
    EXPECT_NE(library.identity(), plain.identity());
  }
  EXPECT_EQ(plain.uses().at(0).plain, 1);
}

// What a line of the table says is all that there is to an algorithm.
TEST_F(CudaProducts, TheFirstChoiceOutOfATableIsTheFirstChoice) {
  CublasLt plain{ProductTable{}};
  CublasLt library(table_with(plain, 0));
  expect_same_bits(multiply(library), multiply(plain));
}

TEST_F(CudaProducts, OtherDevicesAndVersionsLeaveTheHeuristic) {
  CublasLt plain{ProductTable{}};
  const Tensor expected = multiply(plain);
  for (const bool other_device : {false, true}) {
    ProductTable table = table_with(plain, 1);
    if (other_device) {
      table[0].device += " of another kind";
    } else {
      ++table[0].library;
    }
    CublasLt library(table);
    expect_same_bits(multiply(library), expected);
    EXPECT_FALSE(from_table(library));
    EXPECT_EQ(library.identity(), plain.identity());
  }
}

TEST_F(CudaProducts, ARefusedAlgorithmIsToldOnceAndLeavesTheHeuristic) {
  CublasLt plain{ProductTable{}};
  ProductTable table = table_with(plain, 0);
  table[0].algorithm.id = 12345;
  CublasLt library(table);
  testing::internal::CaptureStderr();
  const Tensor first = multiply(library), second = multiply(library);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("cuBLASLt refuses the algorithm that the table of products has for [640, 512] x [512, 384]"),
            std::string::npos)
      << told;
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  expect_same_bits(first, multiply(plain));
  expect_same_bits(first, second);
  EXPECT_FALSE(from_table(library));
}

// One product that is worth it and one that is not.
TEST_F(CudaProducts, TuningTimesWhatMatters) {
  CublasLt used{ProductTable{}};
  multiply(used);
  const GemmProblem large = {.rows = 4096,
                             .cols = 4096,
                             .depth = 2048,
                             .input = DType::kBF16,
                             .output = DType::kF32,
                             .transpose_a = true,
                             .align_a = 256,
                             .align_b = 256,
                             .align_d = 256,
                             .workspace_bytes = kProductWorkspaceBytes};
  TensorPool pool(DType::kF32);
  const Tensor a = up(pool.normal({2048, 4096}), DType::kBF16), d = up(pool.zeros({4096, 4096}));
  used.multiply(large, {.a = a.raw(), .b = a.raw(), .d = d.raw(), .workspace = workspace_.raw(), .beta = 1.0F},
                static_cast<cuda::CudaOps&>(gpu()).context().stream);
  wait();
  int64_t num_told = 0;
  const ProductTuning tuning = cuda::tune_products(static_cast<cuda::CudaOps&>(gpu()).context(), used.uses(),
                                                   [&](const TunedProduct&) { ++num_told; });
  EXPECT_EQ(tuning.device, used.device());
  EXPECT_EQ(tuning.library, used.version());
  ASSERT_EQ(tuning.products.size(), 2U);
  EXPECT_EQ(num_told, 2);
  for (const TunedProduct& product : tuning.products) {
    EXPECT_EQ(product.use.calls(), 1);
    EXPECT_GT(product.heuristic_us, 0.0);
    EXPECT_LE(product.chosen_us, product.heuristic_us);
    EXPECT_EQ(product.num_candidates > 1, product.use.problem == large);
    if (product.choice) {
      EXPECT_TRUE(used.plan_with(product.use.problem, product.choice->algorithm));
    }
  }
}

TEST_F(CudaProducts, ADeviceCountsWhatItMultiplied) {
  TensorPool pool(DType::kF32);
  const Tensor d = up(pool.zeros({kRows, kCols}), DType::kBF16), c = up(pool.zeros({kRows, kCols}), DType::kBF16);
  const auto before = products_of(*device_);
  run([&](Ops& ops) { ops.linear_forward({a_, b_, d, Tensor()}); });
  run([&](Ops& ops) { ops.linear_forward({a_, b_, d, c}); });
  run([&](Ops& ops) { ops.linear_forward({a_, b_, d, d}); });  // in place a kernel of our own has it
  const auto since = products_since(before, products_of(*device_));
  ASSERT_EQ(since.size(), 1U);
  EXPECT_EQ(since[0].problem, kProblem);
  EXPECT_EQ(since[0].plain, 1);
  EXPECT_EQ(since[0].added, 1);
  EXPECT_NE(product_identity(*device_).find("cuBLASLt "), std::string::npos);
}

}  // namespace
}  // namespace nmoe::test
