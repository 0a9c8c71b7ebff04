#include "model/spec/flat_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>

namespace nmoe {
namespace {

constexpr int64_t kChunk = (1 << 20) / 4;  // elements of f32

const std::vector<WeightSpec> kSpecs = {
    {.name = "embedding", .shape = {5 * kChunk / 512 + 1, 512}, .group = WeightGroup::kRest},
    {.name = "gain", .shape = {300}, .group = WeightGroup::kRest, .is_stat = true},
    {.name = "q", .shape = {512, 512}},
    {.name = "out", .shape = {512, 1024}},
    {.name = "small", .shape = {64, 512}},
    {.name = "router", .shape = {8, 512}, .group = WeightGroup::kRouter},
    {.name = "bias", .shape = {8}, .group = WeightGroup::kBuffer, .is_stat = true},
    {.name = "experts", .shape = {8, 512, 512}, .group = WeightGroup::kExperts, .per_expert = true},
    {.name = "expert_biases", .shape = {8, 1, 512}, .group = WeightGroup::kRest, .is_stat = true, .per_expert = true},
    {.name = "head", .shape = {3 * kChunk / 512, 512}, .group = WeightGroup::kRest},
};

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

std::vector<FlatRegion> deal(int64_t num_ranks, std::vector<WeightGroup> by_matrix = {}, int64_t bucket_bytes = kAll) {
  return deal_weights(kSpecs, by_matrix, num_ranks, bucket_bytes, DType::kBF16, DType::kF32, DType::kF32);
}

// What a rank updates in all regions.
int64_t elements_of(const std::vector<FlatRegion>& regions, int64_t rank) {
  return std::accumulate(regions.begin(), regions.end(), int64_t{0},
                         [&](int64_t sum, const FlatRegion& region) { return sum + region.part(rank).extent; });
}

void expect_one_rank_for_every_element(const std::vector<FlatRegion>& regions, int64_t ranks) {
  std::vector<int> times(kSpecs.size(), 0);
  for (const FlatRegion& region : regions) {
    for (const FlatRegion::Place& place : region.places) {
      const WeightSpec& spec = kSpecs[place.spec];
      const int64_t size = spec.shape.num_elements();
      const TensorChunks chunks(DType::kF32, spec.shape);
      ++times[place.spec];
      int64_t end = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const ElementRange part = region.part_of(place, size, rank);
        if (part.extent == 0) continue;
        EXPECT_EQ(part.offset, end) << spec.name;
        EXPECT_TRUE(chunks.is_edge(part.offset) && chunks.is_edge(part.end())) << spec.name;
        end = part.end();
      }
      EXPECT_EQ(end, size) << spec.name;
      EXPECT_EQ(place.first * 2 % 256, 0) << spec.name;
      EXPECT_EQ(region.values, spec.is_stat ? DType::kF32 : DType::kBF16) << spec.name;
      EXPECT_GE(place.spec, region.first_spec) << spec.name;
    }
  }
  for (size_t i = 0; i < kSpecs.size(); ++i) {
    const bool dealt = kSpecs[i].is_trained() && !kSpecs[i].per_expert;
    EXPECT_EQ(times[i], dealt ? 1 : 0) << kSpecs[i].name;
  }
}

TEST(DealWeights, EveryElementIsUpdatedByOneRank) {
  for (const int64_t ranks : {1, 2, 3, 4, 7, 64}) {
    for (const auto& by_matrix : {std::vector<WeightGroup>{}, {WeightGroup::kMatrices}}) {
      for (const int64_t bucket_bytes : {int64_t{1}, int64_t{2} << 20, kAll}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, buckets of " << bucket_bytes);
        expect_one_rank_for_every_element(deal(ranks, by_matrix, bucket_bytes), ranks);
      }
    }
  }
}

// Of neighbours, from the last weight to the first, and large enough.
TEST(DealWeights, BucketsAreWhatBackwardCompletesTogether) {
  const auto buckets = [](const std::vector<WeightGroup>& by_matrix) {
    std::vector<std::string> names;
    for (const FlatRegion& region : deal(4, by_matrix, 2 << 20)) {
      std::set<size_t> specs;
      for (const FlatRegion::Place& place : region.places) specs.insert(place.spec);
      EXPECT_EQ(region.first_spec, *specs.begin());
      std::string& of_region = names.emplace_back();
      for (const size_t spec : specs) of_region += kSpecs[spec].name + " ";
    }
    return names;
  };
  EXPECT_EQ(buckets({}), (std::vector<std::string>{"head ", "out small router ", "embedding q ", "gain "}));
  EXPECT_EQ(buckets({WeightGroup::kMatrices}),
            (std::vector<std::string>{"head ", "router ", "out small ", "embedding ", "q ", "gain "}));
}

// Which rank has a matrix does not depend on buckets.
TEST(DealWeights, MatricesAreDealtByTheCostOfAll) {
  const auto owners = [](int64_t bucket_bytes) {
    std::vector<int64_t> owner(kSpecs.size(), -1);
    for (const FlatRegion& region : deal(2, {WeightGroup::kMatrices}, bucket_bytes)) {
      for (const FlatRegion::Place& place : region.places) {
        if (kSpecs[place.spec].group != WeightGroup::kMatrices) continue;
        const int64_t size = kSpecs[place.spec].shape.num_elements();
        owner[place.spec] = region.part_of(place, size, 0).extent == size ? 0 : 1;
      }
    }
    return owner;
  };
  EXPECT_EQ(owners(1), owners(kAll));
}

// Gate and up together would cost 4.0e8 an iteration, more than either of the others (2.3e8); as what they are, two
// matrices, they cost 1.7e8, so the others are dealt apart.
TEST(DealWeights, StackedMatricesCostWhatEachDoes) {
  const std::vector<WeightSpec> specs = {{.name = "in", .shape = {512, 512}, .num_matrices = 2},
                                         {.name = "a", .shape = {400, 512}},
                                         {.name = "b", .shape = {400, 512}}};
  std::vector<bool> is_of_first(specs.size());
  for (const FlatRegion& region :
       deal_weights(specs, std::vector{WeightGroup::kMatrices}, 2, kAll, DType::kBF16, DType::kF32, DType::kF32)) {
    for (const FlatRegion::Place& place : region.places) {
      is_of_first[place.spec] = region.part_of(place, specs[place.spec].shape.num_elements(), 0).extent > 0;
    }
  }
  EXPECT_NE(is_of_first[1], is_of_first[2]);
}

TEST(DealWeights, PartsAreAsEqualAsChunksAllow) {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t bucket_bytes : {int64_t{1}, int64_t{2} << 20, kAll}) {
      const auto regions = deal(ranks, {}, bucket_bytes);
      int64_t least = elements_of(regions, 0), most = least;
      for (int64_t rank = 1; rank < ranks; ++rank) {
        least = std::min(least, elements_of(regions, rank));
        most = std::max(most, elements_of(regions, rank));
      }
      EXPECT_LE(most - least, 2 * kChunk) << ranks << " ranks, buckets of " << bucket_bytes;
    }
  }
}

// Whatever the buckets and whoever updates them, joined weights lie one behind the other, where arenas and costs would
// have them apart.
TEST(DealWeights, JoinedWeightsStayTogether) {
  std::vector<WeightSpec> layers;
  for (int layer = 0; layer < 3; ++layer) {
    layers.push_back({.name = "q", .shape = {333, 333}});
    layers.push_back({.name = "k", .shape = {100, 333}, .joins_previous = true});
    layers.push_back({.name = "v", .shape = {900, 333}, .joins_previous = true});
    layers.push_back({.name = "out", .shape = {333, 333}});
  }
  for (const int64_t ranks : {1, 2, 3}) {
    for (const auto& by_matrix : {std::vector<WeightGroup>{}, {WeightGroup::kMatrices}}) {
      for (const int64_t bucket_bytes : {int64_t{1}, int64_t{1} << 19, kAll}) {
        size_t seen = 0;
        for (const FlatRegion& region :
             deal_weights(layers, by_matrix, ranks, bucket_bytes, DType::kBF16, DType::kF32, DType::kF32)) {
          for (size_t i = 0; i < region.places.size(); ++i) {
            const FlatRegion::Place& place = region.places[i];
            ++seen;
            if (!layers[place.spec].joins_previous) {
              EXPECT_EQ(place.first * 2 % 256, 0) << layers[place.spec].name;
              continue;
            }
            ASSERT_GT(i, 0U);
            const FlatRegion::Place& previous = region.places[i - 1];
            EXPECT_EQ(previous.spec, place.spec - 1);
            EXPECT_EQ(place.first, previous.first + layers[previous.spec].shape.num_elements());
          }
        }
        EXPECT_EQ(seen, layers.size());
      }
    }
  }
}

// Alike buckets are not all rounded alike.
TEST(DealWeights, RoundingDoesNotAddUp) {
  constexpr int64_t kLayers = 64, kChunks = 4, kRanks = 64;
  const std::vector<WeightSpec> layers(kLayers, {.name = "q", .shape = {kChunks * kChunk / 512, 512}});
  const auto regions = deal_weights(layers, {}, kRanks, 1, DType::kBF16, DType::kF32, DType::kF32);
  ASSERT_EQ(regions.size(), static_cast<size_t>(kLayers));
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_LE(std::abs(elements_of(regions, rank) - kLayers * kChunks / kRanks * kChunk), kChunk) << "rank " << rank;
  }
}

TEST(DealWeights, MatricesOfMuonStayWhole) {
  const auto regions = deal(2, {WeightGroup::kMatrices});
  const auto whole = std::ranges::find_if(regions, [](const FlatRegion& region) {
    return std::ranges::any_of(region.places, [](const auto& place) { return kSpecs[place.spec].name == "out"; });
  });
  ASSERT_NE(whole, regions.end());
  ASSERT_EQ(whole->places.size(), 3U);
  std::vector<int64_t> counts(2, 0);
  for (const FlatRegion::Place& place : whole->places) {
    const int64_t size = kSpecs[place.spec].shape.num_elements();
    for (int64_t rank = 0; rank < 2; ++rank) {
      const int64_t extent = whole->part_of(place, size, rank).extent;
      EXPECT_TRUE(extent == 0 || extent == size);
      counts[static_cast<size_t>(rank)] += extent == size ? 1 : 0;
    }
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2}));  // the large one, and the two that cost less
}

}  // namespace
}  // namespace nmoe
