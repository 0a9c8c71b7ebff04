// How many rows of experts a rank has room for.
#include "rdep/capacity.h"

#include <gtest/gtest.h>

#include <array>

namespace nmoe {
namespace {

TEST(ExpertRowsTest, AreTheAverageTimesAFactorAndTheWorstInChunks) {
  const ExchangeShape shape{.num_experts = 8, .top_k = 3};
  const auto rows = [&](int64_t num_ranks, double factor, Received received = Received::kTogether) {
    return expert_rows(shape, num_ranks, {.max_tokens = 100, .capacity_factor = factor}, received);
  };
  const auto expect = [](const ExpertRows& got, const std::array<int64_t, 4>& wanted) {
    EXPECT_EQ((std::array{got.worst, got.kept, got.num_chunks, got.chunk}), wanted);
  };
  expect(rows(2, 1.5), {600, 450, 1, 150});
  expect(rows(2, 1.0), {600, 300, 1, 300});
  expect(rows(2, 2.0), {600, 600, 0, 0});
  expect(rows(2, 1e300), {600, 600, 0, 0});
  expect(rows(2, 0.4), {600, 120, 4, 120});
  expect(rows(4, 1.5), {800, 450, 1, 350});  // two experts on a rank: at most two copies of a token
  expect(rows(8, 1.3), {800, 390, 2, 205});
  expect(rows(4, 1.5, Received::kApart), {800, 800, 0, 0});
}

}  // namespace
}  // namespace nmoe
