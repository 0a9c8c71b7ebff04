#include "track/metrics.h"

#include <fmt/core.h>

#include <cstdio>
#include <vector>

#include "base/error.h"
#include "base/say.h"
#include "base/start_thread.h"

namespace nmoe {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(50);

int64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

MetricsWriter::MetricsWriter(fs::path path, double flush_interval_s, double lock_patience_s)
    : path_(std::move(path)), flush_interval_(flush_interval_s), lock_patience_(lock_patience_s) {
  flush();  // an unusable file is found out now, and viewers find a table
  thread_ = start_thread("for metrics", [this] { run(); });
}

MetricsWriter::~MetricsWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  try {
    write();
  } catch (const std::exception& error) {
    if (!told_) say("error: the last {} metrics were not written: {}\n", queue_.size(), error.what());
  }
}

void MetricsWriter::add(int64_t step, const std::string& tag, double value) {
  const std::lock_guard lock(mutex_);
  queue_[{step, tag}] = {value, now_ms()};
  while (queue_.size() > kMaxQueued) queue_.erase(queue_.begin());
}

std::string MetricsWriter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, "");
}

void MetricsWriter::flush() {
  try {
    write();
  } catch (...) {
    lock_patience_ = {};
    told_ = true;
    throw;
  }
  const std::lock_guard lock(mutex_);
  failure_.clear();  // made good: what it left in the queue is now written
}

void MetricsWriter::rewind(int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(queue_, [step](const auto& item) { return item.first.first > step; });
  }
  write(step);
}

std::optional<std::string> MetricsWriter::try_write(std::optional<int64_t> rewind_to) {
  const std::lock_guard file_lock(file_mutex_);
  if (path_.has_parent_path()) make_directories(path_.parent_path());  // somebody may have removed it
  std::map<Key, Value> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(queue_);
  }
  std::vector<MetricRow> rows;
  rows.reserve(batch.size());
  for (const auto& [key, value] : batch) {
    rows.push_back({key.first, key.second, value.value, value.ts_ms});
  }
  const auto requeue = [&] {
    const std::lock_guard lock(mutex_);
    queue_.merge(batch);  // what was added meanwhile is newer and stays
  };
  try {
    std::optional<std::string> holder = try_write_metrics(path_, rows, rewind_to);
    if (holder) requeue();
    return holder;
  } catch (...) {
    requeue();
    throw;
  }
}

void MetricsWriter::write(std::optional<int64_t> rewind_to) {
  const auto deadline = std::chrono::steady_clock::now() + lock_patience_;
  while (const std::optional<std::string> holder = try_write(rewind_to)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw runtime_error(fmt::format("metrics '{}': {}", path_.string(), *holder),
                          "close the file in the program that reads it");
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

void MetricsWriter::run() {
  std::unique_lock lock(mutex_);
  std::chrono::duration<double> pause = flush_interval_;
  while (!wake_.wait_for(lock, pause, [this] { return stop_; })) {
    pause = flush_interval_;
    if (queue_.empty()) continue;
    lock.unlock();
    std::string failure;
    try {
      if (try_write()) pause = kLockRetry;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    failure_ = failure;
  }
}

}  // namespace nmoe
