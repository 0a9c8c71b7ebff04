// Documents that are the same: exactly, by hash, or nearly, by MinHash.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

namespace nmoe {

// The first half of a document's SHA-256: two documents share one by accident with a probability of 2^-128 a pair.
struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest&) const = default;
};
// The digest of a prompt, which may be empty, and a text.
Digest digest_of(std::string_view prompt, std::string_view text);

// A set of digests: 32 to 64 bytes each.
class DigestSet {
 public:
  bool insert(const Digest& digest);  // false if it was present
  int64_t size() const { return size_; }

 private:
  void grow();

  std::vector<Digest> slots_ = std::vector<Digest>(1 << 10);  // open addressing; all 0: free
  int64_t size_ = 0;
  bool has_zero_ = false;
};

// ---- near duplicates ----------------------------------------------------------------------------
//
// Broder, "On the resemblance and containment of documents" (1997): a document is the set of its shingles, runs of
// kShingleChars characters, and two documents resemble each other by the Jaccard index J of their sets. Under a random
// permutation of all shingles, the smallest ones of two documents are equal with probability J; so the share of equal
// entries of two signatures, with one entry per permutation, estimates J with standard error sqrt(J (1 - J) / 128).
//
// Candidates are found by banding (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", section
// 3.4): 32 bands of 4 entries; two documents meet if a band is equal, with probability 1 - (1 - J^4)^32: 1
// - 5e-9 at J = 0.82, 0.87 at 0.5, 0.23 at 0.3.

inline constexpr int kPermutations = 128;
inline constexpr int kBands = 32;
inline constexpr int64_t kShingleChars = 13;

// The least value of each permutation. The permutations are x -> a x + b mod 2^32 of the shingles' hashes, a odd: a
// bijection of 32-bit integers that needs no wider product.
using Signature = std::array<uint32_t, kPermutations>;
// Of a text shorter than a shingle, the whole is its only one.
Signature signature_of(std::string_view prompt, std::string_view text);

// The documents kept so far. Takes about 700 bytes each.
class NearDuplicates {
 public:
  // In (0, 1].
  explicit NearDuplicates(double threshold);

  // Adds a document unless its resemblance to an earlier one reaches the threshold; then returns the first such one,
  // counted from 0 in the order of adding.
  std::optional<int64_t> add(const Signature& signature);
  // Adds a document that is known to resemble no other.
  void insert(const Signature& signature);
  int64_t size() const { return static_cast<int64_t>(signatures_.size()); }

 private:
  // The low halves of entries suffice for comparison: they are equal by accident once in 65,536.
  using ShortSignature = std::array<uint16_t, kPermutations>;

  // One band: open addressing from the hash of its entries to the documents that have them.
  class Band {
   public:
    // Appends the documents with this hash.
    void find(uint32_t hash, std::vector<uint32_t>& documents) const;
    void insert(uint32_t hash, uint32_t document);

   private:
    // With boilerplate, thousands of documents have a band in common; similar documents have others in common too.
    static constexpr int kMaxOfOneHash = 32;
    static constexpr uint32_t kFree = UINT32_MAX;
    struct Slot {
      uint32_t hash = 0;
      uint32_t document = kFree;
    };
    void grow();
    size_t slot_of(uint32_t hash) const { return (hash * 0x9E3779B97F4A7C15ULL) >> shift_; }

    int shift_ = 64 - 10;
    std::vector<Slot> slots_ = std::vector<Slot>(1 << 10);
    size_t used_ = 0;
  };

  int min_equal_;
  std::deque<ShortSignature> signatures_;
  std::array<Band, kBands> bands_;
  std::vector<uint32_t> candidates_;
};

}  // namespace nmoe
