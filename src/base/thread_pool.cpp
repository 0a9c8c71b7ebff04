#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/error.h"

namespace nmoe {
namespace {

// Steps follow each other within microseconds, and waking a sleeping thread takes tens of them: workers spin
// this long before they sleep.
constexpr auto kSpin = std::chrono::microseconds(200);

}  // namespace

struct ThreadPool::Job {
  const std::function<void(int64_t, int)>* fn;
  int64_t num_tasks;
  std::atomic<int64_t> next{0};
  std::atomic<int> working{0};  // workers that have yet to leave this job
  std::mutex error_mutex;
  std::exception_ptr error;
};

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads == 0) num_threads = available_cpus();
  NMOE_CHECK(num_threads >= 1, "a thread pool of {} threads", num_threads);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { worker_loop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_tasks(Job& job, int thread) {
  for (;;) {
    const int64_t task = job.next.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.num_tasks) return;
    try {
      (*job.fn)(task, thread);
    } catch (...) {
      const std::lock_guard lock(job.error_mutex);
      if (!job.error) job.error = std::current_exception();
      job.next.store(job.num_tasks);
    }
  }
}

void ThreadPool::worker_loop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (generation_.load(std::memory_order_acquire) == seen) {
      _mm_pause();
      if (std::chrono::steady_clock::now() > deadline) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        break;
      }
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    Job* job = job_.load(std::memory_order_acquire);
    run_tasks(*job, thread);
    job->working.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, const std::function<void(int64_t, int)>& fn) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || workers_.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  Job job{&fn, num_tasks, {}, {}, {}, {}};
  job.working.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  job_.store(&job, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_acq_rel);
  }
  wake_.notify_all();
  run_tasks(job, 0);
  // Every worker passes through each job once, so none can still hold a pointer to it after this.
  for (unsigned spins = 0; job.working.load(std::memory_order_acquire) != 0; ++spins) {
    _mm_pause();
    if (spins > 4096) std::this_thread::yield();
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace nmoe
