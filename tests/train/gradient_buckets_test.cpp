// Gradients that are summed bucket by bucket while backward goes on.
#include <gtest/gtest.h>

#include <mutex>

#include "parallel/thread_group.h"
#include "support/tiny_corpus.h"
#include "train/tiny_engine.h"

namespace nmoe::test {
namespace {

struct Trained {
  std::map<std::string, std::string> weights;  // bytes, of each weight on each rank
  size_t num_regions = 0;
};

Trained train_in_buckets(int64_t ranks, const std::string& recompute, int64_t bucket_bytes) {
  // Not clipped: the order of the norm's squares is another one in other buckets.
  const Config config = tiny_config(
      "/nowhere", {"model.vocab_size=50", "model.num_layers=4", "model.moe.num_experts=8", "train.microbatch_seqs=2",
                   "optim.clip_norm=0", "train.recompute=" + recompute, fmt::format("parallel.ranks={}", ranks),
                   fmt::format("parallel.bucket_bytes={}", bucket_bytes)});
  Trained trained;
  std::mutex mutex;
  run_ranks(ranks, std::chrono::minutes(1), [&](Communicator& communicator) {
    ReadyEngine ready(config, 1, communicator);
    for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
    const WeightSet& weights = ready.engine.model().weights();
    const std::scoped_lock lock(mutex);
    trained.num_regions = weights.flat().size();
    for (const Weight& weight : weights.all()) {
      trained.weights[fmt::format("{} of {}", weight.spec.name, communicator.index())].assign(
          static_cast<const char*>(weight.value.raw()), static_cast<size_t>(weight.value.num_bytes()));
    }
  });
  return trained;
}

// In the middle of backward, or all at its end.
TEST(GradientBuckets, ChangeNoBit) {
  for (const int64_t ranks : {2, 4}) {
    for (const char* recompute : {"none", "blocks", "host"}) {
      const Trained at_the_end = train_in_buckets(ranks, recompute, 1 << 30);
      for (const int64_t bucket_bytes : {1, 4000}) {
        const Trained beside = train_in_buckets(ranks, recompute, bucket_bytes);
        EXPECT_GT(beside.num_regions, 2 * at_the_end.num_regions);
        EXPECT_EQ(differences(beside.weights, at_the_end.weights), std::vector<std::string>{})
            << ranks << " ranks, recompute " << recompute << ", buckets of " << bucket_bytes;
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
