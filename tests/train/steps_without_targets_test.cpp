// Steps whose sequences have no token to learn: prompts that are longer than data.seq_len.
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;

class StepsWithoutTargetsTest : public TrainerTest {
 protected:
  // Of the first `steps` steps of 8 sequences of 16 tokens nothing is learned; the last 200 tokens are an answer.
  std::string corpus(const std::string& name, int steps, int32_t id) const {
    SplitWriter writer(dir_ / name / "train", {.dataset = "prompts",
                                               .tokenizer = "bytes",
                                               .tokenizer_hash = byte_tokenizer()->hash(),
                                               .vocab_size = 257,
                                               .eos_id = 256,
                                               .masks = true});
    const size_t prompt = static_cast<size_t>(steps) * 8 * 16 + 1;
    std::vector<int32_t> ids(prompt + 200, id);
    std::vector<uint8_t> mask(ids.size(), 1);
    std::fill_n(mask.begin(), prompt, uint8_t{0});
    writer.add_document(ids, 0, "'prompts'", mask);
    writer.close();
    writer.commit();
    write_file_atomically(dir_ / name / "tokenizer.json", byte_tokenizer()->json());
    return "data.path=" + (dir_ / name).string();
  }
};

TEST_F(StepsWithoutTargetsTest, MoveNoWeightAndHaveNoLoss) {
  const std::string data = corpus("data_a", 2, 'a'), other = corpus("data_b", 2, 'b');
  testing::internal::CaptureStderr();
  EXPECT_EQ(run("two", {data, "data.shuffle=none", "train.stop_on_collapse=false", "train.steps=2"}).steps, 2);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "warning: step 1: none of its 8 sequences has a token to learn")) << told;
  EXPECT_FALSE(contains(told, "warning: step 2:")) << told;
  EXPECT_TRUE(contains(told, "warning: 2 of 2 steps had no token to learn")) << told;
  // Whatever the data and the rates are: these are the weights that the run began with.
  run("other", {other, "data.shuffle=none", "train.stop_on_collapse=false", "train.steps=1", "optim.matrices.lr=0.5",
                "optim.rest.lr=0.5"});
  EXPECT_EQ(weights_of(checkpoints("two")), weights_of(checkpoints("other")));

  // The third step has something to learn, also where the run is resumed in front of it.
  run("three", {data, "data.shuffle=none", "train.stop_on_collapse=false", "train.steps=3"});
  resume("two", {data, "data.shuffle=none", "train.stop_on_collapse=false", "train.steps=3"});
  expect_same_state(latest_checkpoint(checkpoints("two")).value(), latest_checkpoint(checkpoints("three")).value());
  EXPECT_NE(weights_of(checkpoints("three")), weights_of(checkpoints("other")));
  const auto losses = series("three", "train/loss");
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_GT(losses.at(3), 1.0);
}

}  // namespace
}  // namespace nmoe
