#include "tensor/low_precision.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>

namespace nmoe {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

// What an independent program says of values, ties and neighbours of all codes: scripts/low_precision_vectors.py.
TEST(LowPrecision, ScalarsAreThoseOfTheReference) {
  std::ifstream file(NMOE_SOURCE_DIR "/tests/tensor/fixtures/low_precision/scalars.txt");
  std::map<std::string, int> read;
  std::string format;
  uint32_t bits = 0, code = 0;
  while (file >> format >> std::hex >> bits >> code) {
    const auto x = std::bit_cast<float>(bits);
    uint8_t actual = 0;
    if (format == "e4m3") {
      actual = float_to_e4m3(x);
    } else if (format == "e2m1") {
      actual = float_to_e2m1(x);
    } else if (format == "e8m0") {
      actual = float_to_e8m0(x);
    } else {
      ASSERT_EQ(format.substr(0, 12), "e2m1_random_");
      actual = float_to_e2m1(x, static_cast<uint8_t>(std::stoi(format.substr(12))));
    }
    ASSERT_EQ(actual, code) << format << " of " << x;
    ++read[format.substr(0, 11)];
  }
  EXPECT_GT(read["e4m3"], 1000);
  EXPECT_GT(read["e2m1"], 400);
  EXPECT_GT(read["e2m1_random"], 2000);
  EXPECT_GT(read["e8m0"], 25);
}

TEST(LowPrecision, CodesHaveTheDescribedValues) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0F);
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0F, -9));  // smallest subnormal
  EXPECT_EQ(e4m3_to_float(0x08), std::ldexp(1.0F, -6));  // smallest normal
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);
  EXPECT_EQ(e4m3_to_float(0xFE), -448.0F);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xFF)));
  const float magnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_float(code), magnitudes[code]);
    EXPECT_EQ(std::bit_cast<uint32_t>(e2m1_to_float(code | 8)), std::bit_cast<uint32_t>(-magnitudes[code]));
  }
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0F, code - 127));
    EXPECT_EQ(e8m0_to_inverse(static_cast<uint8_t>(code)), std::ldexp(1.0F, 127 - code));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  EXPECT_TRUE(std::isnan(e8m0_to_inverse(255)));
}

TEST(LowPrecision, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float x = e4m3_to_float(static_cast<uint8_t>(code));
    if (!std::isnan(x)) {
      EXPECT_EQ(float_to_e4m3(x), code);
    }
    EXPECT_EQ(float_to_e8m0(e8m0_to_float(static_cast<uint8_t>(code))), code);
  }
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(code)), code);
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(code), 255), code);  // what needs no rounding is not rounded at random
  }
}

TEST(LowPrecision, RoundingToE4M3IsThereAndBack) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 0x3FFF) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(round_to_e4m3(x)));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(round_to_e4m3(x)), std::bit_cast<uint32_t>(e4m3_to_float(float_to_e4m3(x))))
          << x;
    }
  }
}

TEST(LowPrecision, RoundingToE2M1IsThereAndBack) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 0x3FFF) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const float expected = e2m1_to_float(float_to_e2m1(x));
    ASSERT_EQ(std::bit_cast<uint32_t>(round_to_e2m1(x)), std::bit_cast<uint32_t>(expected)) << x;
  }
}

// Of all 256 bytes as many round up as the value is on its way, in 256ths.
TEST(LowPrecision, RandomRoundingIsRightInTheMean) {
  for (const float x : {0.1F, 0.4921875F, 0.75F, 1.3F, -2.6F, 3.99F, 5.0F, -5.5F, 7.0F}) {
    double sum = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const float rounded = e2m1_to_float(float_to_e2m1(x, static_cast<uint8_t>(byte)));
      sum += static_cast<double>(rounded);
    }
    const double wanted = std::clamp(static_cast<double>(x), -6.0, 6.0);
    EXPECT_NEAR(sum / 256, wanted, 2.0 / 256) << x;
    EXPECT_LE(std::abs(sum / 256), std::abs(wanted)) << x;
  }
}

TEST(LowPrecision, ScalesOfBlocks) {
  EXPECT_EQ(e8m0_to_float(e8m0_scale(448.0F)), 1.0F);
  EXPECT_EQ(e8m0_to_float(e8m0_scale(449.0F)), 2.0F);  // up: nothing saturates
  EXPECT_EQ(e8m0_to_float(e8m0_scale(224.0F)), 0.5F);
  EXPECT_TRUE(std::isnan(e8m0_to_float(e8m0_scale(kNaN))));
  EXPECT_EQ(nvfp4_tensor_factor(0.0F), 1.0F);
  EXPECT_EQ(nvfp4_tensor_factor(2688.0F), 1.0F);
  EXPECT_EQ(nvfp4_tensor_factor(1e-40F), std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isnan(nvfp4_tensor_factor(kNaN)));
  EXPECT_EQ(nvfp4_scale(2688.0F, 1.0F), 0x7E);
  EXPECT_EQ(nvfp4_scale(kNaN, 1.0F), 0x7F);
  EXPECT_EQ(nvfp4_block_factor(0x38, 4.0F), 4.0F);
  EXPECT_EQ(nvfp4_product_scale(2688.0F, 2688.0F), 1.0F);
  // Whatever is not finite is kept by a maximum of bits, and becomes NaN.
  EXPECT_EQ(amax_of_bits(std::max(magnitude_bits(-3.0F), magnitude_bits(2.0F))), 3.0F);
  EXPECT_TRUE(std::isnan(amax_of_bits(std::max(magnitude_bits(-kInfinity), magnitude_bits(2.0F)))));
  EXPECT_TRUE(std::isnan(amax_of_bits(std::max(magnitude_bits(-kNaN), magnitude_bits(kInfinity)))));
}

TEST(LowPrecision, TheTransformIsOrthogonalAndHasTheSigns) {
  constexpr int kSigns[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  for (int i = 0; i < 16; ++i) {
    float x[16] = {};
    x[i] = 4.0F;
    random_hadamard(x);
    for (int j = 0; j < 16; ++j) {
      const int sylvester = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1;
      EXPECT_EQ(x[j], static_cast<float>(kSigns[i] * sylvester)) << i << ", " << j;
    }
  }
  float ties[16] = {0x1.01p2F};  // half way between two BF16 values
  random_hadamard(ties);
  EXPECT_EQ(ties[0], 1.0F);
}

}  // namespace
}  // namespace nmoe
