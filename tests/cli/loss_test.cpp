// What goes wrong around a run takes none of its weights.
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <thread>

#include "cli/cli_test.h"
#include "track/metrics_reader.h"

namespace nmoe {
namespace {

class LossTest : public CliTest {
 protected:
  LossTest() {
    prepare();
    std::string config(test::kTinyToml);
    const std::string decay = "decay = 40\n";
    config.replace(config.find(decay), decay.size(), "decay = 1000000\n");  // a run may go on for so long
    write("tiny.toml", config);
  }

  // A run too long to end by itself, stopped (SIGSTOP) behind its second step.
  std::unique_ptr<test::Program> stopped_run(std::vector<std::string> settings = {}) const {
    settings.emplace_back("train.steps=1000000");
    std::vector<std::string> command = train(settings);
    command.insert(command.begin(), NMOE_PROGRAM);
    auto program = std::make_unique<test::Program>(dir_, command);
    EXPECT_TRUE(program->wait_for("train step 2/")) << program->errors();
    // Not while it writes its row, whose lock it would keep.
    do {
      program->send(SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      program->send(SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } while (!can_write_runs());
    return program;
  }
  bool can_write_runs() const {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open((dir_ / "runs/experiments.db").c_str(), &database), SQLITE_OK);
    const bool can = sqlite3_exec(database, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK;
    sqlite3_close(database);
    return can;
  }
  Outcome shell(const std::string& command) const { return test::Program(dir_, {"bash", "-c", command}).wait(); }
  std::string train_line(const std::string& settings = "") const {
    return fmt::format("{} train tiny.toml --set train.steps=3 {}", NMOE_PROGRAM, settings);
  }

  int64_t saved_step(const std::string& name = "tiny") const {
    return std::stoll(info("runs/checkpoints/" + name, "step"));
  }
  void expect_saved(const std::string& name = "tiny") const {
    EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/" + name}), "is whole"));
  }
  void ask(const char* sql) const {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open((dir_ / "runs/experiments.db").c_str(), &database), SQLITE_OK);
    sqlite3_busy_timeout(database, 10000);  // the run writes there too
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    sqlite3_close(database);
  }
  fs::path shard() const {
    for (const auto& entry : fs::directory_iterator(dir_ / "data/train")) {
      if (entry.path().extension() == ".npy") return entry.path();
    }
    return {};
  }
};

TEST_F(LossTest, ACheckpointIsEnoughToGoOn) {
  output(train({"train.steps=3"}));
  fs::remove_all(dir_ / "runs/metrics");
  write("runs/experiments.db", std::string(5000, 'x'));
  fs::remove(dir_ / "runs/experiments.db-wal");
  fs::remove(dir_ / "runs/experiments.db-shm");
  output(resume({"train.steps=6"}));
  EXPECT_EQ(read_file(dir_ / "runs/experiments.db.damaged"), std::string(5000, 'x'));
  EXPECT_TRUE(contains(listed("tiny"), " completed "));
  output(train({"train.steps=6", "run.name=straight"}));
  EXPECT_EQ(weights("tiny"), weights("straight"));
}

// What a run records is worth less than the run: what is damaged is set aside with its bytes.
TEST_F(LossTest, DamagedRecordsHoldUpNoResume) {
  ::setenv("NMOE_RUN", "first", /*replace=*/1);
  output(train({"train.steps=3"}));
  ::unsetenv("NMOE_RUN");
  const fs::path metrics = metrics_path(dir_ / "runs", "first");
  const std::string whole = read_file(metrics);
  const auto resumed_with = [&](int steps, const fs::path& file) {
    const Outcome outcome = n(resume({fmt::format("train.steps={}", steps)}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, fmt::format("warning: '{}' is damaged", file.string())));
    EXPECT_TRUE(contains(outcome.err, "it is '" + file.filename().string() + ".damaged"));
    EXPECT_TRUE(contains(listed("tiny"), " completed "));
    EXPECT_EQ(info("runs/checkpoints/tiny", "step"), std::to_string(steps));
  };
  const fs::path in_run = fs::path("runs/metrics/first/rank_0.duckdb");
  write_file_atomically(metrics, whole.substr(0, whole.size() / 2));
  resumed_with(4, in_run);
  EXPECT_EQ(read_file(metrics.string() + ".damaged"), whole.substr(0, whole.size() / 2));
  write_file_atomically(metrics, std::string(whole.size(), '\0'));
  resumed_with(5, in_run);
  write("runs/experiments.db", std::string(5000, 'x'));
  fs::remove(dir_ / "runs/experiments.db-wal");
  fs::remove(dir_ / "runs/experiments.db-shm");
  resumed_with(6, "runs/experiments.db");
  EXPECT_EQ(read_file(dir_ / "runs/experiments.db.damaged"), std::string(5000, 'x'));

  output(train({"train.steps=6", "run.name=straight"}));
  EXPECT_EQ(weights("tiny"), weights("straight"));
}

// Of databases, '?' begins options, and "name:" names another kind.
TEST_F(LossTest, FoldersOfAnyName) {
  for (const std::string name : {"a?b", "file:c", "sqlite:d", "e#%3f"}) {
    output(train({"train.steps=3", "run.dir=" + name}));
    output(resume({"train.steps=4", "run.dir=" + name}));
    EXPECT_TRUE(contains(output({"runs", "--dir", name}), " completed ")) << name;
    EXPECT_TRUE(contains(output({"runs", "show", "tiny", "--dir", name}), "train/loss")) << name;
    EXPECT_TRUE(contains(output({"checkpoint", "verify", name + "/checkpoints/tiny"}), "is whole")) << name;
  }
}

TEST_F(LossTest, NamesThatAreNotUtf8) {
  const std::string odd = "o\xFF";
  expect_error(n(train({"train.steps=3", "run.dir=" + odd})), 2, "run.dir is not UTF-8", "rename it");
  EXPECT_FALSE(fs::exists(dir_ / odd));
  expect_error(n(train({"run.name=" + odd})), 2, "run.name", "");
  // Folders themselves may have any name.
  fs::create_directories(dir_ / odd);
  output({"prep", "train.txt", "--valid", "valid.txt", "--out", odd + "/data", "--threads", "1"});
  EXPECT_TRUE(contains(output({"data", "info", odd + "/data"}), "tokens"));
  fs::copy(dir_ / "train.txt", dir_ / odd / (odd + ".txt"));
  output({"prep", odd + "/" + odd + ".txt", "--valid", "valid.txt", "--out", odd + "/more", "--threads", "1"});
  output(train({"train.steps=3"}));
  fs::rename(dir_ / "runs", dir_ / odd / "runs");
  EXPECT_TRUE(contains(output({"runs", "--json", "--dir", odd + "/runs"}), "\"tiny\""));
  EXPECT_TRUE(contains(output({"checkpoint", "info", odd + "/runs/checkpoints/tiny"}), "step "));
  output({"eval", odd + "/runs/checkpoints/tiny", "--text", odd + "/" + odd + ".txt", "--context", "16", "--json", "-o",
          odd + "/report"});
  output({"generate", odd + "/runs/checkpoints/tiny", "--max-tokens", "3"});
  output({"runs", "note", "tiny", odd, "--dir", odd + "/runs"});
  output({"runs", "export", "tiny", "--dir", odd + "/runs", "--out", odd + "/export"});
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{odd},
                                                    {"runs", "--dir", odd},
                                                    {"config", odd},
                                                    {"runs", "show", odd, "--dir", odd + "/runs"},
                                                    {"eval", odd + "/runs/checkpoints/tiny", "--tasks", odd},
                                                    {"tokenizer", "info", odd}}) {
    const Outcome outcome = n(arguments);
    EXPECT_TRUE(outcome.exit_code == 1 || outcome.exit_code == 2) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "json.exception")) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "please report")) << outcome.err;
  }
}

TEST_F(LossTest, ARowThatIsRemovedIsMadeAgain) {
  const auto program = stopped_run();
  ask("DELETE FROM runs");
  program->send(SIGTERM);
  program->send(SIGCONT);
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(listed("tiny"), " interrupted "));
  expect_saved();
}

// For as long as SQLite waits, twice: for the row, and for the row in a database that is opened again.
TEST_F(LossTest, ADatabaseThatIsLockedIsWarnedOf) {
  const auto program = stopped_run();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "runs/experiments.db").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  program->send(SIGTERM);
  program->send(SIGCONT);
  EXPECT_TRUE(program->wait_for("warning: the run's row is not up to date: "));
  sqlite3_close(database);
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_saved();
}

// What was measured before a kill is there after it, and steps that are done again count once.
TEST_F(LossTest, AKilledRunHasEachValueOnce) {
  const std::vector<std::string> settings = {"checkpoint.every=2"};
  std::optional<MetricsReader> reader;  // of the first run's folder, to the end
  const std::vector<std::string> tags = {"train/loss", "router/layer_01/load"};
  for (int kill = 0; kill < 3; ++kill) {
    std::vector<std::string> command = kill == 0 ? train(settings) : resume(settings);
    command.insert(command.begin(), NMOE_PROGRAM);
    command.insert(command.end(), {"--set", "train.steps=1000000"});
    test::Program program(dir_, command);
    EXPECT_TRUE(program.wait_for(kill == 0 ? "train step 9/" : "train step ")) << program.errors();
    program.send(SIGKILL);
    program.wait();
    if (reader) reader->poll();
    for (const auto& folder : fs::directory_iterator(dir_ / "runs/metrics")) {
      if (!reader) reader.emplace(folder.path() / "rank_0.duckdb");
    }
    reader->load(tags);
    const auto steps = reader->series(tags[0]).steps();
    ASSERT_GE(steps.size(), kill == 0 ? 8u : 1u) << "a step is printed, then recorded; a resume begins at a checkpoint";
    MetricsReader again(*fs::directory_iterator(dir_ / "runs/metrics") / fs::path("rank_0.duckdb"));
    again.load(tags);
    EXPECT_TRUE(std::ranges::equal(again.series(tags[0]).steps(), steps)) << "as one that did not follow sees it";
    for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], int64_t(i + 1));
    EXPECT_TRUE(std::ranges::equal(reader->arrays(tags[1]).steps(), steps));
  }
}

TEST_F(LossTest, MetricsThatAreLostAreWarnedOf) {
  const auto program = stopped_run();
  fs::remove_all(dir_ / "runs/metrics");
  write("runs/metrics", "a file where a folder should be");
  program->send(SIGTERM);
  program->send(SIGCONT);
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "warning: the last metrics are not written: "));
  EXPECT_TRUE(contains(listed("tiny"), " interrupted "));
  expect_saved();
}

TEST_F(LossTest, NobodyNeedReadWhatIsSaid) {
  int64_t run = 0;
  for (const char* place : {"2> /dev/full", "2>&-", "2> >(head -c 10 > /dev/null)", "> /dev/null 2>&1 < /dev/null"}) {
    const std::string name = fmt::format("run{}", ++run);
    EXPECT_EQ(shell(fmt::format("{} {}", train_line("--set run.name=" + name), place)).exit_code, 0) << place;
    EXPECT_EQ(saved_step(name), 3) << place;
    expect_saved(name);
  }
  // What is printed at the end is lost, and told to be; the weights are not.
  const Outcome outcome = shell(train_line() + " > /dev/full");
  expect_error(outcome, 1, "standard output cannot be written: No space left on device", "");
  EXPECT_EQ(saved_step(), 3);
  expect_error(shell(fmt::format("{} plan tiny.toml --set run.name=other >&-", NMOE_PROGRAM)), 1,
               "standard output cannot be written", "");
}

TEST_F(LossTest, ARunIsOneProcesses) {
  const auto program = stopped_run();
  for (const auto& arguments : {train({"train.steps=3"}), resume({"train.steps=3"})}) {
    const Outcome second = n(arguments);
    expect_error(second, 1,
                 "run \"tiny\" cannot begin: another process is at work on 'runs/checkpoints/tiny': process ",
                 "choose another run.name");
  }
  program->send(SIGTERM);
  program->send(SIGCONT);
  EXPECT_EQ(program->wait().exit_code, 0);
  expect_saved();
}

TEST_F(LossTest, WhatCannotBeSavedIsNotTrained) {
  make_directories(dir_ / "runs");
  write("runs/checkpoints", "a file where a folder should be");
  const Outcome outcome = n(train({"train.steps=3"}));
  expect_error(outcome, 1, "run \"tiny\" cannot begin: cannot create folder 'runs/checkpoints", "");
  EXPECT_EQ(outcome.err.find("train step"), std::string::npos);
  expect_error(n(train({"run.name=" + std::string(256, 'x')})), 2, "run.name", "");
}

TEST_F(LossTest, AnExportTakesNoOthersFolder) {
  output(train({"train.steps=1", "data.seq_len=8", "model.mla.q_lora_rank=8"}));
  make_directories(dir_ / "out.tmp");
  write("out.tmp/mine", "x");
  make_directories(dir_ / ".out.unfinished-0123456789ab");  // of one that was killed
  output({"export", "runs/checkpoints/tiny", "out"});
  EXPECT_TRUE(fs::exists(dir_ / "out.tmp/mine"));
  EXPECT_FALSE(fs::exists(dir_ / ".out.unfinished-0123456789ab"));
  EXPECT_TRUE(fs::exists(dir_ / "out/config.json"));
  expect_error(n({"export", "runs/checkpoints/tiny", "out"}), 2, "'out' exists already", "");
}

// One of them makes the folder; the other says that it is there, and leaves no trace.
TEST_F(LossTest, TwoExportsAtOnce) {
  output(train({"train.steps=1", "data.seq_len=8", "model.mla.q_lora_rank=8"}));
  const std::vector<std::string> command = {NMOE_PROGRAM, "export", "runs/checkpoints/tiny", "out", "--threads", "1"};
  for (int round = 0; round < 3; ++round) {
    fs::remove_all(dir_ / "out");
    test::Program first(dir_, command), second(dir_, command);
    const Outcome outcomes[] = {first.wait(), second.wait()};
    const bool first_made = outcomes[0].exit_code == 0;
    EXPECT_EQ(outcomes[first_made ? 0 : 1].exit_code, 0) << outcomes[1].err;
    expect_error(outcomes[first_made ? 1 : 0], 2, "'out' exists already", "name a new folder");
    EXPECT_TRUE(fs::exists(dir_ / "out/config.json"));
    for (const auto& entry : fs::directory_iterator(dir_)) {
      EXPECT_EQ(entry.path().filename().string().find(".unfinished-"), std::string::npos) << entry.path();
    }
  }
}

// What a killed plan or run has left of its rehearsal is removed by the next, and names that others chose do no harm.
TEST_F(LossTest, ARehearsalLeavesNothing) {
  make_directories(dir_ / "tmp/.nmoe-rehearsal.unfinished-0123456789ab/x");
  make_directories(dir_ / "tmp/nmoe-rehearsal");
  EXPECT_EQ(shell(fmt::format("TMPDIR=tmp {} plan tiny.toml", NMOE_PROGRAM)).exit_code, 0);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(dir_ / "tmp")) left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"nmoe-rehearsal"});
}

// The rank that cannot read its data stops all, and the state is saved.
TEST_F(LossTest, AShardThatIsCutMeanwhile) {
  // Of a page of which something is left the rest reads as zeros; one of which nothing is left raises a signal.
  for (const auto& [ranks, bytes] : {std::pair(1, 100), std::pair(1, 0), std::pair(2, 0)}) {
    const std::string name = fmt::format("ranks{}bytes{}", ranks, bytes);
    const std::vector<std::string> settings = {"run.name=" + name, fmt::format("parallel.ranks={}", ranks),
                                               "train.microbatch_seqs=2", "data.shuffle=none"};
    const std::string content = read_file(shard());
    const auto program = stopped_run(settings);
    fs::resize_file(shard(), static_cast<uintmax_t>(bytes));
    program->send(SIGCONT);
    const Outcome outcome = program->wait();
    write(shard(), content);
    expect_error(outcome, 1, "' was cut, or its disk failed, while it was read", "restore the file");
    EXPECT_TRUE(contains(outcome.err.substr(outcome.err.rfind("error: ")), shard().filename().string()));
    EXPECT_TRUE(contains(listed(name), " failed "));
    expect_saved(name);

    std::vector<std::string> further = settings;
    further.push_back(fmt::format("train.steps={}", saved_step(name) + 2));
    output(resume(further));
    further[0] = "run.name=straight" + name;
    output(train(further));
    EXPECT_EQ(weights(name), weights("straight" + name));
  }
}

// A place on the disk for every state, and the time between two is nothing: one is begun as soon as the last is there.
TEST_F(LossTest, CheckpointsComeByTime) {
  for (const int ranks : {1, 2}) {
    const std::string name = fmt::format("ranks{}", ranks);
    const std::vector<std::string> settings = {fmt::format("parallel.ranks={}", ranks), "train.microbatch_seqs=2",
                                               "train.steps=40", "checkpoint.keep_last=0"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), settings.begin(), settings.end());
      return train(more);
    };
    const Outcome outcome = n(with({"run.name=" + name, "checkpoint.every_minutes=0.0001"}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "checkpoints: every 0.0001 minutes, and at the end; "));
    const auto count = std::distance(fs::directory_iterator(dir_ / "runs/checkpoints" / name), {});
    EXPECT_GT(count, 1);
    output(with({"run.name=straight" + name, "checkpoint.every_minutes=0"}));
    EXPECT_EQ(weights(name), weights("straight" + name));
  }
}

// What the plan says of the disk is what a checkpoint takes, but for its text.
TEST_F(LossTest, ThePlanSaysWhatCheckpointsTake) {
  const std::string plan = output({"plan", "tiny.toml"});
  EXPECT_TRUE(contains(plan, "  checkpoints: every 30 minutes, and at the end; "));
  EXPECT_TRUE(contains(plan, ", the last 3 kept: up to "));
  output(train({"train.steps=1"}));
  const fs::path folder = dir_ / "runs/checkpoints/tiny/step_00000001";
  const double bytes = static_cast<double>(fs::file_size(folder / "model.safetensors") +
                                           fs::file_size(folder / "optimizer.safetensors"));
  const std::string_view mark = "at the end; ";
  const double planned = std::stod(plan.substr(plan.find(mark) + mark.size())) * 1024.0;
  EXPECT_NEAR(planned, bytes, 0.1 * bytes);
}

}  // namespace
}  // namespace nmoe
