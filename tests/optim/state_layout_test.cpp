#include "optim/state_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "model/spec/flat_weights.h"
#include "ops/moment_codes.h"

namespace nmoe {
namespace {

constexpr StateLayout kValues = {}, kScales = {moments::kBlock};
constexpr int64_t kChunk = int64_t{1} << 20;  // elements of u8

const std::vector<WeightSpec> kSpecs = {
    {.name = "embedding", .shape = {5 * kChunk / 512 + 1, 512}, .group = WeightGroup::kRest},
    {.name = "gain", .shape = {300}, .group = WeightGroup::kRest, .is_stat = true},
    {.name = "q", .shape = {512, 512}},
    {.name = "chunk", .shape = {2048, 512}},
    {.name = "head", .shape = {3 * kChunk / 512, 512}, .group = WeightGroup::kRest},
};

TEST(StateLayout, HasAnElementForEachBlock) {
  EXPECT_EQ(kValues.shape(kSpecs[0]), kSpecs[0].shape);
  EXPECT_EQ(kScales.shape(kSpecs[1]), Shape({3}));
  EXPECT_EQ(kScales.shape(kSpecs[2]), Shape({2048}));
  EXPECT_EQ(kScales.shape(kSpecs[3]), Shape({8192}));
  EXPECT_EQ(kScales.shape(kSpecs[0]), Shape({6, 1, 8192}));
  EXPECT_EQ(kScales.part(kSpecs[1], {0, 300}), ElementRange({0, 3}));
  EXPECT_EQ(kScales.part(kSpecs[0], {2 * kChunk, 3 * kChunk + 512}), ElementRange({2 * 8192, 4 * 8192}));

  const WeightSpec experts = {
      .name = "experts", .shape = {8, 10, 30}, .group = WeightGroup::kExperts, .per_expert = true};
  EXPECT_EQ(kScales.shape(experts), Shape({8, 1, 3}));
  WeightShard shard(experts.shape, {4, 10, 30});
  shard.updated = {0, 1200};
  const std::vector<int32_t> places = {4, 1, 0, 2, 3, 5, 6, 7};
  shard.place_experts(places, 0);  // experts 2, 1, 3, 4
  EXPECT_EQ(kScales.shape_here(experts, shard), Shape({4, 1, 3}));
  EXPECT_EQ(kScales.slices(experts, shard), (std::vector<ElementRange>{{6, 3}, {3, 3}, {9, 6}}));
  EXPECT_EQ(kValues.slices(experts, shard), shard.updated_elements());
}

// However many ranks there are: what each has of a tensor is whole chunks of it, as checkpoints want, and together they
// have all.
TEST(StateLayout, IsCutBetweenChunks) {
  struct Case {
    DType narrowest;
    std::vector<std::pair<DType, StateLayout>> kept;
  };
  for (const Case& c : {Case{DType::kF32, {{DType::kF32, kValues}}},
                        Case{DType::kBF16, {{DType::kF32, kValues}, {DType::kBF16, kValues}}},
                        Case{DType::kU8, {{DType::kF32, kValues}, {DType::kU8, kValues}, {DType::kU8, kScales}}}}) {
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      const auto regions =
          deal_weights(kSpecs, {}, ranks, std::numeric_limits<int64_t>::max(), DType::kBF16, DType::kF32, c.narrowest);
      for (const auto& [dtype, layout] : c.kept) {
        std::vector<int64_t> next(kSpecs.size(), 0);
        int64_t cuts = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const FlatRegion& region : regions) {
            for (const FlatRegion::Place& place : region.places) {
              const WeightSpec& spec = kSpecs[place.spec];
              WeightShard shard(spec.shape, spec.shape);
              shard.updated = region.part_of(place, spec.shape.num_elements(), rank);
              if (shard.updated.extent == 0) continue;
              cuts += shard.updated.extent < spec.shape.num_elements() ? 1 : 0;
              const auto slices = layout.slices(spec, shard);
              ASSERT_EQ(slices.size(), 1U);
              EXPECT_EQ(slices[0].offset, next[place.spec]) << spec.name << " " << rank;
              next[place.spec] = slices[0].end();
              EXPECT_EQ(slices_shape(spec.name, dtype, layout.shape(spec), slices), layout.shape_here(spec, shard));
              EXPECT_EQ(layout.part(spec, shard.updated), slices[0]);
            }
          }
        }
        EXPECT_EQ(cuts > 0, ranks > 1) << ranks;
        for (size_t i = 0; i < kSpecs.size(); ++i) {
          EXPECT_EQ(next[i], layout.shape(kSpecs[i]).num_elements()) << kSpecs[i].name << " of " << ranks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nmoe
