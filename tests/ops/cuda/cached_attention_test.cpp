#include <limits>
#include <numeric>

#include "ops/cuda/cuda_test.h"
#include "support/pages.h"

namespace nmoe::test {
namespace {

class CudaCache : public CudaTest {
 protected:
  // Many tokens' attention to latents has partial sums.
  CudaCache() : CudaTest(/*num_sms=*/0, /*scratch_bytes=*/int64_t{256} << 20) {}

  // What a result adds up: the same attention to the values' magnitudes.
  Tensor magnitudes(const CachedAttention& args) {
    const int64_t Dk = args.q.dim(2), Dv = args.out.dim(2), G = args.num_kv_heads;
    const Tensor source = args.values.defined() ? args.values : args.keys;
    const int64_t positions = source.dim(0) * source.dim(1), width = args.values.defined() ? G * Dv : Dk;
    CachedAttention sizes = args;
    sizes.values = pool_.zeros({source.dim(0), source.dim(1), G * Dv});
    for (int64_t position = 0; position < positions; ++position) {
      for (int64_t d = 0; d < G * Dv; ++d) {
        set(sizes.values, position * G * Dv + d, std::abs(get(source, position * width + d)));
      }
    }
    sizes.out = pool_.zeros(args.out.shape());
    cpu().cached_attention(sizes);
    return sizes.out;
  }
};

TEST_F(CudaCache, WriteTouchesTheNamedPartsOnly) {
  struct Case {
    int64_t width, offset, cache_width;
  };
  for (const DType dtype : kActDTypes) {
    for (const auto& [width, offset, cache_width] : {Case{8, 0, 8}, {64, 512, 576}, {5, 3, 11}, {1200, 8, 1208}}) {
      CacheWrite args;
      args.rows = normal({4, width}, dtype);
      args.slots = pool_.ints({4}, {0, 2, 2, 1});
      args.positions = pool_.ints({4}, {4, 0, 131, 4});
      args.pages = pool_.ints({3, 2}, {4, 1, 2, 1, 0, 3});
      args.cache = normal({5, kPagePositions, cache_width}, dtype);
      args.offset = offset;
      CacheWrite device = args;
      device.rows = up(args.rows, dtype);
      device.slots = up(args.slots);
      device.positions = up(args.positions);
      device.pages = up(args.pages);
      device.cache = up(args.cache, dtype);
      cpu().cache_write(args);
      gpu().cache_write(device);
      EXPECT_TRUE(same_bits(down(device.cache), args.cache)) << width << " at " << offset;
    }
  }
}

TEST_F(CudaCache, WriteSkipsPlacesThatAreNotThere) {
  const Tensor cache = up(pool_.zeros({3, kPagePositions, 1}));
  gpu().cache_write({.rows = up(pool_.full({4, 1}, 1)),
                     .slots = up(pool_.ints({4}, {0, 2, -1, 1})),
                     .positions = up(pool_.ints({4}, {kPagePositions, 0, 0, -1})),
                     .pages = up(pool_.ints({2, 1}, {0, 1})),
                     .cache = cache});
  EXPECT_TRUE(near(down(cache), std::vector<double>(3 * kPagePositions, 0.0), 0));
}

struct AttentionCase {
  int64_t tokens, heads, kv_heads, key, value, window;
  bool own_values, sinks = false;
};
constexpr AttentionCase kAttentionCases[] = {
    {0, 2, 1, 8, 8, 0, true},       {1, 1, 1, 1, 1, 0, true},           {9, 6, 2, 7, 5, 0, true},
    {9, 8, 2, 64, 64, 0, true},     {9, 8, 8, 192, 128, 70, true},      {9, 3, 3, 16, 16, 1, true},
    {9, 4, 1, 33, 20, 0, false},    {5, 16, 1, 576, 512, 0, false},     {9, 8, 2, 96, 80, 0, true},
    {9, 6, 3, 32, 40, 70, true},    {9, 16, 2, 64, 64, 70, true, true}, {9, 4, 2, 128, 128, 0, true, true},
    {9, 6, 2, 7, 5, 0, true, true}, {9, 8, 2, 96, 80, 0, true, true},
};

// The tokens' positions run from a slot's first to its last, among them the ends of tiles of keys. Of keys and values
// [3, 300, width].
CachedAttention attention_args(TensorPool& pool, const AttentionCase& c, Tensor q, Tensor keys, Tensor values,
                               const Pages& pages) {
  const Tensor slots = pool.random_ints({c.tokens}, 3), positions = pool.random_ints({c.tokens}, 300);
  const int32_t chosen[] = {0, 63, 127, 128, 299};
  for (int64_t t = 0; t < std::min<int64_t>(c.tokens, 5); ++t) positions.data<int32_t>()[t] = chosen[t];
  CachedAttention args;
  args.scale = 1 / std::sqrt(static_cast<double>(c.key));
  args.window = c.window;
  args.q = q;
  args.slots = slots;
  args.positions = positions;
  args.pages = pages.table;
  if (keys.defined()) args.keys = in_pages(pool, keys, pages);
  if (values.defined()) args.values = in_pages(pool, values, pages);
  args.num_kv_heads = c.kv_heads;
  args.out = pool.zeros({c.tokens, c.heads, c.value});
  if (c.sinks) args.sinks = pool.normal({c.heads}, 4.0);
  return args;
}

// What may be wrong with a sum, in parts of what is added up and of the result.
struct SumError {
  double of_sizes, of_result;
};
testing::AssertionResult within(const SumError& error_of, Tensor actual, Tensor expected, Tensor sizes) {
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    const double error = std::abs(get(actual, i) - get(expected, i));
    const double allowed = error_of.of_sizes * get(sizes, i) + error_of.of_result * std::abs(get(expected, i));
    if (!(error <= allowed)) {
      return testing::AssertionFailure() << "element " << i << ": " << get(actual, i) << ", expected "
                                         << get(expected, i) << " within " << allowed;
    }
  }
  return testing::AssertionSuccess();
}

// In BF16 weights are rounded before they multiply values, and results are: half a unit of what is added up, and half a
// unit of the result, with room for fp32's own errors.
testing::AssertionResult within_bf16(Tensor actual, Tensor expected, Tensor sizes) {
  return within({.of_sizes = 0x1.1p-9, .of_result = 0x1.1p-8}, actual, expected, sizes);
}

// In F32 a score is a sum of products whose sizes add up to some 30 here, which is right to a few of its units: so are,
// relatively, the exponentials, and what values are multiplied by.
testing::AssertionResult within_fp32(Tensor actual, Tensor expected, Tensor sizes) {
  return within({.of_sizes = 2e-5, .of_result = 0}, actual, expected, sizes);
}

TEST_F(CudaCache, AttentionIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const AttentionCase& c : kAttentionCases) {
      const Tensor keys = normal({3, 300, c.kv_heads * c.key}, dtype);
      const Tensor values = c.own_values ? normal({3, 300, c.kv_heads * c.value}, dtype) : Tensor();
      const CachedAttention args = attention_args(pool_, c, normal({c.tokens, c.heads, c.key}, dtype, 2.0), keys,
                                                  values, scattered_pages(pool_, 3, 300));
      cpu().cached_attention(args);
      CachedAttention device = args;
      device.q = up(args.q, dtype);
      device.slots = up(args.slots);
      device.positions = up(args.positions);
      device.pages = up(args.pages);
      device.keys = up(args.keys, dtype);
      device.values = up(args.values, dtype);
      if (c.sinks) device.sinks = up(args.sinks);
      device.out = tensors_.allocate(dtype, args.out.shape());
      gpu().cached_attention(device);
      const auto within_error = dtype == DType::kBF16 ? within_bf16 : within_fp32;
      EXPECT_TRUE(within_error(down(device.out), args.out, magnitudes(args)))
          << c.heads << " heads, keys " << c.key << ", values " << c.value << ", window " << c.window;
      // Wherever pages lie.
      const Pages in_order = pages_in_order(pool_, 3, 300);
      CachedAttention ordered = device;
      ordered.pages = up(in_order.table);
      ordered.keys = up(in_pages(pool_, keys, in_order), dtype);
      if (values.defined()) ordered.values = up(in_pages(pool_, values, in_order), dtype);
      ordered.out = tensors_.allocate(dtype, args.out.shape());
      gpu().cached_attention(ordered);
      EXPECT_TRUE(same_bits(down(ordered.out), down(device.out)));
      // A row on its own has the same bits.
      for (int64_t t = 0; t < c.tokens; ++t) {
        CachedAttention alone = device;
        alone.q = device.q.rows(t, t + 1);
        alone.slots = device.slots.rows(t, t + 1);
        alone.positions = device.positions.rows(t, t + 1);
        alone.out = tensors_.allocate(dtype, {1, c.heads, c.value});
        gpu().cached_attention(alone);
        EXPECT_TRUE(same_bits(down(alone.out), down(device.out.rows(t, t + 1)))) << "row " << t;
      }
    }
  }
}

struct ExpandedCase {
  int64_t tokens, heads, nope, rope, value, window;
};
constexpr ExpandedCase kExpandedCases[] = {
    {0, 2, 128, 64, 128, 0}, {1, 1, 1, 2, 1, 0},       {9, 3, 7, 4, 5, 0},       {9, 16, 128, 64, 128, 0},
    {9, 4, 128, 64, 128, 1}, {9, 5, 64, 64, 128, 70},  {9, 2, 0, 64, 64, 0},     {9, 3, 124, 4, 128, 0},
    {9, 4, 32, 32, 40, 0},   {9, 2, 192, 64, 256, 70}, {9, 2, 128, 0, 128, 0},   {300, 2, 128, 64, 128, 70},
    {300, 3, 32, 32, 64, 0}, {300, 2, 20, 12, 24, 70}, {300, 1, 128, 64, 128, 0}};

// Of sums of which there are tens of thousands, so that some have the worst case: a weight's rounding is at most 2^-8
// of it. In F32 a weight has the error of its score, of some ten units and 192 terms.
constexpr SumError kExpandedBf16{.of_sizes = 0x1.1p-8, .of_result = 0x1.1p-8};
constexpr SumError kExpandedF32{.of_sizes = 5e-6, .of_result = 0};

// The same attention to the values' magnitudes.
Tensor expanded_magnitudes(Ops& ops, TensorPool& pool, const MlaExpandedAttention& args) {
  const int64_t Dv = args.out.dim(2), nope = args.q.dim(2) - args.k_rope.dim(2);
  MlaExpandedAttention sizes = args;
  sizes.kv = pool.zeros(args.kv.shape());
  for (int64_t i = 0; i < args.kv.num_elements(); ++i) {
    const double value = get(args.kv, i);
    set(sizes.kv, i, i % (nope + Dv) < nope ? value : std::abs(value));
  }
  sizes.out = pool.zeros(args.out.shape());
  ops.mla_expanded_attention(sizes);
  return sizes.out;
}

TEST_F(CudaCache, AttentionToExpandedKeysIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, heads, nope, rope, value, window] : kExpandedCases) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << heads << " heads, keys " << nope << " and " << rope
                                      << ", values " << value << ", window " << window << ", " << dtype_name(dtype));
      const ArenaScope scope(tensors_);
      const int64_t key = nope + rope;
      const Pages pages = scattered_pages(pool_, 3, 300);
      const CachedAttention places =
          attention_args(pool_, {tokens, heads, heads, key, value, window, true}, Tensor(), Tensor(), Tensor(), pages);
      const MlaExpandedAttention args{.scale = places.scale,
                                      .window = window,
                                      .q = normal({tokens, heads, key}, dtype, 2.0),
                                      .slots = places.slots,
                                      .positions = places.positions,
                                      .pages = pages.table,
                                      .kv = in_pages(pool_, normal({3, 300, heads * (nope + value)}, dtype), pages),
                                      .k_rope = in_pages(pool_, normal({3, 300, rope}, dtype), pages),
                                      .out = places.out};
      cpu().mla_expanded_attention(args);
      MlaExpandedAttention device = args;
      device.q = up(args.q, dtype);
      device.slots = up(args.slots);
      device.positions = up(args.positions);
      device.pages = up(args.pages);
      device.kv = up(args.kv, dtype);
      device.k_rope = up(args.k_rope, dtype);
      device.out = tensors_.allocate(dtype, args.out.shape());
      run([&](Ops& ops) { ops.mla_expanded_attention(device); });
      EXPECT_TRUE(within(dtype == DType::kBF16 ? kExpandedBf16 : kExpandedF32, down(device.out), args.out,
                         expanded_magnitudes(cpu(), pool_, args)));
      // A row on its own has the same bits.
      for (int64_t t = 0; t < tokens; t += 1 + tokens / 10) {
        MlaExpandedAttention alone = device;
        alone.q = device.q.rows(t, t + 1);
        alone.slots = device.slots.rows(t, t + 1);
        alone.positions = device.positions.rows(t, t + 1);
        alone.out = tensors_.allocate(dtype, {1, heads, value});
        gpu().mla_expanded_attention(alone);
        EXPECT_TRUE(same_bits(down(alone.out), down(device.out.rows(t, t + 1)))) << "row " << t;
      }
    }
  }
}

// What lies behind the positions that rows see may be anything.
TEST_F(CudaCache, ExpandedKeysThatNobodyWroteAreNotSeen) {
  constexpr int64_t kHeads = 2, kPositions = 300, kValue = 128;
  for (const auto& [nope, rope] : {std::pair<int64_t, int64_t>{128, 64}, {64, 64}, {96, 32}, {8, 8}}) {
    for (const int64_t tokens : {1, 7, 150}) {
      for (const int64_t first : {0, 5, 60, 100}) {
        const ArenaScope scope(tensors_);
        const Tensor kv = normal({1, kPositions, kHeads * (nope + kValue)}, DType::kBF16),
                     k_rope = normal({1, kPositions, rope}, DType::kBF16),
                     q = normal({tokens, kHeads, nope + rope}, DType::kBF16);
        std::vector<double> places(static_cast<size_t>(tokens));
        std::iota(places.begin(), places.end(), static_cast<double>(first));
        const Pages pages = scattered_pages(pool_, 1, kPositions);
        const auto attend = [&] {
          const Tensor out = tensors_.allocate(DType::kBF16, {tokens, kHeads, kValue});
          gpu().mla_expanded_attention({.scale = 0.1,
                                        .q = up(q, DType::kBF16),
                                        .slots = up(pool_.ints({tokens}, std::vector<double>(places.size(), 0))),
                                        .positions = up(pool_.ints({tokens}, places)),
                                        .pages = up(pages.table),
                                        .kv = up(in_pages(pool_, kv, pages), DType::kBF16),
                                        .k_rope = up(in_pages(pool_, k_rope, pages), DType::kBF16),
                                        .out = out});
          return down(out);
        };
        const Tensor expected = attend();
        for (const Tensor& cache : {kv, k_rope}) {
          const int64_t width = cache.dim(2);
          std::fill(cache.data<float>() + (first + tokens) * width, cache.data<float>() + kPositions * width, NAN);
        }
        EXPECT_TRUE(same_bits(attend(), expected)) << tokens << " tokens from " << first << " on, keys " << nope;
      }
    }
  }
}

TEST_F(CudaCache, RowsWithoutAPlaceAttendToExpandedKeysAsNan) {
  for (const auto& [nope, rope] : {std::pair<int64_t, int64_t>{128, 64}, {8, 8}}) {
    for (const int64_t tokens : {3, 300}) {
      std::vector<double> slots(static_cast<size_t>(tokens), 0), positions(slots.size(), 1);
      slots[0] = -1, slots[1] = 1, positions[2] = kPagePositions;
      const Tensor out = tensors_.allocate(DType::kBF16, {tokens, 1, 128});
      gpu().mla_expanded_attention({.q = up(pool_.full({tokens, 1, nope + rope}, 1), DType::kBF16),
                                    .slots = up(pool_.ints({tokens}, slots)),
                                    .positions = up(pool_.ints({tokens}, positions)),
                                    .pages = up(pool_.ints({1, 1}, {0})),
                                    .kv = up(pool_.full({1, kPagePositions, nope + 128}, 1), DType::kBF16),
                                    .k_rope = up(pool_.full({1, kPagePositions, rope}, 1), DType::kBF16),
                                    .out = out});
      const Tensor got = down(out);
      for (int64_t i = 0; i < got.num_elements(); ++i) {
        if (i < 3 * 128) {
          EXPECT_TRUE(std::isnan(get(got, i))) << i;
        } else {
          EXPECT_EQ(get(got, i), 1.0) << i;
        }
      }
    }
  }
}

TEST_F(CudaCache, RowsWithoutAPlaceAttendAsNan) {
  CachedAttention args;
  args.q = up(pool_.full({2, 1, 1}, 1));
  args.slots = up(pool_.ints({2}, {0, 1}));
  args.positions = up(pool_.ints({2}, {kPagePositions, 0}));
  args.pages = up(pool_.ints({1, 1}, {0}));
  args.keys = args.values = up(pool_.full({1, kPagePositions, 1}, 1));
  args.out = up(pool_.zeros({2, 1, 1}));
  gpu().cached_attention(args);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(std::isnan(get(down(args.out), i))) << i;
}

struct LatentCase {
  int64_t tokens, heads, nope, rope, value, rank, window;
  RopeLayout layout;
};
constexpr LatentCase kLatentCases[] = {
    {0, 1, 8, 8, 8, 8, 0, RopeLayout::kInterleaved},          {1, 1, 1, 2, 1, 1, 0, RopeLayout::kInterleaved},
    {11, 3, 7, 6, 5, 130, 0, RopeLayout::kHalfSplit},         {40, 16, 128, 64, 128, 512, 0, RopeLayout::kInterleaved},
    {40, 16, 128, 64, 128, 512, 130, RopeLayout::kHalfSplit}, {21, 5, 24, 32, 40, 160, 0, RopeLayout::kInterleaved},
};

// What lies in the cache before is random, and rows attend to it: positions are those at the ends of tiles and chunks,
// each place once.
MlaCachedAttention latent_args(TensorPool& pool, const LatentCase& c, Tensor q, Tensor latent, Tensor key, Tensor kv_up,
                               Tensor cache, Tensor pages) {
  const double chosen[] = {0, 63, 64, 127, 128, 255, 256, 299};
  std::vector<double> slots, positions;
  for (int64_t t = 0; t < c.tokens; ++t) {
    slots.push_back(static_cast<double>(t / 14));
    positions.push_back(t % 14 < 8 ? chosen[t % 14] : static_cast<double>(t % 14 * 20));
  }
  return {.scale = 1 / std::sqrt(static_cast<double>(c.nope + c.rope)),
          .window = c.window,
          .q = q,
          .kv_latent = latent,
          .k_rope = key,
          .gain = pool.normal({c.rank}, 0.1, 1.0),
          .eps = 1e-5,
          .cos = pool.normal({300, c.rope / 2}),
          .sin = pool.normal({300, c.rope / 2}),
          .layout = c.layout,
          .slots = pool.ints({c.tokens}, slots),
          .positions = pool.ints({c.tokens}, positions),
          .pages = pages,
          .kv_up = kv_up,
          .cache = cache,
          .out = pool.zeros({c.tokens, c.heads, c.value})};
}

TEST_F(CudaCache, AttentionToLatentsIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const LatentCase& c : kLatentCases) {
      const double latent_scale = 1 / std::sqrt(static_cast<double>(c.rank));
      const Pages pages = scattered_pages(pool_, 3, 300);
      const Tensor latents = normal({3, 300, c.rank + c.rope}, dtype);
      const MlaCachedAttention args = latent_args(pool_, c, normal({c.tokens, c.heads, c.nope + c.rope}, dtype),
                                                  normal({c.tokens, c.rank}, dtype), normal({c.tokens, c.rope}, dtype),
                                                  normal({c.heads * (c.nope + c.value), c.rank}, dtype, latent_scale),
                                                  in_pages(pool_, latents, pages, 0.0), pages.table);
      MlaCachedAttention device = args;
      device.q = up(args.q, dtype);
      device.kv_latent = up(args.kv_latent, dtype);
      device.k_rope = up(args.k_rope, dtype);
      device.gain = up(args.gain);
      device.cos = up(args.cos);
      device.sin = up(args.sin);
      device.slots = up(args.slots);
      device.positions = up(args.positions);
      device.pages = up(args.pages);
      device.kv_up = up(args.kv_up, dtype);
      device.cache = up(args.cache, dtype);
      device.out = tensors_.allocate(dtype, args.out.shape());
      run([&](Ops& ops) { ops.mla_cached_attention(device); });
      cpu().mla_cached_attention(args);  // what it rotates is not what the device was given
      const double tolerance = dtype == DType::kBF16 ? 2e-2 : 1e-4;
      EXPECT_LE(worst_error(down(device.out), args.out), tolerance) << "rank " << c.rank << " " << dtype_name(dtype);
      EXPECT_LE(worst_error(down(device.cache), args.cache), tolerance) << "rank " << c.rank;
      // A row has the same bits alone and among some.
      for (const int64_t some : {1, 3, 7}) {
        for (int64_t t = 0; t + some <= c.tokens; t += 2 * some) {
          MlaCachedAttention part = device;
          for (Tensor MlaCachedAttention::*x :
               {&MlaCachedAttention::q, &MlaCachedAttention::kv_latent, &MlaCachedAttention::k_rope,
                &MlaCachedAttention::slots, &MlaCachedAttention::positions}) {
            part.*x = (device.*x).rows(t, t + some);
          }
          const ArenaScope scope(tensors_);
          part.out = tensors_.allocate(dtype, {some, c.heads, c.value});
          gpu().mla_cached_attention(part);
          EXPECT_TRUE(same_bits(down(part.out), down(device.out.rows(t, t + some)))) << "row " << t << " of " << some;
        }
      }
    }
  }
}

// Pieces of prompts, single tokens and some without a place, in a call of so many that tensor cores have tiles of them
// (sm90/latent_attention.h): each has the bits that it has among few. What lies in a slot behind them is not read.
TEST_F(CudaCache, ManyTokensAttendToLatentsAsFewDo) {
  constexpr int64_t kHeads = 16, kKey = 576, kValue = 512, kPositions = 1000;
  struct Run {
    int64_t slot, first, count;
  };
  const std::vector<Run> runs = {{0, 37, 400}, {1, 0, 130},   {-1, 0, 5},  {2, 899, 1},
                                 {1, 131, 1},  {2, 640, 140}, {0, 441, 20}};
  std::vector<double> slots, positions;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      slots.push_back(static_cast<double>(run.slot));
      positions.push_back(static_cast<double>(run.first + i));
    }
  }
  const auto T = static_cast<int64_t>(slots.size());
  const Tensor host_keys = normal({3, kPositions, kKey}, DType::kBF16);
  const int64_t ends[] = {461, 132, 900};
  for (int64_t slot = 0; slot < 3; ++slot) {
    for (int64_t i = ends[slot] * kKey; i < kPositions * kKey; ++i) {
      set(host_keys, slot * kPositions * kKey + i, std::numeric_limits<double>::quiet_NaN());
    }
  }
  const Pages places = scattered_pages(pool_, 3, kPositions);
  const Tensor keys = up(in_pages(pool_, host_keys, places), DType::kBF16), pages = up(places.table);
  const Tensor q = up(normal({T, kHeads, kKey}, DType::kBF16, 3.0), DType::kBF16);
  const Tensor all_slots = up(pool_.ints({T}, slots)), all_positions = up(pool_.ints({T}, positions));
  for (const int64_t window : {0, 1, 130}) {
    const auto attend = [&](int64_t first, int64_t end) {
      const Tensor out = tensors_.allocate(DType::kBF16, {end - first, kHeads, kValue});
      gpu().cached_attention({.scale = 1 / std::sqrt(static_cast<double>(kKey)),
                              .window = window,
                              .q = q.rows(first, end),
                              .slots = all_slots.rows(first, end),
                              .positions = all_positions.rows(first, end),
                              .pages = pages,
                              .keys = keys,
                              .values = {},
                              .num_kv_heads = 1,
                              .out = out});
      return out;
    };
    const ArenaScope scope(tensors_);
    const Tensor together = attend(0, T);
    constexpr int64_t kFew = 45;
    for (int64_t first = 0; first < T; first += kFew) {
      const ArenaScope piece(tensors_);
      const int64_t end = std::min(first + kFew, T);
      const Tensor few = down(attend(first, end)), many = down(together.rows(first, end));
      for (int64_t i = 0; i < few.num_elements(); ++i) {  // one NaN is as good as another
        if (std::isnan(get(few, i)) && std::isnan(get(many, i))) set(few, i, 0), set(many, i, 0);
      }
      EXPECT_TRUE(same_bits(few, many)) << "tokens from " << first << ", window " << window;
    }
  }
}

// Rows that belong to no sequence write nothing and attend as NaN, whatever is beside them.
TEST_F(CudaCache, RowsWithoutAPlaceLeaveLatentsAlone) {
  const LatentCase c{2, 2, 8, 8, 8, 24, 0, RopeLayout::kInterleaved};
  for (const DType dtype : kActDTypes) {
    MlaCachedAttention args =
        latent_args(pool_, c, up(pool_.full({2, 2, 16}, 1), dtype), up(pool_.full({2, 24}, 1), dtype),
                    up(pool_.full({2, 8}, 1), dtype), up(pool_.full({32, 24}, 1), dtype),
                    up(pool_.full({3, kPagePositions, 32}, 7), dtype), up(pool_.ints({1, 3}, {0, 1, 2})));
    args.gain = up(args.gain), args.cos = up(args.cos), args.sin = up(args.sin);
    args.slots = up(pool_.ints({2}, {-1, 0})), args.positions = up(pool_.ints({2}, {0, 3 * kPagePositions}));
    args.out = tensors_.allocate(dtype, {2, 2, 8});
    gpu().mla_cached_attention(args);
    for (int64_t i = 0; i < args.out.num_elements(); ++i) EXPECT_TRUE(std::isnan(get(down(args.out), i))) << i;
    EXPECT_TRUE(near(down(args.cache), std::vector<double>(3 * kPagePositions * 32, 7.0), 0));
  }
}

}  // namespace
}  // namespace nmoe::test
