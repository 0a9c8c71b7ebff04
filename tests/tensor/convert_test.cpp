#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

TEST(Convert, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    } else {
      ASSERT_EQ(float_to_bf16(value), bits);
    }
  }
  const float one = 1.0f, next = bf16_to_float(float_to_bf16(1.0f) + 1);
  EXPECT_EQ(float_to_bf16((one + next) / 2), float_to_bf16(one));  // a tie goes to the even mantissa
  EXPECT_EQ(float_to_bf16(std::nextafter((one + next) / 2, 2.0f)), float_to_bf16(next));
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // to infinity, as it is nearer
}

TEST(Convert, HalfPrecisionThereAndBack) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(bits));  // finite
  }
  std::vector<float> wide(halves.size());
  std::vector<uint16_t> back(halves.size());
  widen(DType::kF16, halves.data(), wide.data(), halves.size());
  narrow(wide.data(), DType::kF16, back.data(), halves.size());
  EXPECT_EQ(back, halves);
  EXPECT_EQ(wide[1], std::ldexp(1.0f, -24));  // the smallest subnormal
  EXPECT_EQ(wide[0x3c00], 1.0f);
}

TEST(Convert, BetweenWeightDtypesOnly) {
  const int32_t whole = 1;
  float value = 0;
  EXPECT_THROW(convert(DType::kI32, &whole, DType::kF32, &value, 1), CheckFailure);
}

}  // namespace
}  // namespace nmoe
