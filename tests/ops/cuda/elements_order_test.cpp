// One arithmetic in what is neither a product of weights nor attention: batch-invariant operations over a few rows, as
// generation calls them, directly and recorded, have the bits of training's over many. Needs a GPU.
#include <cmath>
#include <numeric>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

constexpr int64_t kManyRows = 1000;
// Rows of a call of generation, and where training has them.
struct Part {
  int64_t first, count;
};
constexpr Part kParts[] = {{999, 1}, {13, 7}, {500, 16}, {3, 256}, {0, 1}};

class CudaElementsOrder : public CudaTest {
 protected:
  Ops& invariant() { return device_->ops(Arithmetic::kBatchInvariant); }
  Tensor made(DType dtype, Shape shape) {
    const Tensor y = tensors_.allocate(dtype, shape);
    gpu().fill({.x = y, .value = NAN});
    return y;
  }
  // What `work` leaves in `result`, enqueued or recorded.
  template <class Work>
  void expect_rows(Tensor result, Tensor expected, const std::string& what, const Work& work) {
    const auto look = [&](const char* how) {
      EXPECT_TRUE(same_bits(down(result), down(expected))) << what << ", " << how << ", " << result.dim(0) << " rows";
    };
    work();
    look("direct");
    if (result.dtype() != DType::kI32) gpu().fill({.x = result, .value = NAN});
    const auto recording = device_->record(work);
    recording->run();
    look("recorded");
  }
};

// 1 / sqrt(mean + eps) of a row in the order that contracts/norm.h states.
float rstd_of(const float* x, int64_t width, float eps) {
  const int64_t lanes = width <= 2048 ? 32 : 256;
  std::vector<float> sums(static_cast<size_t>(lanes), 0.0F);
  for (int64_t i = 0; i < width; i += 8) {
    float of_eight = 0;
    for (int64_t j = i; j < std::min(i + 8, width); ++j) of_eight = std::fma(x[j], x[j], of_eight);
    sums[static_cast<size_t>(i / 8 % lanes)] += of_eight;
  }
  const auto tree = [](std::vector<float> values) {
    for (size_t half = values.size() / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) values[i] += values[i + half];
    }
    return values[0];
  };
  std::vector<float> of_warps;
  for (auto begin = sums.begin(); begin != sums.end(); begin += 32) of_warps.push_back(tree({begin, begin + 32}));
  return 1.0F / std::sqrt(tree(of_warps) / static_cast<float>(width) + eps);
}

TEST_F(CudaElementsOrder, NormsHaveOneSumByWidth) {
  constexpr double kEps = 1e-6;
  for (const DType dtype : kActDTypes) {
    for (const int64_t width : {1,    7,    64,   96,   128,  192,  255,  384,  392,  512,  576,   768,
                                1024, 1025, 1408, 1536, 2040, 2048, 2056, 2880, 4096, 7168, 16384, 20000}) {
      const ArenaScope scope(tensors_);
      const std::string what = fmt::format("norms of {} in {}", width, dtype_name(dtype));
      const int64_t rows = width > 8192 ? 300 : kManyRows;
      const Tensor host = normal({rows, width}, dtype), x = up(host, dtype);
      const Tensor gain = up(normal({width}, DType::kF32, 0.1, 1.0));
      const Tensor y = made(dtype, {rows, width}), rstd = made(DType::kF32, {rows});
      gpu().rms_norm_forward({x, gain, kEps, y, rstd});
      const Tensor rstds = down(rstd);
      for (int64_t row = 0; row < rows; row += 37) {
        ASSERT_EQ(rstds.data<float>()[row], rstd_of(host[row].data<float>(), width, static_cast<float>(kEps))) << what;
      }
      for (const auto& [first, count] : kParts) {
        if (first + count > rows) continue;
        const ArenaScope results(tensors_);
        const Tensor some = made(dtype, {count, width}), some_rstd = made(DType::kF32, {count});
        expect_rows(some, y.rows(first, first + count), what, [&] {
          invariant().rms_norm_forward({x.rows(first, first + count), gain, kEps, some, some_rstd});
        });
        EXPECT_TRUE(same_bits(down(some_rstd), down(rstd.rows(first, first + count)))) << what;
      }
    }
  }
}

// Of queries' and keys' heads, in rows that have values behind them.
TEST_F(CudaElementsOrder, NormsOfHeads) {
  for (const auto& [heads, width] : {std::pair<int64_t, int64_t>{5, 64}, {4, 128}, {3, 192}, {1, 512}, {2, 768}}) {
    const ArenaScope scope(tensors_);
    const Tensor all = up(normal({kManyRows, (heads + 1) * width}), DType::kBF16);
    const auto heads_of = [&](Tensor rows) {
      return rows.columns(0, heads * width).reshape({rows.dim(0), heads, width});
    };
    const Tensor gain = up(normal({width}, DType::kF32, 0.1, 1.0)), y = made(DType::kBF16, {kManyRows, heads, width});
    gpu().rms_norm_forward({heads_of(all), gain, 1e-6, y, made(DType::kF32, {kManyRows * heads})});
    for (const auto& [first, count] : kParts) {
      const ArenaScope results(tensors_);
      const Tensor some = made(DType::kBF16, {count, heads, width}), rstd = made(DType::kF32, {count * heads});
      expect_rows(some, y.rows(first, first + count), fmt::format("{} heads of {}", heads, width), [&] {
        invariant().rms_norm_forward({heads_of(all.rows(first, first + count)), gain, 1e-6, some, rstd});
      });
    }
  }
}

// What MLA caches of latents and shared keys is what training's norm and rotation make of them.
TEST_F(CudaElementsOrder, LatentsAreNormedAndRotatedAsInTraining) {
  constexpr int64_t kHeads = 1, kNope = 8, kRope = 64, kValue = 8, kPositions = 300;
  for (const DType dtype : kActDTypes) {
    for (const int64_t rank : {64, 160, 384, 512, 1536, 2056, 4096}) {
      for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
        const ArenaScope scope(tensors_);
        const Tensor latent = up(normal({kPositions, rank}), dtype), key = up(normal({kPositions, kRope}), dtype);
        const Tensor gain = up(normal({rank}, DType::kF32, 0.1, 1.0));
        const Tensor cos = up(normal({kPositions, kRope / 2})), sin = up(normal({kPositions, kRope / 2}));
        std::vector<double> order(kPositions);
        std::iota(order.begin(), order.end(), 0.0);
        const Tensor positions = up(pool_.ints({kPositions}, order));
        const Tensor normed = made(dtype, {kPositions, rank}), rotated = up(down(key), dtype);
        gpu().rms_norm_forward({latent, gain, 1e-5, normed, made(DType::kF32, {kPositions})});
        gpu().rope_forward({.x = rotated.reshape({kPositions, 1, kRope}),
                            .positions = positions,
                            .cos = cos,
                            .sin = sin,
                            .rope_offset = 0,
                            .layout = layout});
        const Tensor cache = made(dtype, {1, kPositions, rank + kRope});
        invariant().mla_cached_attention({.scale = 0.1,
                                          .window = 0,
                                          .q = up(normal({kPositions, kHeads, kNope + kRope}), dtype),
                                          .kv_latent = latent,
                                          .k_rope = key,
                                          .gain = gain,
                                          .eps = 1e-5,
                                          .cos = cos,
                                          .sin = sin,
                                          .layout = layout,
                                          .slots = up(pool_.zeros(DType::kI32, {kPositions})),
                                          .positions = positions,
                                          .kv_up = up(normal({kHeads * (kNope + kValue), rank}), dtype),
                                          .cache = cache,
                                          .out = made(dtype, {kPositions, kHeads, kValue})});
        const Tensor cached = down(cache.reshape({kPositions, rank + kRope}));
        const auto columns_of = [&](int64_t begin, int64_t end) {
          const Tensor columns = cached.columns(begin, end), dense = pool_.zeros(columns.shape());
          for (int64_t i = 0; i < columns.num_elements(); ++i) set(dense, i, get(columns, i));
          return dense;
        };
        const std::string what = fmt::format("rank {} in {}", rank, dtype_name(dtype));
        EXPECT_TRUE(same_bits(columns_of(0, rank), down(normed))) << what << ", latents";
        EXPECT_TRUE(same_bits(columns_of(rank, rank + kRope), down(rotated))) << what << ", keys";
      }
    }
  }
}

TEST_F(CudaElementsOrder, Rotations) {
  constexpr int64_t kHeads = 6, kHead = 192, kRope = 64;
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
    const ArenaScope scope(tensors_);
    const Tensor host = normal({kManyRows, kHeads, kHead}), all = up(host, DType::kBF16);
    const Tensor positions = up(pool_.random_ints({kManyRows}, 300));
    const Tensor cos = up(normal({300, kRope / 2})), sin = up(normal({300, kRope / 2}));
    const auto rotate = [&](Ops& ops, Tensor x, Tensor at) {
      ops.rope_forward(
          {.x = x, .positions = at, .cos = cos, .sin = sin, .rope_offset = kHead - kRope, .layout = layout});
    };
    const Tensor before = up(host, DType::kBF16);
    rotate(gpu(), all, positions);
    for (const auto& [first, count] : kParts) {
      const Tensor some = made(DType::kBF16, {count, kHeads, kHead});
      expect_rows(some, all.rows(first, first + count), "rotations", [&] {
        invariant().copy({.source = before.rows(first, first + count), .destination = some});
        rotate(invariant(), some, positions.rows(first, first + count));
      });
    }
  }
}

struct RoutingCase {
  RouterRule rule;
  int64_t num_experts;
};

// Training chooses, keeps losses and statistics, and plans its rows in three operations, generation in one; of few
// tokens by one block.
TEST_F(CudaElementsOrder, RoutersChooseAlike) {
  for (const ScoreFunction score : {ScoreFunction::kSigmoid, ScoreFunction::kSoftmax}) {
    for (const RoutingCase& c : {RoutingCase{{.score = score, .top_k = 6, .scale = 2.446}, 64},
                                 {{.score = score, .top_k = 8, .normalise = false}, 128},
                                 {{.score = score, .top_k = 7}, 256},
                                 {{.score = score, .top_k = 8, .num_groups = 8, .top_groups = 4, .scale = 2.5}, 256},
                                 {{.score = score, .top_k = 3}, 61},
                                 {{.score = score, .top_k = 1}, 8}}) {
      const ArenaScope scope(tensors_);
      const int64_t E = c.num_experts, K = c.rule.top_k, T = kManyRows;
      const Tensor logits = up(normal({T, E}, DType::kF32, 1.5)), bias = up(normal({E}, DType::kF32, 0.2));
      const Tensor scores = made(DType::kF32, {T, E}), weights = made(DType::kF32, {T, K});
      const Tensor choices = tensors_.allocate(DType::kI32, {T, K});
      gpu().router_forward({.rule = c.rule,
                            .loss = {.balance = 0.4, .z = 0.1, .seq_len = 100},
                            .logits = logits,
                            .bias = bias,
                            .scores = scores,
                            .top_idx = choices,
                            .weights = weights,
                            .aux_loss = up(pool_.zeros(DType::kF64, {2})),
                            .entropy = up(pool_.zeros(DType::kF64, {1}))});
      for (const auto& [first, count] : kParts) {
        const ArenaScope results(tensors_);
        const auto part_of = [first = first, count = count](Tensor x) { return x.rows(first, first + count); };
        const MoePlan plan{.offsets = tensors_.allocate(DType::kI32, {E + 1}),
                           .row_of = tensors_.allocate(DType::kI32, {count, K}),
                           .token_of = tensors_.allocate(DType::kI32, {count * K})};
        const Tensor some_scores = made(DType::kF32, {count, E}), some_weights = made(DType::kF32, {count, K});
        const Tensor some_choices = tensors_.allocate(DType::kI32, {count, K});
        const Tensor row_weight = made(DType::kF32, {count * K});
        const std::string what = fmt::format("{} of {} experts, {}", K, E, score == ScoreFunction::kSoftmax);
        expect_rows(some_weights, part_of(weights), what, [&] {
          invariant().route_tokens({.rule = c.rule,
                                    .logits = part_of(logits),
                                    .bias = bias,
                                    .scores = some_scores,
                                    .top_idx = some_choices,
                                    .weights = some_weights,
                                    .plan = plan,
                                    .row_weight = row_weight});
        });
        EXPECT_TRUE(same_bits(down(some_scores), down(part_of(scores)))) << what << ", scores";
        EXPECT_TRUE(same_bits(down(some_choices), down(part_of(choices)))) << what << ", choices";
        const Tensor rows = down(plan.row_of), by_row = down(row_weight), by_copy = down(part_of(weights));
        for (int64_t copy = 0; copy < count * K; ++copy) {
          ASSERT_EQ(get(by_row, rows.data<int32_t>()[copy]), get(by_copy, copy)) << what << ", copy " << copy;
        }
      }
    }
  }
}

// Onto the residual stream with the shared experts' output in it, and alone.
TEST_F(CudaElementsOrder, CombiningExpertsOutputs) {
  constexpr int64_t K = 6;
  for (const int64_t width : {40, 768, 1023, 2048}) {
    const ArenaScope scope(tensors_);
    const Tensor rows = up(normal({kManyRows * K, width}), DType::kBF16);
    const Tensor stream = up(normal({kManyRows, width}), DType::kBF16), y = made(DType::kBF16, {kManyRows, width});
    std::vector<double> order(static_cast<size_t>(kManyRows * K));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<double>(i ^ 1U);  // a token's rows, in turns
    for (const bool accumulate : {true, false}) {
      const auto combine = [&](Ops& ops, Tensor of, Tensor row_of, Tensor into) {
        ops.moe_combine({.rows = of, .plan = {.offsets = {}, .row_of = row_of}, .y = into, .accumulate = accumulate});
      };
      gpu().copy({.source = stream, .destination = y});
      combine(gpu(), rows, up(pool_.ints({kManyRows, K}, order)), y);
      for (const auto& [first, count] : kParts) {
        const ArenaScope results(tensors_);
        const Tensor some = made(DType::kBF16, {count, width});
        const std::vector<double> own(order.begin(), order.begin() + count * K);
        const Tensor row_of = up(pool_.ints({count, K}, own));
        expect_rows(some, y.rows(first, first + count), fmt::format("combining rows of {}", width), [&] {
          invariant().copy({.source = stream.rows(first, first + count), .destination = some});
          combine(invariant(), rows.rows(first * K, (first + count) * K), row_of, some);
        });
      }
    }
  }
}

// An MLP's first layer: training's activation is a kernel of its own, generation's is where the sums are. Both round
// what the activation is made of to BF16 first.
TEST_F(CudaElementsOrder, ActivationsOfDenseLayers) {
  for (const auto& [in, hidden] : {std::pair<int64_t, int64_t>{128, 96}, {768, 384}, {2048, 2816}}) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
      const ArenaScope scope(tensors_);
      const int64_t width = kind == Activation::kSwiGlu ? 2 * hidden : hidden;
      const Tensor x = up(normal({kManyRows, in}), DType::kBF16);
      const Tensor w = up(normal({width, in}, DType::kF32, 1 / std::sqrt(static_cast<double>(in))), DType::kBF16);
      const Tensor pre = made(DType::kBF16, {kManyRows, width}), h = made(DType::kBF16, {kManyRows, hidden});
      gpu().linear_activation_forward({.kind = kind, .x = x, .w = w, .pre = pre, .h = h});
      for (const auto& [first, count] : kParts) {
        const ArenaScope results(tensors_);
        const Tensor some_pre = made(DType::kBF16, {count, width}), some = made(DType::kBF16, {count, hidden});
        const std::string what = fmt::format("hidden units of {} to {}", in, hidden);
        expect_rows(some, h.rows(first, first + count), what, [&] {
          invariant().linear_activation_forward(
              {.kind = kind, .x = x.rows(first, first + count), .w = w, .pre = some_pre, .h = some});
        });
        EXPECT_TRUE(same_bits(down(some_pre), down(pre.rows(first, first + count)))) << what;
      }
    }
  }
}

// Routers' logits, which are FP32.
TEST_F(CudaElementsOrder, RoutersLogits) {
  for (const auto& [width, experts] : {std::pair<int64_t, int64_t>{2048, 64}, {768, 256}, {2048, 128}}) {
    const ArenaScope scope(tensors_);
    const Tensor x = up(normal({kManyRows, width}), DType::kBF16), w = up(normal({experts, width}), DType::kBF16);
    const Tensor logits = made(DType::kF32, {kManyRows, experts});
    gpu().linear_forward({.x = x, .w = w, .y = logits, .addend = {}});
    for (const auto& [first, count] : kParts) {
      const ArenaScope results(tensors_);
      const Tensor some = made(DType::kF32, {count, experts});
      expect_rows(some, logits.rows(first, first + count), fmt::format("logits of {} experts", experts), [&] {
        invariant().linear_forward({.x = x.rows(first, first + count), .w = w, .y = some, .addend = {}});
      });
    }
  }
}

TEST_F(CudaElementsOrder, Embeddings) {
  for (const int64_t width : {40, 767, 2048}) {
    const ArenaScope scope(tensors_);
    const Tensor table = up(normal({500, width}), DType::kBF16), ids = up(pool_.random_ints({kManyRows}, 500));
    const Tensor y = made(DType::kBF16, {kManyRows, width});
    gpu().embedding_forward({.ids = ids, .table = table, .y = y});
    for (const auto& [first, count] : kParts) {
      const ArenaScope results(tensors_);
      const Tensor some = made(DType::kBF16, {count, width});
      expect_rows(some, y.rows(first, first + count), "embeddings", [&] {
        invariant().embedding_forward({.ids = ids.rows(first, first + count), .table = table, .y = some});
      });
    }
  }
}

}  // namespace
}  // namespace nmoe::test
