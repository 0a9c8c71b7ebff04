#include "track/run_query.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

std::vector<RunRow> three_runs() {
  return {{.id = "run_3_1",
           .name = "quick",
           .status = RunStatus::kCompleted,
           .step = 300,
           .last_loss = 3.5,
           .smooth_loss = 2.5,
           .tokens = 1'500'000},
          {.id = "run_2_1",
           .name = "slow",
           .status = RunStatus::kFailed,
           .reason = "no, \"disk\"",
           .step = 20,
           .last_loss = 3.0,
           .smooth_loss = 4.0},
          {.id = "run_1_1", .name = "quick", .status = RunStatus::kCompleted, .step = 100}};
}

std::string matching(const std::string& condition) {
  std::string ids;
  const RunFilter filter(condition);
  for (const RunRow& run : three_runs()) {
    if (filter.matches(run)) ids += run.id.substr(4, 1);
  }
  return ids;
}

TEST(RunQueryTest, Conditions) {
  EXPECT_EQ(matching("loss<4"), "3");
  EXPECT_EQ(matching("loss<=4"), "32");
  EXPECT_EQ(matching("last_loss<=3"), "2");
  EXPECT_EQ(matching("loss>2.5"), "2");
  EXPECT_EQ(matching("loss>=2.5"), "32");
  EXPECT_EQ(matching("loss=2.5"), "3");
  EXPECT_EQ(matching("loss!=2.5"), "21") << "what is not known is not that, either";
  EXPECT_EQ(matching("tokens>=1.5M"), "3");
  EXPECT_EQ(matching("name=quick"), "31");
  EXPECT_EQ(matching("name~lo"), "2");
  EXPECT_EQ(matching("reason~\"disk\""), "2");
  EXPECT_EQ(matching("status!=completed"), "2");
  EXPECT_EQ(matching("id>run_1_1"), "32");
  EXPECT_EQ(matching("loss<many"), "");
  EXPECT_TRUE(contains(error_of([] { RunFilter("los<2"); }).remedy(), "'loss'"));
  for (const char* bad : {"", "loss", "<2", "loss!2"}) {
    EXPECT_TRUE(contains(error_of([&] { RunFilter{bad}; }).what(), "is not a condition")) << bad;
  }
}

TEST(RunQueryTest, Order) {
  const auto sorted = [](const char* by) {
    std::vector<RunRow> runs = three_runs();
    sort_runs(runs, by);
    std::string ids;
    for (const RunRow& run : runs) ids += run.id.substr(4, 1);
    return ids;
  };
  EXPECT_EQ(sorted("loss"), "321") << "what is not known comes last";
  EXPECT_EQ(sorted("-loss"), "231");
  EXPECT_EQ(sorted("name"), "312") << "equals stay in order";
  EXPECT_EQ(sorted("-step"), "312");
  EXPECT_TRUE(contains(error_of([&] { sorted("-lost"); }).what(), "runs have no 'lost'"));
}

TEST(RunQueryTest, NamesOfRuns) {
  const std::vector<RunRow> runs = three_runs();
  EXPECT_EQ(find_run(runs, "run_1_1").id, "run_1_1");
  EXPECT_EQ(find_run(runs, "quick").id, "run_3_1") << "the newest";
  EXPECT_EQ(find_run(runs, "run_2").id, "run_2_1");
  EXPECT_TRUE(contains(error_of([&] { find_run(runs, "run_"); }).what(), "begins the ids of 3 runs"));
  EXPECT_TRUE(contains(error_of([&] { find_run(runs, "x"); }).what(), "there is no run 'x'"));
  EXPECT_TRUE(contains(error_of([&] { find_run(runs, ""); }).what(), "there is no run ''"));
}

}  // namespace
}  // namespace nmoe
