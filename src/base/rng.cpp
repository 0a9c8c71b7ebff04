#include "base/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/random_math.h"

namespace nmoe {
namespace {

uint64_t mix64(uint64_t x) {  // the finaliser of SplitMix64
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const random::Words words = random::philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {words.word[0], words.word[1], words.word[2], words.word[3]};
}

double normal_mass_below(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

Philox::Philox(uint64_t seed, std::string_view stream_name) : Philox(seed, fnv1a64(stream_name)) {}

uint64_t Philox::bits(uint64_t index) const { return random::bits(seed_, stream_, index); }

double Philox::uniform(uint64_t index) const { return random::to_unit(bits(index)); }

double Philox::normal(uint64_t index) const { return random::normal_quantile(uniform(index)); }

double Philox::truncated_normal(uint64_t index, double limit) const {
  return random::truncated_normal(uniform(index), normal_mass_below(-limit));
}

KeyedPermutation::KeyedPermutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  NMOE_CHECK(size > 0, "a permutation needs at least one element");
  const unsigned bits = static_cast<unsigned>(std::bit_width(size - 1));
  half_bits_ = std::max(1U, (bits + 1) / 2);
}

uint64_t KeyedPermutation::operator()(uint64_t position) const {
  NMOE_CHECK(position < size_, "position {} of a permutation of {}", position, size_);
  const uint64_t mask = (1ULL << half_bits_) - 1;
  do {
    uint64_t left = position >> half_bits_;
    uint64_t right = position & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = mix64(right ^ mix64(key_ + round * 0x9E3779B97F4A7C15ULL));
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    position = (left << half_bits_) | right;
  } while (position >= size_);
  return position;
}

uint64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace nmoe
