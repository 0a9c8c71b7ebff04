// The ids of recent words, so that most words of a text cost one look-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace nmoe {

// Keeps words of up to 15 bytes and 4 ids, which are nearly all words of most texts. Two words with the same hash fit;
// a third replaces the older one. 2 MiB, which fits in an L2 cache.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 15;
  static constexpr size_t kMaxIds = 4;

  // A word of 1 to kMaxBytes bytes as a number: its bytes, and its size in the highest byte.
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };
  static Key key_of(std::string_view word) {
    const size_t size = word.size();
    const char* const p = word.data();
    const auto load = [p](size_t offset, auto as) {
      std::memcpy(&as, p + offset, sizeof(as));
      return static_cast<uint64_t>(as);
    };
    const uint64_t size_byte = static_cast<uint64_t>(size) << 56;
    if (size > 8) return {load(0, uint64_t{}), load(size - 8, uint64_t{}) >> 8 * (16 - size) | size_byte};
    if (size == 8) return {load(0, uint64_t{}), size_byte};
    if (size >= 4) return {load(0, uint32_t{}) | load(size - 4, uint32_t{}) << 8 * (size - 4), size_byte};
    const uint64_t ends = load(0, uint8_t{}) | load(size - 1, uint8_t{}) << 8 * (size - 1);
    return {ends | load(size / 2, uint8_t{}) << 8 * (size / 2), size_byte};
  }

  // Appends the word's ids to `out`; false, and nothing is appended, if it is not cached.
  bool get(const Key& key, std::vector<int32_t>& out) const {
    for (const Entry& entry : sets_[set_of(key)]) {
      if (entry.key != key) continue;
      out.push_back(entry.ids[0]);
      for (size_t i = 1; i < kMaxIds && entry.ids[i] != kNone; ++i) out.push_back(entry.ids[i]);
      return true;
    }
    return false;
  }

  void put(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Set& set = sets_[set_of(key)];
    set[1] = set[0];
    set[0].key = key;
    set[0].ids.fill(kNone);
    std::copy(ids.begin(), ids.end(), set[0].ids.begin());
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    Key key;  // of no word, at first
    std::array<int32_t, kMaxIds> ids;
  };
  struct alignas(64) Set : std::array<Entry, 2> {};
  static constexpr int kSetBits = 15;

  static size_t set_of(const Key& key) {
    const uint64_t mixed = (key.low ^ key.high * 0xC2B2AE3D27D4EB4FULL) * 0x9E3779B97F4A7C15ULL;
    return mixed >> (64 - kSetBits);
  }

  std::vector<Set> sets_ = std::vector<Set>(size_t{1} << kSetBits);
};

}  // namespace nmoe
