// A hybrid of recurrent layers, attention and experts trains as any other model: it learns, and ends with the same
// bits however it gets there.
#include <gtest/gtest.h>

#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

// Layers of a single part, as Nemotron-H has them; chunks end in the middle of sequences.
constexpr std::string_view kMamba2Toml = R"(
[run]
threads = 1
[model]
layers = "mamba2, moe, gqa_nope, mamba2, moe"
dim = 16
num_heads = 2
[model.gqa]
head_dim = 8
[model.mamba2]
num_heads = 4
head_dim = 8
state_dim = 8
num_groups = 2
chunk = 6
[model.moe]
num_experts = 8
top_k = 2
expert_dim = 16
latent_dim = 8
[data]
seq_len = 16
mask_documents = true
[optim]
lr = 1e-2
router = { lr = 1e-3 }
[train]
batch_seqs = 8
microbatch_seqs = 1
log_every = 1
[parallel]
logical_shards = 8
)";

// Layers of two parts, as Qwen3-Next has them.
constexpr std::string_view kDeltaRuleToml = R"(
[run]
threads = 1
[model]
layers = "2 x gated_deltanet/moe, gqa/moe"
dim = 16
num_heads = 2
[model.gqa]
head_dim = 8
[model.gated_deltanet]
num_key_heads = 2
num_value_heads = 4
key_head_dim = 6
value_head_dim = 8
[model.moe]
num_experts = 8
top_k = 2
expert_dim = 16
score = "softmax"
shared_gate = true
[data]
seq_len = 16
mask_documents = true
[optim]
lr = 1e-2
router = { lr = 1e-3 }
[train]
batch_seqs = 8
microbatch_seqs = 1
log_every = 1
[parallel]
logical_shards = 8
)";

class RecurrentTrainingTest : public TrainerTest {
 protected:
  void train_hybrid(std::string_view toml, const std::string& name, std::vector<std::string> overrides,
                    bool resume = false) {
    overrides.insert(overrides.end(), {"run.name=" + name, "run.dir=" + (dir_ / "runs").string(),
                                       "data.path=" + (dir_ / "data").string()});
    train(parse_config(toml, "hybrid.toml", overrides), {.resume = resume, .version = "0.0.0", .commit = "abc"});
  }
  // It learns, and ends with the same bits however it gets there.
  void expect_same_bits(std::string_view toml) {
    train_hybrid(toml, "one", {"train.steps=30"});
    const auto losses = series("one", "train/loss");
    EXPECT_LT(losses.rbegin()->second, 0.9 * losses.begin()->second);
    train_hybrid(toml, "threads", {"train.steps=30", "run.threads=3", "train.recompute=blocks"});
    train_hybrid(toml, "two", {"train.steps=30", "parallel.ranks=2", "train.recompute=norms"});
    train_hybrid(toml, "four", {"train.steps=30", "parallel.ranks=4"});
    train_hybrid(toml, "turns", {"train.steps=7", "parallel.ranks=2"});
    train_hybrid(toml, "turns", {"train.steps=30"}, /*resume=*/true);
    for (const char* name : {"threads", "two", "four", "turns"}) {
      expect_same_state(checkpoints(name), checkpoints("one"));
    }
  }
};

TEST_F(RecurrentTrainingTest, OfMamba2EndsWithTheSameBitsHoweverItGetsThere) { expect_same_bits(kMamba2Toml); }

TEST_F(RecurrentTrainingTest, OfDeltaRulesEndsWithTheSameBitsHoweverItGetsThere) { expect_same_bits(kDeltaRuleToml); }

}  // namespace
}  // namespace nmoe
