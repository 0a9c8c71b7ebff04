#include "track/alerts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "support/temp_dir.h"

namespace nmoe {
namespace {

class AlertsTest : public test::TempDirTest {
 protected:
  fs::path path_ = alerts_path(dir_ / "rank_0.duckdb");
};

TEST_F(AlertsTest, AreReadAsTheyWereWritten) {
  EXPECT_TRUE(read_alerts(path_).empty());
  const Alert spike = {AlertKind::kSpike, 120, 1763850000123, "train/loss", 9.25, "step 120: \"up\"\nand \xff"};
  append_alert(path_, spike);
  append_alert(path_, {.kind = AlertKind::kNonFinite, .step = 130, .value = std::numeric_limits<double>::quiet_NaN()});
  const std::vector<Alert> alerts = read_alerts(path_);
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kSpike);
  EXPECT_EQ(alerts[0].step, 120);
  EXPECT_EQ(alerts[0].ts_ms, 1763850000123);
  EXPECT_EQ(alerts[0].tag, "train/loss");
  EXPECT_EQ(alerts[0].value, 9.25);
  EXPECT_EQ(alerts[0].text, "step 120: \"up\"\nand \xef\xbf\xbd");
  EXPECT_EQ(alerts[1].kind, AlertKind::kNonFinite);
  EXPECT_TRUE(std::isnan(alerts[1].value));
}

TEST_F(AlertsTest, BehindALineThatWasCutOff) {
  append_alert(path_, {.kind = AlertKind::kSlow, .step = 1});
  std::ofstream(path_, std::ios::app) << R"({"ts_ms":1,"kind":"slow","step":2,"ta)";
  EXPECT_EQ(read_alerts(path_).size(), 1u);
  append_alert(path_, {.kind = AlertKind::kSilent, .step = 3});
  std::ofstream(path_, std::ios::app)
      << "[1]\n{\"kind\":\"of tomorrow\"}\n{\"ts_ms\":1e99,\"kind\":\"slow\",\"step\":1}\n";
  append_alert(path_, {.kind = AlertKind::kCollapse, .step = 4});
  const std::vector<Alert> alerts = read_alerts(path_);
  ASSERT_EQ(alerts.size(), 3u);
  EXPECT_EQ(alerts[1].step, 3);
  EXPECT_EQ(alerts[2].kind, AlertKind::kCollapse);
}

TEST_F(AlertsTest, OfManyTheLast) {
  for (int64_t step = 1; step <= 3000; ++step) {
    append_alert(path_, {.kind = AlertKind::kDeadExpert, .step = step, .text = "an expert that nobody asks"});
  }
  const std::vector<Alert> alerts = read_alerts(path_);
  EXPECT_GT(alerts.size(), 300u);
  EXPECT_LT(alerts.size(), 3000u);
  EXPECT_EQ(alerts.back().step, 3000);
  EXPECT_EQ(alerts.front().step, 3001 - std::ssize(alerts));
}

}  // namespace
}  // namespace nmoe
