// What a group of ranks gives them, however they meet: checks that every rank runs on its own Communicator.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/rank_values.h"

namespace nmoe::test {

// Tensors of `size` elements, of none and of bytes become those of rank 0.
inline void expect_values_of_rank_zero(Communicator& ranks, int64_t size) {
  auto a = values_of<float>(ranks.index(), size);
  auto b = values_of<double>(ranks.index(), 0);
  auto c = std::vector<uint8_t>(5, static_cast<uint8_t>(7 + ranks.index()));
  const Tensor tensors[] = {view(a), view(b), view(c)};
  ranks.broadcast(tensors, Lane::kCompute);
  EXPECT_TRUE(a == values_of<float>(0, size)) << size << " elements on rank " << ranks.index();
  EXPECT_EQ(c, std::vector<uint8_t>(5, 7));
}

// Texts of several lengths, and numbers, come in the order of `count` ranks.
inline void expect_gathers_in_rank_order(Communicator& ranks, int64_t count, int64_t num_rounds) {
  EXPECT_EQ(ranks.count(), count);
  for (int64_t round = 0; round < num_rounds; ++round) {
    const std::string mine(static_cast<size_t>(ranks.index() + round % 3), static_cast<char>('a' + ranks.index()));
    const std::vector<std::string> all = ranks.all_gather(mine);
    const std::vector<int64_t> numbers = ranks.all_gather_values(10 * round + ranks.index());
    ASSERT_EQ(static_cast<int64_t>(all.size()), count);
    for (int64_t rank = 0; rank < count; ++rank) {
      const auto i = static_cast<size_t>(rank);
      ASSERT_EQ(all[i], std::string(static_cast<size_t>(rank + round % 3), static_cast<char>('a' + rank)));
      ASSERT_EQ(numbers[i], 10 * round + rank);
    }
  }
}

// Nobody passes before all `count` ranks have come. `arrived`: 0 at first, of all ranks.
inline void expect_barriers_to_hold(Communicator& ranks, std::atomic<int64_t>& arrived, int64_t count,
                                    int64_t num_rounds) {
  for (int64_t round = 1; round <= num_rounds; ++round) {
    ++arrived;
    ranks.barrier();
    ASSERT_GE(arrived, round * count);
  }
}

}  // namespace nmoe::test
