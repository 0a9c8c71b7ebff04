// Writes checkpoints on a thread of its own, so that training goes on meanwhile.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "checkpoint/checkpoint.h"

namespace nmoe {

// Called from one thread.
class AsyncCheckpointWriter {
 public:
  // Checkpoints go to `dir`; after each, all but the last `keep_last` are pruned (0: none).
  AsyncCheckpointWriter(fs::path dir, int64_t keep_last);
  // Waits for what was submitted. A failure that no wait() reported goes to stderr.
  ~AsyncCheckpointWriter();
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;

  // Hands a state over and returns. Its tensors have their values once `until_staged`, called by the writing thread,
  // returns; they stay alive and unchanged until wait() returns: pass a staged copy, not the weights being trained.
  // Waits first, so there is never more than one in flight, and an earlier failure is thrown here instead of writing.
  void submit(
      CheckpointState state, std::function<void()> until_staged = [] {});
  // The same for any work of writing, say one writer's part of a draft.
  void submit_work(std::function<void()> work);
  // Whether something that was submitted is still at work.
  bool busy() const;

  // Returns once what was submitted is on the disk; throws what prevented it, once.
  void wait();

 private:
  void run();

  const fs::path dir_;
  const int64_t keep_last_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<void()> work_;  // until it is done
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
