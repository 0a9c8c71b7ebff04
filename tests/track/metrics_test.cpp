#include "track/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;

constexpr double kNever = 3600.0;  // a flush interval: only flush() writes

class MetricsTest : public test::TempDirTest {
 protected:
  std::vector<std::pair<int64_t, double>> series(const std::string& tag) const {
    std::vector<std::pair<int64_t, double>> points;
    for (const MetricRow& row : read_series(path_, tag)) points.emplace_back(row.step, row.value);
    return points;
  }

  const fs::path path_ = dir_ / "metrics" / "run" / "rank_0.duckdb";
};

using Points = std::vector<std::pair<int64_t, double>>;

// A process that holds the file open for reading, as DuckDB does it (a shared lock on the whole
// file), until killed.
class HoldingReader {
 public:
  explicit HoldingReader(const fs::path& path) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const int fd = ::open(path.c_str(), O_RDONLY);
      struct flock lock {};
      lock.l_type = F_RDLCK;
      lock.l_whence = SEEK_SET;
      const bool held = fd >= 0 && ::fcntl(fd, F_SETLKW, &lock) == 0;
      if (::write(ready[1], held ? "y" : "n", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char answer = 'n';
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~HoldingReader() { close(); }
  void close() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_F(MetricsTest, AValueComesBackWithItsTime) {
  const auto now = [] {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<milliseconds>(time).count();
  };
  const int64_t before = now();
  MetricsWriter writer(path_, kNever);
  EXPECT_TRUE(read_series(path_, "train/loss").empty()) << "the table is there from the start";
  writer.add(7, "train/loss", 2.5);
  writer.flush();
  const auto rows = read_series(path_, "train/loss");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 7);
  EXPECT_EQ(rows[0].tag, "train/loss");
  EXPECT_EQ(rows[0].value, 2.5);
  EXPECT_GE(rows[0].ts_ms, before);
  EXPECT_LE(rows[0].ts_ms, now());
}

TEST_F(MetricsTest, ThousandsOfValuesInSeveralFlushes) {
  {
    MetricsWriter writer(path_, kNever);
    for (int64_t step = 1; step <= 300; ++step) {
      for (int layer = 0; layer < 20; ++layer) {
        writer.add(step, fmt::format("router/layer_{:02}/cv", layer), 0.5 * double(step) + layer);
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
  const auto last = last_values(path_);
  ASSERT_EQ(last.size(), 20u);
  EXPECT_EQ(last[3].tag, "router/layer_03/cv");
  EXPECT_EQ(last[3].step, 300);
  EXPECT_EQ(last[3].value, 0.5 * 300.0 + 3);
}

TEST_F(MetricsTest, ValuesThatAreNoNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  MetricsWriter writer(path_, kNever);
  writer.add(1, "loss", std::nan(""));
  writer.add(2, "loss", -infinity);
  writer.flush();
  const Points points = series("loss");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_TRUE(std::isnan(points[0].second));
  EXPECT_EQ(points[1].second, -infinity);
}

TEST_F(MetricsTest, TagsAreTextNotSql) {
  const std::string tag = "it's; DROP TABLE metrics -- é";
  MetricsWriter writer(path_, kNever);
  writer.add(1, tag, 1.0);
  writer.flush();
  EXPECT_EQ(series(tag), (Points{{1, 1.0}}));
}

TEST_F(MetricsTest, TheLastWriteOfAKeyWins) {
  MetricsWriter writer(path_, kNever);
  writer.add(1, "a", 1.0);
  writer.add(1, "a", 2.0);  // in the queue
  writer.add(2, "a", 3.0);
  writer.add(1, "b", 4.0);
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 2.0}, {2, 3.0}}));
  writer.add(3, "a", 5.0);
  writer.add(1, "a", 6.0);  // in the file
  writer.flush();
  EXPECT_EQ(series("a"), (Points{{1, 6.0}, {2, 3.0}, {3, 5.0}}));
  EXPECT_EQ(series("b"), (Points{{1, 4.0}}));
}

TEST_F(MetricsTest, RewindForgetsWhatCameAfterAStep) {
  {
    MetricsWriter writer(path_, kNever);
    for (int64_t step = 1; step <= 10; ++step) writer.add(step, "a", double(step));
  }
  MetricsWriter writer(path_, kNever);
  writer.add(4, "b", 40.0);
  writer.add(6, "b", 60.0);
  writer.rewind(5);
  EXPECT_EQ(series("a"), (Points{{1, 1.0}, {2, 2.0}, {3, 3.0}, {4, 4.0}, {5, 5.0}}));
  writer.add(6, "a", -6.0);
  writer.flush();
  EXPECT_EQ(series("a").back(), (std::pair<int64_t, double>(6, -6.0)));
  EXPECT_EQ(series("b"), (Points{{4, 40.0}}));
}

TEST_F(MetricsTest, TheBackgroundThreadWritesUnasked) {
  MetricsWriter writer(path_, 0.01);
  writer.add(1, "a", 1.0);
  for (int i = 0; i < 500 && series("a").empty(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(series("a"), (Points{{1, 1.0}}));
}

TEST_F(MetricsTest, AReaderThatHoldsTheFileDelaysButLosesNothing) {
  { MetricsWriter creates_the_file(path_, kNever); }
  HoldingReader reader(path_);
  EXPECT_THROW(MetricsWriter(path_, kNever, 0.2), Error) << "the file was not locked";
  reader.close();

  MetricsWriter writer(path_, 0.01, 0.2);
  HoldingReader again(path_);
  // For many intervals of the background thread no write gets through, and none is an error.
  for (int64_t step = 1; step <= 20; ++step) {
    writer.add(step, "a", double(step));
    std::this_thread::sleep_for(milliseconds(10));
  }
  try {
    writer.flush();
    ADD_FAILURE() << "flushed a locked file";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
  writer.add(21, "a", 21.0);
  again.close();
  writer.flush();
  EXPECT_EQ(series("a").size(), 21u);
}

// A run whose metrics cannot be written ends all the same: it has waited for the reader once, and does so no second
// time.
TEST_F(MetricsTest, AReaderThatHoldsTheFileToTheEndIsWaitedForOnce) {
  std::optional<MetricsWriter> writer(std::in_place, path_, kNever, /*lock_patience_s=*/0.5);
  const HoldingReader reader(path_);
  writer->add(1, "a", 1.0);
  EXPECT_THROW(writer->flush(), Error);
  const auto begin = std::chrono::steady_clock::now();
  writer.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(400));
}

TEST_F(MetricsTest, ReadersInAnotherProcessPollWhileValuesArrive) {
  constexpr int64_t kSteps = 60;
  { MetricsWriter creates_the_file(path_, kNever); }
  const pid_t reader = ::fork();
  if (reader == 0) {
    // 0 once everything was seen, growing and in order; 1 otherwise.
    size_t seen = 0;
    try {
      while (seen < kSteps) {
        const Points points = series("a");
        if (points.size() < seen) ::_exit(1);
        for (size_t i = 0; i < points.size(); ++i) {
          if (points[i] != std::pair<int64_t, double>(i + 1, 2.0 * double(i + 1))) ::_exit(1);
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
      writer.add(step, "a", 2.0 * double(step));
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  int status = -1;
  ::waitpid(reader, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(MetricsTest, KillLosesOnlyWhatWasNotFlushed) {
  const pid_t child = ::fork();
  if (child == 0) {
    MetricsWriter writer(path_, 0.001);
    for (int64_t step = 1; step <= 50; ++step) writer.add(step, "a", double(step));
    writer.flush();
    for (int64_t step = 51;; ++step) {
      writer.add(step, "a", double(step));
      if (step % 100 == 0) ::usleep(1000);
    }
  }
  std::this_thread::sleep_for(milliseconds(50));
  while (!fs::exists(path_) || read_series(path_, "a").size() < 50) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Points points = series("a");
  EXPECT_GE(points.size(), 50u);
  EXPECT_EQ(points.back().first, static_cast<int64_t>(points.size()));
  MetricsWriter writer(path_, kNever);
  writer.rewind(20);
  EXPECT_EQ(series("a").size(), 20u);
}

TEST_F(MetricsTest, AFileThatIsNoDatabase) {
  make_directories(path_.parent_path());
  write_file_atomically(path_, std::string(5000, 'x'));
  for (const std::function<void()>& action :
       std::vector<std::function<void()>>{[&] { MetricsWriter writer(path_); }, [&] { read_series(path_, "a"); }}) {
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
  fs::rename(path_, dir_ / "aside");
  write_file_atomically(path_, std::string(5000, 'x'));
  int64_t step = 0;
  std::string failure;
  while (failure.empty() && step < 2000) {
    writer.add(++step, "a", 1.0);
    failure = writer.take_failure();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_NE(failure.find(path_.string()), std::string::npos) << failure;
  EXPECT_THROW(writer.flush(), Error);
  fs::rename(dir_ / "aside", path_);
  writer.flush();
  EXPECT_EQ(series("a").size(), static_cast<size_t>(step));
}

TEST_F(MetricsTest, ReadingAMissingFileIsAnError) {
  EXPECT_THROW(read_series(path_, "a"), Error);
  EXPECT_THROW(last_values(path_), Error);
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace nmoe
