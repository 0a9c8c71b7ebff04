#include "train/step/arithmetic_changes.h"

#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

constexpr bool always(const Config& /*config*/) { return true; }
constexpr bool with_masks(const Config& config) { return config.data.mask_documents; }
constexpr ArithmeticChange kChanges[] = {{"one", always}, {"two", with_masks}, {"three", always}};

TEST(ArithmeticChanges, NamesThoseSinceThenThatAffectTheRun) {
  Config config;
  const auto lines = [&](int64_t before) {
    const std::string text = warn_of_changed_arithmetic(kChanges, before, config);
    return text.substr(std::min(text.find('\n'), text.size()));
  };
  EXPECT_EQ(lines(0), "\n  one\n  three");
  EXPECT_EQ(lines(1), "\n  three");
  config.data.mask_documents = true;
  EXPECT_EQ(lines(0), "\n  one\n  two\n  three");
  EXPECT_EQ(lines(1), "\n  two\n  three");
  EXPECT_EQ(warn_of_changed_arithmetic(kChanges, 3, config), "");
  const std::string later = warn_of_changed_arithmetic(kChanges, 5, config);
  EXPECT_NE(later.find("2 more changes"), std::string::npos) << later;
}

using ArithmeticChangesRun = TrainerTest;

// Older checkpoints know nothing of the number, later ones have a greater one: both go on.
TEST_F(ArithmeticChangesRun, IsCountedByCheckpointsAndToldWhenItGoesOn) {
  run("run", {"train.steps=2"});
  const auto resumed_from = [&](int64_t changes, int64_t step) {
    const fs::path path = checkpoints("run") / fmt::format("step_{:08}", step) / "manifest.json";
    CheckpointManifest manifest = parse_manifest(read_file(path), path);
    EXPECT_EQ(manifest.info.arithmetic_changes, std::ssize(arithmetic_changes()));
    manifest.info.arithmetic_changes = changes;
    write_file_atomically(path, print_manifest(manifest));
    testing::internal::CaptureStderr();
    EXPECT_EQ(resume("run", {fmt::format("train.steps={}", step + 1)}).steps, step + 1);
    return testing::internal::GetCapturedStderr();
  };
  const auto known = std::ssize(arithmetic_changes());
  const std::string later = resumed_from(known + 4, 2);
  EXPECT_NE(later.find("4 more changes"), std::string::npos) << later;
  EXPECT_EQ(resumed_from(known, 3).find("arithmetic"), std::string::npos);
  const Config config = test::tiny_config(dir_);
  EXPECT_EQ(resumed_from(0, 4).find("arithmetic has changed") != std::string::npos,
            !warn_of_changed_arithmetic(arithmetic_changes(), 0, config).empty());
}

}  // namespace
}  // namespace nmoe
