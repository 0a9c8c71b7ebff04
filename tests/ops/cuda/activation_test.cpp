#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

// A few fp32 roundings, and exponentials of two libraries.
constexpr double kForward = 4e-6;
// 1 - s, and sums over the width of terms of either sign.
constexpr double kBackward = 5e-4;

constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 8},     {1, 1},     {3, 7},      {70, 24},
                                                   {33, 1024}, {17, 1031}, {100, 1408}, {4, 5632}};

using CudaActivation = CudaTest;

TEST_F(CudaActivation, BothDirectionsAreThoseOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared, Activation::kClampedSwiGlu}) {
      for (const auto& [rows, width] : kShapes) {
        for (const bool weighted : {false, true}) {
          const int64_t pre_width = activation_parts(kind) * width;
          const Tensor pre = normal({rows, pre_width}, dtype, 2.0), dh = normal({rows, width}, dtype);
          const Tensor weight = weighted ? normal({rows}) : Tensor(),
                       dweight = weighted ? pool_.zeros({rows}) : Tensor();
          const Tensor h = pool_.zeros({rows, width}), dpre = pool_.zeros({rows, pre_width});
          cpu().activation_forward({kind, pre, weight, h});
          cpu().activation_backward({kind, pre, weight, dh, dpre, dweight});

          const Tensor device_pre = up(pre, dtype), device_weight = up(weight), device_dh = up(dh, dtype);
          const Tensor device_h = tensors_.allocate(dtype, h.shape()),
                       device_dpre = tensors_.allocate(dtype, pre.shape());
          const Tensor device_dweight = weighted ? tensors_.allocate(DType::kF32, {rows}) : Tensor();
          gpu().activation_forward({kind, device_pre, device_weight, device_h});
          EXPECT_TRUE(near(down(device_h), h, tolerance(dtype, kForward))) << rows << " x " << width;
          gpu().activation_backward({kind, device_pre, device_weight, device_dh, device_dpre, device_dweight});
          EXPECT_TRUE(near(down(device_dpre), dpre, tolerance(dtype, kBackward))) << rows << " x " << width;
          if (weighted) {
            EXPECT_TRUE(near(down(device_dweight), dweight, kBackward)) << rows << " x " << width;
          }
          gpu().activation_backward({kind, device_pre, device_weight, device_dh, device_pre, device_dweight});
          EXPECT_TRUE(same_bits(down(device_pre), down(device_dpre))) << "in place, " << rows << " x " << width;
          // What forward made comes out of backward again, to the bit.
          const Tensor again = up(pre, dtype), same_h = up(pool_.full(h.shape(), 9.0), dtype);
          gpu().activation_backward({.kind = kind,
                                     .pre = again,
                                     .row_weight = device_weight,
                                     .dh = device_dh,
                                     .dpre = again,
                                     .drow_weight = device_dweight,
                                     .h = same_h});
          EXPECT_TRUE(same_bits(down(same_h), down(device_h))) << rows << " x " << width;
          EXPECT_TRUE(same_bits(down(again), down(device_dpre))) << rows << " x " << width;
        }
      }
    }
  }
}

// Rows from num_rows on are neither read nor written, whether the number is none, some, all or more than there is room
// for.
TEST_F(CudaActivation, RowsBeyondTheirNumberAreLeftAlone) {
  constexpr int64_t kCapacity = 70;
  for (const DType dtype : kActDTypes) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared, Activation::kClampedSwiGlu}) {
      for (const int64_t width : {24, 1408}) {  // a warp a row, a block a row
        const int64_t pre_width = activation_parts(kind) * width;
        const Tensor pre = up(normal({kCapacity, pre_width}, dtype), dtype), weight = up(normal({kCapacity}));
        const Tensor dh = up(normal({kCapacity, width}, dtype), dtype);
        const auto poisoned = [&](Shape shape, DType type) { return up(pool_.full(shape, 9.0), type); };
        const Tensor all_h = poisoned(dh.shape(), dtype), all_dpre = poisoned(pre.shape(), dtype);
        const Tensor all_dweight = poisoned({kCapacity}, DType::kF32);
        gpu().activation_forward({kind, pre, weight, all_h});
        gpu().activation_backward({kind, pre, weight, dh, all_dpre, all_dweight});
        for (const int64_t num_rows : {int64_t{0}, int64_t{1}, int64_t{37}, kCapacity, kCapacity + 5}) {
          const Tensor count = up(pool_.ints({1}, {static_cast<double>(num_rows)}));
          const Tensor h = poisoned(dh.shape(), dtype), dpre = poisoned(pre.shape(), dtype);
          const Tensor dweight = poisoned({kCapacity}, DType::kF32);
          gpu().activation_forward({kind, pre, weight, h, count});
          gpu().activation_backward({kind, pre, weight, dh, dpre, dweight, count});
          const int64_t rows = std::min(num_rows, kCapacity);
          for (const auto& [some, all] : {std::pair{h, all_h}, {dpre, all_dpre}, {dweight, all_dweight}}) {
            EXPECT_TRUE(same_bits(down(some.rows(0, rows)), down(all.rows(0, rows)))) << num_rows << " rows";
            const Tensor rest = down(some.rows(rows, kCapacity));
            EXPECT_TRUE(near(rest, std::vector<double>(static_cast<size_t>(rest.num_elements()), 9.0), 0))
                << num_rows << " rows";
          }
        }
      }
    }
  }
}

TEST_F(CudaActivation, RefusesToLeaveNothingEvenWhenCounting) {
  const Tensor pre = up(pool_.zeros({2, 4})), h = up(pool_.zeros({2, 2}));
  const auto activate = [&](Ops& ops) { ops.activation_forward({.pre = pre, .h = h, .keeps_h = false}); };
  EXPECT_THROW(activate(gpu()), CheckFailure);
  EXPECT_THROW(counted_scratch(activate), CheckFailure);
}

TEST_F(CudaActivation, ExtremesStayFiniteAndNansShow) {
  const Tensor pre = up(pool_.of({4, 2}, {1000, 1, -1000, 1, -1e30, 2, std::nan(""), 1}));
  const Tensor h = up(pool_.zeros({4, 1})), dpre = up(pool_.zeros({4, 2}));
  gpu().activation_forward({Activation::kSwiGlu, pre, {}, h});
  gpu().activation_backward({Activation::kSwiGlu, pre, {}, up(pool_.full({4, 1}, 1)), dpre, {}});
  EXPECT_EQ(get(down(h), 0), 1000);
  EXPECT_EQ(get(down(h), 1), 0);
  EXPECT_EQ(get(down(h), 2), 0);
  EXPECT_TRUE(std::isnan(get(down(h), 3)));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(std::isfinite(get(down(dpre), i))) << i;
  const Tensor nan = up(pool_.of({1, 1}, {std::nan("")})), out = up(pool_.zeros({1, 1}));
  gpu().activation_forward({Activation::kReluSquared, nan, {}, out});
  EXPECT_TRUE(std::isnan(get(down(out), 0)));
}

}  // namespace
}  // namespace nmoe::test
