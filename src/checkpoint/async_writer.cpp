#include "checkpoint/async_writer.h"

#include <fmt/core.h>

#include <cstdio>
#include <utility>

namespace nmoe {

AsyncCheckpointWriter::AsyncCheckpointWriter(fs::path dir, int64_t keep_last)
    : dir_(std::move(dir)), keep_last_(keep_last), thread_([this] { run(); }) {}

AsyncCheckpointWriter::~AsyncCheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: the last checkpoint was not written: {}\n", error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AsyncCheckpointWriter::submit(CheckpointState state, std::function<void()> until_staged) {
  wait();
  {
    const std::lock_guard lock(mutex_);
    until_staged_ = std::move(until_staged);
    pending_ = std::move(state);
  }
  changed_.notify_all();
}

void AsyncCheckpointWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !pending_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void AsyncCheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return pending_ || stop_; });
    if (!pending_) return;
    std::exception_ptr failure;
    lock.unlock();  // submit() leaves pending_ alone until it is empty
    try {
      until_staged_();
      write_checkpoint(dir_, *pending_);
      prune_checkpoints(dir_, keep_last_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    pending_.reset();
    changed_.notify_all();
  }
}

}  // namespace nmoe
