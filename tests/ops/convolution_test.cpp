#include <cmath>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

struct Convolution {
  Convolution(DType real, int64_t num_seqs, int64_t seq_len, int64_t width, int num_threads = 2) : pool(real) {
    const int64_t T = num_seqs * seq_len;
    ops = cpu_device(real, num_threads);
    in.num_seqs = num_seqs;
    in.seq_len = seq_len;
    in.x = pool.apart(pool.normal({T, width}), 2);
    in.weight = pool.normal({width, 4}, 0.5);
    in.bias = pool.normal({width}, 0.5);
    y = pool.full({T, width}, 7.0);
    dy = pool.normal({T, width});
    dx = pool.apart(pool.full({T, width}, 7.0), 1);
    dweight = pool.zeros({width, 4});
    dbias = pool.zeros({width});
  }
  Shape boundary() const { return {in.num_seqs, 3, in.x.dim(1)}; }
  void continue_elsewhere() {
    in.before = pool.normal(boundary());
    after = pool.full(boundary(), 7.0);
    dafter = pool.normal(boundary());
    dbefore = pool.full(boundary(), 7.0);
  }
  void without_bias() { in.bias = dbias = {}; }
  void documents(const std::vector<double>& bounds) {
    in.cu_seqlens = pool.ints({static_cast<int64_t>(bounds.size())}, bounds);
  }
  void forward() const { ops->convolution_forward({in, y, after}); }
  void backward() const {
    ops->fill({dweight, 0.0});
    if (dbias.defined()) ops->fill({dbias, 0.0});
    ops->convolution_backward({in, dy, dafter, dx, dweight, dbias, dbefore});
  }
  void expect_gradients() const {
    const auto loss = [&] {
      forward();
      return dot(y, dy) + (after.defined() ? dot(after, dafter) : 0);
    };
    backward();
    EXPECT_TRUE(gradient_matches(loss, in.x, dx));
    EXPECT_TRUE(gradient_matches(loss, in.weight, dweight));
    if (in.bias.defined()) {
      EXPECT_TRUE(gradient_matches(loss, in.bias, dbias));
    }
    if (in.before.defined()) {
      EXPECT_TRUE(gradient_matches(loss, in.before, dbefore));
    }
  }

  TensorPool pool;
  ReadyDevice ops;
  ConvolutionInputs in;
  Tensor y, dy, dx, dweight, dbias, after, dafter, dbefore;
};

// By the definition, of documents that begin at `begins`.
std::vector<double> expected(const Convolution& of, const std::vector<int64_t>& begins) {
  const int64_t width = of.in.x.dim(1), S = of.in.seq_len;
  std::vector<double> y;
  for (int64_t t = 0; t < of.in.x.dim(0); ++t) {
    int64_t begin = t / S * S;
    for (const int64_t each : begins) begin = each <= t ? std::max(begin, each) : begin;
    for (int64_t w = 0; w < width; ++w) {
      double pre = of.in.bias.defined() ? get(of.in.bias, w) : 0;
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t at = t - 3 + k, beyond = begin - at;
        double value = 0;
        if (beyond <= 0) {
          value = get(of.in.x, at * width + w);
        } else if (of.in.before.defined() && begin % S == 0 && beyond <= 3) {
          value = get(of.in.before, (begin / S * 3 + 3 - beyond) * width + w);
        }
        pre += get(of.in.weight, w * 4 + k) * value;
      }
      y.push_back(pre / (1 + std::exp(-pre)));
    }
  }
  return y;
}

TEST(Convolution, MatchesTheDefinition) {
  for (const int64_t tokens : {1, 2, 5, 300}) {
    const Convolution exact(DType::kF64, 2, tokens, 5), single(DType::kF32, 2, tokens, 300);
    exact.forward();
    EXPECT_TRUE(near(exact.y, expected(exact, {}), 1e-12)) << tokens;
    single.forward();
    EXPECT_TRUE(near(single.y, expected(single, {}), 1e-3)) << tokens;
  }
}

TEST(Convolution, DocumentsAndRowsElsewhere) {
  Convolution of(DType::kF64, 2, 11, 3);
  of.documents({0, 2, 3, 11, 11, 20, 22});
  of.continue_elsewhere();
  of.forward();
  EXPECT_TRUE(near(of.y, expected(of, {2, 3, 20}), 1e-12));
  // What follows the first sequence's last document, of 8 tokens, and the second's, of 2.
  const auto after = values(of.after);
  for (int64_t w = 0; w < 3; ++w) {
    EXPECT_EQ(after[static_cast<size_t>(w)], get(of.in.x, 8 * 3 + w));
    EXPECT_EQ(after[static_cast<size_t>(9 + w)], 0.0);
    EXPECT_EQ(after[static_cast<size_t>(12 + w)], get(of.in.x, 20 * 3 + w));
  }
}

TEST(Convolution, BackwardMatchesFiniteDifferences) {
  Convolution(DType::kF64, 2, 7, 3).expect_gradients();
  Convolution packed(DType::kF64, 2, 9, 3);
  packed.documents({0, 4, 5, 9, 16, 18});
  packed.continue_elsewhere();
  packed.expect_gradients();
  Convolution unbiased(DType::kF64, 2, 7, 3);
  unbiased.without_bias();
  unbiased.expect_gradients();
  unbiased.forward();
  EXPECT_TRUE(near(unbiased.y, expected(unbiased, {}), 1e-12));
  Convolution short_one(DType::kF64, 2, 2, 3);
  short_one.continue_elsewhere();
  short_one.expect_gradients();
}

TEST(Convolution, BitsDoNotDependOnThreads) {
  const Convolution one(DType::kF32, 2, 700, 300, 1), three(DType::kF32, 2, 700, 300, 3);
  for (const Convolution* of : {&one, &three}) {
    of->forward();
    of->backward();
  }
  EXPECT_TRUE(same_bits(one.y, three.y));
  EXPECT_EQ(values(one.dx), values(three.dx));
  EXPECT_TRUE(same_bits(one.dweight, three.dweight));
  EXPECT_TRUE(same_bits(one.dbias, three.dbias));
}

TEST(Convolution, DocumentsDoNotTouch) {
  const auto run = [](double poison) {
    auto of = std::make_unique<Convolution>(DType::kF32, 1, 20, 6);
    of->documents({0, 9, 20});
    for (const Tensor& rows : {of->in.x, of->dy}) {
      for (int64_t i = 0; i < 9 * 6; ++i) set(rows, i, poison);
    }
    of->forward();
    of->backward();
    return of;
  };
  const auto quiet = run(0.5), loud = run(std::nan(""));
  EXPECT_EQ(values(quiet->y.rows(9, 20)), values(loud->y.rows(9, 20)));
  EXPECT_EQ(values(quiet->dx.rows(9, 20)), values(loud->dx.rows(9, 20)));
}

TEST(Convolution, CachedRowsHaveTheBitsOfForward) {
  constexpr int64_t kTokens = 12, kWidth = 300;
  const Convolution of(DType::kF32, 1, kTokens, kWidth);
  of.forward();
  TensorPool pool(DType::kF32);
  const Tensor kept = pool.full({2, 3, kWidth}, std::nan(""));
  for (int64_t done = 0, count = 1; done < kTokens; done += count, count = std::min(count + 1, kTokens - done)) {
    std::vector<double> slots(static_cast<size_t>(count), 1), positions;
    for (int64_t t = 0; t < count; ++t) positions.push_back(static_cast<double>(done + t));
    const Tensor y = pool.zeros({count, kWidth});
    of.ops->cached_convolution({.x = of.in.x.rows(done, done + count),
                                .weight = of.in.weight,
                                .bias = of.in.bias,
                                .slots = pool.ints({count}, slots),
                                .positions = pool.ints({count}, positions),
                                .rows = kept,
                                .y = y});
    EXPECT_TRUE(same_bits(y, of.y.rows(done, done + count))) << done;
  }
}

// The gated norm that follows a scan.
struct GatedNorm {
  GatedNorm(DType real, int64_t rows, int64_t width, int64_t groups, int num_threads = 2) : pool(real), groups(groups) {
    ops = cpu_device(real, num_threads);
    x = pool.normal({rows, width}, 2.0, 0.3);
    z = pool.apart(pool.normal({rows, width}), 3);
    gain = pool.normal({width}, 0.5, 1.0);
    y = pool.full({rows, width}, 7.0);
    rstd = pool.zeros({rows, groups});
    dy = pool.normal({rows, width});
    dx = pool.full({rows, width}, 7.0);
    dz = pool.apart(pool.full({rows, width}, 7.0), 1);
    dgain = pool.zeros({width});
  }
  void forward() const { ops->gated_norm_forward({x, z, gain, groups, 0.01, y, rstd}); }
  void backward() const { ops->gated_norm_backward({x, z, gain, rstd, dy, dx, dz, dgain}); }

  TensorPool pool;
  ReadyDevice ops;
  int64_t groups;
  Tensor x, z, gain, y, rstd, dy, dx, dz, dgain;
};

TEST(GatedNorm, MatchesTheDefinition) {
  const GatedNorm of(DType::kF64, 5, 12, 3);
  of.forward();
  std::vector<double> y;
  for (int64_t i = 0; i < 60; ++i) {
    const auto gated = [&](int64_t at) { return get(of.x, at) * get(of.z, at) / (1 + std::exp(-get(of.z, at))); };
    double squares = 0;
    for (int64_t j = 0; j < 4; ++j) squares += std::pow(gated(i / 4 * 4 + j), 2);
    y.push_back(gated(i) / std::sqrt(squares / 4 + 0.01) * get(of.gain, i % 12));
  }
  EXPECT_TRUE(near(of.y, y, 1e-13));
}

TEST(GatedNorm, BackwardMatchesFiniteDifferences) {
  for (const int64_t groups : {1, 2, 8}) {
    const GatedNorm of(DType::kF64, 5, 8, groups);
    const auto loss = [&] {
      of.forward();
      return dot(of.y, of.dy);
    };
    loss();
    of.backward();
    EXPECT_TRUE(gradient_matches(loss, of.x, of.dx));
    EXPECT_TRUE(gradient_matches(loss, of.z, of.dz));
    EXPECT_TRUE(gradient_matches(loss, of.gain, of.dgain));
  }
}

TEST(GatedNorm, BitsDoNotDependOnThreads) {
  const GatedNorm one(DType::kF32, 5000, 30, 2, 1), three(DType::kF32, 5000, 30, 2, 3);
  for (const GatedNorm* of : {&one, &three}) {
    of->forward();
    of->backward();
  }
  EXPECT_TRUE(same_bits(one.y, three.y));
  EXPECT_TRUE(same_bits(one.dx, three.dx));
  EXPECT_TRUE(same_bits(one.dgain, three.dgain));
}

}  // namespace
}  // namespace nmoe::test
