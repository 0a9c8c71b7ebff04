#include "checkpoint/async_writer.h"

#include <fmt/core.h>

#include <cstdio>
#include <utility>

#include "base/failure.h"
#include "base/say.h"
#include "base/start_thread.h"

namespace nmoe {

AsyncCheckpointWriter::AsyncCheckpointWriter() : thread_(start_thread("to write checkpoints", [this] { run(); })) {}

AsyncCheckpointWriter::~AsyncCheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& exception) {
    say("error: the last checkpoint was not written: {}\n", as_error(exception).what());
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AsyncCheckpointWriter::submit(std::function<void()> work) {
  wait();
  {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
  }
  changed_.notify_all();
}

bool AsyncCheckpointWriter::busy() const {
  const std::lock_guard lock(mutex_);
  return work_ != nullptr;
}

void AsyncCheckpointWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void AsyncCheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return work_ || stop_; });
    if (!work_) return;
    std::exception_ptr failure;
    lock.unlock();  // submit() leaves work_ alone until it is empty
    try {
      work_();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace nmoe
