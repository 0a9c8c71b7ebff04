#include "rdep/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace nmoe {
namespace {

int64_t num_moves(const std::vector<int32_t>& before, const std::vector<int32_t>& after) {
  int64_t moves = 0;
  for (size_t expert = 0; expert < before.size(); ++expert) moves += before[expert] != after[expert] ? 1 : 0;
  return moves;
}

// Every place has one expert, and those that stay on their rank are where they were.
void expect_placement(const std::vector<int32_t>& before, const std::vector<int32_t>& after, int64_t num_ranks) {
  std::vector<int32_t> places = after;
  std::ranges::sort(places);
  EXPECT_EQ(places, places_in_order(static_cast<int64_t>(after.size())));
  const auto num_slots = static_cast<int32_t>(static_cast<int64_t>(after.size()) / num_ranks);
  for (size_t expert = 0; expert < after.size(); ++expert) {
    if (after[expert] / num_slots != before[expert] / num_slots) continue;
    EXPECT_EQ(after[expert], before[expert]);
  }
}

// What no placement can beat: the mean, or the fullest expert with the emptiest beside it.
double least_load(std::vector<int64_t> rows, int64_t num_ranks) {
  std::ranges::sort(rows);
  const double total = static_cast<double>(std::reduce(rows.begin(), rows.end()));
  const auto others = static_cast<std::ptrdiff_t>(rows.size()) / num_ranks - 1;
  const auto fullest = static_cast<double>(std::reduce(rows.begin(), rows.begin() + others, rows.back()));
  return std::max(1.0, fullest * static_cast<double>(num_ranks) / total);
}

TEST(ExpertPlacement, LoadIsOfTheFullestRank) {
  const std::vector<int64_t> rows = {10, 20, 30, 40};
  EXPECT_DOUBLE_EQ(rank_load(rows, std::vector<int32_t>{0, 1, 2, 3}, 2), 70.0 / 50.0);
  EXPECT_DOUBLE_EQ(rank_load(rows, std::vector<int32_t>{0, 2, 3, 1}, 2), 1.0);
  EXPECT_DOUBLE_EQ(rank_load(rows, std::vector<int32_t>{3, 2, 1, 0}, 4), 40.0 / 25.0);
  EXPECT_DOUBLE_EQ(rank_load(std::vector<int64_t>(4), places_in_order(4), 2), 1.0);
}

TEST(ExpertPlacement, PairsChangePlacesWhileThatHelps) {
  const std::vector<int32_t> before = places_in_order(6);
  // Any pair would make the other rank the fuller one.
  const std::vector<int64_t> stuck = {50, 10, 10, 10, 30, 10};
  EXPECT_DOUBLE_EQ(rank_load(stuck, before, 2), 70.0 / 60.0);
  EXPECT_EQ(rebalance(stuck, before, 2), before);
  const std::vector<int64_t> rows = {50, 20, 10, 10, 20, 10};
  const std::vector<int32_t> after = rebalance(rows, before, 2);
  expect_placement(before, after, 2);
  EXPECT_EQ(num_moves(before, after), 2);
  EXPECT_DOUBLE_EQ(rank_load(rows, after, 2), 70.0 / 60.0);
}

TEST(ExpertPlacement, WhatIsBalancedStays) {
  std::vector<int32_t> places = {5, 3, 1, 0, 2, 4, 7, 6};
  EXPECT_EQ(rebalance(std::vector<int64_t>(8, 100), places, 4), places);
  EXPECT_EQ(rebalance(std::vector<int64_t>(8, 0), places, 4), places);
  EXPECT_EQ(rebalance(std::vector<int64_t>{100, 104, 100, 104, 100, 104, 100, 104}, places, 4), places);
  EXPECT_EQ(rebalance(std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}, places, 1), places);
  EXPECT_EQ(rebalance(std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}, places, 8), places);  // a rank has one alone
}

// Loads as they come: near each other, spread over orders of magnitude, one expert with most of it, none for many.
TEST(ExpertPlacement, AnySkewIsMadeEven) {
  const Philox random(7, "loads");
  uint64_t draw = 0;
  const auto uniform = [&] { return static_cast<double>(random.bits(draw++) % 1'000'000) / 1e6; };
  double worst = 0.0;
  int64_t moves = 0, experts = 0;
  for (const auto& [num_experts, num_ranks] :
       {std::pair<int64_t, int64_t>{8, 2}, {16, 4}, {64, 2}, {64, 4}, {64, 8}, {256, 8}, {256, 64}, {384, 2}}) {
    for (const double skew : {0.2, 1.0, 2.0}) {
      for (int round = 0; round < 20; ++round) {
        std::vector<int64_t> rows;
        for (int64_t expert = 0; expert < num_experts; ++expert) {
          rows.push_back(static_cast<int64_t>(1000 * std::exp(skew * (4 * uniform() - 2))));
        }
        std::vector<int32_t> before = places_in_order(num_experts);
        for (size_t i = before.size(); i > 1; --i) std::swap(before[i - 1], before[random.bits(draw++) % i]);
        const std::vector<int32_t> after = rebalance(rows, before, num_ranks);
        expect_placement(before, after, num_ranks);
        const double load = rank_load(rows, after, num_ranks);
        EXPECT_LE(load, rank_load(rows, before, num_ranks));
        EXPECT_EQ(after, rebalance(rows, before, num_ranks));
        if (num_experts / num_ranks >= 8) {
          EXPECT_LE(load, std::max(kBalancedLoad, 1.02 * least_load(rows, num_ranks)))
              << num_experts << " experts on " << num_ranks << ", skew " << skew;
          worst = std::max(worst, load);
          moves += num_moves(before, after);
          experts += num_experts;
        }
        if (load > kBalancedLoad) continue;
        EXPECT_EQ(rebalance(rows, after, num_ranks), after);
      }
    }
  }
  EXPECT_LT(moves, experts / 3);
  RecordProperty("worst_load", std::to_string(worst));
}

// Two ranks that become one are in balance with the others.
TEST(ExpertPlacement, HoldsForHalfAsManyRanks) {
  std::vector<int64_t> rows;
  for (int64_t expert = 0; expert < 64; ++expert) rows.push_back(100 + 10 * expert);
  const std::vector<int32_t> places = rebalance(rows, places_in_order(64), 8);
  EXPECT_GT(rank_load(rows, places_in_order(64), 8), 1.5);
  for (const int64_t num_ranks : {8, 4, 2, 1}) EXPECT_LE(rank_load(rows, places, num_ranks), kBalancedLoad);
}

}  // namespace
}  // namespace nmoe
