#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_cache.h"

namespace nmoe {
namespace {

// What one call of encode() works with. Nothing in it shares a cache line with another thread's, as the ends of
// callers' vectors may: so ids are collected here.
struct alignas(64) Scratch {
  WordCache cache;
  MergeTable::Scratch merging;
  std::vector<int32_t> ids;
  std::string normalized;
  std::thread::id last_user;

  // Appends the ids to `out`.
  void flush(std::vector<int32_t>& out) {
    out.insert(out.end(), ids.begin(), ids.end());
    ids.clear();
  }

  // Lets go of what an unusually long text or word has taken.
  void trim() {
    constexpr size_t kKept = 1 << 20;
    const auto drop = [](auto& buffer) {
      if (buffer.capacity() > kKept) buffer = {};
    };
    drop(merging.pieces);
    drop(merging.candidates);
    drop(ids);
    drop(normalized);
  }
};

// Lends every call its own Scratch, and keeps them for later calls: the one that the thread had last, if it can, as its
// cache is where that thread runs.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::thread::id user = std::this_thread::get_id();
    std::unique_ptr<Scratch> scratch;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto found = std::ranges::find_if(free_, [&](const auto& free) { return free->last_user == user; });
        if (found == free_.end()) found = free_.begin();
        scratch = std::move(*found);
        free_.erase(found);
      }
    }
    if (!scratch) scratch = std::make_unique<Scratch>();
    scratch->last_user = user;
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    scratch->trim();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

std::vector<NamedToken> named_tokens(const BpeModel& model, const std::function<bool(const AddedToken&)>& wanted) {
  std::vector<NamedToken> named;
  for (const AddedToken& token : model.added) {
    if (wanted(token)) named.push_back({token.text, token.id});
  }
  return named;
}

// Tokens that are looked for in normalized text, in the form that they have there.
std::vector<NamedToken> normalized_tokens(const BpeModel& model) {
  auto named = named_tokens(model, [](const AddedToken& token) { return !token.special && token.normalized; });
  for (NamedToken& token : named) {
    std::string storage;
    if (model.nfc) token.text = std::string(to_nfc(token.text, storage));
  }
  return named;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model)
      : model_(std::move(model)),
        byte_ids_(check(model_)),
        merges_(byte_ids_, model_.merges.size()),
        splitter_(model_.splits),
        specials_(named_tokens(model_, [](const AddedToken& token) { return token.special; })),
        raw_words_(named_tokens(model_, [](const AddedToken& t) { return !t.special && !t.normalized; })),
        normalized_words_(normalized_tokens(model_)),
        token_bytes_(model_.tokens.begin(), model_.tokens.end()),
        hash_(hash_of(model_, std::nullopt)) {
    for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
      const BpeMerge& merge = model_.merges[rank];
      NMOE_CHECK(merges_.add(merge), "merge {} of {} and {} is there twice", rank, merge.left, merge.right);
    }
    for (const AddedToken& token : model_.added) {
      if (!token.special) token_bytes_[static_cast<size_t>(token.id)] = token.text;
    }
    if (model_.whole_words) find_unmerged();
  }

  std::string_view name() const override { return "bpe"; }

  std::vector<std::string> patterns() const override {
    std::vector<std::string> names;
    for (const Split& split : model_.splits) {
      const KnownPattern* known = find_known_pattern(split.pattern);
      const std::string_view name = known == nullptr ? std::string_view(split.pattern) : known->name;
      const std::string_view inverted = split.invert ? ", inverted" : "";
      names.push_back(split.is_plain() ? std::string(name)
                                       : fmt::format("{} ({}{})", name, behavior_name(split.behavior), inverted));
    }
    return names;
  }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    std::unique_ptr<Scratch> scratch = scratches_.take();
    scratch->ids.clear();
    const auto add_id = [&](int32_t id) { scratch->ids.push_back(id); };
    const auto on_plain = [&](std::string_view plain) { encode_plain(plain, *scratch, out); };
    const auto on_text = [&](std::string_view part) {
      normalized_words_.cut(model_.nfc ? to_nfc(part, scratch->normalized) : part, on_plain, add_id);
    };
    raw_words_.cut(text, on_text, add_id);
    scratch->flush(out);
    scratches_.give_back(std::move(scratch));
  }

  std::span<const NamedToken> special_tokens() const override { return specials_; }

  std::string_view token_bytes(int32_t id) const override {
    NMOE_CHECK(id >= 0 && id < vocab_size(), "id {} of {}", id, vocab_size());
    return token_bytes_[static_cast<size_t>(id)];
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.tokens.size()); }
  int32_t eos_id() const override { return model_.eos_id; }
  std::string hash() const override { return hash_; }
  std::string hash_with_end(int32_t eos_id) const override { return hash_of(model_, eos_id); }
  std::string json() const override { return bpe_to_json(model_); }

 private:
  static std::array<int32_t, 256> check(const BpeModel& model);
  static std::string hash_of(const BpeModel& model, std::optional<int32_t> eos_id);

  // Appends to scratch.ids, and those to `out` now and then.
  void encode_plain(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
    constexpr size_t kBatch = 1 << 14;
    std::vector<int32_t>& ids = scratch.ids;
    WordCursor cursor(splitter_, text);
    for (std::string_view word; cursor.next(word);) {
      if (ids.size() > kBatch) scratch.flush(out);
      if (word.size() > WordCache::kMaxBytes) {
        encode_word(word, scratch);
        continue;
      }
      const WordCache::Key key = WordCache::key_of(word);
      if (scratch.cache.get(key, ids)) continue;
      const size_t begin = ids.size();
      encode_word(word, scratch);
      scratch.cache.put(key, std::span(ids).subspan(begin));
    }
  }

  void encode_word(std::string_view word, Scratch& scratch) const {
    if (!unmerged_.empty()) {
      const auto found = unmerged_.find(word);
      if (found != unmerged_.end()) return scratch.ids.push_back(found->second);
    }
    merges_.encode(word, scratch.merging, scratch.ids);
  }

  // Where whole words count, only tokens that merges do not make need to be looked for.
  void find_unmerged() {
    MergeTable::Scratch scratch;
    std::vector<int32_t> ids;
    for (size_t id = 0; id < model_.tokens.size(); ++id) {
      const std::string& token = model_.tokens[id];
      if (token.empty()) continue;
      ids.clear();
      merges_.encode(token, scratch, ids);
      if (ids.size() > 1) unmerged_.emplace(token, static_cast<int32_t>(id));
    }
  }

  BpeModel model_;
  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  WordSplitter splitter_;
  std::vector<NamedToken> specials_;
  TokenFinder raw_words_;         // added tokens that are always looked for, in the text as it comes
  TokenFinder normalized_words_;  // and after normalization
  std::vector<std::string_view> token_bytes_;
  std::unordered_map<std::string_view, int32_t> unmerged_;
  std::string hash_;
  mutable ScratchPool scratches_;
};

// The ids of all bytes.
std::array<int32_t, 256> BpeTokenizer::check(const BpeModel& model) {
  constexpr int32_t kNone = -1;
  std::array<int32_t, 256> ids;
  ids.fill(kNone);
  std::unordered_map<std::string_view, size_t> seen;
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    const std::string& token = model.tokens[id];
    if (token.empty()) continue;
    const auto [first, is_new] = seen.emplace(token, id);
    NMOE_CHECK(is_new, "tokens {} and {} are the same", first->second, id);
    if (token.size() == 1) ids[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
  }
  NMOE_CHECK(std::ranges::count(ids, kNone) == 0, "a byte has no token");
  const auto bytes_of = [&](int32_t id) -> std::string_view { return model.tokens.at(static_cast<size_t>(id)); };
  for (const BpeMerge& merge : model.merges) {
    const std::string_view left = bytes_of(merge.left), right = bytes_of(merge.right), whole = bytes_of(merge.result);
    NMOE_CHECK(whole.size() == left.size() + right.size() && whole.starts_with(left) && whole.ends_with(right),
               "merge of {} and {} is not {}", merge.left, merge.right, merge.result);
  }
  bool has_eos = false;
  for (const AddedToken& token : model.added) {
    NMOE_CHECK(token.id >= 0 && static_cast<size_t>(token.id) < model.tokens.size() && !token.text.empty(),
               "added token '{}' has id {} of {}", token.text, token.id, model.tokens.size());
    has_eos = has_eos || (token.special && token.id == model.eos_id);
  }
  NMOE_CHECK(has_eos, "the end of sequence, {}, is not a special token", model.eos_id);
  return ids;
}

std::string BpeTokenizer::hash_of(const BpeModel& model, std::optional<int32_t> eos_id) {
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
  // With its end, what `n tokenizer train` makes hashes to what it always did.
  const bool as_trained = model.splits == std::vector{Split(std::string(kSplitPattern))} && !model.nfc &&
                          !model.whole_words && model.added.size() == 1 && model.added[0].text == kEosText;
  if (eos_id && as_trained) {
    add_text("nmoe bpe 1");
    add_text(kSplitPattern);
  } else {
    const bool plain = std::ranges::all_of(model.splits, &Split::is_plain);
    add_text(fmt::format("nmoe bpe {}{}", eos_id ? 2 : 3, plain ? "" : ", splits of all kinds"));
    add_number(model.splits.size());
    for (const Split& split : model.splits) {
      add_text(split.pattern);
      if (!plain) add_text(fmt::format("{} {}", behavior_name(split.behavior), split.invert));
    }
    add_number(static_cast<uint64_t>(model.nfc) << 1 | static_cast<uint64_t>(model.whole_words));
    add_number(model.added.size());
    for (const AddedToken& token : model.added) {
      add_text(token.text);
      add_number(static_cast<uint64_t>(token.id));
      add_number(static_cast<uint64_t>(token.special) << 1 | static_cast<uint64_t>(token.normalized));
    }
  }
  if (eos_id) add_number(static_cast<uint64_t>(*eos_id));
  add_number(model.tokens.size());
  for (const std::string& token : model.tokens) add_text(token);
  for (const BpeMerge& merge : model.merges) {
    add_number(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right));
  }
  return hash.finish();
}

}  // namespace

std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeModel model) {
  return std::make_shared<const BpeTokenizer>(std::move(model));
}

}  // namespace nmoe
