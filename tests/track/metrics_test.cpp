#include "track/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "support/metrics.h"
#include "support/temp_dir.h"
#include "track/holding_process.h"
#include "track/metrics_reader.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;

constexpr double kNeverFolded = 3600.0;  // a fold interval: only flush() moves to the database

void add(MetricsWriter& writer, int64_t step, const std::string& tag, double value) {
  writer.append({.step = step, .ts_ms = now_ms(), .scalars = {{tag, value}}});
}

class MetricsTest : public test::TempDirTest {
 protected:
  std::vector<std::pair<int64_t, double>> series(const std::string& tag) const {
    std::vector<std::pair<int64_t, double>> points;
    for (const test::MetricRow& row : test::read_series(path_, tag)) points.emplace_back(row.step, row.value);
    return points;
  }

  const fs::path path_ = dir_ / "metrics" / "run" / "rank_0.duckdb";
  const fs::path live_ = dir_ / "metrics" / "run" / "rank_0.live";
};

using Points = std::vector<std::pair<int64_t, double>>;

TEST_F(MetricsTest, AValueComesBackWithItsTime) {
  const auto now = [] {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<milliseconds>(time).count();
  };
  const int64_t before = now();
  MetricsWriter writer(path_, kNeverFolded);
  EXPECT_TRUE(test::read_series(path_, "train/loss").empty()) << "the table is there from the start";
  add(writer, 7, "train/loss", 2.5);
  writer.flush();
  const auto rows = test::read_series(path_, "train/loss");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 7);
  EXPECT_EQ(rows[0].tag, "train/loss");
  EXPECT_EQ(rows[0].value, 2.5);
  EXPECT_GE(rows[0].ts_ms, before);
  EXPECT_LE(rows[0].ts_ms, now());
}

TEST_F(MetricsTest, ThousandsOfValuesInSeveralFlushes) {
  {
    MetricsWriter writer(path_, kNeverFolded);
    for (int64_t step = 1; step <= 300; ++step) {
      for (int layer = 0; layer < 20; ++layer) {
        add(writer, step, fmt::format("router/layer_{:02}/cv", layer), 0.5 * double(step) + layer);
      }
      if (step % 100 == 0) writer.flush();
    }
  }
  for (const int layer : {0, 7, 19}) {
    const Points points = series(fmt::format("router/layer_{:02}/cv", layer));
    ASSERT_EQ(points.size(), 300u);
    for (int64_t step = 1; step <= 300; ++step) {
      const auto& [read_step, value] = points[static_cast<size_t>(step - 1)];
      EXPECT_EQ(read_step, step);
      EXPECT_EQ(value, 0.5 * double(step) + layer);
    }
  }
  const auto last = test::last_values(path_);
  ASSERT_EQ(last.size(), 20u);
  EXPECT_EQ(last[3].tag, "router/layer_03/cv");
  EXPECT_EQ(last[3].step, 300);
  EXPECT_EQ(last[3].value, 0.5 * 300.0 + 3);
}

// As an evaluation adds to a run that goes on: what is in the live file is neither lost nor moved.
TEST_F(MetricsTest, AddedBesideAWriter) {
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 1, "train/loss", 3.0);
  add_metrics(path_, {.step = 1, .scalars = {{"eval/CORE", 0.25}}});
  add(writer, 2, "train/loss", 2.0);
  EXPECT_EQ(series("train/loss"), Points());
  EXPECT_EQ(series("eval/CORE"), (Points{{1, 0.25}}));
  writer.flush();
  EXPECT_EQ(series("train/loss"), (Points{{1, 3.0}, {2, 2.0}}));
  writer.rewind(0);
  writer.flush();
  EXPECT_EQ(series("eval/CORE"), Points());
}

TEST_F(MetricsTest, ValuesThatAreNoNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 1, "loss", std::nan(""));
  add(writer, 2, "loss", -infinity);
  writer.flush();
  const Points points = series("loss");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_TRUE(std::isnan(points[0].second));
  EXPECT_EQ(points[1].second, -infinity);
}

TEST_F(MetricsTest, TagsAreTextNotSql) {
  const std::string tag = "it's; DROP TABLE metrics -- é";
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 1, tag, 1.0);
  writer.flush();
  EXPECT_EQ(series(tag), (Points{{1, 1.0}}));
}

TEST_F(MetricsTest, TheLastWriteOfAKeyWins) {
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 1, "a", 1.0);
  add(writer, 1, "a", 2.0);  // in the queue
  add(writer, 2, "a", 3.0);
  add(writer, 1, "b", 4.0);
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 2.0}, {2, 3.0}}));
  add(writer, 3, "a", 5.0);
  add(writer, 1, "a", 6.0);  // in the file
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 6.0}, {2, 3.0}, {3, 5.0}}));
  EXPECT_EQ(series("b"), (Points{{1, 4.0}}));
}

TEST_F(MetricsTest, RewindForgetsWhatCameAfterAStep) {
  {
    MetricsWriter writer(path_, kNeverFolded);
    for (int64_t step = 1; step <= 10; ++step) add(writer, step, "a", double(step));
  }
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 4, "b", 40.0);
  add(writer, 6, "b", 60.0);
  writer.rewind(5);
  add(writer, 6, "a", -6.0);
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 1.0}, {2, 2.0}, {3, 3.0}, {4, 4.0}, {5, 5.0}, {6, -6.0}}));
  EXPECT_EQ(series("b"), (Points{{4, 40.0}}));
}

TEST_F(MetricsTest, TheBackgroundThreadWritesUnasked) {
  MetricsWriter writer(path_, 0.01);
  add(writer, 1, "a", 1.0);
  for (int i = 0; i < 500 && series("a").empty(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(series("a"), (Points{{1, 1.0}}));
}

TEST_F(MetricsTest, AReaderThatHoldsTheFileDelaysButLosesNothing) {
  { MetricsWriter creates_the_file(path_, kNeverFolded); }
  HoldingProcess reader(path_, HoldingProcess::For::kReading);
  MetricsWriter writer(path_, 0.01, 0.2);
  // For many intervals of the background thread no move gets through, and none is an error.
  for (int64_t step = 1; step <= 20; ++step) {
    add(writer, step, "a", double(step));
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(writer.take_failure(), "");
  try {
    writer.flush();
    ADD_FAILURE() << "flushed a locked file";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
  add(writer, 21, "a", 21.0);
  reader.close();
  writer.flush();
  EXPECT_EQ(series("a").size(), 21u);
}

// A run whose metrics cannot be moved ends all the same: it has waited for the reader once, and does so no second time.
// They are there when it goes on.
TEST_F(MetricsTest, AReaderThatHoldsTheFileToTheEndIsWaitedForOnce) {
  std::optional<MetricsWriter> writer(std::in_place, path_, kNeverFolded, /*lock_patience_s=*/2.0);
  {
    const HoldingProcess reader(path_, HoldingProcess::For::kReading);
    add(*writer, 1, "a", 1.0);
    EXPECT_THROW(writer->flush(), Error);
    const auto begin = std::chrono::steady_clock::now();
    writer.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(1'900));
  }
  EXPECT_TRUE(series("a").empty());
  EXPECT_TRUE(fs::exists(live_));
  { MetricsWriter goes_on(path_, kNeverFolded); }
  EXPECT_EQ(series("a"), (Points{{1, 1.0}}));
  EXPECT_FALSE(fs::exists(live_));
}

TEST_F(MetricsTest, ReadersInAnotherProcessPollWhileValuesArrive) {
  constexpr int64_t kSteps = 60;
  { MetricsWriter creates_the_file(path_, kNeverFolded); }
  const pid_t child = ::fork();
  if (child == 0) {
    // 0 once everything was seen, growing and in order; 1 otherwise.
    size_t seen = 0;
    try {
      const std::vector<std::string> tags = {"a"};
      MetricsReader reader(path_);
      while (seen < kSteps) {
        reader.poll();
        reader.load(tags);
        const Series& points = reader.series("a");
        if (points.size() < seen) ::_exit(1);
        for (size_t i = 0; i < points.size(); ++i) {
          if (points.steps()[i] != int64_t(i + 1) || points.values()[i] != 2.0 * double(i + 1)) ::_exit(1);
        }
        seen = points.size();
      }
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  {
    MetricsWriter writer(path_, 0.02);
    for (int64_t step = 1; step <= kSteps; ++step) {
      add(writer, step, "a", 2.0 * double(step));
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Killed again and again (NMOE_KILLS: how often) at whatever it does, while values move to the database all the time.
// What one process has appended is there for the next, each value once, and steps that are done again have the later
// value.
TEST_F(MetricsTest, AKilledWriterLosesNothing) {
  const char* wanted = std::getenv("NMOE_KILLS");
  const int64_t kills_in_all = wanted == nullptr ? 20 : std::atoll(wanted);
  int64_t done = 0;  // steps
  for (int64_t kill = 1; kill <= kills_in_all; ++kill) {
    int appended[2];
    ASSERT_EQ(::pipe(appended), 0);
    const int64_t from = std::max<int64_t>(0, done - 3);  // its last checkpoint
    const pid_t child = ::fork();
    if (child == 0) {
      MetricsWriter writer(path_, /*fold_interval_s=*/0.001);
      writer.rewind(from);
      for (int64_t step = from + 1;; ++step) {
        const float values[] = {float(step), float(kill)};
        writer.append({.step = step,
                       .ts_ms = kill,
                       .scalars = {{"a", double(step)}, {"kill", double(kill)}},
                       .arrays = {{"load", {values, values + 2}}}});
        if (::write(appended[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
        ::usleep(300);
      }
    }
    ::close(appended[1]);
    int64_t step = 0;
    for (int64_t i = 0; i <= kill % 7; ++i) ASSERT_EQ(::read(appended[0], &step, sizeof(step)), sizeof(step));
    ::usleep(static_cast<useconds_t>(137 * kill % 4000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(appended[0], &step, sizeof(step)) == sizeof(step)) {
    }
    ::close(appended[0]);
    done = step;

    if (kill % 10 != 0) continue;
    MetricsReader reader(path_);
    reader.load(std::vector<std::string>{"a", "kill", "load"});
    const Series &a = reader.series("a"), &kills = reader.series("kill");
    const ArraySeries& load = reader.arrays("load");
    // The step behind the last that was told of may be there, too.
    ASSERT_TRUE(a.size() == size_t(done) || a.size() == size_t(done) + 1) << a.size() << " of " << done;
    ASSERT_EQ(load.size(), a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a.steps()[i], int64_t(i + 1));
      ASSERT_EQ(a.values()[i], double(i + 1));
      ASSERT_EQ(load.rows()[i], (std::vector<float>{float(i + 1), float(kills.values()[i])}));
      ASSERT_TRUE(i == 0 || kills.values()[i] >= kills.values()[i - 1]);
    }
    ASSERT_EQ(kills.values().back(), double(kill));
  }
  { MetricsWriter writer(path_, kNeverFolded); }
  const Points points = series("a");
  ASSERT_GE(points.size(), size_t(done));
  for (size_t i = 0; i < points.size(); ++i) ASSERT_EQ(points[i].first, int64_t(i + 1)) << "once each";
}

TEST_F(MetricsTest, AFileThatIsNoDatabase) {
  make_directories(path_.parent_path());
  write_file_atomically(path_, std::string(5000, 'x'));
  for (const std::function<void()>& action : std::vector<std::function<void()>>{
           [&] { MetricsWriter writer(path_); }, [&] { test::read_series(path_, "a"); }}) {
    try {
      action();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 1);
      EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("not a valid DuckDB"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(read_file(path_), std::string(5000, 'x')) << "it was overwritten";
}

TEST_F(MetricsTest, AFailureInTheBackgroundSurfacesAndNothingIsLost) {
  MetricsWriter writer(path_, 0.005);
  // At no time is there no file, in whose place the writer would begin one.
  const auto exchange = [&] {
    ASSERT_EQ(::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, (dir_ / "aside").c_str(), RENAME_EXCHANGE), 0);
  };
  write_file_atomically(dir_ / "aside", std::string(5000, 'x'));
  exchange();
  int64_t step = 0;
  std::string failure;
  while (failure.empty() && step < 2000) {
    add(writer, ++step, "a", 1.0);
    failure = writer.take_failure();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_NE(failure.find(path_.string()), std::string::npos) << failure;
  EXPECT_THROW(writer.flush(), Error);
  exchange();
  writer.flush();
  EXPECT_EQ(series("a").size(), static_cast<size_t>(step));
}

// As on a full disk: records wait in memory, and the live file has no half ones.
TEST_F(MetricsTest, ALiveFileThatCannotGrow) {
  MetricsWriter writer(path_, kNeverFolded);
  add(writer, 1, "a", 1.0);
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = old;
  limit.rlim_cur = fs::file_size(live_) + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  add(writer, 2, "a", 2.0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_action);
  EXPECT_NE(writer.take_failure().find(live_.string()), std::string::npos);
  add(writer, 3, "a", 3.0);
  EXPECT_EQ(writer.take_failure(), "");
  MetricsReader reader(path_);
  reader.load(std::vector<std::string>{"a"});
  EXPECT_EQ(reader.series("a").size(), 3u);
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 1.0}, {2, 2.0}, {3, 3.0}}));
}

// Zeros where bytes had been, after a power cut.
TEST_F(MetricsTest, ADamagedLiveFileIsMovedAside) {
  make_directories(path_.parent_path());
  write_file_atomically(live_, std::string(100, '\0'));
  {
    MetricsWriter writer(path_, kNeverFolded);
    add(writer, 1, "a", 1.0);
  }
  EXPECT_EQ(series("a"), (Points{{1, 1.0}}));
  EXPECT_EQ(read_file(live_.string() + ".damaged"), std::string(100, '\0'));
}

// The database has what the live file lost.
TEST_F(MetricsTest, ALiveFileThatIsShorterThanItWas) {
  std::optional<MetricsWriter> writer(std::in_place, path_, kNeverFolded);
  add(*writer, 1, "a", 1.0);
  const std::string early = read_file(live_);
  add(*writer, 2, "a", 2.0);
  writer->flush();
  writer.reset();
  write_file_atomically(live_, early);
  {
    MetricsWriter goes_on(path_, kNeverFolded);
    add(goes_on, 3, "a", 3.0);
    MetricsReader reader(path_);
    reader.load(std::vector<std::string>{"a"});
    EXPECT_EQ(reader.series("a").size(), 3u);
  }
  EXPECT_EQ(series("a"), (Points{{1, 1.0}, {2, 2.0}, {3, 3.0}}));
}

TEST_F(MetricsTest, ReadingAMissingFileIsAnError) {
  EXPECT_THROW(test::read_series(path_, "a"), Error);
  EXPECT_THROW(test::last_values(path_), Error);
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace nmoe
