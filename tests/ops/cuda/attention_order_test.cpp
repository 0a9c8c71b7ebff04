// Attention sums in one order (ops/contracts/attention.h): a row has the same bits whatever lies beside it, and from a
// cache those that training gives it.
#include <limits>
#include <numbers>

#include "ops/cuda/cuda_test.h"
#include "support/pages.h"

namespace nmoe::test {
namespace {

constexpr int64_t kDocumentAlignment = 128;  // of documents
constexpr int64_t kLengths[] = {1, 63, 64, 65, 128, 129, 700, 2000};
constexpr int64_t kDocuments = std::ssize(kLengths), kCachedPositions = 2048;
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();  // what a cache has where nothing was written
constexpr double kSpread = 8.0;                                        // of scores, where keys are as large as queries

struct OrderCase {
  int64_t key, value, group, window;
  DType dtype = DType::kBF16;
  bool sinks = false;
};
std::ostream& operator<<(std::ostream& to, const OrderCase& c) {
  return to << "heads of " << c.key << " and " << c.value << ", groups of " << c.group << ", window " << c.window
            << ", in " << dtype_name(c.dtype) << (c.sinks ? ", sinks" : "");
}

// Documents of kLengths, each from a multiple of `alignment` on; what is between them are documents too, which
// have no slot in the cache.
struct Packed {
  std::vector<double> bounds, slots, positions;
  std::vector<int64_t> starts;
  int64_t num_tokens() const { return static_cast<int64_t>(slots.size()); }
};
Packed packed(int64_t alignment = kDocumentAlignment) {
  Packed result;
  for (int64_t slot = 0; slot < kDocuments; ++slot) {
    const int64_t start = result.num_tokens(), length = kLengths[slot];
    result.starts.push_back(start);
    result.bounds.push_back(static_cast<double>(start));
    if (length % alignment != 0) result.bounds.push_back(static_cast<double>(start + length));
    const int64_t padded = (length + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < padded; ++i) {
      result.slots.push_back(i < length ? static_cast<double>(slot) : -1.0);
      result.positions.push_back(static_cast<double>(i));
    }
  }
  result.bounds.push_back(static_cast<double>(result.num_tokens()));
  return result;
}

class CudaAttentionOrder : public CudaTest {
 protected:
  CudaAttentionOrder() : CudaTest(/*num_sms=*/0, /*scratch_bytes=*/int64_t{96} << 20) {}

  // Values of a size that changes from one block of 64 positions to another, so that the highest score rises by more
  // than 2^8 at some blocks, by less at others, and falls at others.
  static Tensor uneven(TensorPool& pool, Shape shape) {
    const Tensor x = pool.normal(shape), sizes = pool.random_ints({shape[0] / 64 + 1}, 16);
    const int64_t width = shape.row_elements();
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      x.data<float>()[i] *= static_cast<float>(0.1 + 0.06 * get(sizes, i / width / 64));
    }
    return rounded(x, DType::kBF16);
  }

  std::vector<std::byte> bytes(Tensor x) {
    std::vector<std::byte> result(static_cast<size_t>(x.num_bytes()));
    device_->download(result.data(), x);
    return result;
  }
  // Whether row i of `rows` is row `of[i]` of `all`; rows of others are told by -1.
  testing::AssertionResult are_rows_of(Tensor rows, const std::vector<std::byte>& all, const std::vector<int64_t>& of) {
    const std::vector<std::byte> got = bytes(rows);
    const auto row_bytes = static_cast<int64_t>(got.size()) / rows.dim(0);
    int64_t differing = 0, first = -1;
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      const int64_t row = of[static_cast<size_t>(i)];
      if (row < 0 || std::memcmp(got.data() + i * row_bytes, all.data() + row * row_bytes, row_bytes) == 0) continue;
      if (differing++ == 0) first = row;
    }
    if (differing == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << differing << " of " << rows.dim(0) << " rows differ, the first is token "
                                       << first;
  }

  // That a cache of the documents gives them what training does: of keys and values, and of MLA's, of which all heads
  // share `rope` elements of keys. The highest scores must rise as often as they have to for the order to show.
  void expect_cache_gives_trained(const OrderCase& c, const Packed& documents);
  void expect_mlas_caches_give_trained(const OrderCase& c, int64_t heads, int64_t rope, const Packed& documents);

  // That attend(q, slots, positions) gives tokens, together and alone, what training gives them.
  template <class Attend>
  void expect_trained_rows(const Packed& documents, Tensor host_q, Tensor q, Tensor slots, Tensor positions,
                           const std::vector<std::byte>& expected, const Attend& attend) {
    const int64_t T = q.dim(0), heads = q.dim(1), key = q.dim(2);
    const auto cached = [&](int64_t token) { return documents.slots[static_cast<size_t>(token)] >= 0 ? token : -1; };
    // All at once, and in chunks of many and of few.
    for (const int64_t chunk : {T, int64_t{1000}, int64_t{111}}) {
      for (int64_t first = 0; first < T; first += chunk) {
        const ArenaScope piece(tensors_);
        const int64_t end = std::min(first + chunk, T);
        std::vector<int64_t> of;
        for (int64_t t = first; t < end; ++t) of.push_back(cached(t));
        EXPECT_TRUE(
            are_rows_of(attend(q.rows(first, end), slots.rows(first, end), positions.rows(first, end)), expected, of))
            << "tokens from " << first << " to " << end;
      }
    }
    // One by one.
    for (int64_t slot = 0; slot < kDocuments; ++slot) {
      for (const int64_t position : {0, 1, 62, 63, 64, 65, 127, 128, 129, 255, 256, 699, 1500, 1999}) {
        if (position >= kLengths[slot]) continue;
        const ArenaScope piece(tensors_);
        const int64_t t = documents.starts[static_cast<size_t>(slot)] + position;
        EXPECT_TRUE(
            are_rows_of(attend(q.rows(t, t + 1), slots.rows(t, t + 1), positions.rows(t, t + 1)), expected, {t}))
            << "position " << position << " of slot " << slot;
      }
    }
    // Some of all slots in no order, and pieces of a document between them.
    std::vector<int64_t> few(40), many(300), mixed(5);
    for (std::vector<int64_t>* some : {&few, &many, &mixed}) {
      for (size_t i = 0; i < some->size(); ++i) (*some)[i] = static_cast<int64_t>(i) * 1009 % T;
    }
    for (int64_t t = T - 1500; t < T - 1179; ++t) mixed.push_back(t);
    mixed.insert(mixed.end(), few.begin(), few.end());
    for (int64_t t = T - 800; t < T - 608; ++t) mixed.push_back(t);
    for (const std::vector<int64_t>& some : {few, many, mixed}) {
      const ArenaScope piece(tensors_);
      const int64_t count = std::ssize(some), width = heads * key;
      const Tensor some_q = pool_.zeros({count, heads, key});
      std::vector<int64_t> of;
      std::vector<double> some_slots, some_positions;
      for (const int64_t t : some) {
        std::copy_n(host_q.data<float>() + t * width, width, some_q.data<float>() + std::ssize(of) * width);
        of.push_back(cached(t));
        some_slots.push_back(documents.slots[static_cast<size_t>(t)]);
        some_positions.push_back(documents.positions[static_cast<size_t>(t)]);
      }
      EXPECT_TRUE(are_rows_of(
          attend(up(some_q, q.dtype()), up(pool_.ints({count}, some_slots)), up(pool_.ints({count}, some_positions))),
          expected, of))
          << count << " rows";
    }
  }
};

// How often the highest score of a row's block exceeds that of those before by more than 2^8, and by less.
struct Rises {
  int64_t high = 0, low = 0;
};
void count_rises(const OrderCase& c, Tensor q, Tensor k, int64_t start, int64_t position, Rises& rises) {
  constexpr int64_t kBlock = 64;
  const int64_t heads = q.dim(1), group = heads / k.dim(1);
  const double scale = std::numbers::log2e / std::sqrt(static_cast<double>(c.key));
  for (int64_t h = 0; h < heads; ++h) {
    double highest = -std::numeric_limits<double>::infinity();
    const float* const query = q.data<float>() + ((start + position) * heads + h) * c.key;
    for (int64_t block = position / kBlock; block >= 0; --block) {
      double block_highest = -std::numeric_limits<double>::infinity();
      for (int64_t j = block * kBlock; j <= std::min(position, block * kBlock + kBlock - 1); ++j) {
        const float* const key = k.data<float>() + ((start + j) * k.dim(1) + h / group) * c.key;
        double score = 0;
        for (int64_t d = 0; d < c.key; ++d) score += double{query[d]} * double{key[d]};
        block_highest = std::max(block_highest, score * scale);
      }
      if (block < position / kBlock && block_highest > highest)
        ++(block_highest > highest + 8 ? rises.high : rises.low);
      if (highest == -std::numeric_limits<double>::infinity() || block_highest > highest + 8) highest = block_highest;
    }
  }
}

void CudaAttentionOrder::expect_cache_gives_trained(const OrderCase& c, const Packed& documents) {
  SCOPED_TRACE(testing::PrintToString(c));
  const auto [key, value, group, window, dtype, has_sinks] = c;
  const int64_t T = documents.num_tokens(), last = documents.starts.back();
  const ArenaScope scope(tensors_);
  TensorPool pool(DType::kF32, static_cast<uint64_t>(key + group));
  constexpr int64_t kKvHeads = 2;
  const int64_t heads = kKvHeads * group;
  const Tensor host_q = rounded(pool.normal({T, heads, key}, kSpread), dtype);
  const Tensor host_k = uneven(pool, {T, kKvHeads, key});
  Rises rises;
  for (const int64_t position : {500, 900, 1300, 1700, 1999}) {
    count_rises(c, host_q, host_k, last, position, rises);
  }
  EXPECT_TRUE(rises.high > 0 && rises.low > 0) << rises.high << " and " << rises.low;
  const double scale = 1 / std::sqrt(static_cast<double>(key));
  const Tensor q = up(host_q, dtype), k = up(host_k, dtype);
  const Tensor v = up(rounded(pool.normal({T, kKvHeads, value}), dtype), dtype);
  const Tensor slots = up(pool.ints({T}, documents.slots)), positions = up(pool.ints({T}, documents.positions));
  const Tensor bounds = up(pool.ints({std::ssize(documents.bounds)}, documents.bounds));

  const Tensor sinks = has_sinks ? up(pool.normal({heads}, kSpread)) : Tensor();
  const Tensor trained = tensors_.allocate(dtype, {T, heads, value});
  gpu().attention_forward(
      {.shape = {.num_seqs = 1, .seq_len = T, .scale = scale, .window = window, .cu_seqlens = bounds},
       .q = q,
       .k = k,
       .v = v,
       .out = trained,
       .lse = tensors_.allocate(DType::kF32, {1, heads, T}),
       .sinks = sinks});
  const std::vector<std::byte> expected = bytes(trained);

  const Pages places = scattered_pages(pool, kDocuments, kCachedPositions);
  const Tensor pages = up(places.table);
  const Tensor keys = up(pool.full({places.count, kPagePositions, kKvHeads * key}, kNothing), dtype);
  const Tensor values = up(pool.full({places.count, kPagePositions, kKvHeads * value}, kNothing), dtype);
  for (const auto& [rows, cache] :
       {std::pair(k.reshape({T, kKvHeads * key}), keys), std::pair(v.reshape({T, kKvHeads * value}), values)}) {
    gpu().cache_write({.rows = rows, .slots = slots, .positions = positions, .pages = pages, .cache = cache});
  }
  const auto attend = [&](Tensor some_q, Tensor some_slots, Tensor some_positions) {
    const Tensor out = tensors_.allocate(dtype, {some_q.dim(0), heads, value});
    gpu().cached_attention({.scale = scale,
                            .window = window,
                            .q = some_q,
                            .slots = some_slots,
                            .positions = some_positions,
                            .pages = pages,
                            .keys = keys,
                            .values = values,
                            .num_kv_heads = kKvHeads,
                            .out = out,
                            .sinks = sinks});
    return out;
  };
  expect_trained_rows(documents, host_q, q, slots, positions, expected, attend);
}

TEST_F(CudaAttentionOrder, CacheGivesWhatTrainingGives) {
  const Packed documents = packed();
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {192, 128}}) {
    for (const int64_t group : {1, 4, 8, 16}) {
      for (const int64_t window : {0, 200}) expect_cache_gives_trained({key, value, group, window}, documents);
    }
  }
}

TEST_F(CudaAttentionOrder, CacheGivesWhatTrainingGivesWithSinks) {
  const Packed documents = packed();
  for (const DType dtype : kActDTypes) {
    for (const auto& [key, value] : {std::pair<int64_t, int64_t>{64, 64}, {128, 128}}) {
      for (const int64_t window : {0, 128}) expect_cache_gives_trained({key, value, 8, window, dtype, true}, documents);
    }
  }
}

// Heads of any sizes, and documents that begin anywhere.
TEST_F(CudaAttentionOrder, CacheGivesWhatTrainingGivesInFp32) {
  const Packed documents = packed(/*alignment=*/1);
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {36, 20}}) {
    for (const int64_t group : {1, 4}) {
      for (const int64_t window : {0, 70, 200}) {
        expect_cache_gives_trained({key, value, group, window, DType::kF32}, documents);
      }
    }
  }
}

void CudaAttentionOrder::expect_mlas_caches_give_trained(const OrderCase& c, int64_t heads, int64_t rope,
                                                         const Packed& documents) {
  SCOPED_TRACE(testing::Message() << c << ", " << heads << " heads, which share " << rope);
  const int64_t key = c.key, value = c.value, window = c.window;
  const DType dtype = c.dtype;
  const int64_t T = documents.num_tokens(), last = documents.starts.back(), nope = key - rope, width = nope + value;
  const ArenaScope scope(tensors_);
  TensorPool pool(DType::kF32, static_cast<uint64_t>(key + heads));
  const Tensor host_q = rounded(pool.normal({T, heads, key}, kSpread), dtype);
  const Tensor host_kv = uneven(pool, {T, heads, width}), host_rope = uneven(pool, {T, rope});
  const Tensor host_k = pool.zeros({T, heads, key});
  for (int64_t row = 0; row < T * heads; ++row) {
    float* const whole = host_k.data<float>() + row * key;
    std::copy_n(host_kv.data<float>() + row * width, nope, whole);
    std::copy_n(host_rope.data<float>() + row / heads * rope, rope, whole + nope);
  }
  Rises rises;
  for (const int64_t position : {500, 900, 1300, 1700, 1999}) count_rises(c, host_q, host_k, last, position, rises);
  EXPECT_TRUE(rises.high > 0 && rises.low > 0) << rises.high << " and " << rises.low;
  const double scale = 1 / std::sqrt(static_cast<double>(key));
  const Tensor q = up(host_q, dtype), kv = up(host_kv, dtype), k_rope = up(host_rope, dtype);
  const Tensor slots = up(pool.ints({T}, documents.slots)), positions = up(pool.ints({T}, documents.positions));
  const Tensor bounds = up(pool.ints({std::ssize(documents.bounds)}, documents.bounds));

  const Tensor trained = tensors_.allocate(dtype, {T, heads, value});
  gpu().mla_attention_forward(
      {.shape = {.num_seqs = 1, .seq_len = T, .scale = scale, .window = window, .cu_seqlens = bounds},
       .q = q,
       .kv = kv,
       .k_rope = k_rope,
       .out = trained,
       .lse = tensors_.allocate(DType::kF32, {1, heads, T})});
  const std::vector<std::byte> expected = bytes(trained);

  const Pages places = scattered_pages(pool, kDocuments, kCachedPositions);
  const Tensor pages = up(places.table);
  const Tensor all_kv = up(pool.full({places.count, kPagePositions, heads * width}, kNothing), dtype);
  const Tensor all_k_rope = up(pool.full({places.count, kPagePositions, rope}, kNothing), dtype);
  for (const auto& [rows, cache] : {std::pair(kv.reshape({T, heads * width}), all_kv), {k_rope, all_k_rope}}) {
    gpu().cache_write({.rows = rows, .slots = slots, .positions = positions, .pages = pages, .cache = cache});
  }
  expect_trained_rows(documents, host_q, q, slots, positions, expected,
                      [&](Tensor some_q, Tensor some_slots, Tensor some_positions) {
                        const Tensor out = tensors_.allocate(dtype, {some_q.dim(0), heads, value});
                        gpu().mla_expanded_attention({.scale = scale,
                                                      .window = window,
                                                      .q = some_q,
                                                      .slots = some_slots,
                                                      .positions = some_positions,
                                                      .pages = pages,
                                                      .kv = all_kv,
                                                      .k_rope = all_k_rope,
                                                      .out = out});
                        return out;
                      });
}

struct MlaOrderCase {
  int64_t key, rope, value, heads;
};

// Keys and values of MLA in two caches, against attention to them where they lie in a sequence.
TEST_F(CudaAttentionOrder, MlasCachesGiveWhatTrainingGives) {
  const Packed documents = packed();
  for (const auto& [key, rope, value, heads] :
       {MlaOrderCase{192, 64, 128, 16}, {192, 64, 128, 3}, {128, 64, 128, 5}, {128, 32, 128, 2}, {64, 32, 64, 4}}) {
    for (const int64_t window : {0, 200}) {
      expect_mlas_caches_give_trained({key, value, 1, window}, heads, rope, documents);
    }
  }
}

TEST_F(CudaAttentionOrder, MlasCachesGiveWhatTrainingGivesInFp32) {
  const Packed documents = packed(/*alignment=*/1);
  for (const auto& [key, rope, value, heads] : {MlaOrderCase{192, 64, 128, 3}, {52, 20, 28, 2}}) {
    for (const int64_t window : {0, 200}) {
      expect_mlas_caches_give_trained({key, value, 1, window, DType::kF32}, heads, rope, documents);
    }
  }
}

// More query heads of a key/value head than an instruction has rows.
TEST_F(CudaAttentionOrder, HeadsOfSeveralInstructionsAreThoseOfOne) {
  constexpr int64_t kHeads = 40, kTokens = 3, kSize = 128;
  TensorPool pool(DType::kF32);
  const Tensor q = up(rounded(pool.normal({kTokens, kHeads, kSize}, kSpread), DType::kBF16), DType::kBF16);
  const Pages places = scattered_pages(pool, 1, 300);
  const Tensor pages = up(places.table);
  const Tensor keys = up(in_pages(pool, uneven(pool, {300, 1, kSize}).reshape({1, 300, kSize}), places), DType::kBF16);
  const Tensor values = up(in_pages(pool, rounded(pool.normal({1, 300, kSize}), DType::kBF16), places), DType::kBF16);
  const Tensor slots = up(pool.ints({kTokens}, {0, 0, 0})), positions = up(pool.ints({kTokens}, {299, 5, 130}));
  const auto attend = [&](Tensor some_q) {
    const Tensor out = tensors_.allocate(DType::kBF16, some_q.shape());
    gpu().cached_attention({.scale = 0.09,
                            .q = some_q,
                            .slots = slots,
                            .positions = positions,
                            .pages = pages,
                            .keys = keys,
                            .values = values,
                            .num_kv_heads = 1,
                            .out = out});
    return down(out);
  };
  const Tensor together = attend(q);
  for (int64_t head = 0; head < kHeads; ++head) {
    const Tensor own = attend(
        q.reshape({kTokens, kHeads * kSize}).columns(head * kSize, (head + 1) * kSize).reshape({kTokens, 1, kSize}));
    const Tensor expected = pool.zeros({kTokens, 1, kSize});
    for (int64_t t = 0; t < kTokens; ++t) {
      std::copy_n(together.data<float>() + (t * kHeads + head) * kSize, kSize, expected.data<float>() + t * kSize);
    }
    EXPECT_TRUE(same_bits(own, expected)) << "head " << head;
  }
}

// A row decides alone when its sums follow its highest score.
TEST_F(CudaAttentionOrder, TrainingsRowsKnowNothingOfOtherRows) {
  constexpr int64_t kTokens = 700, kHeads = 4;
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {192, 128}}) {
    const ArenaScope scope(tensors_);
    TensorPool pool(DType::kF32);
    Tensor q = rounded(pool.normal({kTokens, kHeads, key}, kSpread), DType::kBF16);
    const Tensor k = up(uneven(pool, {kTokens, kHeads, key}), DType::kBF16);
    const Tensor v = up(rounded(pool.normal({kTokens, kHeads, value}), DType::kBF16), DType::kBF16);
    const auto attend = [&] {
      const Tensor out = tensors_.allocate(DType::kBF16, {kTokens, kHeads, value});
      gpu().attention_forward(
          {.shape = {.num_seqs = 1, .seq_len = kTokens, .scale = 1 / std::sqrt(static_cast<double>(key))},
           .q = up(q, DType::kBF16),
           .k = k,
           .v = v,
           .out = out,
           .lse = tensors_.allocate(DType::kF32, {1, kHeads, kTokens})});
      return out;
    };
    const std::vector<std::byte> expected = bytes(attend());
    const int64_t width = kHeads * key;
    std::vector<int64_t> of;
    for (int64_t t = 0; t < kTokens; ++t) {
      of.push_back(t % 2 == 0 ? t : -1);
      if (t % 2 == 0) continue;
      for (int64_t i = 0; i < width; ++i) q.data<float>()[t * width + i] *= t % 4 == 1 ? 4.0F : 0.0F;
    }
    EXPECT_TRUE(are_rows_of(attend(), expected, of)) << "heads of " << key << " and " << value;
  }
}

}  // namespace
}  // namespace nmoe::test
