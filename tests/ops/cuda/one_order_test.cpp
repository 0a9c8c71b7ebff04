// One order of sums: batch-invariant products have the bits of training's, which are in BF16 cuBLASLt's and those of
// grouped products, in F32 those that ops/contracts/linear.h describes. Needs a GPU.
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/cuda/cuda_test.h"
#include "ops/cuda/plans/invariant_products.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/vendor/cublaslt.h"
#include "ops/cuda/vendor/product_order.h"

namespace nmoe::test {
namespace {

using cuda::CublasLt;
using cuda::SumOrder;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// Algorithms of a product: the heuristic's first, which training takes where the product table has none. Of those
// behind it, id 16 of cuBLASLt 13.1 has another order in products of 11,264 values.
constexpr int kMaxCandidates = 1;

GemmProblem forward_problem(int64_t rows, int64_t cols, int64_t depth, DType output) {
  return {.rows = rows,
          .cols = cols,
          .depth = depth,
          .input = DType::kBF16,
          .output = output,
          .transpose_b = true,
          .align_a = 256,
          .align_b = 256,
          .align_d = 256,
          .workspace_bytes = kWorkspaceBytes};
}

class CudaOneOrder : public CudaTest {
 protected:
  CudaOneOrder() {
    // Normal values again and again, in a period that no row's length divides.
    constexpr int64_t kPeriod = 1'000'003, kSize = int64_t{48} << 20;
    values_ = tensors_.allocate(DType::kBF16, {kSize});
    const Tensor some = pool_.normal({kPeriod});
    std::vector<uint16_t> rounded(kPeriod);
    convert(DType::kF32, some.raw(), DType::kBF16, rounded.data(), kPeriod);
    std::vector<uint16_t> all(kSize);
    for (int64_t i = 0; i < kSize; ++i) all[static_cast<size_t>(i)] = rounded[static_cast<size_t>(i % kPeriod)];
    device_->upload(values_, all.data());
    workspace_ = tensors_.allocate(DType::kU8, {kWorkspaceBytes});
    wait();
  }

  Ops& invariant() { return device_->ops(Arithmetic::kBatchInvariant); }
  // Values from the `skipped`th on.
  Tensor matrix(Shape shape, int64_t skipped = 0) const {
    return values_.rows(skipped, skipped + shape.num_elements()).reshape(shape);
  }
  cudaStream_t stream() { return static_cast<cuda::CudaOps&>(gpu()).context().stream; }
  void poison(Tensor y) {
    ASSERT_EQ(cudaMemsetAsync(y.raw(), 0xFF, static_cast<size_t>(y.num_bytes()), stream()), cudaSuccess);
  }
  Tensor result(ArenaScope& scope, DType dtype, Shape shape) {
    const Tensor y = scope.allocate(dtype, shape);
    poison(y);
    return y;
  }
  std::vector<std::byte> bytes(Tensor device) {
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    device_->download(bytes.data(), device);
    return bytes;
  }
  // How many values differ.
  static int64_t num_different(const std::vector<std::byte>& a, const std::vector<std::byte>& b, DType dtype) {
    if (a == b) return 0;
    int64_t count = 0;
    const size_t width = dtype_bytes(dtype);
    for (size_t i = 0; i < a.size(); i += width) count += std::memcmp(&a[i], &b[i], width) != 0 ? 1 : 0;
    return count;
  }

  Tensor values_, workspace_;
};

// What the heuristic finds for a forward product, which does not split k.
TEST_F(CudaOneOrder, PlainProductsAreThoseOfCublas) {
  CublasLt library{ProductTable{}};
  int64_t num_compared = 0;
  for (const int64_t depth : {64, 72, 384, 768, 1032, 1408, 2048, 2056, 11264}) {
    for (const int64_t width : {64, 576, 1408, 2048, 2816, 11264}) {
      for (const int64_t rows : {1, 3, 8, 16, 17, 64, 256, 1000, 4096}) {
        for (const DType output : {DType::kBF16, DType::kF32}) {
          if (width * depth > (int64_t{32} << 20) || rows * width > (int64_t{24} << 20)) continue;
          ArenaScope scope(tensors_);
          const Tensor x = matrix({rows, depth}), w = matrix({width, depth}, 4096);
          const Tensor y = result(scope, output, {rows, width}), other = result(scope, output, {rows, width});
          invariant().linear_forward({.x = x, .w = w, .y = y, .addend = {}});
          const std::vector<std::byte> own = bytes(y);
          const GemmProblem problem = forward_problem(rows, width, depth, output);
          int which = -1;
          for (const ProductAlgorithm& algorithm : library.candidates(problem, kMaxCandidates)) {
            ++which;
            const auto plan = library.plan_with(problem, algorithm);
            if (!plan) continue;
            poison(other);
            library.multiply_by(*plan, problem,
                                {.a = x.raw(), .b = w.raw(), .d = other.raw(), .workspace = workspace_.raw()},
                                stream());
            const int64_t different = num_different(own, bytes(other), output);
            ++num_compared;
            EXPECT_EQ(different, 0) << fmt::format(
                "[{}, {}] x [{}, {}] into {}: {} values; algorithm {} of the heuristic's: id {}, tile {}, stages {}, "
                "swizzle {}, custom {}, inner shape {}, cluster {}, k in {} parts",
                rows, depth, depth, width, dtype_name(output), different, which, algorithm.id, algorithm.tile,
                algorithm.stages, algorithm.swizzle, algorithm.custom, algorithm.inner_shape, algorithm.cluster_shape,
                algorithm.split_k);
          }
        }
      }
    }
  }
  EXPECT_GT(num_compared, 0);
}

// Whether an algorithm has the order is found by a part of a product: as the whole has it or not, whatever it is of.
TEST_F(CudaOneOrder, IsToldFromOthers) {
  CublasLt library{ProductTable{}};
  cuda::Context ctx = static_cast<cuda::CudaOps&>(gpu()).context();
  constexpr int64_t kWidth = 1408;
  int64_t num_others = 0;
  for (const int64_t depth : {64, 384, 1032, 2048, 11264}) {
    for (const int64_t rows : {7, 100, 4096}) {
      for (const DType output : {DType::kBF16, DType::kF32}) {
        ArenaScope scope(tensors_);
        const GemmProblem problem = forward_problem(rows, kWidth, depth, output);
        const Tensor x = matrix({rows, depth}), w = matrix({kWidth, depth}, 4096);
        const Tensor y = result(scope, output, {rows, kWidth}), other = result(scope, output, {rows, kWidth});
        invariant().linear_forward({.x = x, .w = w, .y = y, .addend = {}});
        const std::vector<std::byte> own = bytes(y);
        std::vector<ProductAlgorithm> algorithms = library.candidates(problem, /*max_count=*/16);
        for (const int32_t parts : {2, 3}) {
          algorithms.push_back(algorithms.at(0));
          algorithms.back().split_k = parts, algorithms.back().reduction = 2;
        }
        algorithms.push_back({.id = 16});
        for (const ProductAlgorithm& algorithm : algorithms) {
          const auto plan = library.plan_with(problem, algorithm);
          if (!plan) continue;
          library.multiply_by(*plan, problem,
                              {.a = x.raw(), .b = w.raw(), .d = other.raw(), .workspace = workspace_.raw()}, stream());
          const int64_t different = num_different(own, bytes(other), output);
          num_others += different > 0 ? 1 : 0;
          EXPECT_EQ(cuda::order_of_sums(ctx, problem, algorithm, workspace_.raw()),
                    different == 0 ? SumOrder::kSame : SumOrder::kOther)
              << fmt::format("{} rows of {} into {}, algorithm {} in {} parts: {} values differ", rows, depth,
                             dtype_name(output), algorithm.id, algorithm.split_k, different);
        }
      }
    }
  }
  EXPECT_GT(num_others, 0);
}

// A table's algorithm with another order is not used: our own kernel has the bits that generation has.
TEST_F(CudaOneOrder, IsKeptWhateverTheTableSays) {
  constexpr int64_t kRows = 256, kCols = 1408, kDepth = 2048;
  CublasLt library{ProductTable{}};
  cuda::Context ctx = static_cast<cuda::CudaOps&>(gpu()).context();
  const GemmProblem problem = forward_problem(kRows, kCols, kDepth, DType::kBF16);
  ProductAlgorithm split = library.candidates(problem, kMaxCandidates).at(0);
  split.split_k = 3, split.reduction = 2;
  if (!library.plan_with(problem, split)) GTEST_SKIP() << "cuBLASLt does not split this product";
  CublasLt splits({{.device = library.device(), .library = library.version(), .problem = problem, .algorithm = split}});
  const Tensor x = matrix({kRows, kDepth}), w = matrix({kCols, kDepth}, 4096);
  ArenaScope scope(tensors_);
  const Tensor y = result(scope, DType::kBF16, {kRows, kCols});
  const cuda::GemmOperands operands{.a = x.raw(), .b = w.raw(), .d = y.raw(), .workspace = workspace_.raw()};
  int64_t num_checks = 0;
  const auto check = [&](const GemmProblem& of, const ProductAlgorithm& algorithm) {
    ++num_checks;
    EXPECT_EQ(algorithm, split);
    return cuda::order_of_sums(ctx, of, algorithm, workspace_.raw());
  };
  testing::internal::CaptureStderr();
  EXPECT_FALSE(splits.multiply_in_order(problem, operands, stream(), check));
  EXPECT_FALSE(splits.multiply_in_order(problem, operands, stream(), check));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(num_checks, 1);
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  EXPECT_NE(told.find("[256, 2048] x [2048, 1408] of BF16 into BF16 has another order"), std::string::npos) << told;
  EXPECT_TRUE(library.multiply_in_order(problem, operands, stream(), [&](const auto& of, const auto& algorithm) {
    return cuda::order_of_sums(ctx, of, algorithm, workspace_.raw());
  }));
}

// In a recording nothing is waited for: it is not known there, and known behind it.
TEST_F(CudaOneOrder, IsFoundOutsideOfRecordings) {
  const GemmProblem problem = forward_problem(96, 1408, 384, DType::kBF16);
  CublasLt library{ProductTable{}};
  cuda::Context ctx = static_cast<cuda::CudaOps&>(gpu()).context();
  const ProductAlgorithm algorithm = library.candidates(problem, kMaxCandidates).at(0);
  SumOrder inside = SumOrder::kSame;
  device_->record([&] {
    inside = cuda::order_of_sums(ctx, problem, algorithm, workspace_.raw());
    gpu().fill({Tensor(workspace_.raw(), DType::kF32, {64}), 0.0});
  });
  EXPECT_EQ(inside, SumOrder::kUnknown);
  EXPECT_EQ(cuda::order_of_sums(ctx, problem, algorithm, workspace_.raw()), SumOrder::kSame);
}

// What cannot be compared is not told as another order.
TEST_F(CudaOneOrder, IsNotToldOfWhatCouldNotBeComputed) {
  CublasLt library{ProductTable{}};
  cuda::Context ctx = static_cast<cuda::CudaOps&>(gpu()).context();
  const GemmProblem problem = forward_problem(96, 1408, 384, DType::kBF16);
  const ProductAlgorithm algorithm = library.candidates(problem, kMaxCandidates).at(0);
  GemmProblem narrow = problem;
  narrow.workspace_bytes = 1024;
  EXPECT_EQ(cuda::order_of_sums(ctx, narrow, algorithm, workspace_.raw()), SumOrder::kNotMade);
  ArenaScope scope(tensors_);
  const Tensor x = matrix({96, 384}), w = matrix({1408, 384}, 4096), y = result(scope, DType::kBF16, {96, 1408});
  int64_t num_checks = 0;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(library.multiply_in_order(
        problem, {.a = x.raw(), .b = w.raw(), .d = y.raw(), .workspace = workspace_.raw()}, stream(),
        [&](const auto&, const auto&) { return ++num_checks, SumOrder::kNotMade; }));
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(num_checks, 1);
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  EXPECT_EQ(told.find("another order"), std::string::npos) << told;
  EXPECT_NE(told.find("could not compute the part"), std::string::npos) << told;
}

// What training computes a product by has them too, with something added.
TEST_F(CudaOneOrder, PlainProductsAreTrainings) {
  for (const auto& [depth, width] : {std::pair<int64_t, int64_t>{2048, 3648},
                                     {512, 4096},
                                     {2048, 2048},
                                     {2048, 5632},
                                     {2816, 2048},
                                     {2048, 22528},
                                     {11264, 2048},
                                     {768, 2304},
                                     {384, 768}}) {
    for (const int64_t rows : {1, 7, 64, 256, 1024}) {
      ArenaScope scope(tensors_);
      const Tensor x = matrix({rows, depth}), w = matrix({width, depth}, 4096), addend = matrix({rows, width}, 8192);
      const Tensor y = result(scope, DType::kBF16, {rows, width}), other = result(scope, DType::kBF16, {rows, width});
      for (const bool adds : {false, true}) {
        const Tensor added = adds ? addend : Tensor();
        poison(y);
        poison(other);
        invariant().linear_forward({.x = x, .w = w, .y = y, .addend = added});
        gpu().linear_forward({.x = x, .w = w, .y = other, .addend = added});
        EXPECT_EQ(num_different(bytes(y), bytes(other), DType::kBF16), 0)
            << rows << " rows of " << depth << " to " << width << (adds ? ", added to something" : "");
      }
    }
  }
}

// Many rows are multiplied by training's kernels (plans/invariant_products.h): their bits are those of the same rows in
// calls of few, with something added, into either dtype, and behind an activation.
TEST_F(CudaOneOrder, ManyRowsAreFewRows) {
  constexpr int64_t kFew = 96, kRows = cuda::kTrainingRows + kFew / 2;
  for (const auto& [depth, width] :
       {std::pair<int64_t, int64_t>{2048, 3648}, {2048, 64}, {512, 4096}, {2816, 2048}, {11264, 2048}, {1032, 576}}) {
    for (const int64_t rows : {cuda::kTrainingRows - 1, cuda::kTrainingRows, kRows, int64_t{4096}}) {
      const std::string what = fmt::format("{} rows of {} to {}", rows, depth, width);
      const Tensor x = matrix({rows, depth}), w = matrix({width, depth}, 4096);
      for (const DType output : {DType::kBF16, DType::kF32}) {
        ArenaScope scope(tensors_);
        const Tensor addend = output == DType::kBF16 ? matrix({rows, width}, 8192) : Tensor();
        const Tensor many = result(scope, output, {rows, width}), few = result(scope, output, {rows, width});
        invariant().linear_forward({.x = x, .w = w, .y = many, .addend = addend});
        for (int64_t first = 0; first < rows; first += kFew) {
          const int64_t end = std::min(first + kFew, rows);
          invariant().linear_forward({.x = x.rows(first, end),
                                      .w = w,
                                      .y = few.rows(first, end),
                                      .addend = addend.defined() ? addend.rows(first, end) : Tensor()});
        }
        EXPECT_EQ(num_different(bytes(many), bytes(few), output), 0) << what << " into " << dtype_name(output);
        if (!addend.defined()) continue;
        gpu().copy({.source = addend, .destination = many});
        invariant().linear_forward({.x = x, .w = w, .y = many, .addend = many});
        EXPECT_EQ(num_different(bytes(many), bytes(few), output), 0) << what << ", in place";
      }
      for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
        ArenaScope scope(tensors_);
        const int64_t hidden = kind == Activation::kSwiGlu ? width / 2 : width;
        const Tensor pre = result(scope, DType::kBF16, {rows, width}), h = result(scope, DType::kBF16, {rows, hidden});
        const Tensor few = result(scope, DType::kBF16, {rows, hidden});
        invariant().linear_activation_forward({.kind = kind, .x = x, .w = w, .pre = pre, .h = h});
        for (int64_t first = 0; first < rows; first += kFew) {
          const int64_t end = std::min(first + kFew, rows);
          invariant().linear_activation_forward(
              {.kind = kind, .x = x.rows(first, end), .w = w, .pre = pre.rows(first, end), .h = few.rows(first, end)});
        }
        EXPECT_EQ(num_different(bytes(h), bytes(few), DType::kBF16), 0) << what << ", behind an activation";
      }
    }
  }
}

// The same of experts. Those calls of few rows have the rows of one expert.
TEST_F(CudaOneOrder, ExpertsWithManyRowsAreThoseWithFew) {
  const std::vector<double> counts = {64, 0, 130, 63, 1, 254, 0, 0};
  const auto experts = static_cast<int64_t>(counts.size());
  std::vector<double> ends(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), ends.begin() + 1);
  const auto total = static_cast<int64_t>(ends.back());
  ASSERT_EQ(total, cuda::kTrainingExpertRows * experts);
  std::vector<double> order;
  for (int64_t row = 0; row < total; ++row) order.push_back(static_cast<double>((row * 7 + 3) % total));
  const Tensor offsets = up(pool_.ints({experts + 1}, ends)), index = up(pool_.ints({total}, order));
  const Tensor weight = up(pool_.normal({total}));
  for (const auto& [in, hidden] : {std::pair<int64_t, int64_t>{2048, 1408}, {1032, 576}}) {
    const Tensor x = matrix({total, in}), w_in = matrix({experts, 2 * hidden, in}, 4096),
                 w_out = matrix({experts, in, hidden}, 8192);
    ArenaScope scope(tensors_);
    const Tensor pre = result(scope, DType::kBF16, {total, 2 * hidden});
    const Tensor h = result(scope, DType::kBF16, {total, hidden}), few_h = result(scope, DType::kBF16, {total, hidden});
    const Tensor y = result(scope, DType::kBF16, {total, in}), few_y = result(scope, DType::kBF16, {total, in});
    invariant().grouped_activation_forward(
        {.x = {x, index}, .w = w_in, .offsets = offsets, .row_weight = weight, .pre = pre, .h = h});
    invariant().grouped_linear_forward({.x = h, .w = w_out, .offsets = offsets, .y = y});
    for (int64_t e = 0; e < experts; ++e) {
      const auto first = static_cast<int64_t>(ends[static_cast<size_t>(e)]),
                 end = static_cast<int64_t>(ends[static_cast<size_t>(e) + 1]);
      // In parts that are too small for training's kernels.
      for (int64_t part = first; part < end; part += 50) {
        const int64_t part_end = std::min<int64_t>(part + 50, end);
        const Tensor part_offsets = up(pool_.ints({2}, {0.0, static_cast<double>(part_end - part)}));
        invariant().grouped_activation_forward({.x = {x, index.rows(part, part_end)},
                                                .w = w_in.rows(e, e + 1),
                                                .offsets = part_offsets,
                                                .row_weight = weight.rows(part, part_end),
                                                .pre = pre.rows(part, part_end),
                                                .h = few_h.rows(part, part_end)});
        invariant().grouped_linear_forward({.x = few_h.rows(part, part_end),
                                            .w = w_out.rows(e, e + 1),
                                            .offsets = part_offsets,
                                            .y = few_y.rows(part, part_end)});
      }
    }
    EXPECT_EQ(num_different(bytes(h), bytes(few_h), DType::kBF16), 0) << in << " to " << hidden;
    EXPECT_EQ(num_different(bytes(y), bytes(few_y), DType::kBF16), 0) << hidden << " to " << in;
  }
}

// Experts' layers, of which the first one applies an activation, to rows that lie elsewhere.
TEST_F(CudaOneOrder, ExpertsProductsAreTrainings) {
  for (const std::vector<double>& rows : {std::vector<double>{1, 0, 3, 0, 0, 8, 1, 2},
                                          {0, 25, 0, 1, 0, 0, 2, 0},
                                          {5, 17, 64, 0, 30, 1, 16, 9},
                                          {300, 0, 1000, 129, 64, 255, 3, 128}}) {
    const auto experts = static_cast<int64_t>(rows.size());
    std::vector<double> ends(rows.size() + 1);
    std::partial_sum(rows.begin(), rows.end(), ends.begin() + 1);
    const auto total = static_cast<int64_t>(ends.back());
    std::vector<double> order;
    for (int64_t row = 0; row < total; ++row) order.push_back(static_cast<double>((row * 7 + 3) % total));
    for (const auto& [in, hidden] :
         {std::pair<int64_t, int64_t>{16, 16}, {8, 24}, {64, 40}, {384, 768}, {2048, 1408}, {1032, 576}}) {
      ArenaScope scope(tensors_);
      const Tensor offsets = up(pool_.ints({experts + 1}, ends)), index = up(pool_.ints({total}, order));
      const Tensor weight = up(pool_.normal({total})), x = matrix({total, in});
      const std::string what = fmt::format("{} rows of {} to {}", total, in, hidden);
      for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
        const int64_t width = kind == Activation::kSwiGlu ? 2 * hidden : hidden;
        const Tensor w = matrix({experts, width, in}, 4096);
        std::vector<std::byte> pre[2], h[2];
        for (const bool is_own : {false, true}) {
          ArenaScope results(tensors_);
          const GroupedActivationForward args{.kind = kind,
                                              .x = {x, index},
                                              .w = w,
                                              .offsets = offsets,
                                              .row_weight = weight,
                                              .pre = result(results, DType::kBF16, {total, width}),
                                              .h = result(results, DType::kBF16, {total, hidden})};
          (is_own ? invariant() : gpu()).grouped_activation_forward(args);
          pre[is_own] = bytes(args.pre), h[is_own] = bytes(args.h);
        }
        EXPECT_EQ(num_different(pre[0], pre[1], DType::kBF16), 0) << what << ", before the activation";
        EXPECT_EQ(num_different(h[0], h[1], DType::kBF16), 0) << what << ", behind the activation";
      }
      const Tensor w = matrix({experts, hidden, in}, 4096);
      const Tensor y = result(scope, DType::kBF16, {total, hidden}),
                   other = result(scope, DType::kBF16, {total, hidden});
      invariant().grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = y});
      gpu().grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = other});
      EXPECT_EQ(num_different(bytes(y), bytes(other), DType::kBF16), 0) << what;
    }
  }
}

// --- in F32

// The contract's order: 32 lanes have eights in turns, a chain each, and are added as a tree.
float in_order(const float* x, const float* w, int64_t depth) {
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> sums{};
  for (int64_t k = 0; k < depth; ++k) {
    float& sum = sums[static_cast<size_t>(k / 8) % kLanes];
    sum = std::fma(x[k], w[k], sum);
  }
  for (size_t apart = kLanes / 2; apart > 0; apart /= 2) {
    for (size_t lane = 0; lane < apart; ++lane) sums[lane] += sums[lane + apart];
  }
  return sums[0];
}

// Training's and generation's, of any number of rows, with something added, in place too, and into rows of one.
TEST_F(CudaOneOrder, Fp32ProductsAreInTheContractsOrder) {
  for (const auto& [depth, width] : {std::pair<int64_t, int64_t>{256, 384}, {1032, 96}, {4099, 31}, {64, 1}}) {
    for (const int64_t rows : {1, 7, 64, 600}) {
      ArenaScope scope(tensors_);
      const Tensor x = pool_.normal({rows, depth}), w = pool_.normal({width, depth}),
                   added = pool_.normal({rows, width});
      const Tensor device_x = up(x), device_w = up(w), addend = up(added);
      const std::string what = fmt::format("{} rows of {} to {}", rows, depth, width);
      for (const bool adds : {false, true}) {
        const Tensor y = result(scope, DType::kF32, {rows, width}), other = result(scope, DType::kF32, {rows, width});
        const Tensor expected = pool_.zeros({rows, width});
        for (int64_t i = 0; i < rows * width; ++i) {
          const float sum = in_order(x.data<float>() + i / width * depth, w.data<float>() + i % width * depth, depth);
          expected.data<float>()[i] = adds ? sum + added.data<float>()[i] : sum;
        }
        const Tensor c = adds ? addend : Tensor();
        invariant().linear_forward({.x = device_x, .w = device_w, .y = y, .addend = c});
        gpu().linear_forward({.x = device_x, .w = device_w, .y = other, .addend = c});
        EXPECT_TRUE(same_bits(down(y), expected)) << what << ", generation" << (adds ? ", added" : "");
        EXPECT_TRUE(same_bits(down(other), expected)) << what << ", training" << (adds ? ", added" : "");
        if (!adds) continue;
        gpu().linear_forward({.x = device_x, .w = device_w, .y = addend, .addend = addend});
        EXPECT_TRUE(same_bits(down(addend), expected)) << what << ", training, in place";
      }
    }
  }
}

TEST_F(CudaOneOrder, Fp32LayersWithActivationsAreTrainings) {
  constexpr int64_t kRows = 70, kIn = 136, kHidden = 52;
  const std::vector<double> ends = {0, 5, 5, 36, 37, 69};  // of experts; the last row is nobody's
  const int64_t experts = std::ssize(ends) - 1;
  const Tensor offsets = up(pool_.ints({experts + 1}, ends));
  std::vector<double> order;
  for (int64_t row = 0; row < kRows; ++row) order.push_back(static_cast<double>((row * 7 + 3) % kRows));
  const Tensor index = up(pool_.ints({kRows}, order)), weight = up(pool_.normal({kRows}));
  const Tensor x = up(pool_.normal({kRows, kIn}));
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t width = kind == Activation::kSwiGlu ? 2 * kHidden : kHidden;
    const Tensor w = up(pool_.normal({experts, width, kIn})), w_out = up(pool_.normal({experts, kIn, kHidden}));
    ArenaScope scope(tensors_);
    std::vector<std::byte> dense[2], h[2], y[2];
    for (const bool is_own : {false, true}) {
      Ops& ops = is_own ? invariant() : gpu();
      const LinearActivationForward mlp{.kind = kind,
                                        .x = x,
                                        .w = w.rows(0, 1).reshape({width, kIn}),
                                        .pre = result(scope, DType::kF32, {kRows, width}),
                                        .h = result(scope, DType::kF32, {kRows, kHidden})};
      ops.linear_activation_forward(mlp);
      const GroupedActivationForward first{.kind = kind,
                                           .x = {x, index},
                                           .w = w,
                                           .offsets = offsets,
                                           .row_weight = weight,
                                           .pre = result(scope, DType::kF32, {kRows, width}),
                                           .h = result(scope, DType::kF32, {kRows, kHidden})};
      ops.grouped_activation_forward(first);
      const GroupedLinearForward second{
          .x = first.h, .w = w_out, .offsets = offsets, .y = result(scope, DType::kF32, {kRows, kIn})};
      ops.grouped_linear_forward(second);
      dense[is_own] = bytes(mlp.h), h[is_own] = bytes(first.h), y[is_own] = bytes(second.y);
    }
    EXPECT_EQ(num_different(dense[0], dense[1], DType::kF32), 0);
    EXPECT_EQ(num_different(h[0], h[1], DType::kF32), 0);
    EXPECT_EQ(num_different(y[0], y[1], DType::kF32), 0);
  }
}

}  // namespace
}  // namespace nmoe::test
