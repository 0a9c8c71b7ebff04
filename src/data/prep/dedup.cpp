#include "data/prep/dedup.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/utf8.h"

namespace nmoe {
namespace {

constexpr int kBandRows = kPermutations / kBands;

struct Permutations {
  std::array<uint32_t, kPermutations> a;
  std::array<uint32_t, kPermutations> b;
};

const Permutations& permutations() {
  static const Permutations drawn = [] {
    const Philox random(/*seed=*/0, "minhash");
    Permutations p{};
    for (size_t i = 0; i < kPermutations; ++i) {
      const uint64_t bits = random.bits(i);
      p.a[i] = static_cast<uint32_t>(bits) | 1U;
      p.b[i] = static_cast<uint32_t>(bits >> 32);
    }
    return p;
  }();
  return drawn;
}

// The hash of the band's entries. Different bands have different seeds, so no entry stands in for another.
uint32_t band_hash(const Signature& signature, int band) {
  return static_cast<uint32_t>(XXH3_64bits_withSeed(&signature[static_cast<size_t>(band) * kBandRows],
                                                    kBandRows * sizeof(uint32_t), static_cast<XXH64_hash_t>(band)));
}

uint64_t parse_hex(const std::string& hex, size_t begin) {
  constexpr size_t kDigits = 16;
  uint64_t value = 0;
  std::from_chars(hex.data() + begin, hex.data() + begin + kDigits, value, 16);
  return value;
}

}  // namespace

Digest digest_of(std::string_view prompt, std::string_view text) {
  Sha256 hash;
  if (!prompt.empty()) {
    hash.update(prompt);
    hash.update(std::string_view("\0", 1));
  }
  hash.update(text);
  const std::string hex = hash.finish();
  return {parse_hex(hex, 0), parse_hex(hex, 16)};
}

bool DigestSet::insert(const Digest& digest) {
  if (digest == Digest{}) {  // stands for a free slot
    const bool is_new = !std::exchange(has_zero_, true);
    size_ += is_new ? 1 : 0;
    return is_new;
  }
  if (2 * static_cast<size_t>(size_) >= slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  for (size_t slot = digest.low & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] == digest) return false;
    if (slots_[slot] == Digest{}) {
      slots_[slot] = digest;
      ++size_;
      return true;
    }
  }
}

void DigestSet::grow() {
  std::vector<Digest> old(2 * slots_.size());
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Digest& digest : old) {
    if (digest == Digest{}) continue;
    size_t slot = digest.low & mask;
    while (!(slots_[slot] == Digest{})) slot = (slot + 1) & mask;
    slots_[slot] = digest;
  }
}

Signature signature_of(std::string_view prompt, std::string_view text) {
  std::string joined;
  if (!prompt.empty()) {
    joined.append(prompt).append(text);
    text = joined;
  }
  const Permutations& p = permutations();
  Signature least;
  least.fill(UINT32_MAX);
  const auto add_shingle = [&](std::string_view shingle) {
    const auto x = static_cast<uint32_t>(XXH3_64bits(shingle.data(), shingle.size()));
    for (size_t i = 0; i < kPermutations; ++i) least[i] = std::min(least[i], p.a[i] * x + p.b[i]);
  };
  // Where the last kShingleChars characters begin.
  std::array<size_t, kShingleChars> begins{};
  size_t count = 0;
  for_each_char(text, [&](uint32_t, size_t place, size_t length) {
    begins[count++ % kShingleChars] = place;
    if (count < kShingleChars) return;
    const size_t begin = begins[count % kShingleChars];
    add_shingle(text.substr(begin, place + length - begin));
  });
  if (count < kShingleChars) add_shingle(text);
  return least;
}

void NearDuplicates::Band::find(uint32_t hash, std::vector<uint32_t>& documents) const {
  for (size_t slot = slot_of(hash); slots_[slot].document != kFree; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].hash == hash) documents.push_back(slots_[slot].document);
  }
}

void NearDuplicates::Band::insert(uint32_t hash, uint32_t document) {
  if (4 * used_ >= 3 * slots_.size()) grow();
  int of_this_hash = 0;
  size_t slot = slot_of(hash);
  for (; slots_[slot].document != kFree; slot = (slot + 1) & (slots_.size() - 1)) {
    of_this_hash += slots_[slot].hash == hash ? 1 : 0;
  }
  if (of_this_hash >= kMaxOfOneHash) return;
  slots_[slot] = {hash, document};
  ++used_;
}

void NearDuplicates::Band::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  --shift_;
  for (const Slot& entry : old) {
    if (entry.document == kFree) continue;
    size_t slot = slot_of(entry.hash);
    while (slots_[slot].document != kFree) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = entry;
  }
}

NearDuplicates::NearDuplicates(double threshold)
    : min_equal_(static_cast<int>(std::ceil(threshold * kPermutations - 1e-9))) {}

void NearDuplicates::insert(const Signature& signature) {
  NMOE_CHECK(signatures_.size() < UINT32_MAX, "{} documents", signatures_.size());
  const auto document = static_cast<uint32_t>(signatures_.size());
  ShortSignature& entries = signatures_.emplace_back();
  for (size_t i = 0; i < kPermutations; ++i) entries[i] = static_cast<uint16_t>(signature[i]);
  for (int band = 0; band < kBands; ++band) {
    bands_[static_cast<size_t>(band)].insert(band_hash(signature, band), document);
  }
}

std::optional<int64_t> NearDuplicates::add(const Signature& signature) {
  candidates_.clear();
  for (int band = 0; band < kBands; ++band) {
    bands_[static_cast<size_t>(band)].find(band_hash(signature, band), candidates_);
  }
  std::ranges::sort(candidates_);
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
  for (const uint32_t candidate : candidates_) {
    const ShortSignature& entries = signatures_[candidate];
    int equal = 0;
    for (size_t i = 0; i < kPermutations; ++i) equal += entries[i] == static_cast<uint16_t>(signature[i]) ? 1 : 0;
    if (equal >= min_equal_) return candidate;
  }
  insert(signature);
  return std::nullopt;
}

}  // namespace nmoe
