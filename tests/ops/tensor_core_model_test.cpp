#include "ops/tensor_core_model.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace nmoe::test {
namespace {

std::vector<uint8_t> e4m3(const std::vector<float>& values) {
  std::vector<uint8_t> codes;
  for (const float value : values) codes.push_back(float_to_e4m3(value));
  return codes;
}
std::vector<uint8_t> e2m1(const std::vector<float>& values) {
  std::vector<uint8_t> codes;
  for (const float value : values) codes.push_back(float_to_e2m1(value));
  return codes;
}

// 448 = 1.75 * 2^8: its square's exponent is 16, before normalisation, so that less than 2^(16 - 13) = 8 is cut off.
TEST(TensorCoreModel, HopperCutsProductsBesideALargeOne) {
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b, float c = 0.0F) {
    return hopper_e4m3_dot(e4m3(a), e4m3(b), c);
  };
  EXPECT_EQ(dot({448}, {448}), 448.0F * 448);
  EXPECT_EQ(dot({448, -448, 7}, {448, 448, 1}), 0.0F);        // 7 < 8
  EXPECT_EQ(dot({448, -448, -7}, {448, 448, 1}), 0.0F);       // toward zero, not down
  EXPECT_EQ(dot({448, -448, 14}, {448, 448, 1}), 8.0F);       // a multiple of 8
  EXPECT_EQ(dot({448, -448, 7, 7}, {448, 448, 1, 1}), 0.0F);  // each by itself
  EXPECT_EQ(dot({448, -448}, {448, 448}, 15.0F), 8.0F);       // what was summed before, too
  EXPECT_EQ(dot({7, 1, 0.5F}, {1, 2, 3}), 10.5F);             // alone they are exact
}

TEST(TensorCoreModel, HopperKeepsThirteenBitsOfASum) {
  const std::vector<uint8_t> one = e4m3({1}), none = e4m3({0});
  EXPECT_EQ(hopper_e4m3_dot(none, one, 0x1.0008p0F), 0x1.0008p0F);
  EXPECT_EQ(hopper_e4m3_dot(none, one, 0x1.0004p0F), 1.0F);
  EXPECT_EQ(hopper_e4m3_dot(none, one, -0x1.000Fp0F), -0x1.0008p0F);
  EXPECT_EQ(hopper_e4m3_dot(one, one, 0x1.FFF8p0F), 0x1.7FF8p1F);  // 2.9998..., a bit less of which fits
  EXPECT_EQ(hopper_e4m3_dot(one, one, 8191.0F), 8192.0F);
  EXPECT_EQ(hopper_e4m3_dot(one, one, 16384.0F), 16384.0F);  // 2^14 + 1: the one is cut
}

// A chunk of k = 32 is one sum, the next begins with its result.
TEST(TensorCoreModel, HopperSumsChunksOfThirtyTwo) {
  std::vector<float> a(33, 0.0F), b(33, 1.0F);
  a[0] = a[32] = 7;  // cut in the chunk of the large ones, and in the one behind it where their sum is still there
  a[1] = 448, b[1] = 448;
  a[2] = -448, b[2] = 448;
  EXPECT_EQ(hopper_e4m3_dot(e4m3(a), e4m3(b)), 7.0F);
  std::swap(a[2], a[32]), std::swap(b[2], b[32]);
  EXPECT_EQ(hopper_e4m3_dot(e4m3(a), e4m3(b)), 0.0F);
}

TEST(TensorCoreModel, WhatIsNotANumberStays) {
  EXPECT_TRUE(std::isnan(hopper_e4m3_dot(std::vector<uint8_t>{0x7F}, e4m3({0}))));
  EXPECT_EQ(hopper_e4m3_dot(e4m3({1}), e4m3({1}), std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  const std::vector<uint8_t> one = e4m3({1}), nan_scale{255}, unit{127};
  EXPECT_TRUE(std::isnan(blackwell_mxfp8_dot(one, nan_scale, one, unit)));
}

TEST(TensorCoreModel, BlackwellKeepsMoreOfProducts) {
  const std::vector<uint8_t> unit{127}, four{129}, half{126};
  const auto dot = [](const std::vector<float>& a, std::span<const uint8_t> a_scales, const std::vector<float>& b,
                      std::span<const uint8_t> b_scales) {
    return blackwell_mxfp8_dot(e4m3(a), a_scales, e4m3(b), b_scales);
  };
  EXPECT_EQ(dot({448, -448, 7}, unit, {448, 448, 1}, unit), 7.0F);
  EXPECT_EQ(dot({3}, four, {5}, half), 30.0F);
  EXPECT_EQ(dot({448, -448, 0x1p-9F}, unit, {448, 448, 1}, unit), 0x1p-9F);  // 16 - 25 = -9
  EXPECT_EQ(dot({448, -448, 0x1p-9F}, unit, {448, 448, 0.5F}, unit), 0.0F);  // a half of that
}

TEST(TensorCoreModel, BlackwellSumsSixteenOfNvFp4Exactly) {
  std::vector<float> a(16, 6.0F), b(16, 6.0F);
  a[15] = 0.5F, b[15] = -0.5F;
  const std::vector<uint8_t> scale = e4m3({1.5F}), unit = e4m3({1});
  EXPECT_EQ(blackwell_nvfp4_dot(e2m1(a), unit, e2m1(b), unit), 15 * 36 - 0.25F);
  EXPECT_EQ(blackwell_nvfp4_dot(e2m1(a), scale, e2m1(b), scale), (15 * 36 - 0.25F) * 2.25F);
  // The sums of two blocks meet with the larger scales' exponent: 17 - 35 = -18.
  a.assign(32, 0.0F), b.assign(32, 0.0F);
  a[0] = b[0] = 1, a[16] = b[16] = 0.5F;
  const std::vector<uint8_t> scales = e4m3({448, 0x1p-9F});
  const float large = 448.0F * 448;
  EXPECT_EQ(blackwell_nvfp4_dot(e2m1(a), scales, e2m1(b), scales, -large), 0.0F);  // 2^-20 is cut
}

// What `n selftest` allows between such sums and the CPU's is a 32nd of a value and of its tensor's root mean square.
TEST(TensorCoreModel, BlackwellsSumsAreThoseOfTheSelfTest) {
  constexpr size_t kDepth = 2048;
  const Philox rng(3, 4);
  std::vector<uint8_t> a8, b8, a4, b4, a8_scales, b8_scales, a4_scales, b4_scales;
  for (uint64_t i = 0; i < kDepth; ++i) {
    a8.push_back(float_to_e4m3(100 * static_cast<float>(rng.normal(2 * i))));
    b8.push_back(float_to_e4m3(100 * static_cast<float>(rng.normal(2 * i + 1))));
    a4.push_back(static_cast<uint8_t>(rng.bits(i) & 15));
    b4.push_back(static_cast<uint8_t>(rng.bits(i) >> 4 & 15));
  }
  for (uint64_t i = 0; i < kDepth / 16; ++i) {
    a8_scales.push_back(static_cast<uint8_t>(120 + rng.bits(i) % 9));
    b8_scales.push_back(static_cast<uint8_t>(110 + rng.bits(i) % 7));
    a4_scales.push_back(static_cast<uint8_t>(40 + rng.bits(i) % 60));
    b4_scales.push_back(static_cast<uint8_t>(30 + (rng.bits(i) >> 8) % 60));
  }
  double exact8 = 0, squares8 = 0, exact4 = 0, squares4 = 0;
  for (size_t i = 0; i < kDepth; ++i) {
    const double product8 = static_cast<double>(e4m3_to_float(a8[i]) * e8m0_to_float(a8_scales[i / 32])) *
                            static_cast<double>(e4m3_to_float(b8[i]) * e8m0_to_float(b8_scales[i / 32]));
    const double product4 = static_cast<double>(e2m1_to_float(a4[i]) * e4m3_to_float(a4_scales[i / 16])) *
                            static_cast<double>(e2m1_to_float(b4[i]) * e4m3_to_float(b4_scales[i / 16]));
    exact8 += product8, squares8 += product8 * product8;
    exact4 += product4, squares4 += product4 * product4;
  }
  const auto sum8 = static_cast<double>(blackwell_mxfp8_dot(a8, a8_scales, b8, b8_scales));
  const auto sum4 = static_cast<double>(blackwell_nvfp4_dot(a4, a4_scales, b4, b4_scales));
  EXPECT_NEAR(sum8, exact8, 1e-5 * std::sqrt(squares8));  // of a sum's standard deviation
  EXPECT_NEAR(sum4, exact4, 1e-5 * std::sqrt(squares4));
}

// The products of emulation: elements with their block's scale are BF16, and sums differ in order and width alone.
TEST(TensorCoreModel, BlocksAreExactInBf16) {
  for (int scale = 0; scale < 127; ++scale) {
    for (uint8_t code = 0; code < 16; ++code) {
      const float value = e2m1_to_float(code) * e4m3_to_float(static_cast<uint8_t>(scale));
      EXPECT_EQ(bf16_to_float(float_to_bf16(value)), value);
    }
  }
  for (int code = 0; code < 127; ++code) {
    for (int scale = 16; scale < 240; ++scale) {
      const float value = e4m3_to_float(static_cast<uint8_t>(code)) * e8m0_to_float(static_cast<uint8_t>(scale));
      EXPECT_EQ(bf16_to_float(float_to_bf16(value)), value);
    }
  }
  const Philox rng(1, 2);
  std::vector<uint16_t> a, b;
  double exact = 0;
  for (uint64_t i = 0; i < 64; ++i) {
    a.push_back(float_to_bf16(static_cast<float>(rng.normal(2 * i))));
    b.push_back(float_to_bf16(static_cast<float>(rng.normal(2 * i + 1))));
    exact += static_cast<double>(bf16_to_float(a.back())) * static_cast<double>(bf16_to_float(b.back()));
  }
  EXPECT_NEAR(static_cast<double>(hopper_bf16_dot(a, b)), exact, 1e-5);
}

}  // namespace
}  // namespace nmoe::test
