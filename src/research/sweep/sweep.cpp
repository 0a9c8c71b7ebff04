#include "research/sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "research/sweep/halving.h"
#include "research/sweep/train_process.h"
#include "track/metrics_reader.h"
#include "track/runs.h"

namespace nmoe {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(10);

fs::path lock_path(const fs::path& folder) { return folder / "lock"; }
fs::path stop_path(const fs::path& folder) { return folder / "stop"; }

bool is_length(const std::string& setting) {
  return std::ranges::any_of(std::initializer_list<std::string_view>{"train.steps=", "train.tokens=", "train.epochs="},
                             [&](std::string_view key) { return setting.starts_with(key); });
}

// The last error that a run's processes have told of.
std::string last_error(const fs::path& log) {
  const std::string text = fs::exists(log) ? read_file(log) : "";
  const size_t begin = text.rfind("error: ");
  if (begin == std::string::npos) return "";
  return text.substr(begin + 7, text.find('\n', begin) - begin - 7);
}

class Sweeper {
 public:
  Sweeper(const SweepPlan& plan, const std::string& program, const StopSignal& stop)
      : plan_(plan), program_(program), stop_(stop), folder_(plan.folder()) {}

  SweepState run() {
    make_directories(folder_);
    const FileLock lock(lock_path(folder_));
    remove_unfinished_files(folder_);
    fs::remove(stop_path(folder_));
    state_ = begin_state(plan_, read_sweep_state(folder_));
    for (const SweepEntry& entry : state_.runs) check_is_free(entry);
    begin_seconds_ = state_.seconds;
    keep();
    for (SweepEntry& entry : state_.runs) take_up(entry);
    const auto num_rungs = std::ssize(plan_.file.halving.at);
    for (int64_t rung = 0; rung <= num_rungs && !ending_; ++rung) {
      run_stage(rung);
      if (!ending_ && rung < num_rungs && state_.rungs_decided <= rung) decide(rung);
    }
    keep();
    return std::move(state_);
  }

 private:
  struct Working {
    size_t index;  // of its run
    int64_t place;
    TrainProcess process;
  };

  double seconds_at_work() const {
    return begin_seconds_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void keep() {
    state_.seconds = seconds_at_work();
    write_sweep_state(folder_, state_);
  }
  fs::path log_path(const SweepEntry& entry) const { return folder_ / (entry.name + ".log"); }
  fs::path checkpoints(const SweepEntry& entry) const { return plan_.run_dir / "checkpoints" / entry.name; }

  std::optional<RunRow> row_of(const SweepEntry& entry) const {
    const fs::path database = plan_.run_dir / "experiments.db";
    if (!fs::exists(database)) return std::nullopt;
    return RunStore(database, RunStore::Access::kRead).find(entry.name);
  }

  void check_is_free(const SweepEntry& entry) const {
    if (entry.state != SweepRunState::kWaiting || (!row_of(entry) && !latest_checkpoint(checkpoints(entry)))) return;
    throw usage_error(
        fmt::format("{} has a run {} already, which is no part of this sweep", plan_.run_dir.string(), entry.name),
        "give the sweep another sweep.name or sweep.run_name, or remove that run and its checkpoints");
  }

  int64_t steps_of(const SweepEntry& entry, int64_t rung) const {
    const std::vector<double>& at = plan_.file.halving.at;
    if (rung >= std::ssize(at)) return entry.steps;
    const double share = at[static_cast<size_t>(rung)] * static_cast<double>(entry.steps);
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(share - 1e-9)));
  }
  bool wants_work(const SweepEntry& entry, int64_t rung) const {
    return (entry.state == SweepRunState::kWaiting || entry.state == SweepRunState::kBegun) && entry.rung == rung &&
           std::ranges::find(plan_.runs, entry.name, &SweepRun::name) != plan_.runs.end();
  }

  // A run that a killed sweep has begun: its process may have ended it since, or be about to.
  void take_up(SweepEntry& entry) {
    if (entry.state != SweepRunState::kBegun) return;
    std::optional<RunRow> row = row_of(entry);
    if (row && row->status == RunStatus::kRunning) say("waiting for {}, process {}, to save\n", entry.name, row->pid);
    while (row && row->status == RunStatus::kRunning && !stop_.requested()) {
      std::this_thread::sleep_for(kPoll);
      row = row_of(entry);
    }
    if (row) settle(entry, *row);
  }

  // Whether the row says that the run has got to where it was to go, or to an end of its own.
  bool settle(SweepEntry& entry, const RunRow& row) {
    if (row.status == RunStatus::kRunning) return false;
    entry.curve = read_run_curve(metrics_path(plan_.run_dir, entry.name), plan_.file.goal);
    if (row.status == RunStatus::kFailedNan || row.status == RunStatus::kFailedCollapse) {
      entry.state = SweepRunState::kDiverged;
      entry.reason = row.reason;
      entry.goal.reset();
    } else if (row.status == RunStatus::kCompleted && (row.step >= steps_of(entry, entry.rung) || plan_.ends_early)) {
      entry.goal = entry.curve.points.empty() ? std::nullopt : std::optional(entry.curve.points.back().goal);
      const bool is_last = entry.rung >= std::ssize(plan_.file.halving.at);
      if (!is_last) ++entry.rung;
      if (is_last) entry.state = SweepRunState::kDone;
      if (entry.goal) return tell(entry), true;
      entry.state = SweepRunState::kFailed;
      entry.reason = fmt::format("it recorded no {}", plan_.file.goal);
    } else {
      return false;
    }
    tell(entry);
    return true;
  }

  void run_stage(int64_t rung) {
    for (;;) {
      look_for_end();
      while (!ending_ && std::ssize(working_) < plan_.parallel) {
        const auto next = std::ranges::find_if(state_.runs, [&](const SweepEntry& entry) {
          const auto index = static_cast<size_t>(&entry - state_.runs.data());
          return wants_work(entry, rung) && std::ranges::find(working_, index, &Working::index) == working_.end();
        });
        if (next == state_.runs.end()) break;
        start(static_cast<size_t>(next - state_.runs.begin()));
      }
      if (working_.empty()) return;
      reap();
      std::this_thread::sleep_for(kPoll);
    }
  }

  void look_for_end() {
    if (ending_) return;
    const double hours = plan_.file.budget.hours;
    std::string why;
    if (stop_.requested()) why = stop_.name();
    if (fs::exists(stop_path(folder_))) why = "n research stop";
    if (hours > 0.0 && seconds_at_work() >= 3600.0 * hours) why = "sweep.budget.hours";
    if (why.empty()) return;
    ending_ = true;
    say("{}: {} runs save and end\n", why, working_.size());
    for (const Working& one : working_) one.process.terminate();
  }

  void start(size_t index) {
    SweepEntry& entry = state_.runs[index];
    // Without a checkpoint there is nothing to go on from, and its id is to be had again.
    if (entry.state == SweepRunState::kBegun && !latest_checkpoint(checkpoints(entry)) && row_of(entry)) {
      RunStore(plan_.run_dir / "experiments.db").remove(entry.name);
      remove_tree(metrics_path(plan_.run_dir, entry.name).parent_path());
    }
    entry.state = SweepRunState::kBegun;
    keep();
    int64_t place = 0;
    while (std::ranges::find(working_, place, &Working::place) != working_.end()) ++place;
    std::vector<std::pair<std::string, std::string>> variables = {{"NMOE_RUN", entry.name}};
    if (!plan_.gpus.empty()) variables.emplace_back("CUDA_VISIBLE_DEVICES", gpus_at(place));
    working_.push_back({index, place, TrainProcess(command(entry), variables, log_path(entry))});
    say("{}: {}{}\n", entry.name, entry.values, latest_checkpoint(checkpoints(entry)) ? ", goes on" : "");
  }

  std::string gpus_at(int64_t place) const {
    const int64_t count = std::ssize(plan_.gpus), first = place % (count / plan_.ranks) * plan_.ranks;
    std::string list;
    for (int64_t i = first; i < first + plan_.ranks; ++i) {
      list += (list.empty() ? "" : ",") + plan_.gpus[static_cast<size_t>(i)];
    }
    return list;
  }

  std::vector<std::string> command(const SweepEntry& entry) const {
    const SweepRun& run = *std::ranges::find(plan_.runs, entry.name, &SweepRun::name);
    std::vector<std::string> settings = run.overrides;
    if (!plan_.file.halving.at.empty()) {
      if (run.schedule_length > 0) settings.push_back(fmt::format("optim.schedule.length={}", run.schedule_length));
      std::erase_if(settings, is_length);
      settings.push_back(fmt::format("train.steps={}", steps_of(entry, entry.rung)));
    }
    if (plan_.threads > 0) settings.push_back(fmt::format("run.threads={}", plan_.threads));
    std::vector<std::string> command = {program_, "train", plan_.file.base.string(), "--resume"};
    for (const std::string& setting : settings) command.insert(command.end(), {"--set", setting});
    return command;
  }

  void reap() {
    for (size_t i = 0; i < working_.size();) {
      const std::optional<int> code = working_[i].process.poll();
      if (!code) {
        ++i;
        continue;
      }
      SweepEntry& entry = state_.runs[working_[i].index];
      entry.seconds += working_[i].process.seconds();
      working_.erase(working_.begin() + static_cast<std::ptrdiff_t>(i));
      ended(entry, *code);
      keep();
    }
  }

  void ended(SweepEntry& entry, int code) {
    const std::optional<RunRow> row = row_of(entry);
    if (row && settle(entry, *row)) return;
    if (ending_) return;  // it has saved, and can go on
    ++entry.crashes;
    std::string why = code > 128 ? fmt::format("signal {}", code - 128) : last_error(log_path(entry));
    if (why.empty()) why = fmt::format("exit code {}", code);
    const bool is_refused = code == 2;  // as it would be again
    if (is_refused || entry.crashes > plan_.file.retries) {
      entry.state = SweepRunState::kFailed;
      entry.reason = why;
      return tell(entry);
    }
    say("{}: {}; it is tried again ({} of {})\n", entry.name, why, entry.crashes, plan_.file.retries);
  }

  void tell(const SweepEntry& entry) const {
    const auto is_over = [](const SweepEntry& one) {
      return one.state != SweepRunState::kWaiting && one.state != SweepRunState::kBegun;
    };
    const auto over = std::ranges::count_if(state_.runs, is_over);
    const std::string goal = entry.goal ? fmt::format(" {} {:.4f}", plan_.file.goal, *entry.goal) : "";
    say("{}:{} {}{} after {} ({} of {} runs){}\n", entry.name, goal,
        is_over(entry) ? sweep_run_state_name(entry.state) : fmt::format("rung {}", entry.rung),
        entry.reason.empty() ? "" : ": " + entry.reason, human_seconds(entry.seconds), over, state_.runs.size(),
        time_left());
  }

  // By the time that the runs so far took for their FLOPs.
  std::string time_left() const {
    double done = 0.0, seconds = 0.0, left = 0.0;
    for (const SweepEntry& entry : state_.runs) {
      if (entry.state == SweepRunState::kDone) done += entry.flops, seconds += entry.seconds;
      if (entry.state == SweepRunState::kWaiting || entry.state == SweepRunState::kBegun) left += entry.flops;
    }
    if (done <= 0.0 || left <= 0.0) return "";
    return fmt::format(", about {} left", human_seconds(left * seconds / done / static_cast<double>(plan_.parallel)));
  }

  // All that got to the rung have; the others have ended.
  void decide(int64_t rung) {
    std::vector<RungResult> results;
    for (const SweepEntry& entry : state_.runs) {
      results.push_back({entry.point, entry.rung == rung + 1 ? entry.goal : std::nullopt});
    }
    std::erase_if(results, [&](const RungResult& result) {
      return std::ranges::any_of(state_.runs, [&](const SweepEntry& entry) {
        return entry.point == result.point && entry.state == SweepRunState::kHalted;
      });
    });
    const std::vector<int64_t> points = surviving_points(results, plan_.file.halving.keep, plan_.file.direction);
    for (SweepEntry& entry : state_.runs) {
      if (entry.state != SweepRunState::kBegun || std::ranges::binary_search(points, entry.point)) continue;
      entry.state = SweepRunState::kHalted;
      entry.reason = fmt::format("not among the best at step {}", steps_of(entry, rung));
    }
    state_.rungs_decided = rung + 1;
    keep();
    say("rung {}: {} points go on\n", rung + 1, points.size());
  }

  const SweepPlan& plan_;
  const std::string& program_;
  const StopSignal& stop_;
  const fs::path folder_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double begin_seconds_ = 0.0;
  SweepState state_;
  std::vector<Working> working_;
  bool ending_ = false;
};

}  // namespace

SweepState run_sweep(const SweepPlan& plan, const std::string& program, const StopSignal& stop) {
  return Sweeper(plan, program, stop).run();
}

bool is_at_work(const fs::path& folder) {
  const int fd = ::open(lock_path(folder).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

void stop_sweep(const fs::path& folder) {
  if (!is_at_work(folder)) {
    throw usage_error(fmt::format("no process is at work on the sweep in {}", folder.string()),
                      "n research status says how far it is");
  }
  write_file_atomically(stop_path(folder), "");
}

}  // namespace nmoe
