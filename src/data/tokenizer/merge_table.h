// The merges of byte-pair encoding, and their application to words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace nmoe {

struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;  // the id whose bytes are left's and right's together
  bool operator==(const BpeMerge&) const = default;
};

// Merges by pair, each ranked in the order of adding. Safe to share between threads once all are added.
class MergeTable {
 public:
  // `byte_ids`: the id of each byte. There will be at most `capacity` merges.
  MergeTable(const std::array<int32_t, 256>& byte_ids, size_t capacity);

  // False, and nothing is added, if the pair has a merge.
  bool add(const BpeMerge& merge);
  size_t size() const { return size_; }

  // Working memory of encode(), reused so that words need no allocation.
  struct Scratch {
    // A piece of the word; pieces form a list in text order, and one merged away leaves it.
    struct Piece {
      int32_t id;
      int32_t previous;
      int32_t next;
      int32_t rank;  // of the merge with the next piece, or none
    };
    std::vector<Piece> pieces;
    std::vector<uint64_t> candidates;  // a heap
  };

  // Appends the ids of `word`: its bytes, merged while any neighbours have a merge, the lowest rank first, and the
  // leftmost of equal ranks. Takes time O(n log n).
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  // Open addressing with linear probing, at most half full.
  struct Slot {
    uint64_t pair = 0;
    int32_t rank = kNone;
    int32_t result = 0;
  };
  static constexpr int32_t kNone = -1;
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const;
  const Slot& find(int32_t left, int32_t right) const { return slots_[slot_of(pair_of(left, right))]; }
  void encode_short(std::string_view word, std::vector<int32_t>& out) const;
  void encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace nmoe
