#include "train/report/alert_desk.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/say.h"
#include "base/start_thread.h"
#include "track/metrics.h"
#include "track/tags/training.h"

namespace nmoe {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(500);
constexpr const Metric& kOfEveryStep = tags::kLoaderWaitMs;  // report_rank()

}  // namespace

struct AlertDesk::Follower {
  explicit Follower(const fs::path& database) : tail(live_path(database)) {}

  LiveTail tail;
  int64_t step = 0;  // logged last

  // Whether a step was logged since the last call.
  bool poll() {
    bool logged = false;
    if (!tail.is_open() && !tail.open(/*id=*/0, /*position=*/0)) return false;
    tail.poll([&](const MetricRecord& record, uint64_t) {
      // What is in front of a rewind is of an earlier process.
      if (record.rewind) logged = false;
      if (record.find(kOfEveryStep.tag) == nullptr) return;
      logged = true;
      step = record.step;
    });
    return logged;
  }
};

AlertDesk::AlertDesk(Options options)
    : options_(std::move(options)),
      watch_(options_.top_k),
      silence_(static_cast<int64_t>(options_.databases.size())),
      log_(alerts_path(options_.databases.at(0)).replace_filename("train.log")) {
  for (size_t rank = 1; rank < options_.databases.size(); ++rank) {
    followers_.push_back(std::make_unique<Follower>(options_.databases[rank]));
  }
  thread_ = start_thread("for alerts", [this] { run(); });
}

AlertDesk::~AlertDesk() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::vector<std::string> AlertDesk::take(const MetricRecord& record, bool is_step) {
  const std::lock_guard lock(mutex_);
  if (is_step) silence_.logged(/*rank=*/0, record.step, now_ms());
  std::vector<std::string> told;
  for (const Alert& alert : watch_.take(record)) {
    raise(alert);
    told.push_back("alert: " + alert.text);
  }
  return told;
}

void AlertDesk::expect_pause() {
  const std::lock_guard lock(mutex_);
  silence_.expect_none();
}

// An alert that cannot be kept is still told, and training goes on.
void AlertDesk::raise(const Alert& alert) {
  log_.line("alert: " + alert.text);
  try {
    append_alert(alerts_path(options_.databases[0]), alert);
  } catch (const std::exception& error) {
    if (std::exchange(can_write_, false)) say("warning: alerts are not kept: {}\n", error.what());
  }
  if (options_.command.empty()) return;
  std::vector<std::string> command = options_.command;
  command.push_back(fmt::format("{}: {}", options_.run_name, alert.text));
  if (!programs_.start(command, {"NMOE_ALERT", alert_json(alert)})) {
    say("warning: track.alert_command cannot be run for an alert: there is no such program, or {} of it run\n",
        DetachedPrograms::kMost);
  }
}

// A rank whose file cannot be read, or that is on a host whose files are not seen here, is as if it logged nothing, and
// of such a rank nothing is told.
void AlertDesk::look() {
  std::vector<std::pair<int64_t, int64_t>> logged;  // rank, step
  for (size_t i = 0; i < followers_.size(); ++i) {
    try {
      if (followers_[i]->poll()) logged.emplace_back(static_cast<int64_t>(i) + 1, followers_[i]->step);
    } catch (const Error&) {
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, step] : logged) silence_.logged(rank, step, now_ms());
  programs_.reap();
  if (const auto alert = silence_.look(now_ms())) {
    raise(*alert);
    // The thread that draws the progress line is the one that waits.
    say("\nalert: {}\n", alert->text);
  }
}

void AlertDesk::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return stop_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

}  // namespace nmoe
