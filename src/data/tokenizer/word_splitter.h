// Cutting text into words, the units within which BPE merges join bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/regex.h"

namespace nmoe {

// What becomes of a pattern's matches, as in Hugging Face's Split. Of "the-final--countdown" at "-":
enum class SplitBehavior {
  kRemoved,             // the|final|countdown
  kIsolated,            // the|-|final|-|-|countdown
  kMergedWithPrevious,  // the-|final-|-|countdown
  kMergedWithNext,      // the|-final|-|-countdown
  kContiguous,          // the|-|final|--|countdown
};
std::string_view behavior_name(SplitBehavior behavior);  // "Removed", as tokenizer.json files have it
std::optional<SplitBehavior> behavior_of_name(std::string_view name);

// The matches of a pattern cut a text. They may be empty, and then cut where they are; an empty one right behind
// another match is none. Pieces without text are dropped.
struct Split {
  // NOLINTNEXTLINE(google-explicit-constructor): most splits are just a pattern.
  Split(std::string of, SplitBehavior then = SplitBehavior::kIsolated, bool inverted = false)
      : pattern(std::move(of)), behavior(then), invert(inverted) {}
  bool operator==(const Split&) const = default;
  // Whether matches and what is between them all become words.
  bool is_plain() const { return behavior == SplitBehavior::kIsolated; }

  std::string pattern;
  SplitBehavior behavior;
  bool invert;  // what lies between the matches is treated as matches are, and the other way round
};

// One split or several: the first cuts the text, the next cuts each of its pieces as if it were a text of its own, and
// so on (Hugging Face's Sequence). Immutable and safe to share between threads.
//
// Patterns that data/tokenizer/split_pattern.h knows run as functions, others as data/tokenizer/regex.h says.
class WordSplitter {
 public:
  // Error (runtime), naming a pattern that is invalid, or that PCRE2 could not match as Oniguruma does.
  explicit WordSplitter(std::span<const Split> splits);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

 private:
  friend class WordCursor;
  class Matcher;
  class KnownMatcher;
  class RegexMatcher;
  struct Stage;
  using MatchFunction = const char* (*)(const char* begin, const char* end);
  std::vector<Stage> stages_;
  MatchFunction only_match_ = nullptr;  // of the only stage, if it is a function and plain
};

// Walks over the words of one text. The words together are the text, but for what splits remove. A byte that is not
// part of valid UTF-8 is a word, and the text before and after it is cut as if it were separate.
class WordCursor {
 public:
  // Both must outlive the cursor.
  WordCursor(const WordSplitter& splitter, std::string_view text);
  ~WordCursor();
  WordCursor(const WordCursor&) = delete;
  WordCursor& operator=(const WordCursor&) = delete;

  // The next word, never empty, or false at the end of the text. Error (runtime) if a regular expression takes more
  // steps than data/tokenizer/regex.h allows.
  bool next(std::string_view& word) {
    if (only_match_ == nullptr) return next_piece(word);
    if (position_ < valid_end_) {
      const char* const begin = text_.data() + position_;
      const char* const end = only_match_(begin, text_.data() + valid_end_);
      if (end != begin) {
        word = {begin, static_cast<size_t>(end - begin)};
        position_ += word.size();
        return true;
      }
    }
    return next_unmatched(word);
  }

 private:
  struct Cut;
  bool next_unmatched(std::string_view& word);
  bool next_piece(std::string_view& word);
  bool next_valid(std::string_view& part, bool& is_word);

  const WordSplitter& splitter_;
  const WordSplitter::MatchFunction only_match_;
  std::string_view text_;
  size_t position_ = 0;    // of what is not delivered, or not given to the first stage
  size_t valid_end_ = 0;   // valid UTF-8 up to here
  std::vector<Cut> cuts_;  // by stage: how far it is with its piece
  size_t depth_ = 0;       // stages that have one
};

}  // namespace nmoe
