#include <array>
#include <chrono>
#include <cmath>
#include <limits>

#include "support/tensors.h"

namespace nmoe::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLarge = 100'003;  // several tasks and an odd rest

TEST(Fill, SetsEveryElementOfAnyType) {
  const auto ops = cpu_device();
  TensorPool pool;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kI32}) {
    const Tensor x = pool.zeros(dtype, {kLarge});
    ops->fill({x, -3});
    EXPECT_TRUE(near(x, std::vector<double>(kLarge, -3.0), 0)) << dtype_name(dtype);
  }
  const Tensor bytes = pool.zeros(DType::kU8, {5});
  ops->fill({bytes, 200});
  for (const uint8_t byte : bytes.span<uint8_t>()) EXPECT_EQ(byte, 200);
}

TEST(Fill, RoundsBfloat16ToNearestEven) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor x = pool.zeros(DType::kBF16, {3});
  const auto filled_with = [&](double value) {
    ops->fill({x, value});
    const auto* bits = static_cast<const uint16_t*>(x.raw());
    EXPECT_EQ(bits[0], bits[2]);
    return bits[2];
  };
  EXPECT_EQ(filled_with(1.0), 0x3F80);
  EXPECT_EQ(filled_with(-2.0), 0xC000);
  EXPECT_EQ(filled_with(1.0 + 0x1p-8), 0x3F80);            // halfway, down to even
  EXPECT_EQ(filled_with(1.0 + 0x1p-7 + 0x1p-8), 0x3F82);   // halfway, up to even
  EXPECT_EQ(filled_with(1.0 + 0x1p-8 + 0x1p-20), 0x3F81);  // past halfway
  EXPECT_EQ(filled_with(kInfinity), 0x7F80);
}

TEST(FillTruncatedNormal, DrawsTheStreamOfTheGenerator) {
  const Philox random(7, "weights");
  for (const int num_threads : {1, 2}) {
    const auto ops = cpu_device(DType::kF32, num_threads);
    TensorPool pool;
    const Tensor x = pool.zeros(DType::kF32, {kLarge});
    ops->fill_truncated_normal({x, {.seed = 7, .stream = fnv1a64("weights"), .std = 0.02, .truncation = 2.5}});
    for (int64_t i = 0; i < kLarge; ++i) {
      ASSERT_EQ(x.span<float>()[static_cast<size_t>(i)],
                static_cast<float>(0.02 * random.truncated_normal(static_cast<uint64_t>(i), 2.5)));
    }
  }
}

TEST(Copy, MovesTheBytesOfAnyType) {
  const auto ops = cpu_device();
  TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({kLarge}), y = pool.zeros({kLarge});
  ops->copy({x, y});
  EXPECT_TRUE(same_bits(x, y));
  const Tensor ids = pool.random_ints({17}, 1000), copied = pool.zeros(DType::kI32, {17});
  ops->copy({ids, copied});
  EXPECT_TRUE(same_bits(ids, copied));
  EXPECT_THROW(ops->copy({x, ids}), CheckFailure);
}

TEST(Sums, AreExactToDoubleAndAdd) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    const auto ops = cpu_device(real);
    TensorPool pool(real);
    const Tensor x = pool.normal({kLarge}, 1.0, 0.1);
    long double sum = 5, squares = 7;
    for (const double value : values(x)) {
      sum += value;
      squares += static_cast<long double>(value) * value;
    }
    const Tensor sum_out = pool.zeros(DType::kF64, {1}), squares_out = pool.zeros(DType::kF64, {1});
    set(sum_out, 0, 5);
    set(squares_out, 0, 7);
    ops->sum({x, sum_out});
    ops->sums_of_squares({.all = {{x, squares_out}}});
    EXPECT_TRUE(near(sum_out, {static_cast<double>(sum)}, 1e-12));
    EXPECT_TRUE(near(squares_out, {static_cast<double>(squares)}, 1e-12));
  }
}

TEST(Sums, BitsDoNotDependOnThreads) {
  TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({kLarge}), one = pool.zeros(DType::kF64, {1}), three = pool.zeros(DType::kF64, {1});
  cpu_device(DType::kF32, 1)->sums_of_squares({.all = {{x, one}}});
  cpu_device(DType::kF32, 3)->sums_of_squares({.all = {{x, three}}});
  EXPECT_TRUE(same_bits(one, three));
}

TEST(Sums, OfSquaresOfManyTensors) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor x = pool.of({2}, {1, 2}), y = pool.of({3}, {3, 4, 5}), out = pool.of({2}, {0.5, 7});
  const Tensor first = out.rows(0, 1), second = out.rows(1, 2);
  ops->sums_of_squares({.all = {{x, first}, {y, first}, {x, second}}});
  EXPECT_TRUE(near(out, {55.5, 12}, 0));
  EXPECT_THROW(ops->sums_of_squares({.all = {{x, first}, {x, second}, {y, first}}}), CheckFailure);
}

TEST(Sums, OfSquaresByParts) {
  TensorPool pool;
  const Tensor x = pool.full({3}, NAN), parts = pool.of({2, 2}, {1, 2, 4, 8}), out = pool.of({1}, {16});
  cpu_device()->sums_of_squares({.all = {{x, out, parts}}});
  EXPECT_TRUE(near(out, {31}, 0));
}

TEST(Sums, OfNothingIsZero) {
  TensorPool pool(DType::kF32);
  const Tensor out = pool.zeros(DType::kF64, {1});
  cpu_device(DType::kF32)->sum({pool.zeros({0, 3}), out});
  EXPECT_EQ(get(out, 0), 0);
}

TEST(Sums, CountingRunClaimsTheScratchOfARealOne) {
  TensorPool pool(DType::kF32);
  const Tensor x = pool.zeros({kLarge}), out = pool.zeros(DType::kF64, {1});
  const auto ops = cpu_device(DType::kF32);
  ops->sum({x, out});
  const auto counting = make_device({.num_threads = 2});
  counting->ops().sum({without_data(x), without_data(out)});
  EXPECT_GT(counting->scratch(Lane::kCompute).high_water(), 0);
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), ops->scratch().high_water());
}

// In double precision 1 vanishes beside 2^53 of the same sign, but not what two of them make.
TEST(SumInOrder, GoesByTheOrder) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor x = pool.of({4}, {1, 0x1p53, 1, -0x1p53}), out = pool.zeros({1});
  ops->sum_in_order({x, out});
  EXPECT_EQ(get(out, 0), 0);
  const Tensor order = pool.zeros(DType::kI32, {4});
  for (const auto& [first, expected] :
       {std::pair(std::array{0, 2, 1, 3}, 2.0), {std::array{1, 3, 0, 2}, 2.0}, {std::array{1, 0, 2, 3}, 0.0}}) {
    for (size_t i = 0; i < first.size(); ++i) set(order, static_cast<int64_t>(i), first[i]);
    ops->sum_in_order({x, out, order});
    EXPECT_EQ(get(out, 0), expected);
  }
}

// Nanoseconds beyond 32 bits: 3 s, and a second time of 3 s.
TEST(AddTime, AddsWhatHasPassedHoweverLong) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor sum = pool.zeros(DType::kF64, {1}), begun = pool.zeros(DType::kI64, {1});
  const auto clock = [] {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (const double expected : {3e9, 6e9}) {
    ops->add_time({.sum = sum, .begun = begun, .begin = true});
    EXPECT_NEAR(static_cast<double>(*begun.data<int64_t>()), static_cast<double>(clock()), 1e9);
    *begun.data<int64_t>() -= 3'000'000'000;
    ops->add_time({.sum = sum, .begun = begun});
    EXPECT_GE(get(sum, 0), expected);
    EXPECT_LT(get(sum, 0), expected + 1e9);
  }
}

TEST(ClipScale, ShrinksToTheMaximumNorm) {
  const auto ops = cpu_device();
  TensorPool pool;
  Tensor stopped = pool.zeros(DType::kI32, {1});
  const auto scale = [&](double sum_squares, double max_norm, double loss_sum = 1) {
    const Tensor out = pool.zeros({1});
    ops->clip_scale({pool.of({1}, {sum_squares}), pool.of({1}, {loss_sum}), max_norm, out, stopped});
    return get(out, 0);
  };
  EXPECT_DOUBLE_EQ(scale(16, 1), 0.25);
  EXPECT_EQ(scale(0.25, 1), 1);
  EXPECT_EQ(scale(16, 0), 1);  // clipping is off
  EXPECT_EQ(scale(0, 1), 1);
  for (const double max_norm : {0.0, 1.0}) {
    EXPECT_EQ(get(stopped, 0), 0);
    EXPECT_TRUE(std::isnan(scale(kInfinity, max_norm)));
    EXPECT_EQ(get(stopped, 0), 1);
    EXPECT_TRUE(std::isnan(scale(16, max_norm)));  // and so for whatever follows
    for (const auto& [squares, loss] : {std::pair{kNan, 1.0}, std::pair{16.0, kNan}}) {
      set(stopped, 0, 0);
      EXPECT_TRUE(std::isnan(scale(squares, max_norm, loss)));
      EXPECT_EQ(get(stopped, 0), 1);
    }
    set(stopped, 0, 0);
  }
}

TEST(CountNonFinite, FindsNanAndInfinitiesAlone) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    const auto ops = cpu_device(real);
    TensorPool pool(real);
    const Tensor x = pool.normal({kLarge}), out = pool.zeros(DType::kI32, {1});
    set(x, 1, 3e38);
    set(x, 2, 1e-42);
    set(x, 3, 0);
    ops->count_non_finite({x, out});
    EXPECT_EQ(get(out, 0), 0);
    set(x, 0, kNan);
    set(x, 50'000, kInfinity);
    set(x, kLarge - 1, -kInfinity);
    ops->count_non_finite({x, out});
    EXPECT_EQ(get(out, 0), 3);
    ops->count_non_finite({x, out});
    EXPECT_EQ(get(out, 0), 6);
  }
}

}  // namespace
}  // namespace nmoe::test
