#include "track/metrics.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/say.h"
#include "base/start_thread.h"
#include "track/aside.h"

namespace nmoe {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(50);
constexpr size_t kBatchBytes = size_t{1} << 20;  // of records that go to the database at once

}  // namespace

int64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

MetricsWriter::MetricsWriter(fs::path path, double fold_interval_s, double lock_patience_s)
    : path_(std::move(path)), fold_interval_(fold_interval_s), lock_patience_(lock_patience_s) {
  if (path_.has_parent_path()) make_directories(path_.parent_path());
  live_.emplace(live_path(path_));
  fold();  // an unusable file is found out now, and viewers find tables
  thread_ = start_thread("for metrics", [this] { run(); });
}

std::unique_ptr<MetricsWriter> MetricsWriter::go_on(const fs::path& path, int64_t step) {
  const auto attempt = [&] {
    if (fs::exists(path)) check_metrics(path);
    auto writer = std::make_unique<MetricsWriter>(path);
    writer->rewind(step);
    return writer;
  };
  try {
    return attempt();
  } catch (const DamagedMetrics& damage) {
    fs::path log = path;
    log += ".wal";
    // One of the two, or both.
    for (const auto& files :
         std::vector<std::vector<fs::path>>{{path, log}, {live_path(path)}, {path, log, live_path(path)}}) {
      Aside aside;
      try {
        for (const fs::path& file : files) aside.move(file);
        auto writer = attempt();
        say("warning: {}\n", aside.text(damage.what()));
        return writer;
      } catch (const DamagedMetrics&) {
        aside.undo();
      } catch (...) {
        aside.undo();
        throw;
      }
    }
    throw;
  }
}

MetricsWriter::~MetricsWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  try {
    move_all();
    live_->remove();
  } catch (const std::exception& error) {
    if (!told_) {
      say("warning: the last metrics stay in '{}' until the run goes on: {}\n", live_path(path_).string(),
          error.what());
    }
  }
}

void MetricsWriter::append(const MetricRecord& record) {
  const std::lock_guard lock(mutex_);
  try {
    std::string frame = encode_record(record);
    waiting_bytes_ += frame.size();
    waiting_.push_back(std::move(frame));
    write_waiting();
  } catch (const std::exception& error) {
    failure_ = error.what();
    for (; waiting_bytes_ > kMaxWaitingBytes; waiting_.pop_front()) waiting_bytes_ -= waiting_.front().size();
  }
}

void MetricsWriter::write_waiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    live_->append(waiting_.front());
    waiting_bytes_ -= waiting_.front().size();
  }
}

std::string MetricsWriter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, "");
}

void MetricsWriter::flush() {
  try {
    move_all();
  } catch (...) {
    lock_patience_ = {};
    told_ = true;
    throw;
  }
  const std::lock_guard lock(mutex_);
  failure_.clear();  // made good
}

void MetricsWriter::move_all() {
  const auto deadline = std::chrono::steady_clock::now() + lock_patience_;
  while (const std::optional<std::string> holder = fold()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw runtime_error(fmt::format("metrics '{}': {}", path_.string(), *holder),
                          "close the file in the program that reads it");
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

std::optional<MetricsBatch> MetricsWriter::next_batch(uint64_t position) {
  std::string bytes;
  uint64_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    end = live_->end();
    if (position < end) bytes = live_->read(position, kBatchBytes);
  }
  if (position >= end) return std::nullopt;
  MetricsBatch batch;
  const auto decode = [&] {
    return decode_records(bytes, [&](MetricRecord record, size_t) { batch.records.push_back(std::move(record)); });
  };
  size_t whole = decode();
  if (whole == 0) {  // a record larger than that
    const std::lock_guard lock(mutex_);
    bytes = live_->read(position, kMaxRecordBytes + kBatchBytes);
    whole = decode();
  }
  if (whole == 0) {
    throw runtime_error(fmt::format("metrics '{}' are damaged at {}", live_path(path_).string(), position),
                        "the disk returns other bytes than were written: move the file away");
  }
  live_->sync();  // whom nobody replaces meanwhile: not under the lock, for a disk may take long
  batch.end = position + whole;
  return batch;
}

std::optional<std::string> MetricsWriter::fold() {
  const std::lock_guard fold_lock(fold_mutex_);
  if (path_.has_parent_path()) make_directories(path_.parent_path());  // somebody may have removed it
  uint64_t id = 0, base = 0, moved = 0;
  {
    const std::lock_guard lock(mutex_);
    write_waiting();
    id = live_->id();
    base = live_->base();
  }
  std::optional<std::string> holder = fold_metrics(path_, id, base, [&](uint64_t position) {
    moved = position;
    return next_batch(position);
  });
  const std::lock_guard lock(mutex_);
  if (!holder && moved != live_->base()) live_->drop_before(moved);
  return holder;
}

void MetricsWriter::run() {
  std::unique_lock lock(mutex_);
  std::chrono::duration<double> pause = fold_interval_;
  while (!wake_.wait_for(lock, pause, [this] { return stop_; })) {
    lock.unlock();
    pause = fold_interval_;
    std::string failure;
    try {
      // A reader that goes on and on is asked again now and then.
      if (fold()) pause = std::min<std::chrono::duration<double>>(fold_interval_, std::chrono::seconds(1));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (!failure.empty()) failure_ = failure;
  }
}

}  // namespace nmoe
