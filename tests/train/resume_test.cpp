#include "train/loop/resume.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "data/tokenizer/word_tokenizer.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/loop/run_length.h"
#include "train/loop/trainer.h"
#include "train/plan/run_folder.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class ResumeTest : public test::TempDirTest {
 protected:
  ResumeTest() {
    ::unsetenv("NMOE_RUN");
    test::write_tiny_corpus(dir_ / "data");
  }

  // How the run `name` would begin.
  TrainingStart start(std::vector<std::string> overrides, bool resume) {
    overrides.emplace_back("run.name=run");
    const Config raw = test::tiny_config(dir_, overrides);
    const TrainingData data = open_training_data(raw);
    const StreamPlan plan = plan_training_data(raw, data, /*active_parameters=*/0);
    const Config config = resolve_length(resolve_vocab_size(raw, *data.tokenizer), &plan);
    return TrainingStart(config, data, plan, checkpoint_dir(config), resume);
  }

  // A checkpoint without weights of the model that the overrides describe, as an import would leave it.
  fs::path imported(const std::string& tokenizer_json) {
    write_file_atomically(dir_ / "tokenizer.json", "{}");
    write_file_atomically(dir_ / "LICENSE", "{}");
    CheckpointHead head;
    head.config_toml = print_config(resolve_vocab_size(test::tiny_config(dir_, {}), *byte_tokenizer()));
    head.tokenizer_json = tokenizer_json;
    head.carried = {{"LICENSE", dir_ / "LICENSE", ""}, {"tokenizer.json", dir_ / "tokenizer.json", ""}};
    ThreadPool pool(1);
    return write_checkpoint(dir_ / "imported", head, {}, {}, pool);
  }

  static std::vector<std::string> carried_names(const TrainingStart& start) {
    std::vector<std::string> names;
    for (const CarriedFile& file : start.carried()) names.push_back(file.name);
    return names;
  }
};

TEST_F(ResumeTest, WithoutCheckpointsItIsANewRun) {
  for (const bool resume : {false, true}) {
    const TrainingStart fresh = start({}, resume);
    EXPECT_FALSE(fresh.resumes());
    EXPECT_EQ(fresh.progress().steps, 0);
    EXPECT_FALSE(fresh.cursor().has_value());
    EXPECT_EQ(fresh.run_id(), "");
    EXPECT_EQ(fresh.checkpoint(), "");
  }
}

TEST_F(ResumeTest, GoesOnFromTheLastCheckpoint) {
  train(test::tiny_config(dir_, {"run.name=run", "train.steps=3", "checkpoint.every=2"}), {});
  const TrainingStart resumed = start({"train.steps=9"}, /*resume=*/true);
  EXPECT_TRUE(resumed.resumes());
  EXPECT_EQ(resumed.progress().steps, 3);
  EXPECT_EQ(resumed.progress().tokens, 3 * 8 * 16);
  EXPECT_EQ(resumed.cursor()->sequence, 3 * 8);
  EXPECT_EQ(resumed.checkpoint().filename(), "step_00000003");
  EXPECT_NE(resumed.run_id(), "");
  EXPECT_TRUE(contains(error_of([&] { start({"train.steps=9"}, /*resume=*/false); }).remedy(), "--resume"));
}

// Whoever writes a manifest can also write its hash.
TEST_F(ResumeTest, RefusesPlacesOfOtherExperts) {
  train(test::tiny_config(dir_, {"run.name=run", "train.steps=2"}), {});
  const fs::path path = start({"train.steps=9"}, /*resume=*/true).checkpoint() / "manifest.json";
  const std::string text = read_file(path);
  CheckpointManifest manifest = parse_manifest(std::string_view(text), path);
  const auto resume_with = [&](const ExpertPlacement& places) {
    manifest.info.experts.places = places;
    write_file_atomically(path, print_manifest(manifest));
    return start({"train.steps=9"}, /*resume=*/true);
  };
  const std::vector<int32_t> good = places_in_order(6);
  EXPECT_TRUE(resume_with({good}).resumes());
  for (const auto& places :
       {ExpertPlacement{places_in_order(2)}, ExpertPlacement{good, good}, ExpertPlacement{std::vector<int32_t>()}}) {
    const Error error = error_of([&] { resume_with(places); });
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_TRUE(contains(error.what(), path.string())) << error.what();
  }
}

// The manifest's checksums are known by the fingerprint; that a shard has them still is checked on request.
TEST_F(ResumeTest, AChangedTokenIsFoundOnRequest) {
  const auto run = [&](std::vector<std::string> overrides, bool resume) {
    overrides.insert(overrides.begin(), {"run.name=run"});
    testing::internal::CaptureStderr();
    try {
      train(test::tiny_config(dir_, overrides), {.resume = resume});
    } catch (...) {
      testing::internal::GetCapturedStderr();
      throw;
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_FALSE(contains(run({"train.steps=1", "data.verify=on resume"}, false), "data: "));
  const std::string checked = run({"train.steps=2", "data.verify=on resume"}, true);
  EXPECT_TRUE(contains(checked, "data: every shard is what its manifest says")) << checked;

  const fs::path train_dir = dir_ / "data/train";
  const fs::path shard = train_dir / read_manifest(train_dir).shards[0].path;
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 20] ^= 1;
  write_file_atomically(shard, bytes);
  const Error error = error_of([&] { run({"train.steps=3", "data.verify=on resume"}, true); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), shard.string())) << error.what();
  const std::string unchecked = run({"train.steps=3"}, true);
  EXPECT_TRUE(contains(unchecked, "manifests and sizes of shards are what they were")) << unchecked;
}

// The CPU has no choice of products: its runs go on anywhere without a word, and so do GPU's on it.
TEST_F(ResumeTest, TellsOfOtherProducts) {
  train(test::tiny_config(dir_, {"run.name=run", "train.steps=2"}), {});
  const fs::path path = start({"train.steps=9"}, /*resume=*/true).checkpoint() / "manifest.json";
  const std::string text = read_file(path);
  CheckpointManifest manifest = parse_manifest(std::string_view(text), path);
  EXPECT_EQ(manifest.info.product_identity, "");
  manifest.info.product_identity = "cuBLASLt 1 on A";
  write_file_atomically(path, print_manifest(manifest));
  EXPECT_EQ(start({"train.steps=9"}, /*resume=*/true).product_identity(), "cuBLASLt 1 on A");

  const std::string warning = warn_of_other_products("cuBLASLt 1 on A", "cuBLASLt 2 on A");
  EXPECT_TRUE(contains(warning, "(cuBLASLt 1 on A; now cuBLASLt 2 on A)")) << warning;
  EXPECT_EQ(warn_of_other_products("cuBLASLt 1 on A", "cuBLASLt 1 on A"), "");
  EXPECT_EQ(warn_of_other_products("", "cuBLASLt 1 on A"), "");
  EXPECT_EQ(warn_of_other_products("cuBLASLt 1 on A", ""), "");
}

// The tokenizer that an import could not use means nothing to text of another one.
TEST_F(ResumeTest, CarriesTheTokenizersFilesOnlyWithTheirTokenizer) {
  const std::string both = fmt::format("model.init.from={}", imported(byte_tokenizer()->json()).string());
  EXPECT_EQ(carried_names(start({both}, false)), (std::vector<std::string>{"LICENSE", "tokenizer.json"}));
  const TrainingStart without = start({fmt::format("model.init.from={}", imported("").string())}, false);
  EXPECT_EQ(carried_names(without), (std::vector<std::string>{"LICENSE"}));
  EXPECT_FALSE(without.resumes());
  EXPECT_EQ(without.checkpoint(), dir_ / "imported/step_00000000");
  EXPECT_EQ(without.progress().steps, 0);
}

TEST_F(ResumeTest, RefusesWeightsOfAnotherTokenizer) {
  const fs::path other = imported(make_word_tokenizer({"it", "is"})->json());
  const Error error = error_of([&] { start({fmt::format("model.init.from={}", other.string())}, false); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "another tokenizer than that of " + other.string())) << error.what();
}

}  // namespace
}  // namespace nmoe
