// Attention on the GPU against the CPU's. Head sizes of models and odd ones, so that Hopper's kernels, cuDNN's and the
// plain ones have their turn, and lengths, windows and documents that cross tiles. Needs a GPU: label gpu.
#include "ops/cuda/cuda_test.h"
#include "ops/cuda/plans.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::test {
namespace {

struct Case {
  std::string name;
  int64_t B, S, H, G, Dk, Dv, window;
  std::vector<double> cu_seqlens = {};  // empty: none
  bool sinks = false;
};
const Case kCases[] = {
    {"one position", 2, 1, 2, 1, 3, 2, 0},
    {"one value a head", 1, 5, 1, 1, 1, 1, 0},
    {"odd sizes, grouped heads", 2, 70, 4, 2, 33, 21, 0},
    {"odd sizes, window", 2, 133, 3, 1, 8, 40, 7},
    {"odd sizes, documents", 2, 70, 2, 2, 5, 3, 0, {0, 3, 4, 70, 120, 140, 140, 140}},
    {"one position of model size", 3, 1, 4, 2, 64, 64, 0},
    {"less than a tile", 2, 13, 4, 2, 64, 64, 0},
    {"heads of 16", 1, 65, 2, 1, 16, 16, 0},
    {"heads of 24", 2, 133, 3, 1, 24, 24, 0},
    {"heads of 20, which cuDNN does not take", 2, 133, 3, 1, 20, 20, 40},
    {"heads of 48 and 80", 2, 100, 2, 2, 48, 80, 0},
    {"heads of 64", 2, 300, 4, 2, 64, 64, 0},
    {"heads of 64, whole tiles", 2, 256, 4, 1, 64, 64, 0},
    {"heads of 128, all share one", 1, 333, 4, 1, 128, 128, 0},
    {"MLA's heads", 2, 200, 2, 2, 192, 128, 0},
    {"the largest heads", 1, 150, 2, 1, 256, 256, 0},
    {"large keys, small values", 1, 130, 2, 1, 240, 32, 0},
    {"small keys, large values", 1, 130, 2, 1, 32, 208, 0},
    {"window of one", 1, 100, 2, 2, 64, 64, 1},
    {"window within a tile", 2, 200, 2, 1, 64, 64, 5},
    {"window across tiles", 1, 400, 2, 2, 128, 128, 130},
    {"window of the whole sequence", 1, 70, 2, 2, 64, 64, 70},
    {"window beyond the sequence", 2, 70, 2, 2, 64, 64, int64_t{1} << 40},
    {"documents of one token", 1, 5, 2, 1, 64, 64, 0, {0, 1, 2, 3, 4, 5}},
    {"documents on tile borders", 1, 320, 2, 1, 64, 64, 0, {0, 64, 128, 129, 256, 320}},
    {"documents, spare capacity", 2, 300, 4, 2, 64, 64, 0, {0, 1, 130, 300, 340, 404, 600, 600, 600, 600}},
    {"heads of 128, documents and a window, shared heads", 2, 200, 4, 2, 128, 128, 30, {0, 5, 145, 200, 250, 400}},
    {"MLA's heads, documents and a window", 2, 150, 2, 2, 192, 128, 40, {0, 5, 145, 150, 250, 300}},
    // Tiles of 192 rows (heads of 64) and 128, of which each consumer's 64 go through blocks of 128 keys.
    {"heads of 64, tiles of which the first is a third", 2, 448, 6, 2, 64, 64, 0},
    {"heads of 64, many tiles, the last row alone", 1, 1025, 4, 4, 64, 64, 0},
    {"heads of 64, window of blocks", 1, 1000, 2, 1, 64, 64, 300},
    {"heads of 64, documents of blocks and of rows", 2, 640, 3, 3, 64, 64, 0, {0, 130, 131, 500, 640, 1100, 1280}},
    {"heads of 128, tiles that are not full", 2, 449, 8, 2, 128, 128, 0},
    {"heads of 128, window within a block", 1, 777, 2, 2, 128, 128, 64},
    {"heads of 128, documents of blocks and of rows", 1, 900, 4, 1, 128, 128, 0, {0, 256, 257, 600, 900}},
    {"MLA's heads, many tiles", 1, 961, 3, 3, 192, 128, 0},
    {"MLA's heads, shared, window of blocks", 2, 512, 4, 2, 192, 128, 200},
    {"MLA's heads, documents of blocks and of rows", 1, 830, 2, 2, 192, 128, 0, {0, 1, 310, 640, 830}},
    {"sinks, heads of 64, shared, a window", 2, 448, 16, 2, 64, 64, 128, {}, true},
    {"sinks, heads of 64, documents", 2, 300, 4, 2, 64, 64, 0, {0, 1, 130, 300, 340, 404, 600, 600}, true},
    {"sinks, heads of 128", 1, 333, 4, 1, 128, 128, 0, {}, true},
    {"sinks, odd sizes, documents", 2, 70, 2, 2, 5, 3, 0, {0, 3, 4, 70, 120, 140}, true},
    {"sinks, heads that cuDNN would take", 1, 300, 2, 1, 96, 96, 40, {}, true},
    {"more tiles than multiprocessors", 12, 320, 12, 4, 64, 64, 0},
    // Backwards, heads that share keys are taken in sections of 8 heads of keys: here one is left for the last.
    {"heads of 64, shared, a section of one", 3, 520, 6, 3, 64, 64, 0},
    {"heads of 128, shared, a section of one, documents and a window",
     3,
     520,
     6,
     3,
     128,
     128,
     200,
     {0, 300, 520, 1040, 1100, 1560}},
};

struct Problem {
  AttentionForward forward;
  AttentionBackward backward;
};
Problem make_problem(TensorPool& pool, const Case& c) {
  const int64_t tokens = c.B * c.S;
  AttentionShape shape{c.B, c.S, 1.0 / std::sqrt(static_cast<double>(c.Dk)), c.window};
  if (!c.cu_seqlens.empty()) shape.cu_seqlens = pool.ints({static_cast<int64_t>(c.cu_seqlens.size())}, c.cu_seqlens);
  // Scores of up to about 10: some rows see many keys, some hardly more than one.
  const Tensor q = pool.normal({tokens, c.H, c.Dk}, 2.0), k = pool.normal({tokens, c.G, c.Dk});
  const Tensor v = pool.normal({tokens, c.G, c.Dv}), dout = pool.normal({tokens, c.H, c.Dv});
  const Tensor out = pool.full(dout.shape(), NAN), lse = pool.full({c.B, c.H, c.S}, NAN);
  Problem problem{{shape, q, k, v, out, lse},
                  {shape, q, k, v, out, lse, dout, pool.full(q.shape(), NAN), pool.full(k.shape(), NAN),
                   pool.full(v.shape(), NAN)}};
  if (c.sinks) {
    problem.forward.sinks = problem.backward.sinks = pool.normal({c.H}, 4.0);
    problem.backward.dsinks = pool.normal({c.H});
  }
  return problem;
}

// Of what errors are measured by: 1 is the size of the terms that gradients sum with either sign, so that where a query
// sees one key, and nothing but rounding is left of dq, that is no error.
constexpr double kLeastScale = 1;

class CudaAttention : public CudaTest {
 protected:
  // What `problem` is on the device; its inputs are rounded.
  Problem up(const Problem& problem, DType act) {
    for (const Tensor& x : {problem.backward.q, problem.backward.k, problem.backward.v, problem.backward.dout}) {
      rounded(x, act);
    }
    const auto copy = [&](Tensor x) { return CudaTest::up(x, act); };
    const AttentionBackward& a = problem.backward;
    AttentionShape shape = a.shape;
    if (shape.cu_seqlens.defined()) shape.cu_seqlens = CudaTest::up(shape.cu_seqlens);
    const Tensor q = copy(a.q), k = copy(a.k), v = copy(a.v), out = copy(a.out), lse = CudaTest::up(a.lse);
    const Tensor dout = copy(a.dout), dq = copy(a.dq), dk = copy(a.dk), dv = copy(a.dv);
    Problem device{{shape, q, k, v, out, lse}, {shape, q, k, v, out, lse, dout, dq, dk, dv}};
    if (a.sinks.defined()) {
      device.forward.sinks = device.backward.sinks = CudaTest::up(a.sinks);
      device.backward.dsinks = CudaTest::up(a.dsinks);
    }
    return device;
  }
  void forward(const Problem& device) {
    run([&](Ops& ops) { ops.attention_forward(device.forward); });
  }
  void backward(const Problem& device) {
    run([&](Ops& ops) { ops.attention_backward(device.backward); });
  }
};

// F32: exponentials of scores that are good to 1e-6, in other orders of summing. BF16: probabilities and the gradients
// of scores are rounded (2^-9 of each) before they multiply, results once more, and delta is of the rounded output.
TEST_F(CudaAttention, MatchesTheCpu) {
  for (const Case& c : kCases) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("{}, {}", c.name, dtype_name(act)));
      TensorPool pool(DType::kF32);
      const Problem problem = make_problem(pool, c);
      const Problem device = up(problem, act);
      forward(device);
      backward(device);
      cpu().attention_forward(problem.forward);
      cpu().attention_backward(problem.backward);
      const double tolerance = act == DType::kF32 ? 2e-5 : 1.5e-2;
      EXPECT_LE(worst_error(down(device.forward.lse), problem.forward.lse, kLeastScale), 1e-5) << "lse";
      EXPECT_LE(worst_error(down(device.forward.out), problem.forward.out, kLeastScale), tolerance) << "out";
      EXPECT_LE(worst_error(down(device.backward.dq), problem.backward.dq, kLeastScale), tolerance) << "dq";
      EXPECT_LE(worst_error(down(device.backward.dk), problem.backward.dk, kLeastScale), tolerance) << "dk";
      EXPECT_LE(worst_error(down(device.backward.dv), problem.backward.dv, kLeastScale), tolerance) << "dv";
      if (!c.sinks) continue;
      EXPECT_LE(worst_error(down(device.backward.dsinks), problem.backward.dsinks, kLeastScale), tolerance) << "dsinks";
    }
  }
}

// Of whole heads, of the last values of MLA's, and of others' heads, by whichever kernels.
TEST_F(CudaAttention, RotatesGradientsBack) {
  struct Rotated {
    Case sizes;
    int64_t offset, pairs;
    bool keys;
  };
  const int64_t kPositions = 400;
  for (const auto& [c, offset, pairs, keys] :
       {Rotated{{"heads of 64", 2, 300, 4, 2, 64, 64, 0}, 0, 32, true},
        Rotated{{"heads of 128, shared", 2, 333, 8, 2, 128, 128, 100}, 0, 64, true},
        Rotated{{"heads of 64, shared, a section of one", 3, 520, 6, 3, 64, 64, 0}, 0, 32, true},
        Rotated{{"MLA's", 2, 200, 3, 3, 192, 128, 0}, 128, 32, false},
        Rotated{{"heads of 64, queries alone", 1, 130, 2, 1, 64, 64, 0}, 0, 32, false},
        Rotated{{"a part of heads of 64", 1, 130, 2, 1, 64, 64, 0}, 16, 16, true},
        Rotated{{"all of MLA's keys", 1, 130, 2, 2, 192, 128, 0}, 128, 32, true},
        Rotated{{"heads of 48", 1, 130, 2, 1, 48, 48, 0}, 0, 24, true},
        Rotated{{"heads of 20", 1, 70, 2, 1, 20, 20, 0}, 4, 8, true}}) {
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
      for (const DType act : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", c.name, dtype_name(act), layout == RopeLayout::kHalfSplit));
        TensorPool pool(DType::kF32);
        Problem problem = make_problem(pool, c);
        problem.backward.rope = {.positions = pool.random_ints({c.B * c.S}, kPositions),
                                 .cos = pool.normal({kPositions, pairs}),
                                 .sin = pool.normal({kPositions, pairs}),
                                 .rope_offset = offset,
                                 .layout = layout};
        problem.backward.rope_keys = keys;
        Problem device = up(problem, act);
        Rope& rope = device.backward.rope = problem.backward.rope;
        for (Tensor* x : {&rope.positions, &rope.cos, &rope.sin}) *x = CudaTest::up(*x);
        device.backward.rope_keys = keys;
        forward(device);
        backward(device);
        cpu().attention_forward(problem.forward);
        cpu().attention_backward(problem.backward);
        const double tolerance = act == DType::kF32 ? 2e-5 : 1.5e-2;
        EXPECT_LE(worst_error(down(device.backward.dq), problem.backward.dq, kLeastScale), tolerance) << "dq";
        EXPECT_LE(worst_error(down(device.backward.dk), problem.backward.dk, kLeastScale), tolerance) << "dk";
        EXPECT_LE(worst_error(down(device.backward.dv), problem.backward.dv, kLeastScale), tolerance) << "dv";
      }
    }
  }
}

// Scores of hundreds: exp would overflow without the running maximum.
TEST_F(CudaAttention, LargeScoresDoNotOverflow) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(act));
    TensorPool pool(DType::kF32);
    Problem problem = make_problem(pool, {"", 1, 200, 2, 1, 64, 64, 0});
    problem.forward.shape.scale = problem.backward.shape.scale = 20.0;
    const Problem device = up(problem, act);
    forward(device);
    cpu().attention_forward(problem.forward);
    EXPECT_LE(worst_error(down(device.forward.lse), problem.forward.lse, kLeastScale), 1e-5);
    EXPECT_LE(worst_error(down(device.forward.out), problem.forward.out, kLeastScale),
              act == DType::kF32 ? 2e-3 : 1.5e-2);
  }
}

TEST_F(CudaAttention, SameBitsEveryTime) {
  for (const Case& c :
       {Case{"odd", 2, 133, 4, 2, 33, 21, 0}, Case{"MLA", 2, 333, 4, 2, 192, 128, 0},
        Case{"heads of 128, shared, a section of one", 3, 520, 6, 3, 128, 128, 0},
        Case{"heads of 128, window", 4, 700, 8, 2, 128, 128, 200}, Case{"heads of 64", 8, 400, 8, 8, 64, 64, 0},
        // More blocks of keys than multiprocessors, which add to gradients of queries in turns.
        Case{"heads of 64, many blocks", 4, 1500, 6, 6, 64, 64, 0},
        Case{"heads of 128, many blocks, shared", 4, 1500, 8, 4, 128, 128, 0},
        Case{"MLA, many blocks, documents", 2, 1300, 8, 8, 192, 128, 0, {0, 700, 1300, 1301, 2600}}}) {
    SCOPED_TRACE(c.name);
    TensorPool pool(DType::kF32);
    const Problem problem = make_problem(pool, c);
    const Problem first = up(problem, DType::kBF16), again = up(problem, DType::kBF16);
    for (const Problem* device : {&first, &again}) {
      forward(*device);
      backward(*device);
    }
    for (const auto& [a, b] : {std::pair{first.forward.out, again.forward.out},
                               {first.forward.lse, again.forward.lse},
                               {first.backward.dq, again.backward.dq},
                               {first.backward.dk, again.backward.dk},
                               {first.backward.dv, again.backward.dv}}) {
      EXPECT_TRUE(same_bits(down(a), down(b)));
    }
  }
}

// Of cuDNN, by heads that only it takes: sequences and heads one after another, and the last part smaller. The limit
// changes scratch, not the result.
TEST_F(CudaAttention, PartsOfBackwardAreTheWhole) {
  TensorPool pool(DType::kF32);
  const Problem problem = make_problem(pool, {"", 5, 200, 6, 3, 160, 96, 0});
  const Problem whole = up(problem, DType::kBF16);
  forward(whole);
  backward(whole);
  // Of two query heads that share a key/value head: scores, and gradients of keys and values before their sum.
  const int64_t head_bytes = 2 * 256 * 256 * 2 + 2 * 256 * (160 + 96) * 2, rest = cuda::kCudnnSlackBytes + (64 << 10);
  for (const int64_t heads_at_a_time : {1, 2, 3, 6, 9}) {
    const Problem parts = up(problem, DType::kBF16);
    forward(parts);
    run([&](Ops& ops) {
      const int64_t limit = heads_at_a_time * head_bytes;
      cuda::Context& ctx = dynamic_cast<cuda::CudaOps&>(ops).context();  // the limit lies below the operations
      cuda::CudnnAttention& cudnn = ctx.cudnn_attention;
      ArenaScope scope(ops.scratch());
      const auto scratch =
          cuda::claim_attention_backward(scope, parts.backward, cudnn.backward_workspace(parts.backward, limit), limit);
      if (ops.counting()) {
        EXPECT_LE(ops.scratch().high_water(), limit + rest);
      } else {
        cudnn.backward(ctx, parts.backward, {}, scratch, limit);
      }
    });
    for (const auto& [a, b] : {std::pair{whole.backward.dq, parts.backward.dq},
                               {whole.backward.dk, parts.backward.dk},
                               {whole.backward.dv, parts.backward.dv}}) {
      EXPECT_TRUE(same_bits(down(a), down(b))) << heads_at_a_time;
    }
  }
}

TEST_F(CudaAttention, NoTokensIsLegal) {
  TensorPool pool(DType::kF32);
  const Problem device = up(make_problem(pool, {"", 0, 8, 2, 1, 16, 16, 0}), DType::kBF16);
  forward(device);
  backward(device);
}

TEST_F(CudaAttention, ShapesThatDoNotFitAreABug) {
  TensorPool pool(DType::kF32);
  Problem problem = make_problem(pool, {"", 1, 8, 3, 1, 16, 16, 0});
  problem.forward.k = problem.forward.v = pool.zeros({8, 2, 16});  // 3 heads over 2
  EXPECT_THROW(gpu().attention_forward(problem.forward), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
