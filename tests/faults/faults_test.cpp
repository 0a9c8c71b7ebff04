// Every call of the program that changes files is a place where a process is killed, a disk is full or fails, or the
// power goes. Behind each, the same command must come to what an undisturbed one comes to.
//
// A sample by default; NMOE_FAULTS=all (scripts/test.sh --faults) walks every call of every command. Says how many
// cases there were.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <sstream>

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

class FaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // In memory where there is room: what is durable is the layer's to say.
    if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 1);
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

  // Walks `command` under each fault.
  static void walk(const Command& command) {
    const fs::path root = base_->path();
    const fs::path straight = root / "straight";
    fs::copy(root / "base", straight, fs::copy_options::recursive);
    uint64_t calls = 0;
    ASSERT_EQ(run(command, straight, "kill", 0, "", calls).exit_code, 0);
    const std::string expected = command.result(straight);
    ASSERT_NE(expected, "");
    ASSERT_GT(calls, 10U);
    fs::remove_all(straight);

    const char* const wanted = std::getenv("NMOE_FAULTS");
    const bool all = wanted != nullptr && std::string_view(wanted) == "all";
    uint64_t cases = 0;
    for (size_t fault = 0; fault < std::size(kFaults); ++fault) {
      // One place in each sixth, another one under every fault.
      const uint64_t stride = all ? 1 : calls;
      const uint64_t first = all ? 1 : 1 + (2 * fault + 1) * calls / (2 * std::size(kFaults));
      for (uint64_t at = first; at <= calls; at += stride, ++cases) {
        SCOPED_TRACE(fmt::format("{}: {} at call {} of {}", command.name, kFaults[fault].name, at, calls));
        strike(command, kFaults[fault], at, expected);
        if (HasFailure() && !all) return;
      }
    }
    fmt::print("{}: {} calls that change files, {} cases\n", command.name, calls, cases);
  }

 private:
  static test::Outcome run(const Command& command, const fs::path& dir, const std::string& kind, uint64_t at,
                           const std::string& shadow, uint64_t& calls) {
    const fs::path count = base_->path() / "count";
    put(count, std::string(8, '\0'));
    fs::create_directories(dir / "tmp");
    Names line = {"env",
                  "LD_PRELOAD=" NMOE_FAULT_LAYER,
                  "NMOE_FAULT_ROOT=" + dir.string(),
                  "NMOE_FAULT_COUNT=" + count.string(),
                  "NMOE_FAULT_AT=" + std::to_string(at),
                  "NMOE_FAULT_KIND=" + kind,
                  "NMOE_FAULT_SHADOW=" + shadow,
                  "TMPDIR=" + (dir / "tmp").string(),
                  NMOE_PROGRAM};
    line.insert(line.end(), command.arguments.begin(), command.arguments.end());
    test::Outcome outcome = test::Program(dir, line).wait();
    const std::string bytes = read_file(count);
    std::memcpy(&calls, bytes.data(), sizeof(calls));
    return outcome;
  }

  static void strike(const Command& command, const FaultName& fault, uint64_t at, const std::string& expected) {
    const test::TempDir place;
    const fs::path root = fs::exists("/dev/shm") ? base_->path() / "case" : place.path() / "case";
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
    const test::Outcome outcome = run(command, dir, fault.kind, at, power ? shadow.string() : "", calls);
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
    test::Outcome again = run(command, dir, "kill", 0, "", calls);
    if (done && again.exit_code == command.exit_code_when_done) again.exit_code = 0;
    if (again.exit_code == 1 && again.err.find("move it away") != std::string::npos) {
      // A database of records alone; checkpoints are enough.
      fs::remove_all(dir / "runs/metrics");
      for (const char* file : {"experiments.db", "experiments.db-wal", "experiments.db-shm"}) {
        fs::remove(dir / "runs" / file);
      }
      again = run(command, dir, "kill", 0, "", calls);
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

TEST_F(FaultsTest, Train) {
  walk({"train",
        {"train", "tiny.toml", "--resume", "--set", "train.steps=6", "--set", "checkpoint.every=2", "--set",
         "checkpoint.keep_last=2", "--set", "train.log_every=3"},
        [](const fs::path& dir) {
          if (verified(dir, {"checkpoint", "verify", "runs/checkpoints/tiny"}).empty()) return std::string();
          const std::string text = verified(dir, {"checkpoint", "info", "runs/checkpoints/tiny"});
          const size_t step = text.find("\nstep"), weights = text.find("\nweights");
          if (step == std::string::npos || weights == std::string::npos) return std::string();
          return text.substr(step, text.find('\n', step + 1) - step) +
                 text.substr(weights, text.find('\n', weights + 1) - weights);
        }});
}

TEST_F(FaultsTest, Prep) {
  walk({"prep",
        {"prep", "train.txt", "--valid", "valid.txt", "--out", "made", "--threads", "1"},
        [](const fs::path& dir) {
          if (verified(dir, {"data", "verify", "made"}).empty()) return std::string();
          return contents(dir / "made", {".npy", ".idx", "tokenizer.json"});
        }});
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
