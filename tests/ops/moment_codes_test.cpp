// AdamW's moments in 8 bits against their definition: formats in powers of two, blocks, and random bits of elements.
#include "ops/moment_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "support/tensors.h"

namespace nmoe::test {
namespace {

// The value of a code with 3 mantissa bits.
double value_of(int code, int bias) {
  const int exponent = code / 8, mantissa = code % 8;
  return exponent == 0 ? std::ldexp(mantissa, -2 - bias) : std::ldexp(8 + mantissa, exponent - bias - 3);
}

struct Format {
  int bias, most;
  uint8_t (*to_code)(float, uint32_t);
  float (*to_float)(uint8_t);
};
constexpr Format kFormats[] = {{7, 0x7E, moments::first_code, e4m3_to_float},
                               {15, 0xFF, moments::second_code, moments::ue5m3_to_float}};

TEST(MomentCodes, AreTheirDefinition) {
  EXPECT_EQ(value_of(0xFF, 15), moments::kUE5M3Max);
  for (const auto& [bias, most, to_code, to_float] : kFormats) {
    for (int code = 0; code <= most; ++code) {
      const float value = to_float(static_cast<uint8_t>(code));
      ASSERT_EQ(value, value_of(code, bias)) << code;
      for (const uint32_t random : {0U, 1U, 0x8000U, 0xFFFFU}) ASSERT_EQ(to_code(value, random), code) << random;
    }
  }
  EXPECT_EQ(moments::first_code(-448.0F, 0xFFFF), 0xFE);
  EXPECT_EQ(e4m3_to_float(moments::first_code(-0.75F, 7)), -0.75F);
}

// All random bits together give the value itself, to what 16 bits resolve.
TEST(MomentCodes, AreAtEitherNeighbourAndRightInTheMean) {
  for (const auto& [bias, most, to_code, to_float] : kFormats) {
    for (const int code : {1, 3, 7, 8, 15, 16, 77, most - 1}) {
      for (const double way : {0x1p-16, 0.25, 0.7, 1.0 - 0x1p-16}) {
        const double lower = value_of(code, bias), upper = value_of(code + 1, bias);
        const auto x = static_cast<float>(lower + way * (upper - lower));
        double sum = 0;
        for (uint32_t random = 0; random < 0x10000U; ++random) {
          const int rounded = to_code(x, random);
          ASSERT_TRUE(rounded == code || rounded == code + 1) << code << " " << rounded;
          sum += value_of(rounded, bias);
        }
        EXPECT_NEAR(sum * 0x1p-16, x, 0x1p-15 * (upper - lower)) << code << " " << way;
      }
    }
  }
}

// A step divides by its root.
TEST(MomentCodes, ASecondMomentBecomesZeroOnlyIfItIs) {
  for (const uint32_t random : {0U, 0xFFFFU}) {
    EXPECT_EQ(moments::second_code(0.0F, random), 0);
    EXPECT_EQ(moments::second_code(0x1p-60F, random), 1);
    EXPECT_EQ(moments::second_code(0x1p-149F, random), 1);
  }
  EXPECT_EQ(moments::first_code(0x1p-60F, 0), 0);
}

TEST(MomentCodes, ABlocksLargestHasRoom) {
  for (const float amax : {1.0F, 447.9F, 448.0F, 448.1F, 3e-20F, 1e30F, 0x1p-140F, 122880.0F, 122881.0F}) {
    const float first = amax / e8m0_to_float(moments::first_scale(amax)),
                second = amax / e8m0_to_float(moments::second_scale(amax));
    EXPECT_LE(first, 448.0F) << amax;
    EXPECT_LE(second, moments::kUE5M3Max) << amax;
    if (amax > 1e-30F) {
      EXPECT_GT(first, 223.9F) << amax;
      EXPECT_GT(second, 61439.9F) << amax;
    }
  }
}

// One parameter tensor, or some of its elements or matrices.
struct CodedRun {
  CodedRun(int64_t first, int64_t last, int num_threads = 2)
      : begin(first), end(last), ops(cpu_device(DType::kF32, num_threads)) {}

  void step(Tensor grads, int number, double beta2 = 0.95) { step_with(grads.rows(begin, end), number, beta2); }
  void step_with(Tensor grad, int number, double beta2 = 0.95) {
    set(grad_scale, 0, 1.0);
    *key.data<int64_t>() = number;
    const double correction1 = 1 / (1 - std::pow(0.9, number)), correction2 = 1 / (1 - std::pow(beta2, number));
    for (const auto& [i, rate] : {std::pair{0, 1e-3}, {1, correction1}, {2, correction2}}) set(rates, i, rate);
    ops->adamw_steps({.all = {{.w = w,
                               .grad = grad,
                               .m = m,
                               .v = v,
                               .m_scales = m_scales,
                               .v_scales = v_scales,
                               .grad_scale = grad_scale,
                               .rates = rates,
                               .random = {.key = key, .stream = 17, .first = begin, .matrices = matrices},
                               .beta2 = beta2}}});
  }
  // In matrices of this size, which are those of these numbers.
  void place(int64_t size, const std::vector<double>& numbers) {
    matrices = pool.ints({static_cast<int64_t>(numbers.size())}, numbers);
    const int64_t blocks = static_cast<int64_t>(numbers.size()) * moments::num_blocks(size);
    m_scales = pool.zeros(DType::kU8, {blocks}), v_scales = pool.zeros(DType::kU8, {blocks});
  }
  double first(int64_t i) const {
    return e4m3_to_float(m.data<uint8_t>()[i]) * e8m0_to_float(m_scales.data<uint8_t>()[i / moments::kBlock]);
  }
  double second(int64_t i) const {
    return moments::ue5m3_to_float(v.data<uint8_t>()[i]) * e8m0_to_float(v_scales.data<uint8_t>()[i / moments::kBlock]);
  }
  int64_t begin, end;
  ReadyDevice ops;
  TensorPool pool{DType::kF32};
  Tensor w = pool.zeros({end - begin}), matrices;
  Tensor m = pool.zeros(DType::kU8, {end - begin}), v = pool.zeros(DType::kU8, {end - begin});
  Tensor m_scales = pool.zeros(DType::kU8, {moments::num_blocks(end - begin)}),
         v_scales = pool.zeros(DType::kU8, {moments::num_blocks(end - begin)});
  Tensor key = pool.zeros(DType::kI64, {1}), grad_scale = pool.zeros(DType::kF64, {1}),
         rates = pool.zeros(DType::kF64, {3});
};

std::vector<uint8_t> bytes_of(Tensor x) {
  const auto* const first = static_cast<const uint8_t*>(x.raw());
  return {first, first + x.num_elements()};
}

// A step takes the moments as they are before rounding, and what stays is not farther than a neighbour; with elements
// of very different sizes in a block, and a last block that is not whole.
TEST(CodedMoments, AreRoundedBehindTheStep) {
  constexpr int64_t kSize = 3 * moments::kBlock + 37;
  CodedRun run(0, kSize);
  for (int number = 1; number <= 5; ++number) {
    const Tensor grad = run.pool.normal({kSize});
    for (int64_t i = 0; i < kSize; ++i) grad.data<float>()[i] *= std::ldexp(1.0F, static_cast<int>(i % 9) - 4);
    std::vector<double> m, v, w;
    double m_most[4] = {}, v_most[4] = {};
    for (int64_t i = 0; i < kSize; ++i) {
      const double g = grad.data<float>()[i];
      m.push_back(0.9 * run.first(i) + 0.1 * g);
      v.push_back(0.95 * run.second(i) + 0.05 * g * g);
      const double direction =
          m.back() / (1 - std::pow(0.9, number)) / (std::sqrt(v.back() / (1 - std::pow(0.95, number))) + 1e-8);
      w.push_back(get(run.w, i) - 1e-3 * direction);
      const auto block = static_cast<size_t>(i / moments::kBlock);
      m_most[block] = std::max(m_most[block], std::abs(m.back()));
      v_most[block] = std::max(v_most[block], v.back());
    }
    run.step(grad, number);
    for (int64_t i = 0; i < kSize; ++i) {  // steps of 1e-3 in fp32
      ASSERT_NEAR(get(run.w, i), w[static_cast<size_t>(i)], 2e-9) << number << " " << i;
    }
    for (int64_t i = 0; i < kSize; ++i) {
      const auto at = static_cast<size_t>(i), block = static_cast<size_t>(i / moments::kBlock);
      ASSERT_LE(std::abs(run.first(i) - m[at]), std::max(std::abs(m[at]) / 8, 2 * m_most[block] / 448 * 0x1p-9));
      ASSERT_LE(std::abs(run.second(i) - v[at]), std::max(v[at] / 8, 2 * v_most[block] / 122880 * 0x1p-17));
    }
  }
}

// As with BF16 (adamw_test.cpp): to nearest, v would stand still above its square for ever.
TEST(CodedMoments, FollowWhatTheyWouldBeInFp32) {
  constexpr int64_t kSize = 40'000;
  constexpr double kBeta2 = 0.999;
  CodedRun run(0, kSize);
  TensorPool pool(DType::kF32);
  double m = 0, v = 0;
  for (int step = 1; step <= 600; ++step) {
    const double g = step <= 200 ? 1.0 : 0.5;
    run.step(pool.full({kSize}, g), step, kBeta2);
    m = 0.9 * m + 0.1 * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    if (step % 200 != 0) continue;
    double first = 0, second = 0, squares = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      first += run.first(i) / kSize, second += run.second(i) / kSize;
      squares += std::pow(run.second(i) / v - 1, 2);
    }
    // One element's is off by a quarter at most (ops/moment_codes.h), the mean over 40,000 by a 200th of that; twice.
    EXPECT_NEAR(first, m, 2.5e-3 * m) << step;
    EXPECT_NEAR(second, v, 2.5e-3 * v) << step;
    EXPECT_LT(std::sqrt(squares / kSize), 0.3) << step;
    EXPECT_GT(std::sqrt(squares / kSize), 0.05) << step;
  }
}

// However a tensor is cut between blocks, and in whichever slots its matrices are.
TEST(CodedMoments, BitsBelongToElements) {
  constexpr int64_t kMatrices = 5, kMatrix = 203, kSize = kMatrices * kMatrix;
  TensorPool pool(DType::kF32);
  std::vector<Tensor> grads;
  for (int step = 0; step < 3; ++step) grads.push_back(pool.normal({kSize}));
  const auto drive = [&](CodedRun& run) {
    for (int step = 0; step < 3; ++step) run.step(grads[static_cast<size_t>(step)], step + 1);
  };
  CodedRun whole(0, kSize), one_thread(0, kSize, 1);
  drive(whole);
  drive(one_thread);
  EXPECT_EQ(bytes_of(whole.m), bytes_of(one_thread.m));
  EXPECT_EQ(bytes_of(whole.v_scales), bytes_of(one_thread.v_scales));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 256}, {256, 384}, {384, kSize}}) {
    CodedRun part(begin, end);
    drive(part);
    EXPECT_EQ(bytes_of(part.m), bytes_of(whole.m.rows(begin, end))) << begin;
    EXPECT_EQ(bytes_of(part.v), bytes_of(whole.v.rows(begin, end))) << begin;
    EXPECT_TRUE(same_bits(part.w, whole.w.rows(begin, end))) << begin;
  }

  CodedRun stacked(0, kSize), some(0, 3 * kMatrix);
  stacked.place(kMatrix, {0, 1, 2, 3, 4});
  drive(stacked);
  const std::vector<double> here = {3, 0, 4};
  some.place(kMatrix, here);
  const Tensor grad = pool.zeros({3 * kMatrix});
  for (int step = 0; step < 3; ++step) {
    for (int64_t slot = 0; slot < 3; ++slot) {
      std::memcpy(grad.data<float>() + slot * kMatrix,
                  grads[static_cast<size_t>(step)].data<float>() +
                      static_cast<int64_t>(here[static_cast<size_t>(slot)]) * kMatrix,
                  kMatrix * sizeof(float));
    }
    some.step_with(grad, step + 1);
  }
  for (int64_t slot = 0; slot < 3; ++slot) {
    const auto from = static_cast<int64_t>(here[static_cast<size_t>(slot)]);
    const auto rows = [](Tensor x, int64_t i) { return bytes_of(x.rows(i * kMatrix, (i + 1) * kMatrix)); };
    EXPECT_EQ(rows(some.m, slot), rows(stacked.m, from)) << from;
    EXPECT_EQ(rows(some.v, slot), rows(stacked.v, from)) << from;
    EXPECT_EQ(bytes_of(some.m_scales.rows(2 * slot, 2 * slot + 2)),
              bytes_of(stacked.m_scales.rows(2 * from, 2 * from + 2)));
  }
}

TEST(CodedMoments, OneThatIsNotFiniteShowsItself) {
  CodedRun run(0, 300);
  Tensor grad = run.pool.full({300}, 1.0);
  grad.data<float>()[130] = INFINITY;
  run.step(grad, 1);
  for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(run.first(i)), i >= 128 && i < 256) << i;
  run.step(run.pool.full({300}, 1.0), 2);
  for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(get(run.w, i)), i >= 128 && i < 256) << i;
}

TEST(CodedMoments, WantScalesAndRandomBits) {
  const auto refuses = [](const auto& change) {
    CodedRun run(0, 300);
    change(run);
    EXPECT_THROW(run.step_with(run.pool.zeros({300}), 1), CheckFailure);
  };
  refuses([](CodedRun& run) { run.m_scales = {}; });
  refuses([](CodedRun& run) { run.v_scales = run.pool.zeros(DType::kU8, {2}); });
  refuses([](CodedRun& run) { run.begin = 64; });
  refuses([](CodedRun& run) { run.m = run.pool.zeros({300}); });
}

}  // namespace
}  // namespace nmoe::test
