// Cutting text into words, the units within which BPE merges join bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// One split pattern or several: the first cuts the text into its matches and what lies between them, the next cuts each
// of those pieces as if it were a text of its own, and so on (Hugging Face's Sequence of Splits, "Isolated"). Immutable
// and safe to share between threads.
//
// Patterns that data/tokenizer/split_pattern.h knows run as functions. Others are regular expressions (PCRE2 with its
// JIT, UTF-8, ^ and $ at line ends as in Oniguruma) in which \s, \p{L} and the like mean data/tokenizer/unicode.h.
class WordSplitter {
 public:
  // Error (runtime), naming a pattern that is invalid, or has different meanings in Oniguruma and PCRE2.
  explicit WordSplitter(std::span<const std::string> patterns);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

 private:
  friend class WordCursor;
  class Stage;
  class KnownStage;
  class RegexStage;
  using MatchFunction = const char* (*)(const char* begin, const char* end);
  std::vector<std::unique_ptr<const Stage>> stages_;
  MatchFunction only_match_ = nullptr;  // of the only stage, if it is a function
};

// Walks over the words of one text. The words together are the text. A byte that is not part of valid UTF-8 is a word,
// and the text before and after it is cut as if it were separate.
class WordCursor {
 public:
  // Both must outlive the cursor.
  WordCursor(const WordSplitter& splitter, std::string_view text);

  // The next word, never empty, or false at the end of the text. Error (runtime) if a regular expression takes more
  // steps than PCRE2 allows.
  bool next(std::string_view& word) {
    if (position_ == text_.size()) return false;
    size_t end = position_;
    if (only_match_ != nullptr && position_ < pieces_[0].end) {
      end = static_cast<size_t>(only_match_(text_.data() + position_, text_.data() + pieces_[0].end) - text_.data());
    }
    if (end == position_) end = cut();
    pieces_.back().end = end;
    word = text_.substr(position_, end - position_);
    position_ = end;
    return true;
  }

 private:
  // The text, or what a stage made of it: stage i cuts pieces_[i], which ends at or after the next word.
  struct Piece {
    size_t begin = 0;
    size_t end = 0;
  };
  size_t cut();

  const WordSplitter& splitter_;
  const WordSplitter::MatchFunction only_match_;
  std::string_view text_;
  size_t position_ = 0;        // of the next word
  std::vector<Piece> pieces_;  // of valid UTF-8, then by stage; the last is the word
};

}  // namespace nmoe
