// Signals in the middle of matrix products leave their numbers as they are.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "base/signals.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// A second signal would end the process, so each has a StopSignal of its own.
TEST(StopSignalTest, InterruptsProductsWithoutAChange) {
  TensorPool pool(DType::kF32);
  const auto ops = cpu_device(DType::kF32, /*num_threads=*/1);
  const Tensor dy = pool.normal({128, 257}), w = pool.normal({257, 16});
  const Tensor expected = pool.zeros({128, 16}), dx = pool.zeros({128, 16});
  ops->linear_backward_input({dy, w, expected, false});
  const pthread_t computing = pthread_self();
  for (int i = 0; i < 500; ++i) {
    const StopSignal stop;
    std::jthread sender([&] { pthread_kill(computing, SIGTERM); });
    do {
      ops->linear_backward_input({dy, w, dx, false});
    } while (!stop.requested());
    ASSERT_TRUE(same_bits(dx, expected)) << i;
    EXPECT_STREQ(stop.name(), "SIGTERM");
  }
}

}  // namespace
}  // namespace nmoe::test
