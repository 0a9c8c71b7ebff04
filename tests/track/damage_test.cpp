// What is damaged where a run records is set aside, and the run goes on.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <fstream>

#include "base/crc32c.h"
#include "support/errors.h"
#include "support/metrics.h"
#include "support/temp_dir.h"
#include "track/holding_process.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/runs.h"

namespace nmoe {
namespace {

class DamageTest : public test::TempDirTest {
 protected:
  // What a run of so many steps has recorded.
  void record(int64_t steps, const fs::path& path) const {
    MetricsWriter writer(path);
    for (int64_t step = 1; step <= steps; ++step) {
      writer.append({.step = step,
                     .ts_ms = 1000 * step,
                     .scalars = {{"train/loss", 0.37 * static_cast<double>(step)}},
                     .arrays = {{"load", std::vector<float>(50, static_cast<float>(step))}}});
    }
  }
  static std::vector<int64_t> steps_of(const fs::path& path) {
    std::vector<int64_t> steps;
    for (const test::MetricRow& row : test::read_series(path, "train/loss")) steps.push_back(row.step);
    return steps;
  }
  static void overwrite(const fs::path& path, int64_t place, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(place);
    file << bytes;
  }
  // Goes on behind step 2 and records step 3.
  void go_on() const {
    const auto writer = MetricsWriter::go_on(path_, 2);
    writer->append({.step = 3, .ts_ms = 3, .scalars = {{"train/loss", 3.0}}});
    writer->flush();
  }
  fs::path aside(const std::string& suffix = "") const { return path_.string() + ".damaged" + suffix; }

  const fs::path path_ = dir_ / "metrics" / "run" / "rank_0.duckdb";
  const fs::path live_ = dir_ / "metrics" / "run" / "rank_0.live";
};

TEST_F(DamageTest, WhatIsWholeIsGoneOnWith) {
  record(5, path_);
  go_on();
  EXPECT_EQ(steps_of(path_), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_FALSE(fs::exists(aside()));
}

TEST_F(DamageTest, ADatabaseIsSetAside) {
  record(20'000, path_);
  const std::string whole = read_file(path_);
  ASSERT_GT(whole.size(), 200'000u);
  const std::string zeros(whole.size(), '\0');
  int number = 1;
  for (const std::string& damaged :
       {std::string(5000, 'x'), zeros, whole.substr(0, whole.size() / 2), std::string(),
        whole.substr(0, 4096) + std::string(8192, 'x') + whole.substr(12288),                    // both its heads
        whole.substr(0, whole.size() / 2) + "xxxxxxxx" + whole.substr(whole.size() / 2 + 8)}) {  // somewhere in a table
    write_file_atomically(path_, damaged);
    go_on();
    EXPECT_EQ(steps_of(path_), (std::vector<int64_t>{3})) << number;
    EXPECT_EQ(read_file(aside(number == 1 ? "" : fmt::format("-{}", number))), damaged) << number;
    ++number;
  }
}

// What DuckDB had not put into the file yet, damaged.
TEST_F(DamageTest, ADatabaseIsSetAsideWithItsLog) {
  record(3, path_);
  const fs::path log = path_.string() + ".wal";
  const std::string bytes = std::string(100, '\0') + "no log, but long enough to be one" + std::string(500, '\7');
  write_file_atomically(log, bytes);
  go_on();
  const std::vector<int64_t> steps = steps_of(path_);
  EXPECT_EQ(steps.back(), 3);
  if (fs::exists(aside())) {
    EXPECT_EQ(steps.size(), 1u);
    EXPECT_EQ(read_file(log.string() + ".damaged"), bytes);
  } else {
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3})) << "passed over as one that was never begun";
  }
}

TEST_F(DamageTest, AnotherProgramsDatabaseIsSetAside) {
  record(3, path_);
  fs::remove(path_);
  write_file_atomically(path_, "SQLite format 3");
  go_on();
  EXPECT_EQ(steps_of(path_), (std::vector<int64_t>{3}));
}

// Who reads it does no damage.
TEST_F(DamageTest, ADatabaseThatIsHeldIsNotDamaged) {
  record(5, path_);
  {
    HoldingProcess reader(path_, HoldingProcess::For::kReading);
    const auto writer = MetricsWriter::go_on(path_, 2);
    writer->append({.step = 3, .ts_ms = 3, .scalars = {{"train/loss", 3.0}}});
    reader.close();
  }
  EXPECT_EQ(steps_of(path_), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_FALSE(fs::exists(aside()));
}

// A directory that nothing can be written to is told as such, and nothing is renamed.
TEST_F(DamageTest, PermissionsAreNoDamage) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may do everything";
  record(5, path_);
  fs::permissions(path_, fs::perms::owner_read);
  EXPECT_THROW(MetricsWriter::go_on(path_, 2), Error);
  EXPECT_FALSE(fs::exists(aside()));
}

// ---- the live file -----------------------------------------------------------------------------

std::string live_head(uint64_t id, uint64_t base) {
  std::string head = "nmoelive" + std::string(24, '\0');
  std::memcpy(head.data() + 16, &id, sizeof(id));
  std::memcpy(head.data() + 24, &base, sizeof(base));
  const uint32_t version = 1, sum = crc32c(std::string_view(head).substr(16));
  std::memcpy(head.data() + 8, &version, sizeof(version));
  std::memcpy(head.data() + 12, &sum, sizeof(sum));
  return head;
}

// Checksums are right; the database takes UTF-8 alone.
TEST_F(DamageTest, TagsOfOtherBytesBecomeText) {
  make_directories(live_.parent_path());
  const std::string record = encode_record({.step = 1,
                                            .ts_ms = 1,
                                            .scalars = {{"a\xFFz", 1.0}, {"\xC3", 2.0}, {std::string("n\0l", 3), 4.0}},
                                            .arrays = {{"\xED\xA0\x80", {3.0f}}}});
  write_file_atomically(live_, live_head(7, 0) + record);
  const auto tags = [&] {
    std::map<std::string, double> all;
    for (const MetricsView::Last& last : MetricsReader(path_).tags()) all[last.tag] = last.value;
    return all;
  };
  const std::map<std::string, double> expected = {
      {"a\uFFFDz", 1.0}, {"\uFFFD", 2.0}, {std::string("n\0l", 3), 4.0}, {"\uFFFD\uFFFD\uFFFD", 1.0}};
  EXPECT_EQ(tags(), expected) << "before it is in the database";
  go_on();
  EXPECT_FALSE(fs::exists(live_.string() + ".damaged"));
  EXPECT_EQ(tags().at("a\uFFFDz"), 1.0);
  EXPECT_EQ(tags().size(), 5u);
}

TEST_F(DamageTest, HeadsThatNoColumnHolds) {
  make_directories(live_.parent_path());
  const uint64_t most = ~uint64_t{0};
  int number = 1;
  for (const std::string& head : {live_head(most, 0), live_head(7, most), live_head(most, most)}) {
    write_file_atomically(live_, head);
    go_on();
    EXPECT_EQ(steps_of(path_).back(), 3);
    EXPECT_EQ(read_file(live_.string() + ".damaged" + (number == 1 ? "" : fmt::format("-{}", number))), head);
    ++number;
  }
}

TEST_F(DamageTest, TwentyThousandTagsTakeNoTime) {
  make_directories(live_.parent_path());
  MetricRecord record{.step = 1, .ts_ms = 1};
  for (int i = 0; i < 20'000; ++i) record.scalars.emplace_back(fmt::format("tag/{}", i), i);
  write_file_atomically(live_, live_head(7, 0) + encode_record(record));
  const std::clock_t begin = std::clock();  // of this process, whatever else the machine does
  go_on();
  MetricsReader reader(path_);
  std::vector<std::string> names;
  for (const MetricsView::Last& last : reader.tags()) names.push_back(last.tag);
  reader.load(names);
  EXPECT_EQ(names.size(), 20'001u);
  EXPECT_EQ(reader.series("tag/19999").values()[0], 19999.0);
  EXPECT_EQ(reader.series("tag/0").size(), 1u);
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
}

// ---- names -------------------------------------------------------------------------------------

// Neither DuckDB nor SQLite takes them for anything but names.
TEST_F(DamageTest, FoldersOfAnyName) {
  const fs::path here = fs::current_path();
  fs::current_path(dir_);
  for (const char* name : {"a?b=1&c", "sqlite:a", "file:a", "b#c%3fd", "md:x", "a b'c\"d", "*[1]?", "s3:a"}) {
    for (const fs::path& root : {fs::path(name), dir_ / "absolute" / name}) {
      const fs::path path = root / "rank_0.duckdb";
      record(3, path);
      {
        const auto writer = MetricsWriter::go_on(path, 2);
        writer->append({.step = 4, .ts_ms = 3, .scalars = {{"train/loss", 3.0}}});
      }
      EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 4})) << root;
      const std::string id = [&] {
        RunStore store(root / "experiments.db");
        return store.start({.name = "x", .experiment = "y"});
      }();
      EXPECT_TRUE(RunStore(root / "experiments.db", RunStore::Access::kRead).find(id)) << root;
      EXPECT_TRUE(fs::exists(root / "experiments.db")) << root;
    }
  }
  fs::current_path(here);
}

// ---- runs --------------------------------------------------------------------------------------

TEST_F(DamageTest, ARunsDatabaseIsKnownAsDamaged) {
  const fs::path path = dir_ / "experiments.db";
  {
    RunStore store(path);
    for (int i = 0; i < 300; ++i) store.start({.name = "x", .experiment = "y", .config_json = R"({"a": 1})"});
  }
  const std::string whole = read_file(path);
  int number = 1;
  const auto tables = [&] {
    sqlite3* database = nullptr;
    sqlite3_open(path.c_str(), &database);
    sqlite3_exec(database, "DROP TABLE runs", nullptr, nullptr, nullptr);
    sqlite3_close(database);
    return read_file(path);
  };
  for (const std::string& damaged : {std::string(5000, 'x'), std::string(8192, '\0'), tables(),
                                     whole.substr(0, 4096) + std::string(whole.size() - 4096, 'x')}) {
    write_file_atomically(path, damaged);
    try {
      RunStore store(path);
      for (int i = 0; i < 3; ++i) store.start({.name = "z", .experiment = "y"});
      ADD_FAILURE() << number;
    } catch (const DamagedRuns& damage) {
      EXPECT_TRUE(test::contains(damage.what(), path.string()));
      set_runs_aside(path, damage);
    }
    EXPECT_EQ(read_file(path.string() + ".damaged" + (number == 1 ? "" : fmt::format("-{}", number))), damaged);
    EXPECT_FALSE(fs::exists(path));
    EXPECT_FALSE(fs::exists(path.string() + "-wal"));
    ++number;
  }
  EXPECT_EQ(RunStore(path).list().size(), 0u);
}

}  // namespace
}  // namespace nmoe
