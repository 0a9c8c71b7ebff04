// What a person must not wait for. Warm: what is asked is in memory.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/rng.h"
#include "support/temp_dir.h"
#include "viz/recorded_runs.h"
#include "viz/viz_server.h"
#include "viz/window.h"

namespace nmoe {
namespace {

using Clock = std::chrono::steady_clock;

template <class Action>
double ms_of(Action action) {
  const Clock::time_point begin = Clock::now();
  action();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double percentile_95(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() * 95 / 100];
}

TEST(VizSpeed, TenMillionValues) {
  constexpr int64_t kCount = 10'000'000;
  const Philox rng(1, "speed");
  std::vector<int64_t> steps(kCount), times(kCount);
  std::vector<double> values(kCount), seen(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    steps[at] = i;
    times[at] = 100 * i;
    values[at] = std::sin(static_cast<double>(i) * 1e-5) + static_cast<double>(rng.bits(at) % 1000) * 1e-4;
    seen[at] = static_cast<double>(i) * 4096;
  }
  Series series, tokens;
  series.assign(steps, values, times);
  tokens.assign(steps, seen, times);
  for (const auto& [name, kind] : {std::pair("steps", Axis::kStep), std::pair("tokens", Axis::kProgress)}) {
    const AxisOf axis(series, kind, tokens, 0);
    size_t bytes = 0;
    const double whole = ms_of([&] { bytes = encode_window(cut_window(series, axis, {.width = 1600})).size(); });
    std::vector<double> zooms;
    const double end = axis.at(kCount - 1);
    for (uint64_t i = 0; i < 200; ++i) {
      const double from = end * static_cast<double>(rng.bits(1000 + i) % 1000) / 1000.0;
      const double width = end * std::pow(10.0, -static_cast<double>(i % 6));
      zooms.push_back(ms_of([&] {
        bytes = std::max(
            bytes, encode_window(cut_window(series, axis, {.from = from, .to = from + width, .width = 1600})).size());
      }));
    }
    fmt::print("10 M values by {}: all {:.1f} ms, zoom p95 {:.2f} ms, largest reply {} bytes\n", name, whole,
               percentile_95(zooms), bytes);
    EXPECT_LE(whole, 300.0);
    EXPECT_LE(percentile_95(zooms), 50.0);
    EXPECT_LE(bytes, size_t{64} << 10);
  }
}

TEST(VizSpeed, TenThousandRuns) {
  const test::TempDir dir;
  {
    RunStore store(dir.path() / "experiments.db");
    store.finish(store.start({.name = "first"}), RunStatus::kCompleted, "");
  }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((dir.path() / "experiments.db").c_str(), &database), SQLITE_OK);
  const char* const kMore =
      "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 9999) "
      "INSERT INTO runs (id, experiment_id, name, config_json, git_hash, git_dirty, pid, process_start, host, "
      "checkpoint_dir, started_at, updated_at, ended_at, status, reason, step, smooth_loss) "
      "SELECT 'made_' || n, experiment_id, 'name ' || n, config_json, git_hash, git_dirty, pid, process_start, host, "
      "checkpoint_dir, started_at, updated_at, ended_at, status, reason, n, 2.0 + n * 0.001 FROM runs, number";
  ASSERT_EQ(sqlite3_exec(database, kMore, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
  VizServer server({.run_dir = dir.path(), .token = "token"});
  server.start();
  httplib::Client client("127.0.0.1", server.port());
  client.set_keep_alive(true);
  std::vector<double> times;
  for (int i = 0; i < 20; ++i) {
    std::string body;
    times.push_back(ms_of([&] {
      const httplib::Result result =
          client.Get("/api/runs?filter=loss%3C3&q=name&sort=-loss", {{"Authorization", "Bearer token"}});
      if (result) body = result->body;
    }));
    EXPECT_NE(body.find("\"total\":999,"), std::string::npos) << body.substr(0, 200);
  }
  fmt::print("10,000 runs filtered, searched and sorted: p95 {:.1f} ms\n", percentile_95(times));
  EXPECT_LE(percentile_95(times), 50.0);
}

// What a page with 12 charts of 100 runs asks for, from one run: a million values over 12 tags.
TEST(VizSpeed, ManyCurves) {
  constexpr int64_t kTags = 12, kValues = 1'000'000 / kTags;
  const test::TempDir dir;
  RunStore store(dir.path() / "experiments.db");
  const std::string id = store.start({.name = "long"});
  {
    MetricsWriter writer(metrics_path(dir.path(), id));
    for (int64_t step = 1; step <= kValues; ++step) {
      MetricRecord record{.step = step, .ts_ms = step};
      for (int64_t tag = 0; tag < kTags; ++tag) {
        record.scalars.emplace_back(fmt::format("made/up_{}", tag),
                                    std::sin(static_cast<double>(step * (tag + 1)) * 1e-4));
      }
      writer.append(record);
    }
  }
  VizServer server({.run_dir = dir.path(), .token = "token"});
  server.start();
  const auto ask_all = [&](int64_t times) {
    std::vector<std::thread> connections;  // as many as a browser has
    std::atomic<int64_t> next = 0, good = 0;
    for (int i = 0; i < 6; ++i) {
      connections.emplace_back([&] {
        httplib::Client client("127.0.0.1", server.port());
        client.set_keep_alive(true);
        for (int64_t k = next++; k < times * kTags; k = next++) {
          const std::string path = fmt::format("/api/series?run={}&tag=made/up_{}&width=500", id, k % kTags);
          const httplib::Result result = client.Get(path.c_str(), {{"Authorization", "Bearer token"}});
          if (result && result->status == 200 && result->body.size() > 10000) ++good;
        }
      });
    }
    for (std::thread& connection : connections) connection.join();
    return good.load();
  };
  int64_t good = 0;
  const double cold = ms_of([&] { good = ask_all(1); });
  EXPECT_EQ(good, kTags);
  const double warm = ms_of([&] { good = ask_all(100); });
  EXPECT_EQ(good, 100 * kTags);
  fmt::print("12 curves of 83,333 values: cold {:.0f} ms; 1,200 warm {:.0f} ms\n", cold, warm);
  EXPECT_LE(warm, 1000.0);
}

}  // namespace
}  // namespace nmoe
