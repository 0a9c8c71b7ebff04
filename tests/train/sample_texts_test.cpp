// Texts that a run's model writes: they change no bit, and are those of the run's own random numbers.
#include "train/loop/sample_texts.h"

#include <gtest/gtest.h>

#include "track/metrics_reader.h"
#include "track/run_files.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class SampleTextsTest : public TrainerTest {
 protected:
  std::vector<SampleSet> samples(const std::string& name) const {
    return read_samples(samples_path(metrics_path(dir_ / "runs", row(name).id)));
  }
};

const std::string kPrompts = R"(train.sample_prompts=["the old", "a cat sat", "it"])";

TEST_F(SampleTextsTest, ChangeNothingAndAreTheSameAgain) {
  const std::vector<std::string> common = {"train.steps=6", "train.valid_every=2", "train.microbatch_seqs=2"};
  auto with = common;
  with.insert(with.end(), {kPrompts, "train.sample_tokens=5"});
  run("without", common);
  run("with", with);
  EXPECT_EQ(weights_of(checkpoints("without")), weights_of(checkpoints("with")));
  EXPECT_EQ(series("without", "train/loss"), series("with", "train/loss"));
  EXPECT_EQ(series("without", "valid/loss"), series("with", "valid/loss"));
  EXPECT_TRUE(samples("without").empty());
  const std::vector<SampleSet> sets = samples("with");
  ASSERT_EQ(sets.size(), 3u);
  EXPECT_EQ(sets[1].step, 4);
  ASSERT_EQ(sets[1].samples.size(), 3u);
  EXPECT_EQ(sets[1].samples[2].prompt, "it");
  for (const SampleText& sample : sets[1].samples) {
    EXPECT_GT(sample.text.size(), 0u);
    EXPECT_LE(sample.text.size(), 15u) << "five bytes, of which some may be no UTF-8";
  }
  EXPECT_NE(sets[0].samples[0].text, sets[1].samples[0].text);

  // Resumed from step 4, on two ranks that share the experts, the last is written again.
  run("again", with);
  EXPECT_EQ(samples("again").back().samples[0].text, sets.back().samples[0].text);
  auto two = with;
  two.insert(two.end(), {"parallel.ranks=2", "parallel.logical_shards=4"});
  run("two", two);
  ASSERT_EQ(samples("two").size(), 3u);
  EXPECT_EQ(samples("two").back().samples.size(), 3u);
}

// One rank generates, with a cache; ranks that share experts make passes of training. In training's arithmetic the
// texts are the same, where weights are.
TEST_F(SampleTextsTest, AreThoseOfPassesWithoutACache) {
  const std::vector<std::string> common = {
      "train.steps=4",          "train.valid_every=2",       "train.microbatch_seqs=2",       kPrompts,
      "train.sample_tokens=12", "parallel.logical_shards=4", "generation.arithmetic=training"};
  run("one", common);
  auto two = common;
  two.emplace_back("parallel.ranks=2");
  run("two", two);
  EXPECT_EQ(weights_of(checkpoints("one")), weights_of(checkpoints("two")));
  const std::vector<SampleSet> of_one = samples("one"), of_two = samples("two");
  ASSERT_EQ(of_one.size(), 2u);
  ASSERT_EQ(of_two.size(), 2u);
  for (size_t set = 0; set < of_one.size(); ++set) {
    for (size_t i = 0; i < of_one[set].samples.size(); ++i) {
      EXPECT_EQ(of_one[set].samples[i].text, of_two[set].samples[i].text) << "set " << set << ", prompt " << i;
    }
  }
}

TEST_F(SampleTextsTest, APromptThatLeavesNoRoom) {
  const Error error =
      error_of([&] { run("long", {R"(train.sample_prompts=["a prompt of more than sixteen bytes"])"}); });
  EXPECT_TRUE(contains(error.what(), "tokens, data.seq_len is 16")) << error.what();
}

}  // namespace
}  // namespace nmoe
