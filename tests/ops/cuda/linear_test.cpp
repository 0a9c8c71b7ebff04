// cuBLASLt's products against the CPU's, over shapes that are odd, empty, misaligned and large. Needs a GPU: label gpu.
#include <cmath>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct LinearShape {
  int64_t tokens, in, out;
};
constexpr LinearShape kLinearShapes[] = {
    {1, 1, 1}, {3, 5, 7}, {0, 4, 3}, {1, 70, 300}, {67, 1, 130}, {300, 70, 515}, {2100, 17, 9}, {384, 512, 256},
};

// BF16: the result is rounded once, by 2^-9 of itself. F32: a sum of `depth` products of order one is off by about
// sqrt(depth) * 6e-8, measured against a thousandth of the largest sum at least; TF32 would be off by 1e-1 there.
double tolerance_of(DType dtype) { return dtype == DType::kBF16 ? 4e-3 : 2e-3; }

// The same for a BF16 sum onto `initial`: cuBLASLt may round the product before it adds, and where the two cancel, that
// is more than the result.
void expect_near_sum(Tensor sum, Tensor expected, Tensor initial) {
  for (int64_t i = 0; i < sum.num_elements(); ++i) {
    const double product = get(expected, i) - get(initial, i);
    const double bound = 0x1p-8 * (std::abs(product) + std::abs(get(expected, i))) + 1e-6;
    ASSERT_LE(std::abs(get(sum, i) - get(expected, i)), bound) << "element " << i;
  }
}

class CudaLinear : public CudaTest {
 protected:
  static Tensor normal(TensorPool& pool, Shape shape, DType dtype) { return rounded(pool.normal(shape), dtype); }
};

TEST_F(CudaLinear, ForwardMatchesTheCpu) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    // act into act, and BF16 into stat
    for (const auto& [act, result] : {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
                                      std::pair{DType::kBF16, DType::kF32}}) {
      for (const char* addend : {"none", "y", "another"}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}, {} into {}, addend: {}", tokens, in, out, dtype_name(act),
                                 dtype_name(result), addend));
        TensorPool pool(DType::kF32);
        const Tensor x = normal(pool, {tokens, in}, act), w = normal(pool, {out, in}, act);
        const Tensor initial = normal(pool, {tokens, out}, result);
        const bool adds = addend != std::string_view("none"), in_place = addend == std::string_view("y");
        const Tensor y = in_place ? pool.clone(initial) : pool.full({tokens, out}, NAN);
        const Tensor device_x = up(x, act), device_w = up(w, act), device_y = up(y, result);
        const Tensor device_addend = in_place ? device_y : adds ? up(initial, result) : Tensor();
        run([&](Ops& ops) { ops.linear_forward({device_x, device_w, device_y, device_addend}); });
        cpu().linear_forward({x, w, y, in_place ? y : adds ? initial : Tensor()});
        if (adds && result == DType::kBF16) {
          expect_near_sum(down(device_y), y, initial);
        } else {
          EXPECT_TRUE(near(down(device_y), y, tolerance_of(result)));
        }
      }
    }
  }
}

TEST_F(CudaLinear, BackwardMatchesTheCpu) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}, {}, accumulate {}", tokens, in, out, dtype_name(act), accumulate));
        TensorPool pool(DType::kF32);
        const Tensor x = normal(pool, {tokens, in}, act), w = normal(pool, {out, in}, act);
        const Tensor dy = normal(pool, {tokens, out}, act), dw = pool.normal({out, in});
        const Tensor dx = accumulate ? normal(pool, {tokens, in}, act) : pool.full({tokens, in}, NAN);
        const Tensor device_x = up(x, act), device_w = up(w, act), device_dy = up(dy, act);
        const Tensor device_dx = up(dx, act), device_dw = up(dw);
        run([&](Ops& ops) { ops.linear_backward_input({device_dy, device_w, device_dx, accumulate}); });
        run([&](Ops& ops) { ops.linear_backward_weight({device_x, device_dy, device_dw, /*accumulate=*/true}); });
        const Tensor initial = pool.clone(dx);
        cpu().linear_backward_input({dy, w, dx, accumulate});
        cpu().linear_backward_weight({x, dy, dw, /*accumulate=*/true});
        if (accumulate && act == DType::kBF16) {
          expect_near_sum(down(device_dx), dx, initial);
        } else {
          EXPECT_TRUE(near(down(device_dx), dx, tolerance_of(act)));
        }
        EXPECT_TRUE(near(down(device_dw), dw, tolerance_of(DType::kF32)));
      }
    }
  }
}

// Rows from the second on start at a multiple of 2 or 4 bytes only. The rows outside the views stay as they are.
TEST_F(CudaLinear, ViewsNeedNoAlignment) {
  constexpr int64_t kTokens = 131, kIn = 13, kOut = 27;
  for (const DType act : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(act));
    TensorPool pool(DType::kF32);
    const Tensor x = normal(pool, {kTokens + 2, kIn}, act), w = normal(pool, {kOut + 1, kIn}, act);
    const Tensor y = pool.full({kTokens + 2, kOut}, 7), dw = pool.zeros({kOut + 1, kIn});
    const Tensor device_x = up(x, act), device_w = up(w, act), device_y = up(y, act);
    const Tensor device_dw = up(dw);
    cpu().linear_forward({x.rows(1, kTokens + 1), w.rows(1, kOut + 1), y.rows(1, kTokens + 1)});
    run([&](Ops& ops) {
      ops.linear_forward({device_x.rows(1, kTokens + 1), device_w.rows(1, kOut + 1), device_y.rows(1, kTokens + 1)});
    });
    EXPECT_TRUE(near(down(device_y), y, tolerance_of(act)));
    const Tensor dy = rounded(y, act);
    const Tensor device_dy = up(dy, act);
    cpu().linear_backward_weight(
        {x.rows(1, kTokens + 1), dy.rows(1, kTokens + 1), dw.rows(1, kOut + 1), /*accumulate=*/true});
    run([&](Ops& ops) {
      ops.linear_backward_weight({device_x.rows(1, kTokens + 1), device_dy.rows(1, kTokens + 1),
                                  device_dw.rows(1, kOut + 1), /*accumulate=*/true});
    });
    EXPECT_TRUE(near(down(device_dw), dw, tolerance_of(DType::kF32)));
  }
}

// A long sum into a small output is what cuBLASLt splits.
TEST_F(CudaLinear, SameBitsEveryTime) {
  TensorPool pool(DType::kF32);
  const Tensor x = up(pool.normal({20000, 64}), DType::kBF16);
  const Tensor dy = up(pool.normal({20000, 48}), DType::kBF16);
  const Tensor first = up(pool.zeros({48, 64}));
  run([&](Ops& ops) { ops.linear_backward_weight({x, dy, first, /*accumulate=*/true}); });
  for (int i = 0; i < 5; ++i) {
    const Tensor again = up(pool.zeros({48, 64}));
    run([&](Ops& ops) { ops.linear_backward_weight({x, dy, again, /*accumulate=*/true}); });
    EXPECT_TRUE(same_bits(down(again), down(first)));
  }
}

TEST_F(CudaLinear, ShapesThatDoNotFitAreABug) {
  TensorPool pool(DType::kF32);
  const Tensor x = pool.zeros({4, 3}), w = pool.zeros({5, 2}), y = pool.zeros({4, 5});
  EXPECT_THROW(gpu().linear_forward({x, w, y}), CheckFailure);
  const Tensor narrow(nullptr, DType::kBF16, {5, 3});
  EXPECT_THROW(gpu().linear_forward({x, narrow, y}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
