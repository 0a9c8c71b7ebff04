// Writes checkpoints on a thread of its own, so that training goes on meanwhile.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace nmoe {

// Called from one thread.
class AsyncCheckpointWriter {
 public:
  AsyncCheckpointWriter();
  // Waits for what was submitted. A failure that no wait() reported goes to stderr.
  ~AsyncCheckpointWriter();
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;

  // Hands work over, such as writing one writer's part of a draft, and returns. What it reads stays alive and unchanged
  // until wait() returns. Waits first, so there is never more than one in flight, and an earlier failure is thrown here
  // instead of beginning.
  void submit(std::function<void()> work);
  // Whether something that was submitted is still at work.
  bool busy() const;

  // Returns once what was submitted is on the disk; throws what prevented it, once.
  void wait();

 private:
  void run();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<void()> work_;  // until it is done
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
