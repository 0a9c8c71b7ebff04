#include "track/metrics_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/holding_process.h"
#include "track/metrics.h"

namespace nmoe {
namespace {

constexpr double kNever = 3600.0;  // a fold interval

class MetricsReaderTest : public test::TempDirTest {
 protected:
  static void add(MetricsWriter& writer, int64_t step, double value) {
    writer.append({.step = step,
                   .ts_ms = now_ms(),
                   .scalars = {{"a", value}, {"b", -value}},
                   .arrays = {{"load", {float(value), 0.5f}}}});
  }
  std::vector<double> values(const MetricsReader& reader, const std::string& tag = "a") const {
    const auto column = reader.series(tag).values();
    return {column.begin(), column.end()};
  }

  const fs::path path_ = dir_ / "rank_0.duckdb";
  const fs::path live_ = dir_ / "rank_0.live";
  const std::vector<std::string> tags_ = {"a", "load"};
};

using Values = std::vector<double>;

TEST_F(MetricsReaderTest, FromTheDatabaseTheLiveFileAndWhatComes) {
  MetricsWriter writer(path_, kNever);
  add(writer, 1, 10);
  writer.flush();
  add(writer, 2, 20);
  MetricsReader reader(path_);
  reader.load(tags_);
  EXPECT_EQ(values(reader), (Values{10, 20}));
  EXPECT_TRUE(values(reader, "b").empty()) << "not loaded";
  EXPECT_FALSE(reader.poll().values);
  add(writer, 3, 30);
  EXPECT_TRUE(reader.poll().values);
  writer.flush();  // the live file is replaced
  add(writer, 4, std::nan(""));
  writer.flush();
  add(writer, 5, 50);
  reader.poll();
  EXPECT_EQ(reader.series("a").size(), 5u);
  EXPECT_TRUE(std::isnan(reader.series("a").values()[3]));
  EXPECT_EQ(reader.arrays("load").rows()[4], (std::vector<float>{50.0f, 0.5f}));
  reader.load(std::vector<std::string>{"b"});  // of which the database has the first part by now
  EXPECT_EQ(reader.series("b").size(), 5u);
  EXPECT_EQ(reader.series("b").values()[4], -50);

  const auto last = reader.tags();
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[0].tag, "a");
  EXPECT_EQ(last[0].value, 50.0);
  EXPECT_EQ(last[2].tag, "load");
  EXPECT_TRUE(last[2].is_array);
  EXPECT_EQ(last[2].value, 2.0);
}

// What is not loaded is not kept, but read again when it is wanted; the last row of an array is had for little.
TEST_F(MetricsReaderTest, OfTagsThatAreNotLoadedTheLastValueAlone) {
  MetricsWriter writer(path_, kNever);
  add(writer, 1, 10);
  add(writer, 2, 20);
  writer.flush();
  MetricsReader reader(path_);
  EXPECT_TRUE(reader.last_row("load").empty());
  reader.load_last(tags_);
  EXPECT_EQ(reader.last_row("load"), (std::vector<float>{20.0f, 0.5f}));
  add(writer, 3, 30);
  add(writer, 4, 40);
  reader.poll();
  EXPECT_EQ(reader.last_row("load"), (std::vector<float>{40.0f, 0.5f}));
  EXPECT_EQ(reader.arrays("load").size(), 0u);
  writer.rewind(3);
  add(writer, 4, 41);
  reader.load(tags_);  // ahead of poll()
  EXPECT_EQ(values(reader), (Values{10, 20, 30, 41}));
  EXPECT_EQ(reader.arrays("load").rows()[3], (std::vector<float>{41.0f, 0.5f}));
  EXPECT_TRUE(reader.poll().reloaded);
  EXPECT_EQ(values(reader), (Values{10, 20, 30, 41}));
  EXPECT_EQ(reader.last_row("load"), (std::vector<float>{41.0f, 0.5f}));
}

// The end, a resume from an earlier step, and a crash.
TEST_F(MetricsReaderTest, FollowsARunThatGoesOn) {
  std::optional<MetricsWriter> writer(std::in_place, path_, kNever);
  for (int64_t step = 1; step <= 4; ++step) add(*writer, step, double(step));
  MetricsReader reader(path_);
  reader.load(tags_);
  writer.reset();
  EXPECT_FALSE(fs::exists(live_));
  EXPECT_FALSE(reader.poll().reloaded);
  EXPECT_EQ(values(reader), (Values{1, 2, 3, 4}));

  writer.emplace(path_, kNever);
  writer->rewind(2);
  const MetricsReader::Change change = reader.poll();
  EXPECT_TRUE(change.reloaded);
  EXPECT_EQ(values(reader), (Values{1, 2}));
  EXPECT_EQ(reader.arrays("load").size(), 2u);
  EXPECT_EQ(reader.tags()[0].step, 2);
  add(*writer, 3, 33);
  reader.poll();
  EXPECT_EQ(values(reader), (Values{1, 2, 33}));
  {
    MetricsReader late(path_);  // rewind and database are not one yet
    EXPECT_EQ(late.tags()[0].step, 3);
    late.load(tags_);
    EXPECT_EQ(values(late), (Values{1, 2, 33}));
    writer->flush();
    late.load(std::vector<std::string>{"b"});
    EXPECT_EQ(values(late, "b"), (Values{-1, -2, -33}));
  }
  add(*writer, 4, 44);
  writer.reset();
  reader.poll();
  EXPECT_EQ(values(reader), (Values{1, 2, 33, 44}));
}

// A reader that sleeps while the live file is replaced more than once.
TEST_F(MetricsReaderTest, AReaderThatIsFarBehind) {
  MetricsWriter writer(path_, kNever);
  MetricsReader reader(path_);
  add(writer, 1, 1);
  reader.poll();
  reader.load(tags_);
  for (int64_t step = 2; step <= 5; ++step) {
    add(writer, step, double(step));
    writer.flush();
  }
  EXPECT_TRUE(reader.poll().values);
  EXPECT_EQ(values(reader), (Values{1, 2, 3, 4, 5}));
}

// Whoever follows many runs must not wait for the database of one.
TEST_F(MetricsReaderTest, PollWaitsForNobody) {
  std::optional<MetricsWriter> writer(std::in_place, path_, kNever);
  add(*writer, 1, 1);
  MetricsReader reader(path_);
  reader.load(tags_);
  for (int64_t step = 2; step <= 5; ++step) {
    add(*writer, step, double(step));
    writer->flush();
  }
  const auto polled_at_once = [&] {
    const auto begin = std::chrono::steady_clock::now();
    const MetricsReader::Change change = reader.poll();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
    return change;
  };
  std::optional<HoldingProcess> holder(std::in_place, path_, HoldingProcess::For::kWriting);
  EXPECT_FALSE(polled_at_once().reloaded);
  EXPECT_FALSE(polled_at_once().values);
  EXPECT_EQ(values(reader), (Values{1, 2})) << "what was in the live file that it had open";
  holder.reset();
  EXPECT_TRUE(polled_at_once().reloaded);
  EXPECT_EQ(values(reader), (Values{1, 2, 3, 4, 5}));

  // The run ends, and more came than the reader has seen.
  add(*writer, 6, 6);
  writer->flush();
  add(*writer, 7, 7);
  writer.reset();
  holder.emplace(path_, HoldingProcess::For::kWriting);
  polled_at_once();
  holder.reset();
  polled_at_once();
  EXPECT_EQ(values(reader), (Values{1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(MetricsReaderTest, WithoutADatabaseOrALiveFile) {
  EXPECT_THROW(MetricsReader{path_}, Error);
  std::optional<MetricsWriter> writer(std::in_place, path_, kNever);
  add(*writer, 1, 1);
  fs::remove(path_);
  MetricsReader reader(path_);
  reader.load(tags_);
  EXPECT_EQ(values(reader), (Values{1}));
}

// What n eval adds when training is over.
TEST_F(MetricsReaderTest, WhatIsAddedToARunThatHasEnded) {
  {
    MetricsWriter writer(path_, kNever);
    add(writer, 1, 1);
  }
  MetricsReader reader(path_);
  reader.load(tags_);
  EXPECT_FALSE(reader.poll().values);
  add_metrics(path_, {.step = 1, .ts_ms = 5, .scalars = {{"eval/x/acc", 0.5}}});
  EXPECT_TRUE(reader.poll().values);
  EXPECT_TRUE(reader.has("eval/x/acc"));
  EXPECT_EQ(values(reader), (Values{1}));
  EXPECT_FALSE(reader.poll().values);
}

// It is looked at once, not at every poll; another file in its place is looked at again.
TEST_F(MetricsReaderTest, ALiveFileThatCannotBeRead) {
  {
    MetricsWriter writer(path_, kNever);
    add(writer, 1, 1);
  }
  write_file_atomically(live_, "something else");
  MetricsReader reader(path_);
  reader.load(tags_);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(reader.poll().reloaded) << i;
  EXPECT_EQ(values(reader), (Values{1}));
  MetricsWriter writer(path_, kNever);  // puts it aside
  add(writer, 2, 2);
  reader.poll();
  EXPECT_EQ(values(reader), (Values{1, 2}));
}

// A database that others made must not name folders beyond the run's own: n runs rm removes what this is in.
TEST(MetricsPath, IsBelowTheFolderOfRuns) {
  EXPECT_EQ(metrics_path("runs", "a", 1), fs::path("runs/metrics/a/rank_1.duckdb"));
  for (const char* id : {"", ".", "..", "/home/u", "a/b", "../a"}) {
    EXPECT_EQ(test::error_of([&] { metrics_path("runs", id); }).kind(), ErrorKind::kRuntime) << id;
  }
}

}  // namespace
}  // namespace nmoe
