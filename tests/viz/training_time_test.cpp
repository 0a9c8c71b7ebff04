#include "viz/training_time.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nmoe {
namespace {

TEST(TrainingTime, IsTheSumOfStepsThatWereTrained) {
  Series ms;
  TrainingTime time;
  const auto seconds = [&] {
    const auto values = time.of(ms).values();
    return std::vector<double>(values.begin(), values.end());
  };
  EXPECT_TRUE(seconds().empty());
  ms.put(10, 500.0, 7);  // of ten steps
  ms.put(12, 1000.0, 9000);
  EXPECT_EQ(seconds(), (std::vector<double>{5.0, 7.0}));
  ms.put(13, std::nan(""), 9001);
  ms.put(20, 2000.0, 90000);
  EXPECT_EQ(seconds(), (std::vector<double>{5.0, 7.0, 7.0, 21.0})) << "and goes on";
  EXPECT_EQ(time.of(ms).steps()[3], 20);
  ms.rewind(12);  // steps that are done again
  EXPECT_EQ(seconds(), (std::vector<double>{5.0, 7.0}));
  ms.rewind(10);
  ms.put(11, 1000.0, 0);
  EXPECT_EQ(seconds(), (std::vector<double>{5.0, 6.0})) << "other steps in their place";
}

}  // namespace
}  // namespace nmoe
