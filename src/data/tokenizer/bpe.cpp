#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <queue>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_splitter.h"

namespace nmoe {
namespace {

constexpr int32_t kNone = -1;

// (left, right) -> rank. Open addressing with linear probing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(const std::vector<BpeMerge>& merges) : slots_(std::bit_ceil(2 * merges.size() + 2)) {
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      Slot& slot = find(key_of(merges[rank].left, merges[rank].right));
      NMOE_CHECK(slot.rank == kNone, "merges {} and {} are the same pair", slot.rank, rank);
      slot = {key_of(merges[rank].left, merges[rank].right), static_cast<int32_t>(rank)};
    }
  }

  // kNone if the pair has no merge.
  int32_t rank(int32_t left, int32_t right) const { return find(key_of(left, right)).rank; }

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t rank = kNone;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  // The key's slot, or the free one where it belongs.
  template <class Slots>
  static auto& find_in(Slots& slots, uint64_t key) {
    const uint64_t mixed = key * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
    size_t i = (mixed ^ mixed >> 32) & (slots.size() - 1);
    while (slots[i].rank != kNone && slots[i].key != key) i = (i + 1) & (slots.size() - 1);
    return slots[i];
  }
  Slot& find(uint64_t key) { return find_in(slots_, key); }
  const Slot& find(uint64_t key) const { return find_in(slots_, key); }

  std::vector<Slot> slots_;
};

// The ids of recent words. Each word has one place, shared with all words of the same hash.
class WordCache {
 public:
  struct alignas(64) Entry {
    uint8_t num_bytes = 0;  // 0: free, as no word is empty
    uint8_t num_ids = 0;
    std::array<char, 22> bytes;
    std::array<int32_t, 10> ids;
  };

  Entry& at(std::string_view word) { return entries_[std::hash<std::string_view>{}(word) & (kEntries - 1)]; }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.num_bytes == word.size() && std::memcmp(entry.bytes.data(), word.data(), word.size()) == 0;
  }
  // Words too long for an entry are not kept.
  static void put(Entry& entry, std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > entry.bytes.size() || ids.size() > entry.ids.size()) return;
    entry.num_bytes = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(ids.size());
    std::ranges::copy(word, entry.bytes.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr size_t kEntries = 1 << 15;  // 2 MiB: most words of English text, in an L2 cache
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

// What one call of encode() works with.
struct Scratch {
  // A piece of the word; pieces form a list in text order, and one merged away leaves it.
  struct Piece {
    int32_t id;
    int32_t previous;
    int32_t next;
    int32_t rank;  // of the merge with the next piece, or kNone
  };
  // A merge to try: (rank, piece), lowest first. Stale if the piece has another rank by now.
  // Packed into one number, which compares faster than a pair.
  using Candidate = uint64_t;
  static Candidate candidate(int32_t rank, int32_t piece) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(piece);
  }
  static std::pair<int32_t, int32_t> rank_and_piece(Candidate candidate) {
    return {static_cast<int32_t>(candidate >> 32), static_cast<int32_t>(candidate)};
  }

  WordCache cache;
  std::vector<Piece> pieces;
  std::vector<Candidate> candidates;  // a heap
};

// Lends every call its own Scratch, and keeps them for later calls.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model)
      : model_(std::move(model)),
        byte_ids_(find_byte_ids(model_)),
        merges_(model_.merges),
        splitter_(kSplitPattern),
        hash_(hash_of(model_)) {}

  std::string_view name() const override { return "bpe"; }

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    std::unique_ptr<Scratch> scratch = scratches_.take();
    WordCursor cursor(splitter_, text);
    for (std::string_view word; cursor.next(word);) {
      WordCache::Entry& cached = scratch->cache.at(word);
      if (WordCache::holds(cached, word)) {
        out.insert(out.end(), cached.ids.data(), cached.ids.data() + cached.num_ids);
        continue;
      }
      const size_t begin = out.size();
      encode_word(word, *scratch, out);
      WordCache::put(cached, word, std::span(out).subspan(begin));
    }
    scratches_.give_back(std::move(scratch));
  }

  std::string_view token_bytes(int32_t id) const override {
    NMOE_CHECK(id >= 0 && id < vocab_size(), "id {} of {}", id, vocab_size());
    return model_.tokens[static_cast<size_t>(id)];
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.tokens.size()); }
  int32_t eos_id() const override { return model_.eos_id; }
  std::string hash() const override { return hash_; }
  std::string json() const override { return bpe_to_json(model_); }

 private:
  static std::array<int32_t, 256> find_byte_ids(const BpeModel& model);
  static std::string hash_of(const BpeModel& model);
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  BpeModel model_;
  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  WordSplitter splitter_;
  std::string hash_;
  mutable ScratchPool scratches_;
};

std::array<int32_t, 256> BpeTokenizer::find_byte_ids(const BpeModel& model) {
  std::array<int32_t, 256> ids;
  ids.fill(kNone);
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    const std::string& token = model.tokens[id];
    NMOE_CHECK(token.empty() == (static_cast<int32_t>(id) == model.eos_id) && seen.insert(token).second,
               "token {} is empty or occurs twice", id);
    if (token.size() == 1) ids[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
  }
  NMOE_CHECK(std::ranges::count(ids, kNone) == 0, "a byte has no token");
  const auto bytes_of = [&](int32_t id) { return model.tokens.at(static_cast<size_t>(id)); };
  for (const BpeMerge& merge : model.merges) {
    NMOE_CHECK(bytes_of(merge.left) + bytes_of(merge.right) == bytes_of(merge.result), "merge of {} and {} is not {}",
               merge.left, merge.right, merge.result);
  }
  return ids;
}

std::string BpeTokenizer::hash_of(const BpeModel& model) {
  Sha256 hash;
  const auto add_number = [&](uint64_t number) {
    std::array<unsigned char, 8> bytes;  // little-endian
    for (unsigned char& byte : bytes) {
      byte = static_cast<unsigned char>(number);
      number >>= 8;
    }
    hash.update(bytes.data(), bytes.size());
  };
  const auto add_text = [&](std::string_view text) {
    add_number(text.size());
    hash.update(text);
  };
  add_text("nmoe bpe 1");
  add_text(kSplitPattern);
  add_number(static_cast<uint64_t>(model.eos_id));
  add_number(model.tokens.size());
  for (const std::string& token : model.tokens) add_text(token);
  for (const BpeMerge& merge : model.merges) {
    add_number(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right));
  }
  return hash.finish();
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  NMOE_CHECK(word.size() < std::numeric_limits<int32_t>::max(), "a word of {} bytes", word.size());
  const auto size = static_cast<int32_t>(word.size());
  auto& pieces = scratch.pieces;
  auto& candidates = scratch.candidates;
  const auto at = [&](int32_t i) -> Scratch::Piece& { return pieces[static_cast<size_t>(i)]; };
  // Finds the merge of piece i with the next one, and appends it to the candidates if there is one.
  const auto add_candidate = [&](int32_t i) {
    Scratch::Piece& piece = at(i);
    piece.rank = piece.next == size ? kNone : merges_.rank(piece.id, at(piece.next).id);
    if (piece.rank == kNone) return false;
    candidates.push_back(Scratch::candidate(piece.rank, i));
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
    const auto [rank, i] = Scratch::rank_and_piece(candidates.front());
    std::ranges::pop_heap(candidates, std::greater{});
    candidates.pop_back();
    Scratch::Piece& left = at(i);
    if (left.rank != rank) continue;
    Scratch::Piece& right = at(left.next);
    left.id = model_.merges[static_cast<size_t>(rank)].result;
    left.next = right.next;
    right.rank = kNone;
    if (left.next != size) at(left.next).previous = i;
    for (const int32_t changed : {i, left.previous}) {
      if (changed >= 0 && add_candidate(changed)) std::ranges::push_heap(candidates, std::greater{});
    }
  }
  for (int32_t i = 0; i != size; i = at(i).next) out.push_back(at(i).id);
}

}  // namespace

std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeModel model) {
  return std::make_shared<const BpeTokenizer>(std::move(model));
}

}  // namespace nmoe
