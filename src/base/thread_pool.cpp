#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/error.h"
#include "base/signals.h"
#include "base/start_thread.h"

namespace nmoe {
namespace {

// Steps follow each other within microseconds, and waking a sleeping thread takes tens of them: workers spin
// this long before they sleep. Not where there are more of them than CPUs: they would keep each other from working.
constexpr auto kSpin = std::chrono::microseconds(200);

constexpr uint64_t kOpen = uint64_t{1} << 32;  // ThreadPool::state_
constexpr uint64_t kInside = kOpen - 1;

uint64_t job_number(uint64_t state) { return state >> 33; }
uint64_t next_job(uint64_t state) { return (job_number(state) + 1) << 33; }

// The workers that there are end, and are gone.
void end_workers(std::vector<std::thread>& workers, std::mutex& mutex, std::condition_variable& wake,
                 std::atomic<bool>& stop, std::atomic<uint64_t>& state) {
  {
    const std::lock_guard lock(mutex);
    stop.store(true);
    state.store(next_job(state.load()));
  }
  wake.notify_all();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

struct ThreadPool::Job {
  const std::function<void(int64_t, int)>* fn;
  int64_t num_tasks;
  std::atomic<int64_t> next{0};
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
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.push_back(
          start_thread(fmt::format("{} of {}", thread + 1, num_threads), [this, thread] { worker_loop(thread); }));
    }
  } catch (...) {
    end_workers(workers_, mutex_, wake_, stop_, state_);
    throw;
  }
}

ThreadPool::~ThreadPool() { end_workers(workers_, mutex_, wake_, stop_, state_); }

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
  block_stop_signals();
  const auto spin = thread < available_cpus() ? kSpin : std::chrono::microseconds(0);
  uint64_t seen = 0;
  for (;;) {
    const auto deadline = std::chrono::steady_clock::now() + spin;
    while (job_number(state_.load(std::memory_order_acquire)) == seen) {
      _mm_pause();
      if (std::chrono::steady_clock::now() > deadline) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return job_number(state_.load(std::memory_order_acquire)) != seen; });
        break;
      }
    }
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = job_number(state);
    if (stop_.load()) return;
    // A job that has been closed already, or that gave way to another, is not entered.
    bool inside = false;
    while (!inside && (state & kOpen) != 0 && job_number(state) == seen) {
      inside = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire);
    }
    if (!inside) continue;
    run_tasks(*job_.load(std::memory_order_acquire), thread);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, const std::function<void(int64_t, int)>& fn) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || workers_.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  Job job{&fn, num_tasks, {}, {}, {}};
  job_.store(&job, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    state_.store(next_job(state_.load(std::memory_order_relaxed)) | kOpen, std::memory_order_release);
  }
  wake_.notify_all();
  run_tasks(job, 0);
  // No task is left to hand out. Who has not entered by now, because another program has its processor, is not waited
  // for; who has is gone when the count is 0, and none can hold a pointer to the job after that.
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (unsigned spins = 0; (state_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
    _mm_pause();
    if (spins > 4096) std::this_thread::yield();
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace nmoe
