#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

using CudaGradients = CudaTest;

// Of sizes that are whole groups of random bits and others, in slots and in order, added and not: the CPU's bits.
TEST_F(CudaGradients, AreThoseOfTheCpu) {
  TensorPool pool(DType::kF32);
  struct Case {
    int64_t rows, cols;
    bool stochastic, in_slots;
  };
  for (const Case& c : {Case{48, 64, true, false}, Case{48, 64, true, true}, Case{7, 13, true, true},
                        Case{7, 13, false, false}, Case{130, 2048, false, false}, Case{130, 2048, true, true}}) {
    const Shape shape({3, c.rows, c.cols});
    const Tensor sum = pool.zeros(DType::kBF16, shape), key = pool.zeros(DType::kI64, {1});
    const Tensor device_sum = up(sum), offsets = pool.ints({4}, {0, 5, 5, 9}),
                 matrices = c.in_slots ? pool.ints({3}, {6, 0, 3}) : Tensor();
    for (int product = 0; product < 4; ++product) {
      const Tensor x = pool.normal(shape, product == 0 ? 1.0 : 0.01);
      *key.data<int64_t>() = 0x123456789ABCDEF0;
      const auto args = [&](const Tensor& to, auto place) {
        AddGradient of{.product = place(x), .offsets = place(offsets), .sum = to, .accumulate = product > 0};
        if (!c.stochastic) return of;
        of.random = {.key = place(key),
                     .stream = 0xFEDCBA9876543210 + static_cast<uint64_t>(product),
                     .matrices = place(matrices)};
        return of;
      };
      cpu().add_gradient(args(sum, [](Tensor t) { return t; }));
      gpu().add_gradient(args(device_sum, [&](Tensor t) { return up(t); }));
    }
    const Tensor expected = pool.zeros(shape);
    widen(DType::kBF16, sum.raw(), expected.data<float>(), static_cast<size_t>(sum.num_elements()));
    EXPECT_TRUE(same_bits(down(device_sum), expected)) << c.rows << " " << c.stochastic << " " << c.in_slots;
  }
}

// Optimizers read a gradient in BF16 as what it widens to, with moments in either format.
TEST_F(CudaGradients, AreReadAsTheyWiden) {
  TensorPool pool(DType::kF32);
  for (const Shape& shape : {Shape{3, 24, 40}, Shape{2, 9, 15}}) {
    const Tensor grad = up(pool.normal(shape), DType::kBF16), wide = up(down(grad));
    const Tensor w = pool.normal(shape), scale = pool.zeros(DType::kF64, {1}), rates = pool.zeros(DType::kF64, {3});
    set(scale, 0, 0.7);
    for (int64_t i = 0; i < 3; ++i) set(rates, i, 0.01 + static_cast<double>(i));
    for (const DType format : {DType::kF32, DType::kBF16}) {
      for (const bool muon : {false, true}) {
        const auto stepped = [&](const Tensor& gradient) {
          const Tensor updated = up(w), m = up(pool.zeros(shape), format), v = up(pool.zeros(shape), format);
          const MomentRounding random = {.key = format == DType::kBF16 ? up(pool.zeros(DType::kI64, {1})) : Tensor()};
          if (muon) {
            gpu().muon_step({.w = updated,
                             .grad = gradient,
                             .momentum = m,
                             .grad_scale = up(scale),
                             .rates = up(rates),
                             .random = random});
          } else {
            gpu().adamw_steps({.all = {{.w = updated,
                                        .grad = gradient,
                                        .m = m,
                                        .v = v,
                                        .grad_scale = up(scale),
                                        .rates = up(rates),
                                        .random = random}}});
          }
          return std::vector<Tensor>{down(updated), down(m), down(v)};
        };
        const std::vector<Tensor> halves = stepped(grad), whole = stepped(wide);
        for (size_t i = 0; i < whole.size(); ++i) {
          EXPECT_TRUE(same_bits(halves[i], whole[i])) << dtype_name(format) << " " << muon << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
