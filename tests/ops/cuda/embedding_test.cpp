#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct EmbeddingCase {
  int64_t tokens, vocab, width;
};
constexpr EmbeddingCase kEmbeddingCases[] = {{0, 5, 8},      {1, 1, 1},           {7, 3, 5},
                                             {1000, 50, 64}, {3000, 9'000, 1032}, {400, 7, 2056}};

using CudaEmbedding = CudaTest;

TEST_F(CudaEmbedding, ForwardCopiesRows) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, vocab, width] : kEmbeddingCases) {
      const Tensor ids = pool_.random_ints({tokens}, vocab), table = normal({vocab, width}, dtype);
      const Tensor expected = pool_.zeros({tokens, width}), y = tensors_.allocate(dtype, {tokens, width});
      cpu().embedding_forward({ids, table, expected});
      gpu().embedding_forward({up(ids), up(table, dtype), y});
      EXPECT_TRUE(same_bits(down(y), expected)) << tokens << " of " << vocab << " x " << width;
    }
  }
}

// Both add in the order of the tokens, in fp32: the same bits.
// The gradient as it is to be added up: tokens sorted by id, cut into pieces of 64; a piece's share of an id is summed
// by itself, the shares in the order of the pieces, and the whole is added to the table.
std::vector<double> added_in_pieces(Tensor ids, Tensor dy, Tensor dtable) {
  const int64_t T = ids.dim(0), V = dtable.dim(0), D = dtable.dim(1);
  std::vector<double> result = values(dtable);
  int64_t place = 0;  // in the order of the sorted tokens
  for (int64_t id = 0; id < V; ++id) {
    std::vector<float> whole(static_cast<size_t>(D)), share(static_cast<size_t>(D));
    bool any = false, first_share = true;
    const auto close_share = [&] {
      for (size_t i = 0; i < share.size(); ++i) whole[i] = first_share ? share[i] : whole[i] + share[i];
      std::ranges::fill(share, 0.0F);
      first_share = false;
    };
    for (int64_t t = 0; t < T; ++t) {
      if (static_cast<int64_t>(get(ids, t)) != id) continue;
      if (any && place % 64 == 0) close_share();
      for (int64_t i = 0; i < D; ++i) share[static_cast<size_t>(i)] += static_cast<float>(get(dy, t * D + i));
      any = true;
      ++place;
    }
    if (!any) continue;
    close_share();
    for (int64_t i = 0; i < D; ++i) {
      double& sum = result[static_cast<size_t>(id * D + i)];
      sum = static_cast<float>(sum) + whole[static_cast<size_t>(i)];
    }
  }
  return result;
}

TEST_F(CudaEmbedding, BackwardAddsInAFixedOrder) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, vocab, width] : kEmbeddingCases) {
      const Tensor ids = pool_.random_ints({tokens}, vocab), dy = normal({tokens, width}, dtype);
      const Tensor dtable = normal({vocab, width}), device = up(dtable);
      const std::vector<double> expected = added_in_pieces(ids, dy, dtable);
      cpu().embedding_backward({ids, dy, dtable});
      gpu().embedding_backward({up(ids), up(dy, dtype), device});
      EXPECT_TRUE(near(down(device), expected, 0)) << tokens << " of " << vocab << " x " << width;
      EXPECT_TRUE(near(down(device), values(dtable), 1e-4)) << tokens << " of " << vocab << " x " << width;
    }
  }
}

// One of them, half of them, and a few around the borders of pieces.
TEST_F(CudaEmbedding, ATokenMayBeMostOfTheText) {
  for (const int64_t others : {0, 1, 63, 64, 65, 2'500}) {
    const Tensor ids = pool_.zeros(DType::kI32, {5'000}), dy = normal({5'000, 24});
    for (int64_t t = 0; t < others; ++t) set(ids, 2 * t, static_cast<double>(t % 3));
    const Tensor dtable = normal({3, 24}), device = up(dtable);
    const std::vector<double> expected = added_in_pieces(ids, dy, dtable);
    gpu().embedding_backward({up(ids), up(dy), device});
    EXPECT_TRUE(near(down(device), expected, 0)) << others;
  }
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
