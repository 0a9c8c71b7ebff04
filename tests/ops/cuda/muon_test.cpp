#include "ops/cuda/optimizer_test.h"
#include "ops/newton_schulz.h"

namespace nmoe::test {
namespace {

using CudaMuon = CudaOptimizerTest;

// Wide, tall and square; stacks, of which some have no aligned stride; more than a slice.
const Shape kMatrixShapes[] = {{0, 4, 4},    {1, 1},       {3, 5},     {5, 3},     {3, 7, 7},
                               {2, 64, 160}, {4, 160, 64}, {128, 128}, {300, 200}, {5, 3, 40}};

// The largest difference, relative to the largest value. An iteration multiplies small singular values by up to 3.4 and
// with them what fp32 rounds: element by element nothing holds.
double distance(Tensor actual, const std::vector<double>& expected) {
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    const double value = expected[static_cast<size_t>(i)];
    largest = std::max(largest, std::abs(value));
    if (const double error = std::abs(get(actual, i) - value); !(error <= difference)) difference = error;
  }
  return largest == 0 ? difference : difference / largest;
}

TEST_F(CudaMuon, StepsAreThoseOfTheCpuInDoublePrecision) {
  TensorPool doubles(DType::kF64);
  const auto widened = [&](Tensor x) { return doubles.of(x.shape(), values(x)); };
  for (const Shape& shape : kMatrixShapes) {
    const Tensor w = normal(shape), momentum = normal(shape);
    const Tensor exact_w = widened(w), exact_momentum = widened(momentum);
    const Weight whole = weight(w, DType::kF32), halves = weight(w, DType::kBF16);
    const Tensor whole_momentum = up(momentum), halves_momentum = up(momentum);
    for (int step = 0; step < 2; ++step) {
      const Tensor grad = normal(shape), scale = f64({0.5}), rates = f64({0.1, 1, 1});
      const auto args = [&](Tensor weights, Tensor low, Tensor gradient, Tensor momentum_of, bool on_device) {
        MuonStep result;
        result.w = weights;
        result.low = low;
        result.grad = gradient;
        result.momentum = momentum_of;
        result.grad_scale = on_device ? up(scale) : scale;
        result.rates = on_device ? up(rates) : rates;
        result.weight_decay = 0.1;
        return result;
      };
      cpu(DType::kF64).muon_step(args(exact_w, {}, widened(grad), exact_momentum, false));
      gpu().muon_step(args(whole.w, {}, up(grad), whole_momentum, true));
      gpu().muon_step(args(halves.w, halves.low, up(grad), halves_momentum, true));
    }
    // 5 iterations: 3.4^5 roundings of 6e-8, and those of the products' sums.
    EXPECT_LE(distance(master(whole), values(exact_w)), 1e-3) << shape.to_string();
    EXPECT_LE(distance(down(whole_momentum), values(exact_momentum)), 1e-6) << shape.to_string();
    // Factors rounded to 11 bits: 3.4^5 times 5e-4 of an update that is a tenth of the weights at most.
    EXPECT_LE(distance(master(halves), values(exact_w)), 2e-2) << shape.to_string();
    EXPECT_TRUE(same_bits(down(halves_momentum), down(whole_momentum))) << shape.to_string();
  }
}

// The same roundings as the CPU's, but for those that sums in another order turn: as far apart as the CPU's own in fp32
// and fp64 (tests/ops/muon_test.cpp), whatever the weights are.
TEST_F(CudaMuon, ProductsInBf16AreThoseOfTheCpu) {
  for (const Shape& shape : kMatrixShapes) {
    const Tensor grad = normal(shape), momentum = normal(shape), scale = f64({0.5}), rates = f64({1.0});
    for (const DType dtype : kActDTypes) {
      for (const int iterations : {1, 5}) {
        SCOPED_TRACE(fmt::format("{}, {}, {} iterations", shape, dtype_name(dtype), iterations));
        const Tensor w = pool_.zeros(DType::kF32, shape), cpu_momentum = pool_.clone(momentum);
        const Tensor gpu_momentum = up(momentum);
        const Weight gpu_w = weight(w, dtype);
        const auto args = [&](Tensor w_of, Tensor low, Tensor momentum_of, auto place) {
          MuonStep of{.w = w_of, .low = low, .grad = place(grad), .momentum = momentum_of};
          of.grad_scale = place(scale);
          of.rates = place(rates);
          of.iterations = iterations;
          of.products = MuonProducts::kBf16;
          return of;
        };
        cpu().muon_step(args(w, {}, cpu_momentum, [](Tensor x) { return x; }));
        gpu().muon_step(args(gpu_w.w, gpu_w.low, gpu_momentum, [&](Tensor x) { return up(x); }));
        EXPECT_LE(relative_distance(values(master(gpu_w)), values(w)), most_bf16_distance(iterations));
        EXPECT_LE(distance(down(gpu_momentum), values(cpu_momentum)), 1e-6);
      }
    }
  }
}

// Sizes that 16 bytes divide, and others; experts of two matrices in any slots, or one range. The momentum has the
// CPU's bits; weights are as near as those of a momentum in F32.
TEST_F(CudaMuon, AMomentumInBf16IsThatOfTheCpu) {
  struct Case {
    Shape shape;
    int64_t first;
    std::vector<double> matrices;
  };
  for (const Case& c : {Case{{2, 64, 160}, 0, {}}, Case{{3, 7, 7}, 0, {}}, Case{{300, 200}, 8, {}},
                        Case{{64, 64}, 3, {}}, Case{{6, 24, 40}, 0, {4, 0, 2}}, Case{{4, 5, 3}, 0, {1, 0}}}) {
    for (const DType dtype : kActDTypes) {
      const Tensor w = normal(c.shape), momentum = pool_.zeros(DType::kBF16, c.shape);
      const Weight device_w = weight(w, dtype);
      const Tensor device_momentum = up(momentum), key = pool_.zeros(DType::kI64, {1});
      const Tensor matrices =
          c.matrices.empty() ? Tensor() : pool_.ints({static_cast<int64_t>(c.matrices.size())}, c.matrices);
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = normal(c.shape), scale = f64({0.7}), rates = f64({0.1});
        *key.data<int64_t>() = 0x123456789ABCDEF0 + step;
        const auto args = [&](Tensor w_of, Tensor low, Tensor momentum_of, auto place) {
          MuonStep of{.w = w_of, .low = low, .grad = place(grad), .momentum = momentum_of};
          of.grad_scale = place(scale);
          of.rates = place(rates);
          of.random = {.key = place(key), .stream = 0xFEDCBA9876543210, .first = c.first, .matrices = place(matrices)};
          return of;
        };
        cpu().muon_step(args(w, {}, momentum, [](Tensor x) { return x; }));
        gpu().muon_step(args(device_w.w, device_w.low, device_momentum, [&](Tensor x) { return up(x); }));
      }
      const Tensor wide = pool_.zeros(DType::kF32, c.shape);
      widen(DType::kBF16, momentum.raw(), wide.data<float>(), static_cast<size_t>(wide.num_elements()));
      EXPECT_TRUE(same_bits(down(device_momentum), wide)) << c.shape.to_string();
      EXPECT_LE(distance(master(device_w), values(w)), dtype == DType::kF32 ? 1e-3 : 2e-2) << c.shape.to_string();
    }
  }
}

// Gate and up, stacked: each is orthogonalised by itself, and scaled by its own shape.
TEST_F(CudaMuon, EveryMatrixOfAStackIsOrthogonalisedByItself) {
  const Shape shape = {2, 24, 40};
  const Tensor grad = normal(shape);
  MuonStep args;
  args.w = up(pool_.zeros(DType::kF32, shape));
  args.grad = up(grad);
  args.momentum = up(pool_.zeros(DType::kF32, shape));
  args.grad_scale = up(f64({1.0}));
  args.rates = up(f64({1.0}));
  gpu().muon_step(args);
  std::vector<double> expected;
  for (int64_t i = 0; i < 2; ++i) {
    for (const auto& row : newton_schulz(matrix_of(grad[i]), args.iterations)) {
      for (const double value : row) expected.push_back(-0.2 * std::sqrt(40.0) * value);
    }
  }
  EXPECT_LE(distance(down(args.w), expected), 1e-3);
}

TEST_F(CudaMuon, NothingChangesWithoutAFiniteScale) {
  const Tensor w = normal({2, 6, 9}), momentum = normal({2, 6, 9});
  const Weight device_w = weight(w, DType::kBF16);
  MuonStep args;
  args.w = device_w.w;
  args.low = device_w.low;
  args.grad = up(normal({2, 6, 9}));
  args.momentum = up(momentum);
  args.grad_scale = up(f64({std::nan("")}));
  args.rates = up(f64({0.1}));
  gpu().muon_step(args);
  EXPECT_TRUE(same_bits(master(device_w), w));
  EXPECT_TRUE(same_bits(down(args.momentum), momentum));
}

// What a counting run asks for is what a step takes.
TEST_F(CudaMuon, ScratchIsWhatACountingRunSays) {
  MuonStep args;
  args.w = up(normal({4, 30, 50}));
  args.grad = up(normal({4, 30, 50}));
  args.momentum = up(normal({4, 30, 50}));
  args.grad_scale = up(f64({1}));
  args.rates = up(f64({0.1}));
  for (const MuonProducts products : {MuonProducts::kBf16, MuonProducts::kDevice}) {  // which needs more
    args.products = products;
    const int64_t counted = counted_scratch([&](Ops& ops) { ops.muon_step(args); });
    gpu().muon_step(args);
    EXPECT_GT(counted, 0);
    EXPECT_EQ(counted, gpu().scratch().high_water());
  }
}

}  // namespace
}  // namespace nmoe::test
