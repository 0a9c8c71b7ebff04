#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct Case {
  int64_t tokens, vocab, width;
};
constexpr Case kCases[] = {{0, 5, 8}, {1, 1, 1}, {7, 3, 5}, {1000, 50, 64}, {3000, 9'000, 1032}, {400, 7, 2056}};

using CudaEmbedding = CudaTest;

TEST_F(CudaEmbedding, ForwardCopiesRows) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, vocab, width] : kCases) {
      const Tensor ids = pool_.random_ints({tokens}, vocab), table = normal({vocab, width}, dtype);
      const Tensor expected = pool_.zeros({tokens, width}), y = tensors_.allocate(dtype, {tokens, width});
      cpu().embedding_forward({ids, table, expected});
      gpu().embedding_forward({up(ids), up(table, dtype), y});
      EXPECT_TRUE(same_bits(down(y), expected)) << tokens << " of " << vocab << " x " << width;
    }
  }
}

// Both add in the order of the tokens, in fp32: the same bits.
TEST_F(CudaEmbedding, BackwardAddsInTheOrderOfTheTokens) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, vocab, width] : kCases) {
      const Tensor ids = pool_.random_ints({tokens}, vocab), dy = normal({tokens, width}, dtype);
      const Tensor dtable = normal({vocab, width}), device = up(dtable);
      cpu().embedding_backward({ids, dy, dtable});
      gpu().embedding_backward({up(ids), up(dy, dtype), device});
      EXPECT_TRUE(same_bits(down(device), dtable)) << tokens << " of " << vocab << " x " << width;
    }
  }
}

TEST_F(CudaEmbedding, AllTokensMayBeTheSame) {
  const Tensor ids = pool_.zeros(DType::kI32, {5'000}), dy = normal({5'000, 24});
  const Tensor dtable = pool_.zeros({3, 24}), device = up(dtable);
  cpu().embedding_backward({ids, dy, dtable});
  gpu().embedding_backward({up(ids), up(dy), device});
  EXPECT_TRUE(same_bits(down(device), dtable));
}

TEST_F(CudaEmbedding, UnknownIdsAreNanAndHaveNoGradient) {
  const Tensor ids = up(pool_.ints({4}, {1, -1, 3, 0})), y = up(pool_.zeros({4, 2}));
  const Tensor table = up(pool_.of({3, 2}, {1, 2, 3, 4, 5, 6}));
  gpu().embedding_forward({ids, table, y});
  const std::vector<double> rows = values(down(y));
  EXPECT_EQ(rows[0], 3);
  for (const size_t i : {2, 3, 4, 5}) EXPECT_TRUE(std::isnan(rows[i])) << i;
  EXPECT_EQ(rows[7], 2);
  const Tensor dtable = up(pool_.zeros({3, 2}));
  gpu().embedding_backward({ids, up(pool_.full({4, 2}, 1)), dtable});
  EXPECT_TRUE(near(down(dtable), {1, 1, 1, 1, 0, 0}, 0));
}

}  // namespace
}  // namespace nmoe::test
