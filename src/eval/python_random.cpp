#include "eval/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace nmoe {

PythonRandom::PythonRandom(uint64_t seed) {
  state_[0] = 19650218U;
  for (uint32_t i = 1; i < kStateSize; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const size_t key_size = key[1] == 0 ? 1 : 2;
  size_t i = 1;
  const auto mixed = [&](uint32_t factor) { return state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * factor); };
  const auto advance = [&] {
    if (++i < kStateSize) return;
    state_[0] = state_[kStateSize - 1];
    i = 1;
  };
  for (size_t step = 0; step < kStateSize; ++step) {
    const size_t j = step % key_size;
    state_[i] = mixed(1664525U) + key[j] + static_cast<uint32_t>(j);
    advance();
  }
  for (size_t step = 1; step < kStateSize; ++step) {
    state_[i] = mixed(1566083941U) - static_cast<uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

uint32_t PythonRandom::next() {
  constexpr size_t kShift = 397;
  if (place_ == kStateSize) {
    for (size_t i = 0; i < kStateSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kStateSize] & 0x7FFFFFFFU);
      state_[i] = state_[(i + kShift) % kStateSize] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908B0DFU : 0U);
    }
    place_ = 0;
  }
  uint32_t y = state_[place_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9D2C5680U;
  y ^= (y << 15) & 0xEFC60000U;
  return y ^ (y >> 18);
}

uint32_t PythonRandom::bits(int count) { return next() >> (32 - count); }

int64_t PythonRandom::below(int64_t size) {
  NMOE_CHECK(size >= 1 && size < (int64_t{1} << 32), "a random number below {}", size);
  const auto count = static_cast<int>(std::bit_width(static_cast<uint64_t>(size)));
  int64_t value = bits(count);
  while (value >= size) value = bits(count);
  return value;
}

void PythonRandom::shuffle(std::span<int64_t> items) {
  for (size_t i = items.size(); i-- > 1;) std::swap(items[i], items[static_cast<size_t>(below(int64_t(i) + 1))]);
}

std::vector<int64_t> PythonRandom::sample(int64_t size, int64_t count) {
  NMOE_CHECK(count >= 0 && count <= size, "a sample of {} out of {}", count, size);
  // From a list that shrinks, or, where that would be longer than a set of what was drawn, with such a set.
  int64_t set_size = 21;
  if (count > 5) {
    int64_t power = 1;
    while (power < 3 * count) power *= 4;
    set_size += power;
  }
  std::vector<int64_t> drawn;
  if (size <= set_size) {
    std::vector<int64_t> pool(static_cast<size_t>(size));
    std::iota(pool.begin(), pool.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto j = static_cast<size_t>(below(size - i));
      drawn.push_back(pool[j]);
      pool[j] = pool[static_cast<size_t>(size - i - 1)];
    }
    return drawn;
  }
  std::set<int64_t> seen;
  while (std::ssize(drawn) < count) {
    const int64_t j = below(size);
    if (seen.insert(j).second) drawn.push_back(j);
  }
  return drawn;
}

}  // namespace nmoe
