// Cutting text into words, the units inside which BPE merges may join bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace nmoe {

// The split pattern of new tokenizers: GPT-4's (cl100k_base) as Llama 3 spells it, whose meaning
// PCRE2 and the Oniguruma of Hugging Face's tokenizers agree on. In order: English contractions; a
// word with at most one non-letter before it (usually its space); up to three digits; punctuation
// with its space and line ends; line ends with the space before them; space, less the last one,
// which goes with the word that follows.
// NOTE: one character differs: PCRE2 takes U+180E for space (\s), Unicode no longer does.
inline constexpr std::string_view kSplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A compiled split pattern (PCRE2 with its JIT, UTF-8, Unicode properties). Immutable and safe to
// share between threads.
class WordSplitter {
 public:
  explicit WordSplitter(std::string_view pattern);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

 private:
  friend class WordCursor;
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

// Walks over the words of one text. The words, one after the other, are the text: bytes that are
// not valid UTF-8, or that the pattern does not cover, are words of one byte each.
class WordCursor {
 public:
  // Both must outlive the cursor.
  WordCursor(const WordSplitter& splitter, std::string_view text);
  ~WordCursor();
  WordCursor(const WordCursor&) = delete;
  WordCursor& operator=(const WordCursor&) = delete;

  // The next word, never empty, or false at the end of the text.
  bool next(std::string_view& word);

 private:
  struct Match;
  void find_match();

  const WordSplitter& splitter_;
  std::string_view text_;
  std::unique_ptr<Match> match_;
  size_t position_ = 0;     // of the next word
  size_t match_begin_ = 0;  // the pattern's next match; what lies before it is uncovered bytes
  size_t match_end_ = 0;
};

}  // namespace nmoe
