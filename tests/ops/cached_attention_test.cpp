// Attention to a cache against a plain softmax over what each row sees, and MLA by way of latents against expanded
// keys and values.
#include <gtest/gtest.h>

#include "support/pages.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

struct CachedCase {
  std::string name;
  int64_t H, G, Dk, Dv, window, capacity;
  std::vector<double> slots, positions;
  bool values_in_keys = false;
  bool sinks = false;
};
const CachedCase kCases[] = {
    {"one row, one position", 2, 1, 3, 2, 0, 4, {0}, {0}},
    {"a full slot", 2, 2, 5, 4, 0, 40, {1}, {39}},
    {"rows of many slots", 4, 2, 9, 17, 0, 70, {2, 0, 1, 2, 1}, {69, 3, 0, 12, 33}},
    {"one window", 4, 4, 8, 8, 1, 20, {0, 1}, {19, 0}},
    {"windows", 6, 2, 8, 24, 7, 50, {1, 1, 0, 1}, {5, 49, 30, 6}},
    {"more heads than a task takes", 22, 2, 16, 33, 0, 30, {0, 1, 0}, {29, 8, 2}},
    {"values in keys", 5, 1, 21, 18, 0, 33, {1, 0}, {32, 16}, true},
    {"values in keys, windows", 9, 1, 12, 12, 4, 33, {1, 0}, {32, 2}, true},
    {"rows of several pages", 4, 2, 9, 17, 0, 700, {2, 0, 1, 2}, {699, 128, 127, 300}},
    {"windows over pages", 6, 2, 8, 24, 150, 400, {1, 1, 0, 1}, {399, 200, 257, 129}},
    {"no rows", 2, 1, 3, 2, 0, 4, {}, {}},
    {"sinks", 4, 2, 9, 17, 0, 70, {2, 0, 1, 2, 1}, {69, 3, 0, 12, 33}, false, true},
    {"sinks, many heads, windows over pages", 22, 2, 8, 24, 150, 400, {1, 1, 0, 1}, {399, 200, 257, 129}, false, true},
};

// With keys and values [3, capacity, width].
CachedAttention dense_problem(TensorPool& pool, const CachedCase& c) {
  const auto T = static_cast<int64_t>(c.slots.size());
  return {.scale = 0.4,
          .window = c.window,
          .q = pool.normal({T, c.H, c.Dk}),
          .slots = pool.ints({T}, c.slots),
          .positions = pool.ints({T}, c.positions),
          .keys = pool.normal({3, c.capacity, c.G * c.Dk}),
          .values = c.values_in_keys ? Tensor() : pool.normal({3, c.capacity, c.G * c.Dv}),
          .num_kv_heads = c.G,
          .out = pool.full({T, c.H, c.Dv}, NAN),
          .sinks = c.sinks ? pool.normal({c.H}, 3.0) : Tensor()};
}

CachedAttention in_pages(TensorPool& pool, CachedAttention args, const Pages& pages) {
  args.pages = pages.table;
  args.keys = in_pages(pool, args.keys, pages);
  if (args.values.defined()) args.values = in_pages(pool, args.values, pages);
  return args;
}
CachedAttention problem(TensorPool& pool, const CachedCase& c) {
  return in_pages(pool, dense_problem(pool, c), scattered_pages(pool, 3, c.capacity));
}

// The definition, of a dense problem.
std::vector<double> reference(const CachedCase& c, const CachedAttention& a) {
  std::vector<double> out;
  for (size_t t = 0; t < c.slots.size(); ++t) {
    const auto slot = static_cast<int64_t>(c.slots[t]), last = static_cast<int64_t>(c.positions[t]);
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t g = h / (c.H / c.G), row = static_cast<int64_t>(t) * c.H + h;
      std::vector<double> sums(static_cast<size_t>(c.Dv));
      double total = a.sinks.defined() ? std::exp(get(a.sinks, h)) : 0;
      for (int64_t j = c.window == 0 ? 0 : std::max<int64_t>(0, last - c.window + 1); j <= last; ++j) {
        const int64_t place = slot * c.capacity + j;
        double score = 0;
        for (int64_t d = 0; d < c.Dk; ++d)
          score += get(a.q, row * c.Dk + d) * get(a.keys, (place * c.G + g) * c.Dk + d);
        const double weight = std::exp(a.scale * score);
        total += weight;
        for (int64_t d = 0; d < c.Dv; ++d) {
          const double value =
              c.values_in_keys ? get(a.keys, place * c.Dk + d) : get(a.values, (place * c.G + g) * c.Dv + d);
          sums[static_cast<size_t>(d)] += weight * value;
        }
      }
      for (const double sum : sums) out.push_back(sum / total);
    }
  }
  return out;
}

class CachedAttentionTest : public ::testing::TestWithParam<CachedCase> {};

TEST_P(CachedAttentionTest, IsTheSoftmaxOverWhatARowSees) {
  for (const auto& [real, tolerance] : {std::pair(DType::kF64, 1e-10), std::pair(DType::kF32, 1e-3)}) {
    TensorPool pool(real);
    const CachedAttention dense = dense_problem(pool, GetParam());
    const CachedAttention args = in_pages(pool, dense, scattered_pages(pool, 3, GetParam().capacity));
    const std::vector<double> expected = reference(GetParam(), dense);
    cpu_device(real)->cached_attention(args);
    EXPECT_TRUE(near(args.out, expected, tolerance));
  }
}

TEST_P(CachedAttentionTest, WherePagesLieChangesNoBit) {
  TensorPool pool(DType::kF32);
  const CachedAttention dense = dense_problem(pool, GetParam());
  const int64_t capacity = GetParam().capacity;
  CachedAttention ordered = in_pages(pool, dense, pages_in_order(pool, 3, capacity));
  CachedAttention scattered = in_pages(pool, dense, scattered_pages(pool, 3, capacity));
  scattered.out = pool.full(dense.out.shape(), NAN);
  cpu_device(DType::kF32)->cached_attention(ordered);
  cpu_device(DType::kF32)->cached_attention(scattered);
  EXPECT_TRUE(same_bits(scattered.out, ordered.out));
}

TEST_P(CachedAttentionTest, ARowHasTheSameBitsAloneAndForAnyNumberOfThreads) {
  TensorPool pool(DType::kF32);
  const CachedAttention args = problem(pool, GetParam());
  cpu_device(DType::kF32, 1)->cached_attention(args);
  CachedAttention again = args;
  again.out = pool.full(args.out.shape(), NAN);
  cpu_device(DType::kF32, 3)->cached_attention(again);
  EXPECT_TRUE(same_bits(again.out, args.out));
  for (int64_t t = 0; t < args.q.dim(0); ++t) {
    CachedAttention one = args;
    one.q = args.q.rows(t, t + 1);
    one.slots = args.slots.rows(t, t + 1);
    one.positions = args.positions.rows(t, t + 1);
    one.out = pool.full(args.out.rows(t, t + 1).shape(), NAN);
    cpu_device(DType::kF32, 2)->cached_attention(one);
    EXPECT_TRUE(same_bits(one.out, args.out.rows(t, t + 1))) << "row " << t;
  }
}

// A counting run claims the scratch that the run itself needs.
TEST_P(CachedAttentionTest, ClaimsItsScratch) {
  TensorPool pool(DType::kF32);
  const CachedAttention dense = dense_problem(pool, GetParam());
  const CachedAttention args = in_pages(pool, dense, scattered_pages(pool, 3, GetParam().capacity));
  const auto counter = make_device({.num_threads = 2}), device = make_device({.num_threads = 2});
  CachedAttention empty = args;
  for (Tensor* tensor : {&empty.q, &empty.slots, &empty.positions, &empty.pages, &empty.keys, &empty.out}) {
    *tensor = without_data(*tensor);
  }
  if (args.values.defined()) empty.values = without_data(args.values);
  if (args.sinks.defined()) empty.sinks = without_data(args.sinks);
  counter->ops().cached_attention(empty);
  device->scratch(Lane::kCompute).reserve(device->memory(), counter->scratch(Lane::kCompute).high_water());
  device->ops().cached_attention(args);
  EXPECT_TRUE(near(args.out, reference(GetParam(), dense), 1e-3));
}

INSTANTIATE_TEST_SUITE_P(Cases, CachedAttentionTest, ::testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.name;
  std::erase_if(name, [](char c) { return c == ','; });
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(CacheWriteTest, WritesTheNamedPlacesAndColumnsOnly) {
  TensorPool pool;
  const Tensor cache = pool.full({3, kPagePositions, 4}, -1), rows = pool.of({2, 2}, {1, 2, 3, 4});
  cpu_device()->cache_write({.rows = rows,
                             .slots = pool.ints({2}, {1, 0}),
                             .positions = pool.ints({2}, {130, 1}),
                             .pages = pool.ints({2, 2}, {2, 1, 2, 0}),
                             .cache = cache,
                             .offset = 1});
  std::vector<double> expected(static_cast<size_t>(cache.num_elements()), -1);
  expected[(0 * kPagePositions + 2) * 4 + 1] = 1;
  expected[(0 * kPagePositions + 2) * 4 + 2] = 2;
  expected[(2 * kPagePositions + 1) * 4 + 1] = 3;
  expected[(2 * kPagePositions + 1) * 4 + 2] = 4;
  EXPECT_EQ(values(cache), expected);
}

TEST(CacheWriteTest, PlacesOutsideTheCacheAreABug) {
  TensorPool pool;
  const Tensor cache = pool.zeros({2, kPagePositions, 4}), row = pool.zeros({1, 4});
  const auto write = [&](double slot, double position, int64_t offset) {
    cpu_device()->cache_write({.rows = row,
                               .slots = pool.ints({1}, {slot}),
                               .positions = pool.ints({1}, {position}),
                               .pages = pool.ints({2, 2}, {0, 1, 1, 2}),
                               .cache = cache,
                               .offset = offset});
  };
  EXPECT_NO_THROW(write(1, 127, 0));
  EXPECT_NO_THROW(write(0, 255, 0));
  EXPECT_THROW(write(1, 128, 0), CheckFailure);  // a page that the cache has not
  EXPECT_THROW(write(2, 0, 0), CheckFailure);
  EXPECT_THROW(write(-1, 0, 0), CheckFailure);
  EXPECT_THROW(write(0, 256, 0), CheckFailure);
  EXPECT_THROW(write(0, 0, 1), CheckFailure);
}

// By way of the latents, against keys and values expanded from them and a plain softmax. All rows come at once; those
// of a slot see each other in the order of their positions.
TEST(MlaCachedAttentionTest, EqualsExpandedKeysAndValues) {
  constexpr int64_t kTokens = 6, kHeads = 3, kNope = 7, kRope = 4, kValue = 10, kRank = 19, kCapacity = 5;
  const std::vector<double> slots = {0, 2, 0, 0, 2, 0}, positions = {0, 0, 1, 3, 1, 2};
  for (const auto& [real, tolerance] : {std::pair(DType::kF64, 1e-10), std::pair(DType::kF32, 2e-3)}) {
    for (const auto& [layout, window] : {std::pair<RopeLayout, int64_t>(RopeLayout::kInterleaved, 0),
                                         std::pair<RopeLayout, int64_t>(RopeLayout::kHalfSplit, 2)}) {
      TensorPool pool(real);
      const auto ops = cpu_device(real);
      const MlaCachedAttention args{.scale = 0.3,
                                    .window = window,
                                    .q = pool.normal({kTokens, kHeads, kNope + kRope}),
                                    .kv_latent = pool.normal({kTokens, kRank}),
                                    .k_rope = pool.normal({kTokens, kRope}),
                                    .gain = pool.normal({kRank}),
                                    .eps = 1e-3,
                                    .cos = pool.normal({kCapacity, kRope / 2}),
                                    .sin = pool.normal({kCapacity, kRope / 2}),
                                    .layout = layout,
                                    .slots = pool.ints({kTokens}, slots),
                                    .positions = pool.ints({kTokens}, positions),
                                    .pages = pool.ints({3, 1}, {3, 0, 1}),
                                    .kv_up = pool.normal({kHeads * (kNope + kValue), kRank}),
                                    .cache = pool.full({4, kPagePositions, kRank + kRope}, NAN),
                                    .out = pool.full({kTokens, kHeads, kValue}, NAN)};
      // Norm and rotation by the operations that training has.
      const Tensor q = pool.zeros(args.q.shape()), rotated = pool.zeros({kTokens, 1, kRope});
      const Tensor latents = pool.zeros({kTokens, kRank}), kv = pool.zeros({kTokens, kHeads, kNope + kValue});
      ops->copy({args.q, q});
      ops->copy({args.k_rope, rotated.reshape({kTokens, kRope})});
      ops->rms_norm_forward({args.kv_latent, args.gain, args.eps, latents, pool.zeros({kTokens})});
      ops->rope_forward({q, args.positions, args.cos, args.sin, kNope, layout});
      ops->rope_forward({rotated, args.positions, args.cos, args.sin, 0, layout});
      ops->linear_forward({latents, args.kv_up, kv.reshape({kTokens, kHeads * (kNope + kValue)}), {}});
      const auto key = [&](size_t token, int64_t head, int64_t d) {
        return d < kNope ? get(kv[static_cast<int64_t>(token)][head], d)
                         : get(rotated[static_cast<int64_t>(token)], d - kNope);
      };
      std::vector<double> expected;
      for (size_t t = 0; t < kTokens; ++t) {
        for (int64_t h = 0; h < kHeads; ++h) {
          std::vector<double> sums(kValue);
          double total = 0;
          for (size_t j = 0; j < kTokens; ++j) {
            const double distance = positions[t] - positions[j];
            if (slots[j] != slots[t] || distance < 0 || (window > 0 && distance >= static_cast<double>(window)))
              continue;
            double score = 0;
            for (int64_t d = 0; d < kNope + kRope; ++d) {
              score += get(q[static_cast<int64_t>(t)][h], d) * key(j, h, d);
            }
            const double weight = std::exp(args.scale * score);
            total += weight;
            for (int64_t d = 0; d < kValue; ++d) {
              sums[static_cast<size_t>(d)] += weight * get(kv[static_cast<int64_t>(j)][h], kNope + d);
            }
          }
          for (const double sum : sums) expected.push_back(sum / total);
        }
      }
      ops->mla_cached_attention(args);
      EXPECT_TRUE(near(args.out, expected, tolerance)) << "window " << window;
      for (size_t t = 0; t < kTokens; ++t) {  // what was cached
        const auto page = static_cast<int64_t>(get(args.pages, static_cast<int64_t>(slots[t])));
        const Tensor place = args.cache[page][static_cast<int64_t>(positions[t])];
        EXPECT_TRUE(near(place.rows(0, kRank), values(latents[static_cast<int64_t>(t)]), tolerance));
        EXPECT_TRUE(near(place.rows(kRank, kRank + kRope), values(rotated[static_cast<int64_t>(t)]), tolerance));
      }
    }
  }
}

// The bits of attention in training are those of a cache: for a document wherever it lies among others, and for every
// row of it alone.
TEST(CachedAttentionBits, AreThoseOfTraining) {
  constexpr int64_t kHeads = 4, kGroups = 2, kKey = 12, kValue = 10, kSeqLen = 700;
  const std::vector<double> bounds = {0, 1, 83, 83, 513, 700};
  for (const auto& [window, has_sinks] : {std::pair<int64_t, bool>(0, false), {90, false}, {0, true}, {90, true}}) {
    TensorPool pool(DType::kF32);
    const Tensor sinks = has_sinks ? pool.normal({kHeads}, 2.0) : Tensor();
    const Tensor q = pool.normal({kSeqLen, kHeads, kKey}), k = pool.normal({kSeqLen, kGroups, kKey}),
                 v = pool.normal({kSeqLen, kGroups, kValue}), out = pool.full({kSeqLen, kHeads, kValue}, NAN);
    const auto device = cpu_device(DType::kF32, 2);
    device->attention_forward(
        {.shape =
             {.num_seqs = 1, .seq_len = kSeqLen, .scale = 0.4, .window = window, .cu_seqlens = pool.ints({6}, bounds)},
         .q = q,
         .k = k,
         .v = v,
         .out = out,
         .lse = pool.zeros({1, kHeads, kSeqLen}),
         .sinks = sinks});
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(83, 513), std::pair<int64_t, int64_t>(513, 700)}) {
      const int64_t size = end - begin;
      std::vector<double> positions;
      for (int64_t i = 0; i < size; ++i) positions.push_back(static_cast<double>(i));
      const Tensor cached = pool.full({size, kHeads, kValue}, NAN);
      const Pages pages = scattered_pages(pool, 1, size);
      device->cached_attention(
          {.scale = 0.4,
           .window = window,
           .q = q.rows(begin, end),
           .slots = pool.ints({size}, std::vector<double>(positions.size(), 0)),
           .positions = pool.ints({size}, positions),
           .pages = pages.table,
           .keys = in_pages(pool, k.rows(begin, end).reshape({1, size, kGroups * kKey}), pages),
           .values = in_pages(pool, v.rows(begin, end).reshape({1, size, kGroups * kValue}), pages),
           .num_kv_heads = kGroups,
           .out = cached,
           .sinks = sinks});
      EXPECT_TRUE(same_bits(cached, out.rows(begin, end))) << "window " << window << ", document at " << begin;
    }
  }
}

TEST(MlaExpandedAttentionBits, AreThoseOfTraining) {
  constexpr int64_t kTokens = 300, kHeads = 3, kNope = 7, kRope = 4, kValue = 10, kWidth = kNope + kValue;
  TensorPool pool(DType::kF32);
  const Tensor q = pool.normal({kTokens, kHeads, kNope + kRope}), kv = pool.normal({kTokens, kHeads, kWidth}),
               k_rope = pool.normal({kTokens, kRope}), out = pool.full({kTokens, kHeads, kValue}, NAN),
               cached = pool.full({kTokens, kHeads, kValue}, NAN);
  const auto device = cpu_device(DType::kF32, 2);
  device->mla_attention_forward({.shape = {.num_seqs = 1, .seq_len = kTokens, .scale = 0.3},
                                 .q = q,
                                 .kv = kv,
                                 .k_rope = k_rope,
                                 .out = out,
                                 .lse = pool.zeros({1, kHeads, kTokens})});
  std::vector<double> positions;
  for (int64_t i = 0; i < kTokens; ++i) positions.push_back(static_cast<double>(i));
  const Pages pages = scattered_pages(pool, 1, kTokens);
  device->mla_expanded_attention({.scale = 0.3,
                                  .q = q,
                                  .slots = pool.ints({kTokens}, std::vector<double>(positions.size(), 0)),
                                  .positions = pool.ints({kTokens}, positions),
                                  .pages = pages.table,
                                  .kv = in_pages(pool, kv.reshape({1, kTokens, kHeads * kWidth}), pages),
                                  .k_rope = in_pages(pool, k_rope.reshape({1, kTokens, kRope}), pages),
                                  .out = cached});
  EXPECT_TRUE(same_bits(cached, out));
}

}  // namespace
}  // namespace nmoe::test
