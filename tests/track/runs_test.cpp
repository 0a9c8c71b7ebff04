#include "track/runs.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <regex>
#include <thread>

#include "base/error.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

class RunsTest : public test::TempDirTest {
 protected:
  RunsTest() { ::unsetenv("NMOE_RUN"); }
  ~RunsTest() override { ::unsetenv("NMOE_RUN"); }

  // The first column of a query's rows, in a connection of its own, as another program would ask.
  std::vector<std::string> ask(const std::string& sql) const {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    std::vector<std::string> answers;
    const auto collect = [](void* list, int, char** values, char**) {
      static_cast<std::vector<std::string>*>(list)->emplace_back(values[0] ? values[0] : "NULL");
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), collect, &answers, nullptr), SQLITE_OK) << sql;
    sqlite3_close(database);
    return answers;
  }

  // A run that its process started and then died of; returns its id.
  std::string run_of_a_killed_process() const {
    ::setenv("NMOE_RUN", "killed", 1);
    const pid_t child = ::fork();
    if (child == 0) {
      RunStore store(path_);
      store.start(kInfo);
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    ::unsetenv("NMOE_RUN");
    return "killed";
  }

  inline static const RunInfo kInfo = {.name = "quickstart",
                                       .experiment = "austen",
                                       .config_json = R"({"dim": 64})",
                                       .git_hash = "abc123",
                                       .git_dirty = true,
                                       .checkpoint_dir = "runs/checkpoints/quickstart"};
  const fs::path path_ = dir_ / "runs" / "experiments.db";
};

void expect_error(int exit_code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error with " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST_F(RunsTest, ARunFromStartToEnd) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  EXPECT_TRUE(std::regex_match(id, std::regex(fmt::format("run_[0-9]+_{}", ::getpid())))) << id;

  RunRow row = store.list(10).at(0);
  EXPECT_EQ(row.id, id);
  EXPECT_EQ(row.name, "quickstart");
  EXPECT_EQ(row.experiment, "austen");
  EXPECT_EQ(row.status, RunStatus::kRunning);
  EXPECT_EQ(row.pid, ::getpid());
  EXPECT_EQ(row.step, 0);
  EXPECT_EQ(row.last_loss, std::nullopt);
  EXPECT_EQ(row.ended_at, "");
  EXPECT_EQ(row.checkpoint_dir, "runs/checkpoints/quickstart");
  EXPECT_TRUE(std::regex_match(row.started_at, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));

  store.progress(id, {.step = 20, .tokens = 81920, .loss = 3.25, .smooth_loss = 3.5, .tokens_per_s = 51234.5});
  row = store.list(10).at(0);
  EXPECT_EQ(row.step, 20);
  EXPECT_EQ(row.last_loss, 3.25);
  EXPECT_EQ(row.smooth_loss, 3.5);
  EXPECT_EQ(row.tokens_per_s, 51234.5);
  EXPECT_EQ(row.tokens, 81920);
  EXPECT_EQ(row.valid_loss, std::nullopt);
  EXPECT_EQ(row.checkpoint, std::nullopt);
  store.validated(id, 3.5, 1.25);
  store.saved(id, 10);
  store.set_note(id, "a first try");
  row = store.list().at(0);
  EXPECT_EQ(row.valid_loss, 3.5);
  EXPECT_EQ(row.valid_bpb, 1.25);
  EXPECT_EQ(row.checkpoint, 10);
  EXPECT_EQ(row.note, "a first try");
  EXPECT_EQ(store.config(id), kInfo.config_json);
  expect_error(2, "has no run 'other'", [&] { store.config("other"); });

  store.finish(id, RunStatus::kFailedNan, "loss is nan at step 21");
  row = store.list(10).at(0);
  EXPECT_EQ(row.status, RunStatus::kFailedNan);
  EXPECT_EQ(row.reason, "loss is nan at step 21");
  EXPECT_NE(row.ended_at, "");
}

TEST_F(RunsTest, OtherProgramsFindTheDescribedTables) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  store.progress(id, {.step = 30, .tokens = 300, .loss = 2.5});
  store.finish(id, RunStatus::kCompleted, "");
  EXPECT_EQ(ask("SELECT name || '|' || project || '|' || description FROM experiments"),
            std::vector<std::string>{"austen||"});
  EXPECT_EQ(ask("SELECT json_extract(config_json, '$.dim') || git_hash || git_dirty || status || "
                "json_extract(results_json, '$.final_loss') || ',' || json_extract(results_json, '$.steps_completed') "
                "FROM runs JOIN experiments ON "
                "experiments.id = experiment_id"),
            std::vector<std::string>{"64abc1231completed2.5,30"});
  EXPECT_EQ(ask("PRAGMA journal_mode"), std::vector<std::string>{"wal"});
}

TEST_F(RunsTest, StatusNames) {
  const std::pair<RunStatus, const char*> names[] = {{RunStatus::kRunning, "running"},
                                                     {RunStatus::kCompleted, "completed"},
                                                     {RunStatus::kInterrupted, "interrupted"},
                                                     {RunStatus::kFailed, "failed"},
                                                     {RunStatus::kFailedNan, "failed_nan"},
                                                     {RunStatus::kFailedCollapse, "failed_collapse"},
                                                     {RunStatus::kDead, "dead"}};
  for (const auto& [status, name] : names) EXPECT_EQ(run_status_name(status), name);
}

TEST_F(RunsTest, ListsTheNewestFirst) {
  RunStore store(path_);
  std::vector<std::string> ids;
  ids.reserve(5);
  for (int i = 0; i < 5; ++i) ids.push_back(store.start(kInfo));
  const auto rows = store.list(3);
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows[i].id, ids[4 - i]);
  EXPECT_EQ(ask("SELECT count(*) FROM experiments"), std::vector<std::string>{"1"});
}

TEST_F(RunsTest, TheEnvironmentNamesARun) {
  RunStore store(path_);
  ::setenv("NMOE_RUN", "my-run_1.5", 1);
  EXPECT_EQ(store.start(kInfo), "my-run_1.5");
  expect_error(2, "my-run_1.5", [&] { store.start(kInfo); });
  for (const char* bad : {"..", ".", "a/b", "a b", "ü"}) {
    ::setenv("NMOE_RUN", bad, 1);
    expect_error(2, bad, [&] { store.start(kInfo); });
  }
  EXPECT_EQ(store.list(10).size(), 1u);
}

TEST_F(RunsTest, ALossThatIsNoNumberIsNone) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  store.progress(id, {.step = 1, .loss = std::nan(""), .smooth_loss = std::nan("")});
  EXPECT_EQ(store.list(1).at(0).last_loss, std::nullopt);
  EXPECT_EQ(store.list(1).at(0).smooth_loss, std::nullopt);
  EXPECT_EQ(store.list(1).at(0).step, 1);
}

TEST_F(RunsTest, ResumeGoesOnWithTheSameRow) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  store.progress(id, {.step = 20, .tokens = 200, .loss = 3.0});
  store.finish(id, RunStatus::kInterrupted, "SIGTERM");
  RunInfo info = kInfo;
  info.git_hash = "def456";
  store.resume(id, info);
  const RunRow row = store.list(10).at(0);
  EXPECT_EQ(row.status, RunStatus::kRunning);
  EXPECT_EQ(row.reason, "");
  EXPECT_EQ(row.ended_at, "");
  EXPECT_EQ(row.step, 20);
  EXPECT_EQ(store.list(10).size(), 1u);
  EXPECT_EQ(ask("SELECT git_hash FROM runs"), std::vector<std::string>{"def456"});
  expect_error(2, "'../x' is not a run id", [&] { store.resume("../x", kInfo); });
}

// The database was lost, and with it what a checkpoint names.
TEST_F(RunsTest, ResumeMakesALostRunAgain) {
  RunStore store(path_);
  store.resume("run_1_2", kInfo);
  store.progress("run_1_2", {.step = 20, .tokens = 200, .loss = 3.0});
  const RunRow row = store.list(10).at(0);
  EXPECT_EQ(row.id, "run_1_2");
  EXPECT_EQ(row.status, RunStatus::kRunning);
  EXPECT_EQ(row.step, 20);
}

TEST_F(RunsTest, ARunWhoseProcessIsGoneIsListedAsDead) {
  const std::string id = run_of_a_killed_process();
  RunStore store(path_);
  const RunRow row = store.list(1).at(0);
  EXPECT_EQ(row.status, RunStatus::kDead);
  EXPECT_NE(row.reason.find(std::to_string(row.pid)), std::string::npos) << row.reason;
  EXPECT_EQ(ask("SELECT status FROM runs"), std::vector<std::string>{"running"});

  // A process that has the number again is another one.
  ask("UPDATE runs SET pid = " + std::to_string(::getppid()));
  EXPECT_EQ(store.list(1).at(0).status, RunStatus::kDead);
  // Of another host nothing is known.
  ask("UPDATE runs SET host = 'elsewhere'");
  EXPECT_EQ(store.list(1).at(0).status, RunStatus::kRunning);

  store.resume(id, kInfo);
  EXPECT_EQ(store.list(1).at(0).status, RunStatus::kRunning);
}

TEST_F(RunsTest, ARunInALivingProcessIsNotResumed) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  ::setenv("NMOE_RUN", "alive", 1);
  const pid_t child = ::fork();
  if (child == 0) {
    {
      RunStore store(path_);
      store.start(kInfo);
    }
    if (::write(ready[1], "y", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ::unsetenv("NMOE_RUN");
  RunStore store(path_);
  expect_error(2, fmt::format("process {}", child), [&] { store.resume("alive", kInfo); });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  store.resume("alive", kInfo);
  ::close(ready[0]);
  ::close(ready[1]);
}

// With configurations as large as they are. How long it takes is in docs/log/runs.md.
TEST_F(RunsTest, TenThousandAreListed) {
  RunInfo info = kInfo;
  info.config_json = fmt::format(R"({{"text": "{}"}})", std::string(4000, 'x'));
  { RunStore(path_).start(info); }
  ask("INSERT INTO runs(id, experiment_id, name, config_json, git_hash, git_dirty, pid, process_start, host, "
      "checkpoint_dir, started_at, updated_at, status) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
      "WHERE i < 9999) SELECT id || i, experiment_id, name, config_json, git_hash, git_dirty, pid, process_start, "
      "host, "
      "checkpoint_dir, started_at, updated_at, 'completed' FROM n, runs");
  RunStore store(path_, RunStore::Access::kRead);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(store.list().size(), 10'000u);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  RecordProperty("milliseconds", static_cast<int>(took.count()));
  EXPECT_FALSE(store.find("none"));
  EXPECT_EQ(store.find(store.list(1)[0].id).value().name, kInfo.name);
}

// A database as nmoe made it before runs had notes: read as it is, and gone on with.
TEST_F(RunsTest, DatabasesOfEarlierVersions) {
  std::string id;
  {
    RunStore store(path_);
    id = store.start(kInfo);
    store.progress(id, {.step = 20, .tokens = 200, .loss = 3.0, .smooth_loss = 3.5});
  }
  ask("DROP INDEX runs_listed_smooth_loss");
  ask("CREATE INDEX runs_listed ON runs(started_at, note)");
  // One column came later than the others.
  ask("ALTER TABLE runs DROP COLUMN smooth_loss");
  RunRow row = RunStore(path_, RunStore::Access::kRead).list().at(0);
  EXPECT_EQ(row.tokens, 200);
  EXPECT_EQ(row.smooth_loss, std::nullopt);
  ask("DROP INDEX runs_listed");
  for (const char* column : {"tokens", "valid_loss", "valid_bpb", "checkpoint_step", "note"}) {
    ask(std::string("ALTER TABLE runs DROP COLUMN ") + column);
  }
  row = RunStore(path_, RunStore::Access::kRead).list().at(0);
  EXPECT_EQ(row.step, 20);
  EXPECT_EQ(row.tokens, std::nullopt);
  EXPECT_EQ(row.note, "");
  RunStore store(path_);
  store.set_note(id, "kept");
  EXPECT_EQ(store.list().at(0).note, "kept");
  EXPECT_EQ(ask("SELECT name FROM sqlite_master WHERE name LIKE 'runs_listed%'"),
            std::vector<std::string>{"runs_listed_smooth_loss"});
  EXPECT_EQ(store.list().at(0).step, 20);
}

TEST_F(RunsTest, RemovesWhatIsNotRunning) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  expect_error(2, "is running as process", [&] { store.remove(id); });
  store.finish(id, RunStatus::kCompleted, "");
  store.remove(id);
  EXPECT_TRUE(store.list().empty());
  expect_error(2, "has no run", [&] { store.remove(id); });
}

TEST_F(RunsTest, SeveralWritersAtOnce) {
  std::vector<std::thread> writers;
  writers.reserve(4);
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([this] {
      RunStore store(path_);
      const std::string id = store.start(kInfo);
      for (int64_t step = 1; step <= 50; ++step) store.progress(id, {.step = step, .tokens = step});
      store.finish(id, RunStatus::kCompleted, "");
    });
  }
  for (std::thread& writer : writers) writer.join();
  RunStore store(path_);
  const auto rows = store.list(10);
  ASSERT_EQ(rows.size(), 4u);
  for (const RunRow& row : rows) EXPECT_EQ(row.step, 50);
}

// A process that was killed and that its parent has not waited for.
TEST_F(RunsTest, WhatEndedIsNotRunning) {
  const pid_t child = ::fork();
  if (child == 0) {
    RunStore(path_).start(kInfo);
    ::kill(::getpid(), SIGKILL);
  }
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_NE(RunStore(path_).list(10).at(0).status, RunStatus::kRunning);
  ::waitpid(child, nullptr, 0);
}

// In a folder of somebody else's.
TEST_F(RunsTest, AreListedWhereNobodyMayWrite) {
  { RunStore(path_).start(kInfo); }
  // The child keeps this process's group.
  constexpr fs::perms kReadable = fs::perms::owner_read | fs::perms::owner_exec | fs::perms::group_read |
                                  fs::perms::group_exec | fs::perms::others_read | fs::perms::others_exec;
  fs::permissions(dir_, kReadable | fs::perms::owner_write);
  fs::permissions(path_.parent_path(), kReadable);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) ::_exit(3);  // root may write anywhere
    try {
      ::_exit(RunStore(path_, RunStore::Access::kRead).list(10).size() == 1 ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  fs::permissions(path_.parent_path(), fs::perms::owner_all);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(RunsTest, FilesThatAreNotOurs) {
  make_directories(path_.parent_path());
  write_file_atomically(path_, std::string(5000, 'x'));
  expect_error(1, path_.string(), [&] { RunStore{path_}; });
  EXPECT_EQ(read_file(path_), std::string(5000, 'x')) << "it was overwritten";
  fs::remove(path_);
  ask("CREATE TABLE runs(id TEXT)");
  expect_error(1, "another kind", [&] { RunStore{path_}; });
  fs::remove(path_);
  ask("PRAGMA user_version = 2");
  expect_error(1, "user_version 2", [&] { RunStore{path_}; });
}

TEST_F(RunsTest, UsesThatAreBugs) {
  RunStore store(path_);
  const std::string id = store.start(kInfo);
  expect_error(1, "has no run 'other'", [&] { store.progress("other", {.step = 1}); });
  expect_error(1, "has no run 'other'", [&] { store.finish("other", RunStatus::kFailed, ""); });
  EXPECT_THROW(store.finish(id, RunStatus::kRunning, ""), CheckFailure);
}

}  // namespace
}  // namespace nmoe
