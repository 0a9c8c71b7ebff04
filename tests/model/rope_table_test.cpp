#include "model/parts/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nmoe {
namespace {

TEST(RopeTable, PlainAnglesAreGeometric) {
  const RopeAngles angles = rope_angles({.theta = 100.0}, {}, 4, 3);
  ASSERT_EQ(angles.cos.size(), 6U);
  EXPECT_DOUBLE_EQ(angles.cos[0], 1.0);
  EXPECT_NEAR(angles.cos[4], std::cos(2.0), 1e-15);        // position 2, pair 0: frequency 1
  EXPECT_NEAR(angles.sin[5], std::sin(2.0 * 0.1), 1e-15);  // pair 1: 100^(-2/4)
}

// Ramp borders by the paper's formula for theta 10000, 64 rotated values, 4096 positions: pair 10 makes 32 turns
// (rounded down), pair 23 one turn (rounded up).
TEST(RopeTable, YarnKeepsFastPairsAndStretchesSlowOnes) {
  const YarnConfig yarn{.factor = 40.0, .original_max_positions = 4096, .mscale = 0.707, .mscale_all_dim = 0.707};
  const RopeAngles stretched = rope_angles({}, yarn, 64, 2);
  const RopeAngles plain = rope_angles({}, {}, 64, 2);
  const auto frequency = [](const RopeAngles& angles, size_t pair) { return std::asin(angles.sin[32 + pair]); };
  EXPECT_NEAR(frequency(stretched, 5), frequency(plain, 5), 1e-12);
  EXPECT_NEAR(frequency(stretched, 30), frequency(plain, 30) / 40.0, 1e-12);
  const double ramp = (16.0 - 10.0) / (23.0 - 10.0);
  EXPECT_NEAR(frequency(stretched, 16), frequency(plain, 16) * ((1 - ramp) + ramp / 40.0), 1e-12);
  // Equal mscale and mscale_all_dim cancel in the table and act on the softmax alone.
  EXPECT_DOUBLE_EQ(stretched.cos[0], 1.0);
  const double m = 0.1 * 0.707 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(yarn_softmax_scale(yarn), m * m);
}

TEST(RopeTable, LinearDividesEveryFrequency) {
  const RopeConfig linear{.theta = 100.0, .scaling = RopeScaling::kLinear, .factor = 4.0};
  const RopeAngles angles = rope_angles(linear, {}, 4, 3);
  EXPECT_NEAR(angles.cos[4], std::cos(2.0 / 4.0), 1e-15);
  EXPECT_NEAR(angles.sin[5], std::sin(2.0 * 0.1 / 4.0), 1e-15);
}

// Llama 3.1's values. Wavelengths of pairs are 2 pi theta^(i / 64): below 8192 / 4 they stay, above 8192 / 1 they are
// divided by 8; pair 33 has one of 5,442 in between.
TEST(RopeTable, Llama3KeepsFastPairsAndDividesSlowOnes) {
  const RopeConfig llama{.theta = 500000.0,
                         .scaling = RopeScaling::kLlama3,
                         .factor = 8.0,
                         .low_freq_factor = 1.0,
                         .high_freq_factor = 4.0,
                         .original_max_positions = 8192};
  const RopeAngles changed = rope_angles(llama, {}, 128, 2);
  const auto frequency = [&](size_t pair) { return std::asin(changed.sin[64 + pair]); };
  const auto plain = [](double pair) { return std::pow(500000.0, -pair / 64.0); };
  EXPECT_NEAR(frequency(20), plain(20), 1e-15);
  EXPECT_NEAR(frequency(50), plain(50) / 8.0, 1e-15);
  const double wavelength = 2.0 * M_PI / plain(33), smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
  ASSERT_TRUE(smooth > 0.1 && smooth < 0.9) << smooth;
  EXPECT_NEAR(frequency(33), (1.0 - smooth) * plain(33) / 8.0 + smooth * plain(33), 1e-15);
}

TEST(RopeTable, MagnitudeScalesTheTable) {
  const RopeAngles angles = rope_angles({}, {.factor = 8.0, .mscale = 1.0, .mscale_all_dim = 0.0}, 8, 1);
  EXPECT_DOUBLE_EQ(angles.cos[0], 0.1 * std::log(8.0) + 1.0);
}

}  // namespace
}  // namespace nmoe
