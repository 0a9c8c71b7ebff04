#include "data/tokenizer/bpe_train.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "data/prep/inputs.h"
#include "data/prep/text_reader.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/word_splitter.h"

namespace nmoe {
namespace {

constexpr int64_t kNumBytes = 256;
constexpr int64_t kMinVocab = kNumBytes + 1;  // bytes and the end of sequence
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMinPairCount = 2;  // a pair that occurs once says nothing about text

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;

void count_words(const WordSplitter& splitter, std::string_view text, WordCounts& counts) {
  WordCursor cursor(splitter, text);
  for (std::string_view word; cursor.next(word);) {
    const auto found = counts.find(word);
    if (found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace(word, 1);
    }
  }
}

// Merging, on the words as lists of ids.
class Merger {
 public:
  explicit Merger(const std::vector<WordCount>& words) {
    for (int64_t byte = 0; byte < kNumBytes; ++byte) {
      tokens_.emplace_back(1, static_cast<char>(byte));
      ids_.emplace(tokens_.back(), static_cast<int32_t>(byte));
    }
    words_.reserve(words.size());
    for (const auto& [text, count] : words) {
      Word word{{}, count};
      for (const char byte : text) word.ids.push_back(static_cast<unsigned char>(byte));
      words_.push_back(std::move(word));
      const auto word_idx = static_cast<uint32_t>(words_.size() - 1);
      const auto& ids = words_.back().ids;
      for (size_t i = 0; i + 1 < ids.size(); ++i) gain({ids[i], ids[i + 1]}, word_idx);
    }
    push_grown();
  }

  BpeModel merge_up_to(int64_t vocab_size) {
    const auto wanted = static_cast<size_t>(vocab_size - 1);  // one id is the end of sequence
    std::vector<BpeMerge> merges;
    while (tokens_.size() < wanted) {
      const auto pair = most_frequent();
      if (!pair) break;
      merges.push_back({pair->first, pair->second, result_of(*pair)});
      apply(merges.back());
    }
    const auto eos_id = static_cast<int32_t>(tokens_.size());
    tokens_.emplace_back();
    return {.tokens = std::move(tokens_),
            .merges = std::move(merges),
            .eos_id = eos_id,
            .added = {{.text = std::string(kEosText), .id = eos_id}},
            .splits = {std::string(kSplitPattern)}};
  }

 private:
  using Pair = std::pair<int32_t, int32_t>;
  struct PairHash {
    size_t operator()(const Pair& pair) const {
      const uint64_t key = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
      const uint64_t mixed = key * 0x9E3779B97F4A7C15ULL;
      return mixed ^ mixed >> 32;
    }
  };
  struct Word {
    std::vector<int32_t> ids;
    int64_t count;
  };
  struct PairInfo {
    int64_t count = 0;            // occurrences, weighted by their words' counts
    std::vector<uint32_t> words;  // where it occurs, or once did
  };
  // A pair's count at some time, the most frequent first, then the lowest ids.
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void gain(const Pair& pair, uint32_t word_idx) {
    PairInfo& info = pairs_[pair];
    info.count += words_[word_idx].count;
    if (info.words.empty() || info.words.back() != word_idx) info.words.push_back(word_idx);
    grown_.insert(pair);
  }

  void lose(const Pair& pair, uint32_t word_idx) { pairs_[pair].count -= words_[word_idx].count; }

  void push_grown() {
    for (const Pair& pair : grown_) candidates_.push({pairs_[pair].count, pair});
    grown_.clear();
  }

  // Every pair has a candidate of at least its count: one is pushed whenever the count may have
  // grown, and one found too high here is pushed again as it is.
  std::optional<Pair> most_frequent() {
    while (!candidates_.empty()) {
      const Candidate top = candidates_.top();
      candidates_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (count < kMinPairCount) continue;
      if (count == top.count) return top.pair;
      if (count < top.count) candidates_.push({count, top.pair});
    }
    return std::nullopt;
  }

  int32_t result_of(const Pair& pair) {
    std::string bytes = tokens_[static_cast<size_t>(pair.first)];
    bytes += tokens_[static_cast<size_t>(pair.second)];
    const auto [place, is_new] = ids_.emplace(bytes, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(bytes));
    return place->second;
  }

  void apply(const BpeMerge& merge) {
    const Pair pair{merge.left, merge.right};
    const auto where = std::move(pairs_[pair].words);
    for (const uint32_t word_idx : where) replace(word_idx, merge);
    pairs_.erase(pair);
    grown_.erase(pair);
    push_grown();
  }

  // Replaces the pair wherever the word has it, from left to right, one edit of the list after the
  // other: before left right after -> before result after.
  void replace(uint32_t word_idx, const BpeMerge& merge) {
    auto& ids = words_[word_idx].ids;
    size_t end = 0;  // of the list as edited so far
    for (size_t i = 0; i < ids.size(); ++end) {
      if (i + 1 == ids.size() || ids[i] != merge.left || ids[i + 1] != merge.right) {
        ids[end] = ids[i++];
        continue;
      }
      if (end > 0) {
        lose({ids[end - 1], merge.left}, word_idx);
        gain({ids[end - 1], merge.result}, word_idx);
      }
      if (i + 2 < ids.size()) {
        lose({merge.right, ids[i + 2]}, word_idx);
        gain({merge.result, ids[i + 2]}, word_idx);
      }
      ids[end] = merge.result;
      i += 2;
    }
    ids.resize(end);
  }

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairInfo, PairHash> pairs_;
  std::unordered_set<Pair, PairHash> grown_;
  std::priority_queue<Candidate> candidates_;
};

// Counts the words of texts on several threads. A text is cut into blocks that they can share. A cut may part a line
// end from the space that follows it, which changes a few counts, but the cuts depend on the text alone.
class WordCounter {
 public:
  explicit WordCounter(int num_threads)
      : splitter_(std::vector<Split>{std::string(kSplitPattern)}),
        pool_(num_threads),
        counts_(static_cast<size_t>(pool_.num_threads())) {}

  static constexpr size_t kBlockBytes = 1 << 20;

  void add(std::string text) {
    constexpr int64_t kBatchBytes = 32 << 20;
    batch_bytes_ += std::ssize(text);
    batch_.push_back(std::move(text));
    if (batch_bytes_ >= kBatchBytes) count_batch();
  }

  // Of all texts, in order of the words' bytes.
  std::vector<WordCount> finish() {
    count_batch();
    for (size_t thread = 1; thread < counts_.size(); ++thread) {
      for (const auto& [word, count] : counts_[thread]) counts_[0][word] += count;
    }
    std::vector<WordCount> words(counts_[0].begin(), counts_[0].end());
    std::ranges::sort(words);
    return words;
  }

 private:
  void count_batch() {
    std::vector<std::string_view> blocks;
    for (std::string_view text : batch_) {
      while (!text.empty()) {
        blocks.push_back(text.substr(0, part_size(text, kBlockBytes)));
        text.remove_prefix(blocks.back().size());
      }
    }
    pool_.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t block, int thread) {
      count_words(splitter_, blocks[static_cast<size_t>(block)], counts_[static_cast<size_t>(thread)]);
    });
    batch_.clear();
    batch_bytes_ = 0;
  }

  const WordSplitter splitter_;
  ThreadPool pool_;
  std::vector<WordCounts> counts_;  // by thread
  std::vector<std::string> batch_;
  int64_t batch_bytes_ = 0;
};

std::vector<WordCount> count_inputs(const BpeTrainOptions& options, BpeTrainReport& report) {
  RecordOptions records = options.records;
  records.part_bytes = WordCounter::kBlockBytes;
  WordCounter counter(options.threads);
  const InputPaths inputs = expand_inputs(options.inputs, "tokenizer training");
  report.left_out = {.files = {}, .skipped = inputs.skipped, .empty = inputs.empty};
  for (const fs::path& path : inputs.files) {
    const auto reader = open_records(path, records);
    for (Record record; reader->next(record);) {
      if (!record.fault.empty()) {
        if (ends_work(record, report.bad_records, options.skip_bad)) {
          throw bad_record_error(path, records, record, options.skip_bad);
        }
        continue;
      }
      report.bytes += std::ssize(record.text);
      counter.add(std::move(record.text));
    }
  }
  std::vector<WordCount> words = counter.finish();
  for (const auto& [word, count] : words) report.words += count;
  report.distinct_words = std::ssize(words);
  return words;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

BpeModel train_bpe_model(const std::vector<WordCount>& words, int64_t vocab_size) {
  NMOE_CHECK(vocab_size >= kMinVocab, "a vocabulary of {}", vocab_size);
  return Merger(words).merge_up_to(vocab_size);
}

TrainedBpe train_bpe(const BpeTrainOptions& options) {
  const int64_t num_specials = std::ssize(options.specials);
  if (options.vocab_size < kMinVocab + num_specials || options.vocab_size > kMaxVocab) {
    std::vector<std::string> specials = {std::string(kEosText)};
    specials.insert(specials.end(), options.specials.begin(), options.specials.end());
    throw usage_error(fmt::format("a vocabulary of {} ids", options.vocab_size),
                      fmt::format("choose {} ({} bytes and the special tokens {}) to {}, or fewer special tokens",
                                  kMinVocab + num_specials, kNumBytes, fmt::join(specials, ", "), kMaxVocab));
  }
  std::unordered_set<std::string_view> named = {kEosText};
  for (const std::string& special : options.specials) {
    if (!special.empty() && named.insert(special).second) continue;
    throw usage_error(
        fmt::format("the special token \"{}\" is {}", special, special.empty() ? "empty" : "there already"),
        fmt::format("name each once; {} is always there", kEosText));
  }
  BpeTrainReport report;
  auto start = std::chrono::steady_clock::now();
  const auto words = count_inputs(options, report);
  report.count_seconds = seconds_since(start);

  start = std::chrono::steady_clock::now();
  BpeModel model = train_bpe_model(words, options.vocab_size - num_specials);
  for (const std::string& special : options.specials) {
    model.added.push_back({.text = special, .id = static_cast<int32_t>(model.tokens.size())});
    model.tokens.emplace_back();
  }
  report.merge_seconds = seconds_since(start);
  const auto vocab_size = static_cast<int64_t>(model.tokens.size());
  if (vocab_size < options.vocab_size) {
    throw usage_error(fmt::format("{} bytes of text are too few for a vocabulary of {}: after {} ids no pair "
                                  "occurs twice",
                                  report.bytes, options.vocab_size, vocab_size),
                      fmt::format("ask for at most {} ids, or give more text", vocab_size));
  }
  return {make_bpe_tokenizer(std::move(model)), report};
}

}  // namespace nmoe
