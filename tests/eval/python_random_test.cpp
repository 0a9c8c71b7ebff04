// Against what CPython 3.11 says.
#include "eval/python_random.h"

#include <gtest/gtest.h>

#include <numeric>

namespace nmoe {
namespace {

using Numbers = std::vector<int64_t>;

TEST(PythonRandom, Bits) {
  PythonRandom zero(0);
  for (const uint32_t expected : {3626764237U, 1654615998U, 3255389356U}) EXPECT_EQ(zero.bits(32), expected);
  PythonRandom two_words((uint64_t{1} << 40) + 5);
  for (const uint32_t expected : {2166296868U, 2220160828U}) EXPECT_EQ(two_words.bits(32), expected);
  PythonRandom seven(7);  // beyond a few refills of the state
  for (int i = 1; i < 2000; ++i) seven.bits(32);
  EXPECT_EQ(seven.bits(32), 2803521222U);
}

TEST(PythonRandom, ShuffleAndChoice) {
  Numbers items(10);
  std::iota(items.begin(), items.end(), 0);
  PythonRandom(1337).shuffle(items);
  EXPECT_EQ(items, (Numbers{0, 3, 7, 2, 1, 6, 4, 5, 8, 9}));
  PythonRandom random(42);
  for (const int64_t expected : {81, 14, 3, 94, 35, 31, 28, 17}) EXPECT_EQ(random.below(100), expected);
}

TEST(PythonRandom, SamplesOutOfAListAndWithASet) {
  EXPECT_EQ(PythonRandom(1234).sample(31, 10), (Numbers{30, 24, 14, 3, 0, 2, 18, 1, 21, 25}));
  EXPECT_EQ(PythonRandom(1234).sample(85, 10), (Numbers{56, 14, 0, 11, 74, 4, 10, 12, 45, 30}));
  EXPECT_EQ(PythonRandom(1234).sample(86, 10), (Numbers{56, 14, 0, 11, 74, 4, 85, 10, 12, 45}));
  EXPECT_EQ(PythonRandom(1235).sample(21, 3), (Numbers{13, 17, 18}));
  EXPECT_EQ(PythonRandom(1235).sample(22, 3), (Numbers{13, 17, 18}));
  EXPECT_EQ(PythonRandom(1).sample(5, 0), Numbers());
}

}  // namespace
}  // namespace nmoe
