#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSizes[] = {0, 1, 7, 8, 255, 32'768, 32'769, 1'000'003};  // several blocks, odd rests

using CudaTensorOps = CudaTest;

TEST_F(CudaTensorOps, FillSetsEveryElementOfAnyType) {
  for (const int64_t size : kSizes) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI32}) {
      for (const double value : {-3.0, 0.0}) {
        const Tensor x = up(pool_.full({size}, 7), DType::kF32), y = tensors_.allocate(dtype, {size});
        gpu().fill({y, value});
        EXPECT_TRUE(near(down(y), std::vector<double>(static_cast<size_t>(size), value), 0)) << dtype_name(dtype);
        EXPECT_TRUE(near(down(x), std::vector<double>(static_cast<size_t>(size), 7), 0)) << "written past the start";
      }
    }
  }
  const Tensor bytes = tensors_.allocate(DType::kU8, {5});
  gpu().fill({bytes, 200});
  for (const uint8_t byte : down(bytes).span<uint8_t>()) EXPECT_EQ(byte, 200);
  EXPECT_THROW(gpu().fill({tensors_.allocate(DType::kF8E4M3, {1}), 1}), CheckFailure);
}

// To the bit: a run's first weights do not depend on where it runs. No truncation to speak of reaches the far tails.
TEST_F(CudaTensorOps, TruncatedNormalsAreTheGenerators) {
  const Philox random(7, "weights");
  for (const double truncation : {3.0, 40.0}) {
    const Tensor x = tensors_.allocate(DType::kF32, {kSizes[7]}), expected = pool_.zeros(x.shape());
    gpu().fill_truncated_normal({x, {.seed = 7, .stream = fnv1a64("weights"), .std = 0.02, .truncation = truncation}});
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      expected.data<float>()[i] =
          static_cast<float>(0.02 * random.truncated_normal(static_cast<uint64_t>(i), truncation));
    }
    EXPECT_TRUE(same_bits(down(x), expected));
  }
}

TEST_F(CudaTensorOps, CopyMovesTheBytes) {
  for (const int64_t size : kSizes) {
    const Tensor x = normal({size}), y = up(pool_.zeros({size}));
    gpu().copy({up(x), y});
    EXPECT_TRUE(same_bits(down(y), x));
  }
  EXPECT_THROW(gpu().copy({up(normal({3})), up(normal({4}))}), CheckFailure);
}

TEST_F(CudaTensorOps, SumsAreThoseOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const int64_t size : kSizes) {
      const Tensor x = normal({size}, dtype, 1.0, 0.5), device = up(x, dtype);
      const Tensor sum = pool_.zeros(DType::kF64, {1}), squares = pool_.zeros(DType::kF64, {1});
      set(sum, 0, 5);
      set(squares, 0, 7);
      const Tensor device_sum = up(sum), device_squares = up(squares);
      cpu().sum({x, sum});
      cpu().sums_of_squares({.all = {{x, squares}}});
      gpu().sum({device, device_sum});
      gpu().sums_of_squares({.all = {{device, device_squares}}});
      // Both add up a million exact terms in fp64: rounding of 1e-16 each.
      EXPECT_TRUE(near(down(device_sum), sum, 1e-12)) << size;
      EXPECT_TRUE(near(down(device_squares), squares, 1e-12)) << size;
    }
  }
}

// More than a launch takes, some with a sum of their own, others with one together.
TEST_F(CudaTensorOps, SquaresOfManyTensorsAreThoseOfEachInTurn) {
  constexpr int64_t kTensors = 1000;
  const Tensor expected = pool_.zeros(DType::kF64, {kTensors}), alone = up(expected), together = up(expected);
  SumsOfSquares here, there;
  for (int64_t i = 0, sum = 0; i < kTensors; ++i) {
    const DType dtype = kActDTypes[static_cast<size_t>(i) % std::size(kActDTypes)];
    const Tensor x = normal({i % 6 == 0 ? i * 150 : i % 50}, dtype, 1.0, 0.5), device = up(x, dtype);
    if (i % 400 < 200) sum = i;
    Tensor parts, device_parts;  // sums of the squares, which are known of some
    if (i % 7 == 3) {
      parts = pool_.zeros(DType::kF64, {i, 3});
      std::iota(parts.span<double>().begin(), parts.span<double>().end(), 0.1);
      device_parts = up(parts);
    }
    here.all.push_back({x, expected.rows(sum, sum + 1), parts});
    there.all.push_back({device, together.rows(sum, sum + 1), device_parts});
    gpu().sums_of_squares({.all = {{device, alone.rows(sum, sum + 1), device_parts}}});
  }
  cpu().sums_of_squares(here);
  gpu().sums_of_squares(there);
  EXPECT_TRUE(same_bits(down(together), down(alone)));
  EXPECT_TRUE(near(down(together), expected, 1e-12));
}

TEST_F(CudaTensorOps, SumsAreTheSameBitsEveryTime) {
  const Tensor x = up(normal({1'000'003})), first = up(pool_.zeros(DType::kF64, {1}));
  gpu().sum({x, first});
  for (int run = 0; run < 5; ++run) {
    const Tensor again = up(pool_.zeros(DType::kF64, {1}));
    gpu().sum({x, again});
    EXPECT_TRUE(same_bits(down(again), down(first)));
  }
}

TEST_F(CudaTensorOps, CountNonFiniteFindsAll) {
  for (const DType dtype : kActDTypes) {
    for (const int64_t size : kSizes) {
      const Tensor x = normal({size}, dtype);
      int32_t expected = 3;
      for (int64_t i = 0; i < size; i += 1'001) {
        set(x, i, i % 3 == 0 ? kNan : i % 3 == 1 ? kInfinity : -kInfinity);
        ++expected;
      }
      const Tensor count = up(pool_.ints({1}, {3}));
      gpu().count_non_finite({up(x, dtype), count});
      EXPECT_EQ(get(down(count), 0), expected) << dtype_name(dtype) << " " << size;
    }
  }
}

TEST_F(CudaTensorOps, SumInOrderGoesByTheOrder) {
  constexpr int64_t kSize = 1001;
  const Tensor x = pool_.zeros(DType::kF64, {kSize}), order = pool_.zeros(DType::kI32, {kSize});
  for (int64_t i = 0; i < kSize; ++i) {
    set(x, i, std::sin(static_cast<double>(i)) * 1e3);
    set(order, i, static_cast<double>(i * 7 % kSize));
  }
  for (const bool ordered : {false, true}) {
    const Tensor expected = pool_.zeros(DType::kF64, {1}), actual = up(expected);
    cpu().sum_in_order({x, expected, ordered ? order : Tensor()});
    gpu().sum_in_order({up(x), actual, ordered ? up(order) : Tensor()});
    EXPECT_EQ(get(down(actual), 0), get(expected, 0)) << ordered;
  }
}

TEST_F(CudaTensorOps, ClipScaleIsThatOfTheCpu) {
  const auto f64 = [&](double value) {
    const Tensor x = pool_.zeros(DType::kF64, {1});
    set(x, 0, value);
    return x;
  };
  for (const double squares : {0.0, 4.0, 400.0, kInfinity, kNan}) {
    for (const double loss : {1.0, kInfinity, kNan}) {
      for (const double max_norm : {0.0, 1.0, 10.0}) {
        for (const double stopped : {0.0, 1.0}) {
          const Tensor expected = f64(-1), scale = up(expected);
          const Tensor expected_stop = pool_.zeros(DType::kI32, {1});
          set(expected_stop, 0, stopped);
          const Tensor stop = up(expected_stop);
          cpu().clip_scale({f64(squares), f64(loss), max_norm, expected, expected_stop});
          gpu().clip_scale({up(f64(squares)), up(f64(loss)), max_norm, scale, stop});
          const double actual = get(down(scale), 0), wanted = get(expected, 0);
          EXPECT_TRUE(std::isnan(wanted) ? std::isnan(actual) : actual == wanted) << actual << " for " << wanted;
          EXPECT_EQ(get(down(stop), 0), get(expected_stop, 0));
        }
      }
    }
  }
}

// Masters by their bits: every kind of float, halves of a BF16 unit on both sides, and what rounds to infinity.
TEST_F(CudaTensorOps, HalvesOfAMasterJoinToItsBits) {
  std::vector<uint32_t> bits = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x10000, 0x3F800000, 0x3F807FFF, 0x3F808000};
  for (const uint32_t special : {0x007FFFFFU, 0x00800000U, 0x7F7EFFFFU, 0x7F7F7FFFU, 0x7F7F8000U, 0x7F7FFFFFU}) {
    bits.push_back(special);
  }
  bits.push_back(0x7F800000);
  const Philox rng(3, 0);
  for (uint64_t i = 0; i < 100'001; ++i) {
    const auto random = static_cast<uint32_t>(rng.bits(i));
    if (std::isfinite(std::bit_cast<float>(random))) bits.push_back(random);
  }
  const auto count = static_cast<int64_t>(bits.size());
  const Tensor master = pool_.zeros({2 * count});
  for (int64_t i = 0; i < count; ++i) {
    master.data<float>()[2 * i] = std::bit_cast<float>(bits[static_cast<size_t>(i)]);
    master.data<float>()[2 * i + 1] = std::bit_cast<float>(bits[static_cast<size_t>(i)] ^ 0x80000000U);
  }
  const Tensor w = tensors_.allocate(DType::kBF16, {2 * count}), low = tensors_.allocate(DType::kI16, {2 * count});
  const Tensor joined = up(pool_.zeros({2 * count}));
  gpu().split_weight({up(master), w, low});
  gpu().join_weight({w, low, joined});
  EXPECT_TRUE(same_bits(down(joined), master));
  const Tensor rounded_masters = down(w);
  for (int64_t i = 0; i < 2 * count; ++i) {
    const float value = master.data<float>()[i], half = rounded_masters.data<float>()[i];
    if (std::abs(value) >= 0x1.ffp127F) {
      EXPECT_EQ(half, std::copysign(std::numeric_limits<float>::infinity(), value));
    } else {
      // Half a unit of a BF16 with 8 significant bits, or of the denormals.
      EXPECT_LE(std::abs(half - value), std::max(std::abs(value) * 0x1p-8F, 0x1p-134F)) << value;
    }
  }
}

TEST_F(CudaTensorOps, ANotANumberStaysOne) {
  const Tensor master = pool_.zeros({3}), joined = up(pool_.zeros({3}));
  const uint32_t nans[] = {0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001};
  for (int i = 0; i < 3; ++i) master.data<float>()[i] = std::bit_cast<float>(nans[i]);
  const Tensor w = tensors_.allocate(DType::kBF16, {3}), low = tensors_.allocate(DType::kI16, {3});
  gpu().split_weight({up(master), w, low});
  gpu().join_weight({w, low, joined});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(get(down(w), i)));
    EXPECT_TRUE(std::isnan(get(down(joined), i)));
  }
}

TEST_F(CudaTensorOps, WeightsWithoutALowPartAreCopied) {
  const Tensor master = normal({1'001}), w = up(pool_.zeros({1'001})), joined = up(pool_.zeros({1'001}));
  gpu().split_weight({up(master), w, {}});
  gpu().join_weight({w, {}, joined});
  EXPECT_TRUE(same_bits(down(joined), master));
  EXPECT_THROW(gpu().split_weight({up(master), tensors_.allocate(DType::kBF16, {1'001}), {}}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
