#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

struct EmbeddingRun {
  EmbeddingRun(DType real, int num_threads, int64_t num_tokens, int64_t vocab_size, int64_t width) : pool(real) {
    ops = cpu_device(real, num_threads);
    ids = pool.random_ints({num_tokens}, vocab_size);
    table = pool.normal({vocab_size, width});
    y = pool.zeros({num_tokens, width});
    dy = pool.normal({num_tokens, width});
    dtable = pool.zeros({vocab_size, width});
    ops->embedding_forward({ids, table, y});
    ops->embedding_backward({ids, dy, dtable});
  }
  TensorPool pool;
  ReadyDevice ops;
  Tensor ids, table, y, dy, dtable;
};

TEST(Embedding, CopiesTheRowOfEveryId) {
  const EmbeddingRun run(DType::kF32, 2, 9, 4, 5);
  for (int64_t token = 0; token < 9; ++token) {
    EXPECT_TRUE(same_bits(run.y[token], run.table[static_cast<int64_t>(get(run.ids, token))]));
  }
}

TEST(Embedding, BackwardMatchesFiniteDifferences) {
  for (const int64_t width : {1, 67, 130}) {  // one, two and three blocks of columns
    const EmbeddingRun run(DType::kF64, 2, 11, 3, width);
    const auto loss = [&] {
      run.ops->embedding_forward({run.ids, run.table, run.y});
      return dot(run.y, run.dy);
    };
    EXPECT_TRUE(gradient_matches(loss, run.table, run.dtable));
  }
}

TEST(Embedding, BackwardAddsAndLeavesUnusedRows) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor ids = pool.ints({3}, {2, 0, 2});
  const Tensor dy = pool.of({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor dtable = pool.of({3, 2}, {10, 20, 30, 40, 50, 60});
  ops->embedding_backward({ids, dy, dtable});
  EXPECT_TRUE(near(dtable, {13, 24, 30, 40, 56, 68}, 0));
}

TEST(Embedding, BitsDoNotDependOnThreads) {
  const EmbeddingRun one(DType::kF32, 1, 3000, 7, 200), three(DType::kF32, 3, 3000, 7, 200);
  EXPECT_TRUE(same_bits(one.y, three.y));
  EXPECT_TRUE(same_bits(one.dtable, three.dtable));
}

TEST(Embedding, RefusesIdsOutsideTheVocabulary) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor table = pool.zeros({3, 2}), y = pool.zeros({1, 2});
  for (const double id : {-1.0, 3.0}) {
    EXPECT_THROW(ops->embedding_forward({pool.ints({1}, {id}), table, y}), CheckFailure);
    EXPECT_THROW(ops->embedding_backward({pool.ints({1}, {id}), y, table}), CheckFailure);
  }
}

}  // namespace
}  // namespace nmoe::test
