#include "eval/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class CompareTest : public test::TempDirTest {
 protected:
  // An evaluation whose items are right where `right` has a 1.
  fs::path evaluation(const std::string& name, const std::string& right) const {
    std::string items;
    double correct = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      items += fmt::format(
          R"({{"task": "s/t", "item": {}, "row": {}, "gold": 0, "choice": 1, "correct": {}, "nats": [1.0, 2.0], "bytes": 3}})"
          "\n",
          i, i, right[i] == '1');
      correct += right[i] == '1' ? 1 : 0;
    }
    const double centred = 2 * correct / static_cast<double>(right.size()) - 1;
    make_directories(dir_ / name);
    write_file_atomically(dir_ / name / "items.jsonl", items);
    write_file_atomically(
        dir_ / name / "report.json",
        fmt::format(
            R"({{"tasks": [{{"task": "s/t", "baseline": 0.5}}], "means": {{"M": {{"suite": "s", "value": {}}}}}}})",
            centred));
    return dir_ / name;
  }
};

TEST(McNemar, IsTheExactTest) {
  EXPECT_DOUBLE_EQ(mcnemar_p(0, 0), 1.0);
  EXPECT_NEAR(mcnemar_p(1, 5), 14.0 / 64, 1e-12);  // (1 + 6) * 2 / 2^6
  EXPECT_NEAR(mcnemar_p(5, 1), 14.0 / 64, 1e-12);
  EXPECT_DOUBLE_EQ(mcnemar_p(4, 4), 1.0);
  EXPECT_NEAR(mcnemar_p(0, 2000), 0.0, 1e-300);
}

TEST_F(CompareTest, PairsItems) {
  const EvalComparison c = compare_evaluations(evaluation("a", "1100000000"), evaluation("b", "1011111000"));
  ASSERT_EQ(c.tasks.size(), 1u);
  EXPECT_EQ(c.tasks[0].only_a, 1);
  EXPECT_EQ(c.tasks[0].only_b, 5);
  EXPECT_DOUBLE_EQ(c.tasks[0].difference, 0.4);
  EXPECT_NEAR(c.tasks[0].p_value, 14.0 / 64, 1e-12);
  // The items' differences are 0 four times, -1 once and 1 five times.
  EXPECT_NEAR(c.tasks[0].standard_error, std::sqrt((6 - 1.6) / 90), 1e-12);
  ASSERT_EQ(c.means.size(), 1u);
  EXPECT_NEAR(c.means[0].difference, 0.8, 1e-12);
  EXPECT_NEAR(c.means[0].standard_error, 2 * c.tasks[0].standard_error, 1e-12);
}

TEST_F(CompareTest, RefusesOtherItems) {
  const fs::path a = evaluation("a", "110");
  EXPECT_TRUE(contains(error_of([&] { compare_evaluations(a, evaluation("b", "1101")); }).what(),
                       "other items of s/t (3 and 4)"));
  EXPECT_TRUE(contains(error_of([&] { compare_evaluations(a, dir_); }).what(), "not a finished evaluation"));
  write_file_atomically(a / "items.jsonl", "{}\n");
  EXPECT_TRUE(contains(error_of([&] { compare_evaluations(a, a); }).what(), "line 1"));
}

}  // namespace
}  // namespace nmoe
