// Gradients in BF16: how products are added to them, and that whoever reads them reads what they are.
#include <bit>
#include <cmath>
#include <cstring>

#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {
namespace {

class Gradients : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 7, kCols = 13, kSize = kRows * kCols;

  static uint16_t* bits_of(const Tensor& x) { return static_cast<uint16_t*>(x.raw()); }
  static std::vector<float> floats_of(const Tensor& x) {
    std::vector<float> floats(static_cast<size_t>(x.num_elements()));
    widen(DType::kBF16, x.raw(), floats.data(), floats.size());
    return floats;
  }
  // Gradients of `num_experts` in their slots, each with rows unless `empty` names it.
  AddGradient sums(int64_t num_experts, Tensor product, Tensor sum, bool accumulate, int64_t empty = -1) {
    std::vector<double> offsets = {0};
    for (int64_t e = 0; e < num_experts; ++e) offsets.push_back(offsets.back() + (e == empty ? 0 : 3));
    return {
        .product = product, .offsets = pool_.ints({num_experts + 1}, offsets), .sum = sum, .accumulate = accumulate};
  }
  Tensor key(int64_t value) {
    const Tensor key = pool_.zeros(DType::kI64, {1});
    *key.data<int64_t>() = value;
    return key;
  }

  TensorPool pool_{DType::kF32};
};

TEST_F(Gradients, WithoutAKeyAreRoundedToNearest) {
  const Tensor product = pool_.normal({3, kRows, kCols}), more = pool_.normal({3, kRows, kCols}, 0.1);
  const Tensor sum = pool_.zeros(DType::kBF16, {3, kRows, kCols});
  const auto ops = cpu_device(DType::kF32);
  ops->add_gradient(sums(3, product, sum, /*accumulate=*/false));
  for (int64_t i = 0; i < sum.num_elements(); ++i) {
    ASSERT_EQ(bits_of(sum)[i], float_to_bf16(product.data<float>()[i])) << i;
  }
  const std::vector<float> before = floats_of(sum);
  ops->add_gradient(sums(3, more, sum, /*accumulate=*/true, /*empty=*/1));
  for (int64_t i = 0; i < sum.num_elements(); ++i) {
    const float added = i / kSize == 1 ? 0.0F : more.data<float>()[i];  // an expert without rows is left as it is
    ASSERT_EQ(bits_of(sum)[i], float_to_bf16(before[static_cast<size_t>(i)] + added)) << i;
  }
}

// One of the two neighbours, and in the mean over keys the value itself; a value of BF16 is left, and what is not
// finite.
TEST_F(Gradients, RoundedAtRandomHaveTheMeanOfWhatTheyWere) {
  constexpr int kKeys = 4000;
  const Tensor product = pool_.normal({2, kRows, kCols}), sum = pool_.zeros(DType::kBF16, {2, kRows, kCols});
  float* const value = product.data<float>();
  value[0] = 1.5F, value[1] = HUGE_VALF, value[2] = std::nanf("");
  const auto ops = cpu_device(DType::kF32);
  std::vector<double> mean(static_cast<size_t>(sum.num_elements()));
  for (int step = 0; step < kKeys; ++step) {
    AddGradient args = sums(2, product, sum, /*accumulate=*/false);
    args.random = {.key = key(step), .stream = 5};
    ops->add_gradient(args);
    ASSERT_EQ(bf16_to_float(bits_of(sum)[0]), 1.5F);
    ASSERT_EQ(bf16_to_float(bits_of(sum)[1]), HUGE_VALF);
    ASSERT_TRUE(std::isnan(bf16_to_float(bits_of(sum)[2])));
    for (int64_t i = 3; i < sum.num_elements(); ++i) {
      const uint32_t lower = std::bit_cast<uint32_t>(value[i]) >> 16;
      ASSERT_TRUE(bits_of(sum)[i] == lower || bits_of(sum)[i] == lower + 1) << i;
      mean[static_cast<size_t>(i)] += bf16_to_float(bits_of(sum)[i]) / static_cast<double>(kKeys);
    }
  }
  for (int64_t i = 3; i < sum.num_elements(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(value[i]);
    const double apart =
        std::abs(std::bit_cast<float>((bits | 0xFFFFU) + 1) - std::bit_cast<float>(bits & 0xFFFF0000U));
    // Five deviations of a mean of so many, each at most half of what neighbours are apart.
    EXPECT_NEAR(mean[static_cast<size_t>(i)], value[i], 5 * 0.5 * apart / std::sqrt(double{kKeys})) << i;
  }
}

// Of what is too small to move it to nearest: microbatches late in a step.
TEST_F(Gradients, AddUpWhatIsSmall) {
  constexpr int kAdded = 512;
  constexpr int64_t kMany = 64;
  const Tensor small = pool_.full({1, kMany, kMany}, 0x1p-11), first = pool_.full({1, kMany, kMany}, 1.0);
  const auto added = [&](bool at_random) {
    const Tensor sum = pool_.zeros(DType::kBF16, {1, kMany, kMany});
    const auto ops = cpu_device(DType::kF32);
    for (int i = 0; i <= kAdded; ++i) {
      AddGradient args = sums(1, i == 0 ? first : small, sum, /*accumulate=*/i > 0);
      if (at_random) args.random = {.key = key(9), .stream = static_cast<uint64_t>(i)};
      ops->add_gradient(args);
    }
    double mean = 0.0;
    for (const float value : floats_of(sum)) mean += value / static_cast<double>(sum.num_elements());
    return mean;
  };
  EXPECT_EQ(added(false), 1.0);
  // Each of the additions moves a sum by 2^-7 with probability 2^-4, or not.
  const double deviation = 0x1p-7 * std::sqrt(kAdded * 0x1p-4 * (1 - 0x1p-4)) / static_cast<double>(kMany);
  EXPECT_NEAR(added(true), 1.0 + kAdded * 0x1p-11, 5 * deviation);
}

TEST_F(Gradients, RandomBitsBelongToElementsOfTheWholeTensor) {
  const Tensor product = pool_.normal({5, kRows, kCols}), whole = pool_.zeros(DType::kBF16, {5, kRows, kCols});
  const std::vector<double> here = {3, 0, 4};
  const Tensor mine = pool_.zeros({3, kRows, kCols}), part = pool_.zeros(DType::kBF16, {3, kRows, kCols});
  for (int64_t slot = 0; slot < 3; ++slot) {
    std::memcpy(mine[slot].raw(), product[static_cast<int64_t>(here[static_cast<size_t>(slot)])].raw(),
                kSize * sizeof(float));
  }
  for (const bool accumulate : {false, true}) {
    AddGradient all = sums(5, product, whole, accumulate), some = sums(3, mine, part, accumulate);
    all.random = {.key = key(3), .stream = 17};
    some.random = {.key = key(3), .stream = 17, .matrices = pool_.ints({3}, here)};
    cpu_device(DType::kF32, 1)->add_gradient(all);
    cpu_device(DType::kF32, 3)->add_gradient(some);
    for (int64_t slot = 0; slot < 3; ++slot) {
      const Tensor expected = whole[static_cast<int64_t>(here[static_cast<size_t>(slot)])];
      EXPECT_EQ(std::memcmp(part[slot].raw(), expected.raw(), kSize * sizeof(uint16_t)), 0) << slot;
    }
    // Other bits for another product, and for another step.
    for (const auto& [step, stream] : {std::pair<int64_t, uint64_t>{3, 18}, {4, 17}}) {
      const Tensor other = pool_.zeros(DType::kBF16, {5, kRows, kCols});
      AddGradient args = sums(5, product, other, /*accumulate=*/false);
      args.random = {.key = key(step), .stream = stream};
      cpu_device(DType::kF32)->add_gradient(args);
      EXPECT_NE(std::memcmp(other.raw(), whole.raw(), static_cast<size_t>(whole.num_bytes())), 0);
    }
  }
}

// A gradient in BF16 is what it widens to: for both optimizers, with moments in either format, the norm, and the search
// for what is not finite.
TEST_F(Gradients, AreReadAsTheyWiden) {
  const Shape shape({3, 24, 40});
  const Tensor grad = pool_.zeros(DType::kBF16, shape), wide = pool_.normal(shape);
  narrow(wide.data<float>(), DType::kBF16, grad.raw(), static_cast<size_t>(wide.num_elements()));
  widen(DType::kBF16, grad.raw(), wide.data<float>(), static_cast<size_t>(wide.num_elements()));
  const Tensor w = pool_.normal(shape), scale = pool_.zeros(DType::kF64, {1}), rates = pool_.zeros(DType::kF64, {3});
  set(scale, 0, 0.7);
  for (int64_t i = 0; i < 3; ++i) set(rates, i, 0.01 + static_cast<double>(i));
  const auto ops = cpu_device(DType::kF32);
  for (const DType format : {DType::kF32, DType::kBF16}) {
    for (const bool muon : {false, true}) {
      const auto stepped = [&](const Tensor& gradient) {
        const Tensor updated = pool_.clone(w), m = pool_.zeros(format, shape), v = pool_.zeros(format, shape);
        const MomentRounding random = {.key = format == DType::kBF16 ? key(1) : Tensor()};
        if (muon) {
          ops->muon_step(
              {.w = updated, .grad = gradient, .momentum = m, .grad_scale = scale, .rates = rates, .random = random});
        } else {
          ops->adamw_steps({.all = {{.w = updated,
                                     .grad = gradient,
                                     .m = m,
                                     .v = v,
                                     .grad_scale = scale,
                                     .rates = rates,
                                     .random = random}}});
        }
        return std::vector<Tensor>{updated, m, v};
      };
      const std::vector<Tensor> halves = stepped(grad), whole = stepped(wide);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(std::memcmp(halves[i].raw(), whole[i].raw(), static_cast<size_t>(whole[i].num_bytes())), 0)
            << dtype_name(format) << " " << muon << " " << i;
      }
    }
  }
  const Tensor squares = pool_.zeros(DType::kF64, {1}), expected = pool_.zeros(DType::kF64, {1});
  ops->sums_of_squares({.all = {{grad, squares}}});
  ops->sums_of_squares({.all = {{wide, expected}}});
  EXPECT_EQ(get(squares, 0), get(expected, 0));
  bits_of(grad)[5] = 0x7F80, bits_of(grad)[9] = 0xFFC0;  // -> infinity, NaN
  const Tensor count = pool_.zeros(DType::kI32, {1});
  ops->count_non_finite({grad, count});
  EXPECT_EQ(get(count, 0), 2);
}

}  // namespace
}  // namespace nmoe::test
