#include "data/tokenizer/word_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <string>

#include "base/error.h"

namespace nmoe {
namespace {

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct WordSplitter::Compiled {
  explicit Compiled(std::string_view pattern) {
    int error = 0;
    size_t offset = 0;
    // MATCH_INVALID_UTF: a match never spans bytes that are not UTF-8, and none are an error.
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    NMOE_CHECK(code != nullptr, "split pattern '{}' at {}: {}", pattern, offset, pcre2_message(error));
    // Without a JIT (a system that forbids writable code) matching is slower, the words the same.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  pcre2_code* code;
};

WordSplitter::WordSplitter(std::string_view pattern) : compiled_(std::make_unique<Compiled>(pattern)) {}
WordSplitter::~WordSplitter() = default;

struct WordCursor::Match {
  explicit Match(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {
    NMOE_CHECK(data != nullptr, "pcre2_match_data_create_from_pattern");
  }
  ~Match() { pcre2_match_data_free(data); }
  Match(const Match&) = delete;
  Match& operator=(const Match&) = delete;

  pcre2_match_data* data;
};

WordCursor::WordCursor(const WordSplitter& splitter, std::string_view text)
    : splitter_(splitter), text_(text), match_(std::make_unique<Match>(splitter.compiled_->code)) {}
WordCursor::~WordCursor() = default;

void WordCursor::find_match() {
  const int code = pcre2_match(splitter_.compiled_->code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                               position_, PCRE2_NOTEMPTY, match_->data, nullptr);
  if (code == PCRE2_ERROR_NOMATCH) {
    match_begin_ = match_end_ = text_.size();
    return;
  }
  NMOE_CHECK(code > 0, "splitting {} bytes at {}: {}", text_.size(), position_, pcre2_message(code));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_->data);
  match_begin_ = span[0];
  match_end_ = span[1];
}

bool WordCursor::next(std::string_view& word) {
  if (position_ == text_.size()) return false;
  if (position_ == match_end_) find_match();
  const size_t end = position_ < match_begin_ ? position_ + 1 : match_end_;
  word = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace nmoe
