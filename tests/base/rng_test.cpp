#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors that Random123 ships for philox4x32 with 10 rounds.
TEST(Philox, MatchesPublishedVectors) {
  constexpr uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox4x32({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}),
            (Words{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(Philox, ValueDependsOnSeedStreamAndIndex) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1}) {
    for (uint64_t stream : {0, 1}) {
      for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        seen.insert(Philox(seed, stream).bits(index));
      }
    }
  }
  EXPECT_EQ(seen.size(), 12U);
  EXPECT_EQ(Philox(7, "embedding").bits(3), Philox(7, fnv1a64("embedding")).bits(3));
}

TEST(Philox, UniformFillsTheOpenInterval) {
  constexpr int kDraws = 64'000, kBins = 64;
  const Philox rng(1, "uniform");
  std::vector<int> bins(kBins);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = rng.uniform(i);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi_square = 0;
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const int count : bins) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LE(chi_square, 103.4);  // the 99.9 % point for 63 degrees of freedom
}

TEST(Philox, NormalIsTheInverseOfTheDistributionFunction) {
  const Philox rng(2, "normal");
  for (uint64_t i = 0; i < 10'000; ++i) {
    const double p = 0.5 * std::erfc(-rng.normal(i) / std::numbers::sqrt2);
    ASSERT_LE(std::abs(p - rng.uniform(i)), 1e-14) << "index " << i;
  }
}

struct Moments {
  double first = 0, second = 0, third = 0, fourth = 0;
};

template <class Draw>
Moments moments(int num_draws, Draw&& draw) {
  Moments m;
  for (int i = 0; i < num_draws; ++i) {
    const double z = draw(static_cast<uint64_t>(i));
    m.first += z / num_draws;
    m.second += z * z / num_draws;
    m.third += z * z * z / num_draws;
    m.fourth += z * z * z * z / num_draws;
  }
  return m;
}

// Tolerances are four standard errors of each sample moment.
TEST(Philox, NormalHasTheMomentsOfTheStandardNormal) {
  constexpr int kDraws = 100'000;
  const Philox rng(3, "moments");
  const Moments m = moments(kDraws, [&](uint64_t i) { return rng.normal(i); });
  const double error = 4 / std::sqrt(static_cast<double>(kDraws));
  EXPECT_LE(std::abs(m.first), error);
  EXPECT_LE(std::abs(m.second - 1), error * std::sqrt(2.0));
  EXPECT_LE(std::abs(m.third), error * std::sqrt(15.0));
  EXPECT_LE(std::abs(m.fourth - 3), error * std::sqrt(96.0));
}

// With mass Z inside [-a, a]: E z^2 = 1 - 2 a phi(a) / Z and E z^4 = 3 E z^2 - 2 a^3 phi(a) / Z.
TEST(Philox, TruncatedNormalStaysInsideAndHasItsMoments) {
  constexpr int kDraws = 100'000;
  for (const double a : {0.5, 2.0, 3.0}) {
    const Philox rng(4, "truncated");
    double largest = 0;
    const Moments m = moments(kDraws, [&](uint64_t i) {
      const double z = rng.truncated_normal(i, a);
      largest = std::max(largest, std::abs(z));
      return z;
    });
    const double density = std::exp(-0.5 * a * a) / std::sqrt(2 * std::numbers::pi);
    const double mass = std::erf(a / std::numbers::sqrt2);
    const double second = 1 - 2 * a * density / mass;
    const double fourth = 3 * second - 2 * a * a * a * density / mass;
    const double error = 4 / std::sqrt(static_cast<double>(kDraws));
    EXPECT_LE(largest, a);
    EXPECT_GE(largest, 0.99 * a);
    EXPECT_LE(std::abs(m.first), error * std::sqrt(second)) << "limit " << a;
    EXPECT_LE(std::abs(m.second - second), error * std::sqrt(fourth - second * second)) << "limit " << a;
    EXPECT_LE(std::abs(m.fourth - fourth), error * a * a * std::sqrt(fourth)) << "limit " << a;
  }
}

TEST(KeyedPermutation, IsABijection) {
  for (const uint64_t size : {1, 2, 3, 5, 64, 65, 1000, 4097}) {
    const KeyedPermutation permutation(size, 42);
    std::vector<bool> hit(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t element = permutation(i);
      ASSERT_LT(element, size);
      ASSERT_FALSE(hit[element]) << "element " << element << " of " << size << " twice";
      hit[element] = true;
    }
    EXPECT_THROW(permutation(size), CheckFailure);
  }
}

TEST(KeyedPermutation, ShufflesDifferentlyForEveryKey) {
  constexpr uint64_t kSize = 10'000;
  const KeyedPermutation first(kSize, 1), second(kSize, 2);
  int fixed_points = 0, shared_points = 0, successors = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    fixed_points += first(i) == i;
    shared_points += first(i) == second(i);
    successors += i + 1 < kSize && first(i + 1) == first(i) + 1;
  }
  // Each is near a Poisson variable of mean 1 for random permutations.
  EXPECT_LE(fixed_points, 6);
  EXPECT_LE(shared_points, 6);
  EXPECT_LE(successors, 6);
}

TEST(Fnv1a64, MatchesPublishedVectors) {
  EXPECT_EQ(fnv1a64(""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(fnv1a64("a"), 0xAF63DC4C8601EC8CULL);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171F73967E8ULL);
}

}  // namespace
}  // namespace nmoe
