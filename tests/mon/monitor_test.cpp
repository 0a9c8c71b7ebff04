// Screens of a run whose files are made here.
#include "mon/monitor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"

namespace nmoe::mon {
namespace {

using test::contains;

constexpr double kNever = 3600.0;  // a fold interval

class MonitorTest : public test::TempDirTest {
 protected:
  std::string start(const std::string& name) {
    return store_.start({.name = name, .experiment = "e", .config_json = R"({"train.steps": 200})"});
  }
  std::unique_ptr<MetricsWriter> writer(const std::string& run, int64_t rank = 0) const {
    return std::make_unique<MetricsWriter>(metrics_path(dir_, run, rank), kNever);
  }
  static MetricRecord record(int64_t step, double loss) {
    return {.step = step,
            .ts_ms = 1'000'000 + step,
            .scalars = {{"train/loss", loss},
                        {"train/tokens_seen", 1000.0 * double(step)},
                        {"throughput/ms_per_step", 100.0},
                        {"throughput/loader_wait_ms", 10.0},
                        {"exchange_agg/wait_ms", 20.0},
                        {"efficiency/mfu", 0.4}}};
  }
  // Reads all there is, and lets some time go by.
  static void tick(Monitor& monitor, int64_t now_ms = 2'000'000) {
    while (monitor.tick(now_ms)) {
    }
  }
  static void type(Monitor& monitor, std::string_view keys) {
    for (const char key : keys) monitor.press({Key::kCharacter, static_cast<char32_t>(key)});
  }
  static std::string screen(Monitor& monitor, int width = 80, int height = 24) {
    return monitor.draw(width, height).text();
  }
  static std::string line_with(const std::string& text, std::string_view word) {
    const size_t at = text.find(word);
    if (at == std::string::npos) return "";
    const size_t begin = text.rfind('\n', at) + 1;
    return text.substr(begin, text.find('\n', at) - begin);
  }

  RunStore store_{dir_ / "experiments.db"};
};

TEST_F(MonitorTest, TheOverviewInTheSmallestTerminal) {
  const std::string id = start("first");
  const auto metrics = writer(id);
  for (int64_t step = 1; step <= 100; ++step) metrics->append(record(step, step == 50 ? NAN : step == 20 ? 9.0 : 3.0));
  metrics->append({.step = 60, .ts_ms = 1'000'060, .scalars = {{"valid/loss", 4.0}}});
  write_file_atomically(metrics_path(dir_, id).parent_path() / "train.log",
                        "2026-11-22T10:11:12Z  warning: slow\n2026-11-22T10:11:13Z  step 60: \x1b[2Jend\n");
  Monitor monitor(dir_, "");
  tick(monitor);
  const std::string text = screen(monitor);
  EXPECT_EQ(std::ranges::count(text, '\n'), 24);
  EXPECT_TRUE(contains(text, "first  running  " + id)) << text;
  EXPECT_TRUE(contains(text, "step 100/200  50 %  ETA 10.0s")) << text;
  EXPECT_TRUE(contains(text, "loss 3.0000  valid 4.0000")) << text;
  EXPECT_TRUE(contains(text, "MFU 40.0 %")) << text;
  EXPECT_TRUE(contains(text, "computing 70 %  ▓ data 10 %  ▒ waiting 20 %")) << text;
  EXPECT_TRUE(contains(text, "10:11:13 step 60: \\x1b[2Jend")) << text;
  // The spike's height is the axis' end, in one column; validation is marked, and so is the NaN.
  EXPECT_TRUE(contains(line_with(text, "       9 │"), "⡇")) << text;
  EXPECT_EQ(line_with(text, "x not fin").find('x', 10), line_with(text, "x not fin").rfind('x')) << text;
  EXPECT_TRUE(contains(text, "◆")) << text;
}

TEST_F(MonitorTest, DeadAndOverloadedExperts) {
  const std::string id = start("experts");
  const auto metrics = writer(id);
  MetricRecord one = record(1, 3.0);
  one.arrays = {{"router/layer_01/load", {1, 1, 1, 1, 1, 1, 1, 1}},
                {"router/layer_02/load", {0, 30, 2, 3, 4, 5, 1, 3}},  // mean 6
                {"router/layer_02/bias", {0, 0, 0, 0, 0, 0, 0, 0}}};
  metrics->append(one);
  metrics->flush();
  Monitor monitor(dir_, id);
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "router 2 layers  fullest expert 5.0x the mean in layer 2  dead experts 1"));
  type(monitor, "2");
  const std::string text = screen(monitor);
  EXPECT_EQ(
      line_with(text, "   1 "), "   1 " + [] {
        std::string cells;
        for (int i = 0; i < 24; ++i) cells += "▒";
        return cells;
      }() + std::string(28, ' ') + "  1.0x cv   0 %");
  EXPECT_TRUE(line_with(text, "   2 ").starts_with("   2 ×××!!!···░░░░░░▒▒▒···░░░")) << text;
  EXPECT_TRUE(line_with(text, "   2 ").ends_with(" 1 dead")) << text;
  // What comes is shown; of more experts than columns the one that is farthest off stands for its neighbours.
  std::vector<float> many(1024, 1.0f);
  many[512] = 0.0f;
  metrics->append({.step = 2, .ts_ms = 2, .arrays = {{"router/layer_01/load", many}}});
  tick(monitor);
  const std::string crowded = line_with(screen(monitor), "   1 ");
  EXPECT_TRUE(contains(crowded, "×")) << crowded;
  EXPECT_TRUE(contains(crowded, " 1 dead")) << crowded;
}

TEST_F(MonitorTest, RanksAndGpus) {
  const std::string id = start("ranks");
  const auto first = writer(id), second = writer(id, 1);
  MetricRecord one = record(7, 3.0);
  one.scalars.insert(one.scalars.end(), {{"exchange/layer_01/rank_01/wait_dispatch_ms", 1.5},
                                         {"exchange/layer_02/rank_01/wait_combine_ms", 2.0},
                                         {"exchange/layer_01/rank_01/sent_bytes", 2048.0}});
  first->append(one);
  const auto gpu = [](double sent, int64_t ts_ms) {
    return MetricRecord{.step = 7,
                        .ts_ms = ts_ms,
                        .scalars = {{"gpu/00/utilization", 50.0},
                                    {"gpu/00/memory_used_gib", 70.0},
                                    {"gpu/00/memory_total_gib", 140.0},
                                    {"gpu/00/power_w", 650.0},
                                    {"gpu/00/power_limit_w", 700.0},
                                    {"gpu/00/temperature_c", 61.0},
                                    {"gpu/00/throttle_reasons", 4.0},
                                    {"gpu/00/nvlink_sent_gib", sent}}};
  };
  first->append(gpu(100, 1'000'000));
  second->append({.step = 6, .ts_ms = 1'000'006, .scalars = {{"throughput/loader_wait_ms", 0.25}}});
  Monitor monitor(dir_, "ranks");
  tick(monitor);
  first->append(gpu(130, 1'002'000));
  tick(monitor);
  type(monitor, "3");
  std::string text = screen(monitor, 120, 24);
  EXPECT_TRUE(contains(text, "  0/00 [|")) << text;
  EXPECT_TRUE(contains(text, "50 %]")) << text;
  EXPECT_TRUE(contains(text, "70/140 G] 650/700 W   61 C   - MHz   power limit")) << text;
  EXPECT_TRUE(contains(text, "NVLink 15.0 out")) << text;
  type(monitor, "4");
  text = screen(monitor);
  EXPECT_TRUE(contains(text, "   1           6")) << text;
  EXPECT_TRUE(contains(text, "0.25        3.50             -     2.00 KiB")) << text;
  tick(monitor, 1'000'006 + 60'000);
  bool marked = false;
  const Grid grid = monitor.draw(80, 24);
  for (int y = 4; y < 8; ++y) {
    for (int x = 16; x < 28; ++x) marked = marked || grid.at(x, y).style == Style::kBad;
  }
  EXPECT_TRUE(marked) << "a rank that has been silent for a minute";
}

TEST_F(MonitorTest, AnotherRunAndAnotherCurve) {
  const std::string older = start("older");
  writer(older)->append(record(3, 5.0));
  store_.finish(older, RunStatus::kCompleted, "");
  const std::string newer = start("newer \x1b]0;x\x07 one");
  const auto metrics = writer(newer);
  metrics->append(record(1, 2.0));
  metrics->append(record(2, 2.5));
  Monitor monitor(dir_, "");
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "newer \\x1b]0;x\\x07 one  running"));
  monitor.press({Key::kF2});
  EXPECT_TRUE(contains(screen(monitor), "newer \\x1b]0;x\\x07 one")) << screen(monitor);
  type(monitor, "/older");
  EXPECT_FALSE(contains(screen(monitor), newer + " ")) << screen(monitor);
  monitor.press({Key::kEnter});
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "older  completed")) << screen(monitor);
  EXPECT_TRUE(contains(screen(monitor), "loss 5.0000"));

  monitor.press({Key::kF6});
  type(monitor, "/mfu");
  monitor.press({Key::kEnter});
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "efficiency/mfu  0.4  steps 3 to 3")) << screen(monitor);
  EXPECT_FALSE(monitor.done());
  type(monitor, "h");
  EXPECT_TRUE(contains(screen(monitor), "logarithmic axis"));
  type(monitor, "qq");  // the first closes help
  EXPECT_TRUE(monitor.done());
}

TEST_F(MonitorTest, FollowsARunThatGoesOn) {
  const std::string id = start("live");
  Monitor monitor(dir_, "live");
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "nothing recorded yet")) << screen(monitor);
  auto metrics = writer(id);
  for (int64_t step = 1; step <= 40; ++step) metrics->append(record(step, 4.0));
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "train/loss, nats  4  steps 1 to 40")) << screen(monitor);
  metrics->append({.step = 40, .ts_ms = 1, .scalars = {{"valid/loss", 4.0}}});
  tick(monitor);
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "◆")) << "recorded for the first time";
  type(monitor, "+");
  EXPECT_TRUE(contains(screen(monitor), "steps 21 to 40")) << screen(monitor);
  type(monitor, "l0 ");
  EXPECT_TRUE(contains(screen(monitor), "steps 1 to 40  log")) << screen(monitor);
  metrics->rewind(10);
  metrics->append(record(11, 1.0));
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "paused"));
  EXPECT_TRUE(contains(screen(monitor), "steps 1 to 40"));
  type(monitor, " ");
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "1  steps 1 to 11")) << screen(monitor);
  metrics.reset();
  store_.finish(id, RunStatus::kFailedNan, "the loss is NaN");
  tick(monitor, 3'000'000);
  EXPECT_TRUE(contains(screen(monitor), "live  failed_nan")) << screen(monitor);
  EXPECT_TRUE(contains(screen(monitor), "the loss is NaN"));
}

TEST_F(MonitorTest, AlertsAreInTheTitleForAWhile) {
  const std::string id = start("amiss");
  const auto metrics = writer(id);
  metrics->append(record(1, 4.0));
  Monitor monitor(dir_, "amiss");
  tick(monitor);
  EXPECT_FALSE(contains(screen(monitor), "alert"));
  append_alert(alerts_path(metrics_path(dir_, id)),
               {.kind = AlertKind::kSpike, .step = 1, .ts_ms = 1'990'000, .text = "step 1: too much"});
  tick(monitor);
  EXPECT_TRUE(contains(screen(monitor), "alert 10.0s ago: step 1: too")) << screen(monitor);
  tick(monitor, 3'000'000);
  EXPECT_FALSE(contains(screen(monitor), "alert"));
}

TEST_F(MonitorTest, AnySize) {
  const std::string id = start("sizes");
  const auto metrics = writer(id);
  MetricRecord one = record(1, NAN);
  for (int layer = 0; layer < 70; ++layer) {
    one.arrays.emplace_back(fmt::format("router/layer_{:02}/load", layer), std::vector<float>(256, 0.0f));
  }
  metrics->append(one);
  Monitor monitor(dir_, id);
  tick(monitor);
  for (const char page : {'1', '2', '3', '4', '5', 'h', '?', 'r'}) {
    type(monitor, std::string_view(&page, 1));
    for (const int width : {1, 40, 80, 81, 300}) {
      for (const int height : {1, 10, 11, 24, 36, 100}) {
        monitor.press({Key::kEnd});
        EXPECT_FALSE(screen(monitor, width, height).empty());
      }
    }
  }
  EXPECT_TRUE(contains(screen(monitor, 39, 24), "too small"));
}

TEST_F(MonitorTest, WithoutARun) {
  const auto error = [&](const fs::path& dir, const std::string& run) {
    return std::string(test::error_of([&] { Monitor monitor(dir, run); }).what());
  };
  EXPECT_TRUE(contains(error(dir_ / "nowhere", ""), "experiments.db does not exist"));
  EXPECT_TRUE(contains(error(dir_, ""), "has no runs"));
  start("one");
  EXPECT_TRUE(contains(error(dir_, "two"), "there is no run 'two'"));
}

}  // namespace
}  // namespace nmoe::mon
