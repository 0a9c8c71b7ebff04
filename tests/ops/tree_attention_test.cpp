// Attention to documents in pieces, against a plain softmax over what each row sees, and against itself with every
// beginning written out.
#include <gtest/gtest.h>

#include "ops/tree_problem.h"

namespace nmoe::test {
namespace {

// The definition.
std::vector<double> reference(const TreeCase& c, const TreeAttention& a) {
  std::vector<double> out;
  const auto paths = c.paths();
  for (int64_t row = 0; row < c.num_rows(); ++row) {
    const auto& path = paths[static_cast<size_t>(row)];
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t g = h / (c.H / c.G);
      std::vector<double> sums(static_cast<size_t>(c.Dv));
      double total = a.sinks.defined() ? std::exp(get(a.sinks, h)) : 0;
      const int64_t first = c.window == 0 ? 0 : std::max<int64_t>(0, std::ssize(path) - c.window);
      for (int64_t j = first; j < std::ssize(path); ++j) {
        const int64_t seen = path[static_cast<size_t>(j)] * c.G + g;
        double score = 0;
        for (int64_t d = 0; d < c.Dk; ++d) score += get(a.q, (row * c.H + h) * c.Dk + d) * get(a.k, seen * c.Dk + d);
        const double weight = std::exp(a.scale * score);
        total += weight;
        for (int64_t d = 0; d < c.Dv; ++d) sums[static_cast<size_t>(d)] += weight * get(a.v, seen * c.Dv + d);
      }
      for (const double sum : sums) out.push_back(sum / total);
    }
  }
  return out;
}

TEST(TreeAttentionTest, IsTheSoftmaxOverWhatARowSees) {
  for (const TreeCase& c : tree_cases()) {
    SCOPED_TRACE(c.name);
    for (const auto& [real, tolerance] : {std::pair(DType::kF64, 1e-10), std::pair(DType::kF32, 1e-3)}) {
      TensorPool pool(real);
      const TreeAttention args = tree_problem(pool, c);
      cpu_device(real)->tree_attention(args);
      EXPECT_TRUE(near(args.out, reference(c, args), tolerance));
    }
  }
}

TEST(TreeAttentionTest, HasTheBitsOfWholeDocuments) {
  for (const TreeCase& c : tree_cases()) {
    SCOPED_TRACE(c.name);
    TensorPool pool(DType::kF32);
    const TreeAttention folded = tree_problem(pool, c);
    const TreeCase::Unfolded unfolded = c.unfolded(/*before=*/21);
    const TreeAttention flat = unfolded_problem(pool, c, folded, unfolded);
    const ReadyDevice device = cpu_device(DType::kF32);
    device->tree_attention(folded);
    device->tree_attention(flat);
    EXPECT_EQ(values(picked_rows(pool, flat.out, unfolded.places)), values(folded.out));
  }
}

TEST(TreeAttentionTest, TakesQueriesKeysAndValuesApart) {
  TensorPool pool(DType::kF64);
  const TreeCase& c = tree_cases()[3];
  TreeAttention args = tree_problem(pool, c);
  const std::vector<double> expected = reference(c, args);
  args.q = pool.apart(args.q, 8), args.k = pool.apart(args.k, 16), args.v = pool.apart(args.v, 24);
  cpu_device()->tree_attention(args);
  EXPECT_TRUE(near(args.out, expected, 1e-10));
}

}  // namespace
}  // namespace nmoe::test
