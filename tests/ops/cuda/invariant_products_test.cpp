// Batch-invariant products: those of the CPU, with the same bits for a row whatever others there are. Needs
// a GPU.
#include <numeric>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

class CudaInvariant : public CudaTest {
 protected:
  CudaInvariant() : invariant_(make_device({.kind = "cuda", .compute_dtype = DType::kBF16})) {
    for (const Lane lane : kLanes) invariant_->scratch(lane).reserve(invariant_->memory(), int64_t{64} << 20);
  }
  Ops& ops() { return invariant_->ops(Arithmetic::kBatchInvariant); }
  // Its stream is not that of device_.
  void finish() {
    const auto event = invariant_->make_event(Lane::kCompute);
    event->record();
    event->wait();
  }
  // Sums of up to thousands of terms of either sign, exact in bf16, seen relative to a thousandth of the largest.
  static double product_tolerance(DType result) { return result == DType::kBF16 ? 4.4e-3 : 2e-3; }

  std::unique_ptr<Device> invariant_;
};

struct LinearCase {
  int64_t rows, in, out;
};

TEST_F(CudaInvariant, ProductsAreThoseOfTheCpu) {
  for (const DType act : kActDTypes) {
    for (const DType result : {act, DType::kF32}) {
      for (const auto& [rows, in, out] : {LinearCase{1, 8, 1},
                                          {1, 64, 64},
                                          {3, 520, 40},
                                          {8, 1032, 16},
                                          {9, 2048, 65},
                                          {32, 72, 100},
                                          {33, 136, 200},
                                          {64, 64, 576},
                                          {200, 264, 48},
                                          {515, 520, 136},
                                          {5, 33, 7},
                                          {70, 1001, 9},
                                          {130, 264, 2200}}) {
        LinearForward args{
            .x = normal({rows, in}, act), .w = normal({out, in}, act), .y = pool_.zeros({rows, out}), .addend = {}};
        LinearForward device{
            .x = up(args.x, act), .w = up(args.w, act), .y = up(pool_.zeros({rows, out}), result), .addend = {}};
        cpu().linear_forward(args);
        ops().linear_forward(device);
        finish();
        EXPECT_TRUE(near(down(device.y), args.y, product_tolerance(result))) << rows << " " << in << " " << out;
        // Something added.
        args.addend = normal({rows, out}, result);
        const Tensor addend = up(args.addend, result);
        device.addend = addend;
        cpu().linear_forward(args);
        ops().linear_forward(device);
        finish();
        EXPECT_TRUE(near(down(device.y), args.y, product_tolerance(result))) << "with an addend";
      }
    }
  }
}

// Row 5 of 600, alone and among the first so many: every tile's size. A narrow product has few tiles, a wide one many;
// rings of weights are longer and shorter than what is summed over.
TEST_F(CudaInvariant, ARowsBitsDoNotDependOnTheOthers) {
  struct Case {
    DType act;
    int64_t in, out;
  };
  for (const auto& [act, in, out] : {Case{DType::kF32, 1032, 96},
                                     {DType::kF32, 4099, 96},
                                     {DType::kBF16, 64, 96},
                                     {DType::kBF16, 1032, 96},
                                     {DType::kBF16, 2048, 96},
                                     {DType::kBF16, 4099, 96},
                                     {DType::kBF16, 4104, 6400},
                                     {DType::kBF16, 584, 2304}}) {
    const Tensor x = up(normal({600, in}, act), act), w = up(normal({out, in}, act), act);
    const Tensor all = up(pool_.zeros({600, out}));
    ops().linear_forward({.x = x, .w = w, .y = all, .addend = {}});
    finish();
    const Tensor expected = down(all).rows(5, 6);
    for (const int64_t rows : {6, 8, 9, 16, 17, 30, 33, 64, 65, 255, 513}) {
      const Tensor some = up(pool_.zeros({rows, out}));
      ops().linear_forward({.x = x.rows(0, rows), .w = w, .y = some, .addend = {}});
      finish();
      EXPECT_TRUE(same_bits(down(some).rows(5, 6), expected)) << rows << " rows of " << in << " to " << out;
    }
    const Tensor alone = up(pool_.zeros({1, out}));
    ops().linear_forward({.x = x.rows(5, 6), .w = w, .y = alone, .addend = {}});
    finish();
    EXPECT_TRUE(same_bits(down(alone), expected)) << "alone, of " << in << " to " << out;
  }
}

// An MLP's first layer and experts', whose activation is applied where the sums are: as a product and an activation
// behind it, to the bit, for every kernel.
TEST_F(CudaInvariant, ActivationsAreThoseOfTheProducts) {
  for (const DType act : kActDTypes) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
      for (const auto& [rows, in, hidden] : {LinearCase{1, 136, 40},
                                             {8, 2048, 64},
                                             {5, 136, 100},
                                             {7, 1160, 150},
                                             {30, 72, 100},
                                             {40, 136, 24},
                                             {520, 64, 72},
                                             {100, 200, 1150}}) {
        const int64_t width = kind == Activation::kSwiGlu ? 2 * hidden : hidden;
        const Tensor x = up(normal({rows, in}, act), act), w = up(normal({2, width, in}, act, 0.2), act);
        const Tensor first = w.rows(0, 1).reshape({width, in}), weights = up(pool_.normal({rows}));
        const Tensor pre = up(pool_.zeros({rows, width}), act), h = up(pool_.zeros({rows, hidden}), act);
        const Tensor fused_pre = up(pool_.zeros({rows, width}), act), fused = up(pool_.zeros({rows, hidden}), act);
        ops().linear_forward({.x = x, .w = first, .y = pre, .addend = {}});
        ops().activation_forward({.kind = kind, .pre = pre, .h = h});
        ops().linear_activation_forward({.kind = kind, .x = x, .w = first, .pre = fused_pre, .h = fused});
        finish();
        EXPECT_TRUE(same_bits(down(fused_pre), down(pre))) << rows << " rows";
        EXPECT_TRUE(same_bits(down(fused), down(h))) << rows << " rows";

        // The rows in another order, all of the first of two experts, weighted.
        std::vector<double> order;
        for (int64_t row = 0; row < rows; ++row) order.push_back(static_cast<double>(rows - 1 - row));
        const Tensor index = up(pool_.ints({rows}, order));
        const Tensor offsets = up(pool_.ints({3}, {0, static_cast<double>(rows), static_cast<double>(rows)}));
        const Tensor turned = up(pool_.zeros({rows, in}), act);
        ops().embedding_forward({.ids = index, .table = x, .y = turned});
        ops().linear_forward({.x = turned, .w = first, .y = pre, .addend = {}});
        ops().activation_forward({.kind = kind, .pre = pre, .row_weight = weights, .h = h});
        ops().grouped_activation_forward({.kind = kind,
                                          .x = {x, index},
                                          .w = w,
                                          .offsets = offsets,
                                          .row_weight = weights,
                                          .pre = fused_pre,
                                          .h = fused});
        finish();
        EXPECT_TRUE(same_bits(down(fused_pre), down(pre))) << rows << " rows of experts";
        EXPECT_TRUE(same_bits(down(fused), down(h))) << rows << " rows of experts";
      }
    }
  }
}

// Experts' rows are those of a plain product with the expert's matrix, to the bit, for every number of rows: few, many,
// none, some experts' several tiles where the average is few, more experts than a warp has lanes; what is summed over
// is shorter and longer than a ring of weights.
TEST_F(CudaInvariant, GroupedProductsArePlainOnes) {
  const std::vector<std::vector<double>> cases = {{1, 0, 1, 0, 0, 1},
                                                  {5, 0, 17, 1},
                                                  {17, 0, 0, 0, 0, 9, 1, 0},
                                                  {0, 0, 0},
                                                  {40, 3, 70, 0, 9},
                                                  {1, 2, 0, 1, 0, 3, 1, 1, 0, 2, 1, 0, 1, 1, 1, 4, 0, 0, 1, 2, 1, 0,
                                                   1, 1, 5, 0, 1, 1, 1, 0, 0, 0, 0, 2, 1, 1, 0, 9, 0, 1, 1, 0, 1}};
  for (const DType act : kActDTypes) {
    for (const std::vector<double>& rows : cases) {
      for (const auto& [in, out] : {std::pair<int64_t, int64_t>{136, 72}, {1160, 72}, {33, 20}}) {
        const auto experts = static_cast<int64_t>(rows.size());
        std::vector<double> ends(rows.size() + 1);
        std::partial_sum(rows.begin(), rows.end(), ends.begin() + 1);
        const auto total = static_cast<int64_t>(ends.back()), capacity = total + 3;
        const Tensor x = up(normal({capacity, in}, act), act), w = up(normal({experts, out, in}, act), act);
        const Tensor before = pool_.full({capacity, out}, 7);
        const Tensor grouped = up(before, act), plain = up(before, act);
        ops().grouped_linear_forward({.x = x, .w = w, .offsets = up(pool_.ints({experts + 1}, ends)), .y = grouped});
        for (int64_t e = 0; e < experts; ++e) {
          const auto begin = static_cast<int64_t>(ends[static_cast<size_t>(e)]),
                     end = static_cast<int64_t>(ends[static_cast<size_t>(e) + 1]);
          if (begin == end) continue;
          ops().linear_forward({.x = x.rows(begin, end),
                                .w = w.rows(e, e + 1).reshape({out, in}),
                                .y = plain.rows(begin, end),
                                .addend = {}});
        }
        finish();
        EXPECT_TRUE(same_bits(down(grouped), down(plain))) << experts << " experts, " << in << " to " << out;
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
