#include "data/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/error.h"

namespace nmoe {
namespace {

// Up to so many bytes, looking through all pairs for each merge is faster than keeping a heap of them.
constexpr size_t kShortWord = 40;

}  // namespace

MergeTable::MergeTable(const std::array<int32_t, 256>& byte_ids, size_t capacity)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(2 * capacity + 2)) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  const uint64_t mixed = pair * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  size_t i = (mixed ^ mixed >> 32) & (slots_.size() - 1);
  while (slots_[i].rank != kNone && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
  return i;
}

bool MergeTable::add(const BpeMerge& merge) {
  NMOE_CHECK(2 * size_ < slots_.size(), "more than {} merges", size_);
  const uint64_t pair = pair_of(merge.left, merge.right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.rank != kNone) return false;
  slot = {pair, static_cast<int32_t>(size_++), merge.result};
  return true;
}

void MergeTable::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.size() <= kShortWord) return encode_short(word, out);
  encode_long(word, scratch, out);
}

void MergeTable::encode_short(std::string_view word, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortWord> ids;
  std::array<const Slot*, kShortWord> merges;  // of a piece with the next one
  size_t size = word.size();
  for (size_t i = 0; i < size; ++i) ids[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = &find(ids[i], ids[i + 1]);
  for (;;) {
    uint32_t best_rank = std::numeric_limits<uint32_t>::max();  // what kNone is, too
    size_t best = 0;
    for (size_t i = 0; i + 1 < size; ++i) {
      const auto rank = static_cast<uint32_t>(merges[i]->rank);
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == std::numeric_limits<uint32_t>::max()) break;
    ids[best] = merges[best]->result;
    --size;
    std::copy(ids.begin() + best + 2, ids.begin() + size + 1, ids.begin() + best + 1);
    if (best + 1 < size) {
      std::copy(merges.begin() + best + 2, merges.begin() + size, merges.begin() + best + 1);
      merges[best] = &find(ids[best], ids[best + 1]);
    }
    if (best > 0) merges[best - 1] = &find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + size);
}

void MergeTable::encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  NMOE_CHECK(word.size() < std::numeric_limits<int32_t>::max(), "a word of {} bytes", word.size());
  const auto size = static_cast<int32_t>(word.size());
  auto& pieces = scratch.pieces;
  // Merges to try, as (rank, piece) in one number: the lowest first. Stale if the piece has another rank by now.
  auto& candidates = scratch.candidates;
  const auto at = [&](int32_t i) -> Scratch::Piece& { return pieces[static_cast<size_t>(i)]; };
  // Finds the merge of piece i with the next one, and appends it to the candidates if there is one.
  const auto add_candidate = [&](int32_t i) {
    Scratch::Piece& piece = at(i);
    piece.rank = piece.next == size ? kNone : find(piece.id, at(piece.next).id).rank;
    if (piece.rank == kNone) return false;
    candidates.push_back(static_cast<uint64_t>(piece.rank) << 32 | static_cast<uint32_t>(i));
    return true;
  };

  pieces.clear();
  candidates.clear();
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    pieces.push_back({byte_ids_[byte], i - 1, i + 1, kNone});
  }
  for (int32_t i = 0; i < size; ++i) add_candidate(i);
  std::ranges::make_heap(candidates, std::greater{});

  while (!candidates.empty()) {
    const auto rank = static_cast<int32_t>(candidates.front() >> 32);
    const auto i = static_cast<int32_t>(candidates.front());
    std::ranges::pop_heap(candidates, std::greater{});
    candidates.pop_back();
    Scratch::Piece& left = at(i);
    if (left.rank != rank) continue;
    Scratch::Piece& right = at(left.next);
    left.id = find(left.id, right.id).result;
    left.next = right.next;
    right.rank = kNone;
    if (left.next != size) at(left.next).previous = i;
    for (const int32_t changed : {i, left.previous}) {
      if (changed >= 0 && add_candidate(changed)) std::ranges::push_heap(candidates, std::greater{});
    }
  }
  for (int32_t i = 0; i != size; i = at(i).next) out.push_back(at(i).id);
}

}  // namespace nmoe
