// Every call of the program that changes files is a place where a process is killed, a disk is full or fails, or the
// power goes. Behind each, the same command must come to what an undisturbed one comes to.
//
// A sample by default: one call for each command and fault. NMOE_FAULTS=I/N walks every call under every fault, the
// I-th of N parts of these cases: scripts/faults.sh. Says how many there were.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <list>
#include <span>
#include <sstream>

#include "support/free_port.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

using Names = std::vector<std::string>;

enum class Fault { kKill, kNoSpace, kInputOutput, kFull, kPower, kPowerNamesKept };

struct FaultName {
  Fault fault;
  const char* name;  // for a person
  const char* kind;  // for the layer
};
constexpr FaultName kFaults[] = {
    {Fault::kKill, "kill", "kill"},        {Fault::kNoSpace, "ENOSPC", "enospc"},
    {Fault::kInputOutput, "EIO", "eio"},   {Fault::kFull, "a disk that stays full", "full"},
    {Fault::kPower, "power loss", "kill"}, {Fault::kPowerNamesKept, "power loss that kept names", "kill"}};

std::string inode_of(const fs::path& path) {
  struct stat status {};
  NMOE_CHECK(::stat(path.c_str(), &status) == 0, "no {}", path.string());
  return std::to_string(status.st_ino);
}

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// What the layer would have kept of `dir`, all of it durable.
void shadow_of(const fs::path& dir, const fs::path& shadow) {
  std::string list;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string inode = inode_of(entry.path());
    list += fmt::format("{} {} {}\n", entry.is_directory() ? "d" : "f", inode, entry.path().filename().string());
    if (entry.is_directory()) {
      shadow_of(entry.path(), shadow);
    } else {
      put(shadow / (inode + ".data"), read_file(entry.path()));
    }
  }
  put(shadow / (inode_of(dir) + ".list"), list);
}

// What is left of `dir` when the power comes back, in `to`. With `names`, the file system had written those, as many do
// early, and lost what was in the files.
void restore(const fs::path& dir, const std::string& inode, const fs::path& shadow, const fs::path& to, bool names) {
  fs::create_directory(to);
  std::string list;
  if (names) {
    for (const auto& entry : fs::directory_iterator(dir)) {
      list += fmt::format("{} {} {}\n", entry.is_directory() ? "d" : "f", inode_of(entry.path()),
                          entry.path().filename().string());
    }
  } else {
    list = read_file(shadow / (inode + ".list"));
  }
  std::istringstream lines(list);
  std::string kind, own, name;
  while (lines >> kind >> own && std::getline(lines.ignore(1), name)) {
    if (kind == "d") {
      restore(dir / name, own, shadow, to / name, names);
    } else {
      put(to / name, fs::exists(shadow / (own + ".data")) ? read_file(shadow / (own + ".data")) : "");
      std::error_code gone;
      const auto time = fs::last_write_time(dir / name, gone);
      if (!gone) fs::last_write_time(to / name, time);
    }
  }
}

// A command, what it needs, and what it comes to.
struct Command {
  const char* name;
  Names arguments;
  // What has come of it in this folder, as one text; "" when it is not whole. Not given the reason.
  std::function<std::string(const fs::path&)> result;
  // Where all is there already: 0, it says so, or 2, it does not replace it.
  int exit_code_when_done = 0;
  int processes = 1;
  int struck = 0;          // the process that a fault befalls
  const char* match = "";  // calls on paths without it are let be
};

std::string contents(const fs::path& dir, const Names& suffixes) {
  std::string all;
  std::vector<fs::path> paths;
  if (!fs::exists(dir)) return "";
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    for (const std::string& suffix : suffixes) {
      if (entry.path().filename().string().ends_with(suffix)) paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);
  for (const fs::path& path : paths) all += path.lexically_relative(dir).string() + "\n" + read_file(path);
  return all;
}

std::string verified(const fs::path& dir, const Names& arguments) {
  const test::Outcome outcome = test::run_n(dir, arguments);
  return outcome.exit_code == 0 ? outcome.out : "";
}

// The index-th of `count` parts of all cases; count 0: the sample.
struct Part {
  uint64_t index = 0, count = 0;
};

Part wanted_part() {
  const char* const text = std::getenv("NMOE_FAULTS");
  if (text == nullptr) return {};
  Part part;
  NMOE_CHECK(std::sscanf(text, "%lu/%lu", &part.index, &part.count) == 2 && 1 <= part.index && part.index <= part.count,
             "NMOE_FAULTS={} is not I/N", text);
  return part;
}

int num_failures() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

class FaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // In memory where there is room: what is durable is the layer's to say.
    std::error_code none;
    if (const auto room = fs::space("/dev/shm", none); !none && room.available >= (uintmax_t{1} << 30)) {
      ::setenv("TMPDIR", "/dev/shm", 1);
    }
    base_ = new test::TempDir;
    ::unsetenv("TMPDIR");
    const fs::path dir = base_->path() / "base";
    fs::create_directory(dir);
    put(dir / "tiny.toml", std::string(test::kTinyToml));
    put(dir / "train.txt", test::tiny_text(6000, 1));
    put(dir / "valid.txt", test::tiny_text(700, 2));
    const auto run = [&](Names arguments) {
      const test::Outcome outcome = test::run_n(dir, std::move(arguments));
      NMOE_CHECK(outcome.exit_code == 0, "{}", outcome.err);
    };
    run({"prep", "train.txt", "--valid", "valid.txt", "--out", "data", "--threads", "1"});
    run({"train", "tiny.toml", "--set", "train.steps=1", "--set", "run.dir=before"});
    run({"export", "before/checkpoints/tiny", "hf", "--threads", "1"});
  }
  static void TearDownTestSuite() { delete base_; }

  // Walks `command` under each fault: all its calls, or by default one for each fault.
  static void walk(const Command& command) { walk(command, kFaults, wanted_part().count == 0); }

  static void walk(const Command& command, std::span<const FaultName> faults, bool sampled) {
    const fs::path root = base_->path();
    const fs::path straight = root / "straight";
    fs::copy(root / "base", straight, fs::copy_options::recursive);
    uint64_t calls = 0;
    ASSERT_EQ(run(command, straight, {}, calls).exit_code, 0);
    const std::string expected = command.result(straight);
    ASSERT_NE(expected, "");
    ASSERT_GT(calls, 10U);
    fs::remove_all(straight);

    const Part part = wanted_part();
    uint64_t number = 0;
    for (size_t i = 0; i < faults.size(); ++i) {
      const FaultName& fault = faults[i];
      const uint64_t sample = 1 + (2 * i + 1) * calls / (2 * faults.size());
      uint64_t cases = 0, failed = 0;
      for (uint64_t at = 1; at <= calls; ++at) {
        if (sampled && at != sample) continue;
        if (part.count != 0 && number++ % part.count != part.index - 1) continue;
        SCOPED_TRACE(fmt::format("{}: {} at call {} of {}", command.name, fault.name, at, calls));
        const int before = num_failures();
        strike(command, fault, at, expected);
        ++cases;
        if (num_failures() > before) ++failed;
      }
      fmt::print("{}: {}: {} calls, {} cases, {} failed\n", command.name, fault.name, calls, cases, failed);
    }
  }

 private:
  // What is to befall the command.
  struct Strike {
    const char* kind = "kill";
    uint64_t at = 0;       // 0: nothing
    fs::path shadow = {};  // "": what is durable is not kept
  };

  // Every process of the command is below the layer; the strike befalls command.struck, whose outcome is returned, and
  // in `calls` how many it made.
  static test::Outcome run(const Command& command, const fs::path& dir, const Strike& strike, uint64_t& calls) {
    const Part part = wanted_part();
    const int port = part.count == 0 ? test::free_port() : 20000 + static_cast<int>(part.index % 10000);
    fs::create_directories(dir / "tmp");
    const auto count_of = [](int process) { return base_->path() / fmt::format("count{}", process); };
    std::list<test::Program> programs;
    for (int process = 0; process < command.processes; ++process) {
      put(count_of(process), std::string(8, '\0'));
      Names line = {"env",
                    "LD_PRELOAD=" NMOE_FAULT_LAYER,
                    "NMOE_FAULT_ROOT=" + dir.string(),
                    fmt::format("NMOE_FAULT_MATCH={}", command.match),
                    "NMOE_FAULT_COUNT=" + count_of(process).string(),
                    fmt::format("NMOE_FAULT_AT={}", process == command.struck ? strike.at : 0),
                    fmt::format("NMOE_FAULT_KIND={}", strike.kind),
                    "NMOE_FAULT_SHADOW=" + strike.shadow.string(),
                    "TMPDIR=" + (dir / "tmp").string(),
                    fmt::format("RANK={}", process),
                    fmt::format("WORLD_SIZE={}", command.processes),
                    "MASTER_ADDR=127.0.0.1",
                    fmt::format("MASTER_PORT={}", port),
                    NMOE_PROGRAM};
      line.insert(line.end(), command.arguments.begin(), command.arguments.end());
      programs.emplace_back(dir, line);
    }
    test::Outcome struck;
    int process = 0;
    for (test::Program& program : programs) {
      test::Outcome outcome = program.wait();
      if (process++ == command.struck) {
        struck = std::move(outcome);
      } else {
        EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 1) << outcome.exit_code << "\n" << outcome.err;
      }
    }
    const std::string bytes = read_file(count_of(command.struck));
    std::memcpy(&calls, bytes.data(), sizeof(calls));
    return struck;
  }

  static void strike(const Command& command, const FaultName& fault, uint64_t at, const std::string& expected) {
    const fs::path root = base_->path() / "case";
    fs::remove_all(root);
    fs::create_directory(root);
    fs::path dir = root / "run";
    const fs::path shadow = root / "shadow";
    fs::copy(base_->path() / "base", dir, fs::copy_options::recursive);
    fs::create_directory(dir / "tmp");
    const bool power = fault.fault == Fault::kPower || fault.fault == Fault::kPowerNamesKept;
    if (power) {
      fs::create_directory(shadow);
      shadow_of(dir, shadow);
    }
    const std::string inode = inode_of(dir);
    uint64_t calls = 0;
    const test::Outcome outcome = run(command, dir, {fault.kind, at, power ? shadow : fs::path()}, calls);
    const bool killed = std::string_view(fault.kind) == "kill";
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 1 || (killed && outcome.exit_code == 128 + SIGKILL))
        << outcome.exit_code << "\n"
        << outcome.err;
    if (outcome.exit_code == 0) {
      EXPECT_EQ(command.result(dir), expected) << outcome.err;
    } else if (outcome.exit_code == 1) {
      EXPECT_NE(outcome.err.find("\nremedy: "), std::string::npos) << outcome.err;
    }
    if (power) {
      restore(dir, inode, shadow, root / "after", fault.fault == Fault::kPowerNamesKept);
      dir = root / "after";
    }
    // What is there is the whole result already, or the same command makes it so.
    const bool done = command.result(dir) == expected;
    if (done && outcome.exit_code == 0) return;
    fs::create_directories(dir / "tmp");
    test::Outcome again = run(command, dir, {}, calls);
    if (done && again.exit_code == command.exit_code_when_done) again.exit_code = 0;
    if (again.exit_code == 1 && again.err.find("move it away") != std::string::npos) {
      // A database of records alone; checkpoints are enough.
      fs::remove_all(dir / "runs/metrics");
      for (const char* file : {"experiments.db", "experiments.db-wal", "experiments.db-shm"}) {
        fs::remove(dir / "runs" / file);
      }
      again = run(command, dir, {}, calls);
    }
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(command.result(dir), expected) << again.err;
    for (const auto& entry : fs::recursive_directory_iterator(dir)) {
      EXPECT_EQ(entry.path().filename().string().find(".unfinished-"), std::string::npos)
          << entry.path() << " was left";
    }
  }

  inline static test::TempDir* base_ = nullptr;
};

// The step that the checkpoint is of and the hash of all weights.
std::string trained(const fs::path& dir) {
  if (verified(dir, {"checkpoint", "verify", "runs/checkpoints/tiny"}).empty()) return "";
  const std::string text = verified(dir, {"checkpoint", "info", "runs/checkpoints/tiny"});
  const size_t step = text.find("\nstep"), weights = text.find("\nweights");
  if (step == std::string::npos || weights == std::string::npos) return "";
  return text.substr(step, text.find('\n', step + 1) - step) +
         text.substr(weights, text.find('\n', weights + 1) - weights);
}

const Names kTrain = {"train",
                      "tiny.toml",
                      "--resume",
                      "--set",
                      "train.steps=6",
                      "--set",
                      "checkpoint.every=2",
                      "--set",
                      "checkpoint.keep_last=2",
                      "--set",
                      "checkpoint.staging_bytes=65536",  // less than the state
                      "--set",
                      "train.log_every=3"};

TEST_F(FaultsTest, Train) { walk({"train", kTrain, trained}); }

Names train_on_two_ranks() {
  Names arguments = kTrain;
  arguments.insert(arguments.end(), {"--set", "parallel.ranks=2"});
  return arguments;
}

TEST_F(FaultsTest, TrainOnTwoRanks) { walk({"train on two ranks", train_on_two_ranks(), trained}); }

TEST_F(FaultsTest, TrainByTwoProcesses) {
  Command command{"train by two processes", train_on_two_ranks(), trained};
  command.processes = 2;
  command.struck = 1;
  walk(command);
}

Command prep() {
  return {"prep",
          {"prep", "train.txt", "--valid", "valid.txt", "--out", "made", "--threads", "1"},
          [](const fs::path& dir) {
            if (verified(dir, {"data", "verify", "made"}).empty()) return std::string();
            return contents(dir / "made", {".npy", ".idx", "tokenizer.json"});
          }};
}

TEST_F(FaultsTest, Prep) { walk(prep()); }

// A journal whose folder could not be synced stands all the same: what it tells of must be kept.
TEST_F(FaultsTest, PrepsJournal) {
  if (wanted_part().count != 0) GTEST_SKIP() << "a part of the walk over prep";
  Command command = prep();
  command.name = "prep's own files";
  command.match = "/.prep";
  const auto eio = std::ranges::find(kFaults, Fault::kInputOutput, &FaultName::fault);
  walk(command, {eio, 1}, false);
}

TEST_F(FaultsTest, Import) {
  walk({"import",
        {"import", "hf", "imported", "--threads", "1"},
        [](const fs::path& dir) {
          if (verified(dir, {"checkpoint", "verify", "imported"}).empty()) return std::string();
          return contents(dir / "imported/step_00000000", {".safetensors", "config.toml"});
        },
        2});
}

TEST_F(FaultsTest, Export) {
  walk({"export",
        {"export", "before/checkpoints/tiny", "out", "--threads", "1"},
        [](const fs::path& dir) {
          return contents(dir / "out", {".safetensors", ".json"});
        },
        2});
}

}  // namespace
}  // namespace nmoe
