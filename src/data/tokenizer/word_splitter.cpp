#include "data/tokenizer/word_splitter.h"

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {

// Cuts valid UTF-8. next_end() is the end of the piece of `text` that begins at `begin`: of a match, or of what lies
// before the next one.
class WordSplitter::Stage {
 public:
  virtual ~Stage() = default;
  virtual size_t next_end(std::string_view text, size_t begin) const = 0;
};

class WordSplitter::KnownStage final : public Stage {
 public:
  explicit KnownStage(const KnownPattern& pattern) : match_(pattern.match) {}

  size_t next_end(std::string_view text, size_t begin) const override {
    const char* const first = text.data() + begin;
    const char* const end = text.data() + text.size();
    const char* p = match_(first, end);
    if (p != first) return static_cast<size_t>(p - text.data());
    do {
      p += decode_utf8(p).size;
    } while (p != end && match_(p, end) == p);
    return static_cast<size_t>(p - text.data());
  }

 private:
  MatchFunction match_;
};

class WordSplitter::RegexStage final : public Stage {
 public:
  explicit RegexStage(const std::string& pattern) : regex_(pattern) {}

  size_t next_end(std::string_view text, size_t begin) const override {
    const auto match = regex_.find(text, begin);
    if (!match) return text.size();
    return match->begin == begin ? match->end : match->begin;
  }

 private:
  Regex regex_;
};

WordSplitter::WordSplitter(std::span<const std::string> patterns) {
  for (const std::string& pattern : patterns) {
    if (const KnownPattern* known = find_known_pattern(pattern)) {
      stages_.push_back(std::make_unique<const KnownStage>(*known));
      if (patterns.size() == 1) only_match_ = known->match;
    } else {
      stages_.push_back(std::make_unique<const RegexStage>(pattern));
    }
  }
}
WordSplitter::~WordSplitter() = default;

WordCursor::WordCursor(const WordSplitter& splitter, std::string_view text)
    : splitter_(splitter), only_match_(splitter.only_match_), text_(text), pieces_(splitter.stages_.size() + 1) {}

// Makes the last piece the one at position_, where text is left. Returns its end.
size_t WordCursor::cut() {
  size_t stage = pieces_.size();
  while (stage > 0 && pieces_[stage - 1].end == position_) --stage;
  if (stage == 0) {
    const size_t valid = valid_utf8_size(text_.substr(position_));
    if (valid == 0) {
      pieces_.assign(pieces_.size(), {position_, position_ + 1});
      return position_ + 1;
    }
    pieces_[0] = {position_, position_ + valid};
    stage = 1;
  }
  for (; stage < pieces_.size(); ++stage) {
    const Piece whole = pieces_[stage - 1];
    const std::string_view text = text_.substr(whole.begin, whole.end - whole.begin);
    pieces_[stage] = {position_, whole.begin + splitter_.stages_[stage - 1]->next_end(text, position_ - whole.begin)};
  }
  return pieces_.back().end;
}

}  // namespace nmoe
