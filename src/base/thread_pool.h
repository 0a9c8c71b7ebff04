// A pool of worker threads for loops over independent tasks.
//
// The pool never decides how work is cut: callers choose the tasks from the problem alone, so results are the
// same bits for any number of threads. Which thread runs a task is not specified.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace nmoe {

class ThreadPool {
 public:
  // `num_threads` >= 1 counts the calling thread; 0 means one per CPU this process may run on. Error (runtime) where
  // the system gives fewer.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(task, thread) for every task in [0, num_tasks), then returns. `thread` is in [0, num_threads) and
  // owned by one thread at a time: use it to index per-thread scratch. The first exception is rethrown here;
  // tasks that had not begun by then are left out. Not reentrant: a task must not call parallel_for on the same pool.
  // One caller at a time.
  void parallel_for(int64_t num_tasks, const std::function<void(int64_t task, int thread)>& fn);

 private:
  struct Job;
  void worker_loop(int thread);
  void run_tasks(Job& job, int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // From the low end: 32 bits of how many workers are inside the job, one that says whether more may enter, and the
  // job's number. A new number announces a job, or the end.
  std::atomic<uint64_t> state_{0};
  std::atomic<Job*> job_{nullptr};
  std::atomic<bool> stop_{false};
};

// How many CPUs this process may run on (its affinity mask, not the machine's count).
int available_cpus();

}  // namespace nmoe
