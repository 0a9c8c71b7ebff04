// Counter-based random numbers: the value at (seed, stream, index) needs no state, so any thread can make any
// part of a sequence and the result never depends on how the work was cut.
//
// Generator: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11), section 4.3.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace nmoe {

// Four 32-bit words for one 128-bit counter and one 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// How much of the standard normal lies below z.
double normal_mass_below(double z);

// A stream of random numbers addressed by index.
class Philox {
 public:
  // Streams with different `stream` values are independent for one seed.
  Philox(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  // The stream of a named thing (a parameter, a shuffle): stream = 64-bit FNV-1a of the name.
  Philox(uint64_t seed, std::string_view stream_name);

  uint64_t bits(uint64_t index) const;   // 64 random bits
  double uniform(uint64_t index) const;  // in (0, 1), never 0 or 1
  double normal(uint64_t index) const;   // standard normal, by inverse transform
  // Standard normal conditioned on |z| <= limit (limit > 0), by inverse transform: one draw an index.
  double truncated_normal(uint64_t index, double limit) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

// A keyed permutation of [0, size): position -> element, without storing it. Feistel network over the next
// even power of two with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t position) const;  // position < size
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  uint64_t key_;
  unsigned half_bits_;
};

uint64_t fnv1a64(std::string_view bytes);

}  // namespace nmoe
