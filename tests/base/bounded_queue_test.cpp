#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace nmoe {
namespace {

TEST(BoundedQueue, KeepsTheOrderAndTheBound) {
  BoundedQueue<std::unique_ptr<int>> queue(3);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::thread producer([&] {
    for (int i = 0; i < 10'000; ++i) {
      EXPECT_TRUE(queue.push(std::make_unique<int>(i)));
      const int now = ++inside;
      if (now > most) most = now;
    }
    queue.close();
  });
  for (int expected = 0; expected < 10'000; ++expected) {
    const auto value = queue.pop();
    ASSERT_TRUE(value);
    EXPECT_EQ(**value, expected);
    --inside;
  }
  EXPECT_FALSE(queue.pop());
  producer.join();
  EXPECT_LE(most, 4);  // three, and one that the consumer has taken but not yet counted
}

TEST(BoundedQueue, ClosingReleasesWhoeverWaits) {
  BoundedQueue<int> full(1);
  EXPECT_TRUE(full.push(1));
  std::thread producer([&] { EXPECT_FALSE(full.push(2)); });
  full.close();
  producer.join();
  EXPECT_EQ(full.pop(), 1);
  EXPECT_FALSE(full.pop());

  BoundedQueue<int> empty(1);
  std::thread consumer([&] { EXPECT_FALSE(empty.pop()); });
  empty.close();
  consumer.join();
}

}  // namespace
}  // namespace nmoe
