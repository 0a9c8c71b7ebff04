// What every CPU operation gets: threads to run on and scratch to use. The operations are templates
// over the compute type, instantiated for float (training) and double (proofs); cpu_device.cpp
// picks one by dtype.
//
// An operation first claims all its scratch from `scratch`, then returns if `counting()`: that is
// how a plan learns how much scratch a step needs.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"
#include "tensor/arena.h"

namespace nmoe::cpu {

struct Context {
  ThreadPool& pool;
  Arena& scratch;
  bool batch_invariant = false;  // Arithmetic::kBatchInvariant (ops/device.h): operands may not be rounded

  bool counting() const { return scratch.counting(); }
  int num_threads() const { return pool.num_threads(); }
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements a task of a memory-bound loop works on: several microseconds, far more than handing out
// the task costs.
constexpr int64_t kTaskElements = 1 << 15;
// The same in rows of `width` elements.
constexpr int64_t task_rows(int64_t width) { return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, width)); }

// Multiplications a task of a product over few rows does: several microseconds too.
constexpr int64_t kTaskProducts = 1 << 18;

// Calls fn(begin, end, thread) over [0, size) cut into blocks of `block`: cut by the problem, never
// by threads.
template <class Fn>
void parallel_blocks(Context& ctx, int64_t size, int64_t block, Fn&& fn) {
  ctx.pool.parallel_for(ceil_div(size, block), [&](int64_t task, int thread) {
    const int64_t begin = task * block;
    fn(begin, std::min(begin + block, size), thread);
  });
}

}  // namespace nmoe::cpu
