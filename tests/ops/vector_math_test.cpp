#include "ops/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace nmoe::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ExpApprox, IsWithinTwoUlp) {
  double worst = 0;
  float worst_at = 0;
  for (float x = -86.9f; x < 88.72f; x += 1.37e-4f) {
    const double exact = std::exp(static_cast<double>(x));
    int exponent = 0;
    std::frexp(exact, &exponent);
    const double ulp = std::ldexp(1.0, exponent - std::numeric_limits<float>::digits);
    const double error = std::abs(static_cast<double>(exp_approx(x)) - exact) / ulp;
    if (!(error <= worst)) {
      worst = error;
      worst_at = x;
    }
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
}

TEST(ExpApprox, EndsOfTheRange) {
  EXPECT_EQ(exp_approx(0.0f), 1.0f);
  EXPECT_EQ(exp_approx(-0.0f), 1.0f);
  for (const float x : {-87.1f, -87.4f, -100.0f, -1e30f, -kInfinity}) EXPECT_EQ(exp_approx(x), 0.0f) << x;
  for (const float x : {88.73f, 89.0f, 1e30f, kInfinity}) EXPECT_EQ(exp_approx(x), kInfinity) << x;
  EXPECT_TRUE(std::isnan(exp_approx(kNan)));
}

// The loops that use it are vectorised, with a scalar remainder: both must round alike.
TEST(ExpApprox, SameBitsInsideAndOutsideALoop) {
  std::vector<float> x, y;
  for (float value = -20; value < 20; value += 0.0371f) x.push_back(value);
  y.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = exp_approx(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    const volatile float alone = x[i];
    EXPECT_EQ(y[i], exp_approx(static_cast<float>(alone)));
  }
}

TEST(HighestOf, IsTheMaximumWhereverItIs) {
  for (size_t size = 1; size < 70; ++size) {
    for (size_t place = 0; place < size; ++place) {
      std::vector<float> x(size, -3.0f);
      x[place] = -1.0f;
      ASSERT_EQ(highest_of(x.data(), static_cast<int64_t>(size)), -1.0f) << place << " of " << size;
    }
  }
  EXPECT_EQ(highest_of<float>(nullptr, 0), -kInfinity);
}

}  // namespace
}  // namespace nmoe::cpu
