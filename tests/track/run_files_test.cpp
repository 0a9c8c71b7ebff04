#include "track/run_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"

namespace nmoe {
namespace {

class RunFilesTest : public test::TempDirTest {};

TEST_F(RunFilesTest, SamplesByStepAsARunRedoesThem) {
  const fs::path path = samples_path(dir_ / "rank_0.duckdb");
  EXPECT_TRUE(read_samples(path).empty());
  append_samples(path, {100, 1, {{"Once", " upon\na time"}, {"\"", "\xff"}}});
  append_samples(path, {200, 2, {{"Once", " more"}}});
  append_samples(path, {300, 3, {{"Once", " lost"}}});
  std::vector<SampleSet> sets = read_samples(path);
  ASSERT_EQ(sets.size(), 3u);
  EXPECT_EQ(sets[0].step, 100);
  ASSERT_EQ(sets[0].samples.size(), 2u);
  EXPECT_EQ(sets[0].samples[0].text, " upon\na time");
  EXPECT_EQ(sets[0].samples[1].prompt, "\"");
  EXPECT_EQ(sets[0].samples[1].text, "\xef\xbf\xbd");
  append_samples(path, {200, 4, {{"Once", " again"}}});  // resumed from step 100
  std::ofstream(path, std::ios::app) << R"({"step":300,"ts_ms":5,"sam)";
  sets = read_samples(path);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[1].ts_ms, 4);
  EXPECT_EQ(sets[1].samples[0].text, " again");
}

TEST_F(RunFilesTest, TheMemoryPlan) {
  const fs::path path = memory_plan_path(dir_ / "rank_0.duckdb");
  EXPECT_TRUE(read_memory_plan(path).empty());
  write_memory_plan(path, {{"parameters", 1024, "weights", true}, {"process", 7, "program", false}});
  const std::vector<PlannedRegion> regions = read_memory_plan(path);
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions[0].name, "parameters");
  EXPECT_EQ(regions[0].bytes, 1024);
  EXPECT_TRUE(regions[0].on_device);
  EXPECT_EQ(regions[1].meaning, "program");
  EXPECT_FALSE(regions[1].on_device);
}

}  // namespace
}  // namespace nmoe
