// Attention against a plain softmax and finite differences; MLA's likewise. Sequence lengths cross the query
// and key blocks of ops/cpu/attention.cpp.
#include <gtest/gtest.h>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

struct AttentionCase {
  std::string name;
  int64_t B, S, H, G, Dk, Dv, window;
  std::vector<double> cu_seqlens = {};  // empty: none
  bool sinks = false;
};
const AttentionCase kSmallCases[] = {
    {"one position", 2, 1, 2, 1, 3, 2, 0},
    {"one value a head", 1, 5, 1, 1, 1, 1, 0},
    {"grouped heads", 2, 6, 4, 2, 3, 5, 0},
    {"window of one", 1, 5, 2, 2, 3, 2, 1},
    {"window of three", 2, 7, 2, 1, 2, 3, 3},
    {"window of the whole sequence", 1, 6, 2, 2, 3, 3, 6},
    {"beyond a query block", 1, 67, 2, 1, 2, 1, 0},
    {"window across query blocks", 1, 130, 1, 1, 2, 1, 66},
    {"documents of one token", 1, 5, 2, 1, 3, 2, 0, {0, 1, 2, 3, 4, 5}},
    {"documents, spare capacity", 2, 7, 2, 2, 2, 3, 0, {0, 3, 4, 7, 12, 14, 14, 14}},
    {"documents and a window", 1, 9, 2, 1, 3, 2, 3, {0, 2, 7, 9}},
    {"a document ends with a query block", 1, 70, 1, 1, 2, 1, 0, {0, 64, 70}},
    {"a document across query blocks", 1, 131, 1, 1, 2, 2, 0, {0, 60, 129, 131}},
    {"sinks", 2, 6, 4, 2, 3, 5, 0, {}, true},
    {"sinks across query blocks, a window", 1, 130, 2, 1, 2, 1, 66, {}, true},
    {"sinks and documents", 1, 9, 2, 1, 3, 2, 3, {0, 2, 7, 9}, true},
};
const AttentionCase kLargeCases[] = {
    {"many key blocks", 2, 600, 4, 2, 24, 16, 0},
    {"window wider than a key block", 1, 700, 2, 2, 16, 16, 300},
    {"narrow window", 2, 333, 3, 1, 8, 40, 3},
    {"many sequences", 20, 67, 2, 2, 33, 32, 0},
    {"a document longer than a key block", 2, 600, 4, 2, 24, 16, 0, {0, 1, 301, 600, 640, 704, 1200}},
    {"documents on block borders", 1, 700, 2, 1, 16, 16, 0, {0, 64, 320, 321, 512, 576, 700}},
    {"wide window and documents", 1, 700, 2, 2, 16, 16, 270, {0, 5, 650, 700}},
    {"sinks, many key blocks", 2, 600, 4, 2, 24, 16, 300, {0, 1, 301, 600, 1200}, true},
};

struct Problem {
  AttentionForward forward;
  AttentionBackward backward;
};
Problem make_problem(TensorPool& pool, const AttentionCase& c) {
  const int64_t tokens = c.B * c.S;
  AttentionShape shape{c.B, c.S, 1.0 / std::sqrt(static_cast<double>(c.Dk)), c.window};
  if (!c.cu_seqlens.empty()) shape.cu_seqlens = pool.ints({static_cast<int64_t>(c.cu_seqlens.size())}, c.cu_seqlens);
  const Tensor q = pool.normal({tokens, c.H, c.Dk}), k = pool.normal({tokens, c.G, c.Dk});
  const Tensor v = pool.normal({tokens, c.G, c.Dv}), dout = pool.normal({tokens, c.H, c.Dv});
  // Outputs start as NaN, so that reading one before writing it shows.
  const Tensor out = pool.full(dout.shape(), NAN), lse = pool.full({c.B, c.H, c.S}, NAN);
  Problem problem{{shape, q, k, v, out, lse},
                  {shape, q, k, v, out, lse, dout, pool.full(q.shape(), NAN), pool.full(k.shape(), NAN),
                   pool.full(v.shape(), NAN)}};
  if (c.sinks) {  // above and below what scores are
    problem.forward.sinks = problem.backward.sinks = pool.normal({c.H}, 3.0);
    problem.backward.dsinks = pool.zeros({c.H});
  }
  return problem;
}

// First position, in sequence b, of the document that its position i is in.
int64_t document_begin(const AttentionCase& c, int64_t b, int64_t i) {
  double first = 0;
  for (const double bound : c.cu_seqlens) {
    if (bound <= static_cast<double>(b * c.S + i)) first = bound;
  }
  return std::max<int64_t>(0, static_cast<int64_t>(first) - b * c.S);
}

// The definition, one query at a time.
void reference(const AttentionCase& c, const AttentionForward& a, std::vector<double>& out, std::vector<double>& lse) {
  out.assign(static_cast<size_t>(a.out.num_elements()), 0.0);
  lse.clear();
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t g = h / (c.H / c.G);
      for (int64_t i = 0; i < c.S; ++i) {
        const int64_t first = std::max(document_begin(c, b, i), c.window == 0 ? 0 : i - c.window + 1);
        std::vector<double> weights;
        double sum = a.sinks.defined() ? std::exp(get(a.sinks, h)) : 0;
        for (int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < c.Dk; ++d) {
            score += get(a.q, ((b * c.S + i) * c.H + h) * c.Dk + d) * get(a.k, ((b * c.S + j) * c.G + g) * c.Dk + d);
          }
          weights.push_back(std::exp(a.shape.scale * score));
          sum += weights.back();
        }
        for (int64_t j = first; j <= i; ++j) {
          for (int64_t d = 0; d < c.Dv; ++d) {
            out[static_cast<size_t>(((b * c.S + i) * c.H + h) * c.Dv + d)] +=
                weights[static_cast<size_t>(j - first)] / sum * get(a.v, ((b * c.S + j) * c.G + g) * c.Dv + d);
          }
        }
        lse.push_back(std::log(sum));
      }
    }
  }
}

TEST(Attention, ForwardIsTheDefinition) {
  for (const auto& cases : {std::span<const AttentionCase>(kSmallCases), std::span<const AttentionCase>(kLargeCases)}) {
    for (const AttentionCase& c : cases) {
      SCOPED_TRACE(c.name);
      TensorPool pool;
      const Problem problem = make_problem(pool, c);
      const auto ops = cpu_device();
      ops->attention_forward(problem.forward);
      std::vector<double> out, lse;
      reference(c, problem.forward, out, lse);
      EXPECT_TRUE(near(problem.forward.out, out, 1e-9));
      EXPECT_TRUE(near(problem.forward.lse, lse, 1e-9));
    }
  }
}

// A sink far above all scores leaves nothing, one far below changes nothing, and neither overflows. Gradients add up.
TEST(Attention, SinksFarFromScores) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    TensorPool pool(real), same_pool(real);
    const AttentionCase c{"", 1, 5, 2, 1, 3, 2, 0, {}, true};
    const Problem problem = make_problem(pool, c);
    const auto ops = cpu_device(real);
    ops->fill({problem.forward.sinks.rows(0, 1), 1e4});
    ops->fill({problem.forward.sinks.rows(1, 2), -1e4});
    ops->fill({problem.backward.dsinks, 2.0});
    ops->attention_forward(problem.forward);
    ops->attention_backward(problem.backward);
    Problem plain = make_problem(same_pool, c);
    plain.forward.sinks = {};
    ops->attention_forward(plain.forward);
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t d = 0; d < 2; ++d) {
        EXPECT_EQ(get(problem.forward.out, i * 4 + d), 0.0);
        EXPECT_EQ(get(problem.forward.out, i * 4 + 2 + d), get(plain.forward.out, i * 4 + 2 + d));
      }
    }
    EXPECT_EQ(get(problem.backward.dsinks, 0), 2.0);
    EXPECT_EQ(get(problem.backward.dsinks, 1), 2.0);
  }
}

// q and k out of rotations, of the values behind the first, whose gradients are asked for before these.
TEST(Attention, BackwardRotatesGradientsBack) {
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
    for (const AttentionCase& c : {AttentionCase{"", 2, 6, 4, 2, 5, 3, 0}, AttentionCase{"", 1, 70, 1, 1, 5, 2, 3}}) {
      TensorPool pool;
      const Problem problem = make_problem(pool, c);
      AttentionBackward backward = problem.backward;
      backward.rope = {.positions = pool.random_ints({c.B * c.S}, 9),
                       .cos = pool.normal({9, 2}),
                       .sin = pool.normal({9, 2}),
                       .rope_offset = 1,
                       .layout = layout};
      for (const bool keys : {false, true}) {
        backward.rope_keys = keys;
        const Tensor q = pool.normal(backward.q.shape()), k = pool.normal(backward.k.shape());
        const auto ops = cpu_device();
        AttentionForward forward = problem.forward;
        const auto rotated = [&](Tensor from, Tensor to) {
          ops->copy({from, to});
          Rope rope = backward.rope;
          rope.x = to;
          ops->rope_forward(rope);
        };
        const auto loss = [&] {
          rotated(q, forward.q);
          if (keys) {
            rotated(k, forward.k);
          } else {
            ops->copy({k, forward.k});
          }
          ops->attention_forward(forward);
          return dot(forward.out, backward.dout);
        };
        loss();
        ops->attention_backward(backward);
        EXPECT_TRUE(gradient_matches(loss, q, backward.dq)) << "dq";
        EXPECT_TRUE(gradient_matches(loss, k, backward.dk)) << "dk";
      }
    }
  }
}

TEST(Attention, BackwardMatchesFiniteDifferences) {
  for (const AttentionCase& c : kSmallCases) {
    SCOPED_TRACE(c.name);
    TensorPool pool;
    const Problem problem = make_problem(pool, c);
    const AttentionForward& forward = problem.forward;
    const AttentionBackward& backward = problem.backward;
    const auto ops = cpu_device();
    ops->attention_forward(forward);
    ops->attention_backward(backward);
    AttentionForward perturbed = forward;
    perturbed.out = pool.zeros(forward.out.shape());
    perturbed.lse = pool.zeros(forward.lse.shape());
    const auto loss = [&] {
      ops->attention_forward(perturbed);
      return dot(perturbed.out, backward.dout);
    };
    EXPECT_TRUE(gradient_matches(loss, backward.q, backward.dq)) << "dq";
    EXPECT_TRUE(gradient_matches(loss, backward.k, backward.dk)) << "dk";
    EXPECT_TRUE(gradient_matches(loss, backward.v, backward.dv)) << "dv";
    if (c.sinks) {
      EXPECT_TRUE(gradient_matches(loss, backward.sinks, backward.dsinks)) << "dsinks";
    }
  }
}

// Element by element would take too long here: the slope along a random direction.
TEST(Attention, BackwardOfLongSequencesMatchesDirectionalDifferences) {
  for (const AttentionCase& c : kLargeCases) {
    SCOPED_TRACE(c.name);
    TensorPool pool;
    const Problem problem = make_problem(pool, c);
    const AttentionForward& forward = problem.forward;
    const AttentionBackward& backward = problem.backward;
    const auto ops = cpu_device();
    ops->attention_forward(forward);
    ops->attention_backward(backward);
    const auto check = [&](Tensor AttentionForward::*input, Tensor gradient) {
      const Tensor direction = pool.normal(gradient.shape());
      AttentionForward moved = forward;
      moved.out = pool.zeros(forward.out.shape());
      moved.lse = pool.zeros(forward.lse.shape());
      moved.*input = pool.clone(forward.*input);
      const auto loss_at = [&](double step) {
        for (int64_t i = 0; i < direction.num_elements(); ++i) {
          set(moved.*input, i, get(forward.*input, i) + step * get(direction, i));
        }
        ops->attention_forward(moved);
        return dot(moved.out, backward.dout);
      };
      constexpr double kStep = 1e-3;
      const double slope =
          (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
      EXPECT_LE(std::abs(slope - dot(gradient, direction)), 1e-6 * std::sqrt(dot(gradient, gradient)) + 1e-8);
    };
    check(&AttentionForward::q, backward.dq);
    check(&AttentionForward::k, backward.dk);
    check(&AttentionForward::v, backward.dv);
  }
}

// Float: exp is good to 2 ulp and sums run over some hundreds of terms of either sign; small elements are measured
// against a thousandth of the largest.
TEST(Attention, FloatAgreesWithDouble) {
  for (const AttentionCase& c : kLargeCases) {
    SCOPED_TRACE(c.name);
    TensorPool single_pool(DType::kF32), double_pool(DType::kF64);
    const Problem single_problem = make_problem(single_pool, c), double_problem = make_problem(double_pool, c);
    const auto run = [](DType real, const Problem& problem) {
      const auto ops = cpu_device(real);
      ops->attention_forward(problem.forward);
      ops->attention_backward(problem.backward);
    };
    run(DType::kF32, single_problem);
    run(DType::kF64, double_problem);
    constexpr double kTolerance = 2e-3;
    EXPECT_TRUE(near(single_problem.forward.out, double_problem.forward.out, kTolerance));
    EXPECT_TRUE(near(single_problem.forward.lse, double_problem.forward.lse, kTolerance));
    EXPECT_TRUE(near(single_problem.backward.dq, double_problem.backward.dq, kTolerance));
    EXPECT_TRUE(near(single_problem.backward.dk, double_problem.backward.dk, kTolerance));
    EXPECT_TRUE(near(single_problem.backward.dv, double_problem.backward.dv, kTolerance));
  }
}

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  for (const AttentionCase& c : kLargeCases) {
    SCOPED_TRACE(c.name);
    TensorPool first_pool(DType::kF32);
    const Problem first = make_problem(first_pool, c);
    for (const int threads : {1, 2, 3}) {
      TensorPool pool(DType::kF32);
      const Problem problem = threads == 1 ? first : make_problem(pool, c);
      const auto ops = cpu_device(DType::kF32, threads);
      ops->attention_forward(problem.forward);
      ops->attention_backward(problem.backward);
      EXPECT_TRUE(same_bits(problem.forward.out, first.forward.out)) << threads;
      EXPECT_TRUE(same_bits(problem.forward.lse, first.forward.lse)) << threads;
      EXPECT_TRUE(same_bits(problem.backward.dq, first.backward.dq)) << threads;
      EXPECT_TRUE(same_bits(problem.backward.dk, first.backward.dk)) << threads;
      EXPECT_TRUE(same_bits(problem.backward.dv, first.backward.dv)) << threads;
      if (c.sinks) {
        EXPECT_TRUE(same_bits(problem.backward.dsinks, first.backward.dsinks)) << threads;
      }
    }
  }
}

TEST(Attention, OneDocumentASequenceHasTheBitsOfNoDocuments) {
  for (AttentionCase c : kLargeCases) {
    SCOPED_TRACE(c.name);
    c.cu_seqlens.clear();
    TensorPool plain_pool(DType::kF32), masked_pool(DType::kF32);
    const Problem plain = make_problem(plain_pool, c);
    for (int64_t b = 0; b <= c.B; ++b) c.cu_seqlens.push_back(static_cast<double>(b * c.S));
    const Problem masked = make_problem(masked_pool, c);
    const auto ops = cpu_device(DType::kF32);
    for (const Problem* problem : {&plain, &masked}) {
      ops->attention_forward(problem->forward);
      ops->attention_backward(problem->backward);
    }
    EXPECT_TRUE(same_bits(masked.forward.q, plain.forward.q));
    EXPECT_TRUE(same_bits(masked.forward.out, plain.forward.out));
    EXPECT_TRUE(same_bits(masked.forward.lse, plain.forward.lse));
    EXPECT_TRUE(same_bits(masked.backward.dq, plain.backward.dq));
    EXPECT_TRUE(same_bits(masked.backward.dk, plain.backward.dk));
    EXPECT_TRUE(same_bits(masked.backward.dv, plain.backward.dv));
  }
}

TEST(Attention, RefusesDocumentsThatCrossSequences) {
  const auto ops = cpu_device();
  const std::vector<std::vector<double>> refused = {{0, 14}, {0, 6, 8, 14}, {1, 7, 14}, {0, 7, 13}, {0, 7, 5, 14}, {}};
  for (const std::vector<double>& bounds : refused) {
    TensorPool pool;
    Problem problem = make_problem(pool, {"", 2, 7, 1, 1, 2, 2, 0});
    problem.forward.shape.cu_seqlens = pool.ints({static_cast<int64_t>(bounds.size())}, bounds);
    EXPECT_THROW(ops->attention_forward(problem.forward), CheckFailure);
  }
}

// Scores of +-1e4 overflow e^x by far; the softmax is then a choice of the best key.
TEST(Attention, HugeScoresStayFinite) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    TensorPool pool(real);
    const auto [forward, backward] = make_problem(pool, {"", 1, 300, 1, 1, 4, 2, 0});
    for (int64_t i = 0; i < forward.q.num_elements(); ++i) set(forward.q, i, 1e4 * get(forward.q, i));
    const auto ops = cpu_device(real);
    ops->attention_forward(forward);
    ops->attention_backward(backward);
    for (const Tensor& x : {forward.out, forward.lse, backward.dq, backward.dk, backward.dv}) {
      for (const double value : values(x)) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// Of whole keys and values, put together here.
TEST(MlaAttention, IsThatOfItsPartsTogether) {
  TensorPool pool;
  constexpr int64_t kTokens = 12, kHeads = 2, kNope = 3, kRope = 2, kValue = 4;
  const Tensor q = pool.normal({kTokens, kHeads, kNope + kRope}), kv = pool.normal({kTokens, kHeads, kNope + kValue}),
               k_rope = pool.normal({kTokens, kRope});
  const Tensor k = pool.zeros(q.shape()), v = pool.zeros({kTokens, kHeads, kValue});
  for (int64_t row = 0; row < kTokens * kHeads; ++row) {
    const auto part = [&](int64_t i) { return get(kv, row * (kNope + kValue) + i); };
    for (int64_t i = 0; i < kNope; ++i) set(k, row * (kNope + kRope) + i, part(i));
    for (int64_t i = 0; i < kRope; ++i) {
      set(k, row * (kNope + kRope) + kNope + i, get(k_rope, row / kHeads * kRope + i));
    }
    for (int64_t i = 0; i < kValue; ++i) set(v, row * kValue + i, part(kNope + i));
  }
  const AttentionShape shape{2, kTokens / 2, 0.4, 0};
  const Tensor out = pool.zeros(v.shape()), lse = pool.zeros({2, kHeads, kTokens / 2}),
               expected = pool.zeros(v.shape()), expected_lse = pool.zeros(lse.shape());
  const auto ops = cpu_device();
  ops->mla_attention_forward({.shape = shape, .q = q, .kv = kv, .k_rope = k_rope, .out = out, .lse = lse});
  ops->attention_forward({.shape = shape, .q = q, .k = k, .v = v, .out = expected, .lse = expected_lse});
  EXPECT_EQ(values(out), values(expected));
  EXPECT_EQ(values(lse), values(expected_lse));

  const Tensor bounds = pool.ints({4}, {0, 6, 9, 12}), parents = pool.ints({4}, {-1, -1, 1, -1});
  TreeAttention tree{.scale = 0.4,
                     .q = q,
                     .k = k,
                     .v = v,
                     .out = expected,
                     .positions = pool.ints({kTokens}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}),
                     .bounds = bounds,
                     .parents = parents};
  ops->tree_attention(tree);
  ops->mla_tree_attention({.scale = tree.scale,
                           .q = q,
                           .kv = kv,
                           .k_rope = k_rope,
                           .out = out,
                           .positions = tree.positions,
                           .bounds = bounds,
                           .parents = parents});
  EXPECT_EQ(values(out), values(expected));
}

TEST(MlaAttention, BackwardMatchesFiniteDifferences) {
  TensorPool pool;
  constexpr int64_t kSeqs = 2, kLen = 9, kTokens = kSeqs * kLen, kHeads = 3, kNope = 2, kRope = 4, kValue = 3;
  const Tensor q = pool.normal({kTokens, kHeads, kNope + kRope}), kv = pool.normal({kTokens, kHeads, kNope + kValue}),
               k_rope = pool.normal({kTokens, kRope});
  const Tensor out = pool.zeros({kTokens, kHeads, kValue}), lse = pool.zeros({kSeqs, kHeads, kLen});
  const Tensor dout = pool.normal(out.shape()), dq = pool.full(q.shape(), NAN), dkv = pool.full(kv.shape(), NAN),
               dk_rope = pool.full(k_rope.shape(), NAN);
  const AttentionShape shape{kSeqs, kLen, 0.4, 5};
  const auto ops = cpu_device();
  const auto loss = [&] {
    ops->mla_attention_forward({.shape = shape, .q = q, .kv = kv, .k_rope = k_rope, .out = out, .lse = lse});
    return dot(out, dout);
  };
  loss();
  ops->mla_attention_backward({.shape = shape,
                               .q = q,
                               .kv = kv,
                               .k_rope = k_rope,
                               .out = out,
                               .lse = lse,
                               .dout = dout,
                               .dq = dq,
                               .dkv = dkv,
                               .dk_rope = dk_rope});
  EXPECT_TRUE(gradient_matches(loss, q, dq));
  EXPECT_TRUE(gradient_matches(loss, kv, dkv));
  EXPECT_TRUE(gradient_matches(loss, k_rope, dk_rope));
}

}  // namespace
}  // namespace nmoe::test
