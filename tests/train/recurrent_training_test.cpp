// A hybrid of recurrent layers, attention and experts trains as any other model: it learns, and ends with the same
// bits however it gets there.
#include <gtest/gtest.h>

#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

class RecurrentTrainingTest : public TrainerTest {
 protected:
  // Layers of a single part, as Nemotron-H has them; chunks end in the middle of sequences and of documents.
  static std::vector<std::string> hybrid(int64_t ranks, int64_t steps, std::vector<std::string> more = {}) {
    more.insert(
        more.begin(),
        {"model.layers=mamba2, moe, gqa_nope, mamba2, moe", "model.gqa.head_dim=8", "model.mamba2.num_heads=4",
         "model.mamba2.head_dim=8", "model.mamba2.state_dim=8", "model.mamba2.num_groups=2", "model.mamba2.chunk=6",
         "model.moe.num_experts=8", "model.moe.latent_dim=8", "train.microbatch_seqs=1", "data.mask_documents=true",
         "parallel.logical_shards=8", fmt::format("parallel.ranks={}", ranks), fmt::format("train.steps={}", steps)});
    return more;
  }
};

TEST_F(RecurrentTrainingTest, EndsWithTheSameBitsHoweverItGetsThere) {
  run("one", hybrid(1, 30));
  const auto losses = series("one", "train/loss");
  EXPECT_LT(losses.at(29), 0.8 * losses.at(0));
  run("threads", hybrid(1, 30, {"run.threads=3", "train.recompute=blocks"}));
  run("two", hybrid(2, 30, {"train.recompute=norms"}));
  run("turns", hybrid(2, 7));
  resume("turns", hybrid(1, 30));
  for (const char* name : {"threads", "two", "turns"}) expect_same_state(checkpoints(name), checkpoints("one"));
}

}  // namespace
}  // namespace nmoe
