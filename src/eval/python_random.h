// The random numbers of CPython's `random` module, bit for bit: published evaluations draw their orders and examples
// with them.
//
// Generator: MT19937, Matsumoto and Nishimura, "Mersenne twister" (ACM TOMACS 8, 1998), seeded by init_by_array as
// CPython does (Modules/_randommodule.c, Lib/random.py).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);  // random.Random(seed)

  uint32_t bits(int count);     // getrandbits(count), count in [1, 32]
  int64_t below(int64_t size);  // in [0, size), size in [1, 2^32): what choice() takes of a list of that size
  void shuffle(std::span<int64_t> items);
  // sample(range(size), count), 0 <= count <= size: the drawn ones in the order in which they were.
  std::vector<int64_t> sample(int64_t size, int64_t count);

 private:
  static constexpr size_t kStateSize = 624;
  uint32_t next();

  std::array<uint32_t, kStateSize> state_;
  size_t place_ = kStateSize;
};

}  // namespace nmoe
