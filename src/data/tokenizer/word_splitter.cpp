#include "data/tokenizer/word_splitter.h"

#include <algorithm>
#include <iterator>

#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

constexpr std::pair<SplitBehavior, std::string_view> kBehaviors[] = {
    {SplitBehavior::kRemoved, "Removed"},
    {SplitBehavior::kIsolated, "Isolated"},
    {SplitBehavior::kMergedWithPrevious, "MergedWithPrevious"},
    {SplitBehavior::kMergedWithNext, "MergedWithNext"},
    {SplitBehavior::kContiguous, "Contiguous"},
};

}  // namespace

std::string_view behavior_name(SplitBehavior behavior) {
  return std::ranges::find(kBehaviors, behavior, [](const auto& entry) { return entry.first; })->second;
}

std::optional<SplitBehavior> behavior_of_name(std::string_view name) {
  for (const auto& [behavior, its_name] : kBehaviors) {
    if (name == its_name) return behavior;
  }
  return std::nullopt;
}

// Finds matches in valid UTF-8, as Regex::find does.
class WordSplitter::Matcher {
 public:
  virtual ~Matcher() = default;
  virtual std::optional<Regex::Match> find(std::string_view text, size_t begin, Regex::Effort& effort) const = 0;
};

class WordSplitter::KnownMatcher final : public Matcher {
 public:
  explicit KnownMatcher(const KnownPattern& pattern) : match_(pattern.match) {}

  std::optional<Regex::Match> find(std::string_view text, size_t begin, Regex::Effort&) const override {
    const char* const end = text.data() + text.size();
    for (const char* p = text.data() + begin; p < end; p += decode_utf8(p).size) {
      if (const char* const last = match_(p, end); last != p) {
        return Regex::Match{static_cast<size_t>(p - text.data()), static_cast<size_t>(last - text.data())};
      }
    }
    return std::nullopt;
  }

 private:
  MatchFunction match_;
};

class WordSplitter::RegexMatcher final : public Matcher {
 public:
  explicit RegexMatcher(const std::string& pattern) : regex_(pattern) {}

  std::optional<Regex::Match> find(std::string_view text, size_t begin, Regex::Effort& effort) const override {
    return regex_.find(text, begin, effort);
  }

 private:
  Regex regex_;
};

struct WordSplitter::Stage {
  std::unique_ptr<const Matcher> matcher;
  SplitBehavior behavior;
  bool invert;
};

WordSplitter::WordSplitter(std::span<const Split> splits) {
  for (const Split& split : splits) {
    std::unique_ptr<const Matcher> matcher;
    if (const KnownPattern* known = find_known_pattern(split.pattern)) {
      matcher = std::make_unique<const KnownMatcher>(*known);
      if (splits.size() == 1 && split.is_plain()) only_match_ = known->match;
    } else {
      matcher = std::make_unique<const RegexMatcher>(split.pattern);
    }
    stages_.push_back({std::move(matcher), split.behavior, split.invert});
  }
}
WordSplitter::~WordSplitter() = default;

// A stage at work on one piece: matches and what is between them become parts, and those pieces.
struct WordCursor::Cut {
  struct Part {
    size_t begin;
    size_t end;
    bool delimits;  // a match, or, if inverted, what is between
  };

  void start(std::string_view piece) { *this = {.text = piece}; }

  // The next piece, not empty; false at the end.
  bool next(const WordSplitter::Stage& stage, std::string_view& piece) {
    while (auto part = take(stage)) {
      if (part->delimits && stage.behavior == SplitBehavior::kRemoved) continue;
      const bool merges = stage.behavior != SplitBehavior::kRemoved && stage.behavior != SplitBehavior::kIsolated;
      if (merges) merge(stage, *part);
      if (part->begin == part->end) continue;
      piece = text.substr(part->begin, part->end - part->begin);
      return true;
    }
    return false;
  }

  // Adds to `part` what follows it, as the behavior says.
  void merge(const WordSplitter::Stage& stage, Part& part) {
    for (;;) {
      if (!ahead) ahead = find_part(stage);
      if (!ahead || !joins(stage.behavior, part, *ahead)) return;
      part.end = ahead->end;
      ahead.reset();
      if (stage.behavior != SplitBehavior::kContiguous) return;
    }
  }

  static bool joins(SplitBehavior behavior, const Part& part, const Part& following) {
    switch (behavior) {
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        return false;
      case SplitBehavior::kMergedWithPrevious:
        return !part.delimits && following.delimits;
      case SplitBehavior::kMergedWithNext:
        return part.delimits && !following.delimits;
      case SplitBehavior::kContiguous:
        return part.delimits == following.delimits;
    }
    return false;
  }

  std::optional<Part> take(const WordSplitter::Stage& stage) {
    return ahead ? std::exchange(ahead, std::nullopt) : find_part(stage);
  }

  std::optional<Part> find_part(const WordSplitter::Stage& stage) {
    if (!match) find_match(stage);
    const size_t begin = position;
    if (!match || match->begin > begin) {
      position = match ? match->begin : text.size();
      if (begin == position) return std::nullopt;
      return Part{begin, position, stage.invert};
    }
    position = match->end;
    const Part part{match->begin, match->end, !stage.invert};
    match.reset();
    return part;
  }

  // As Hugging Face's library goes through matches: behind an empty one that does not count, at the next character.
  void find_match(const WordSplitter::Stage& stage) {
    while (search <= text.size()) {
      match = stage.matcher->find(text, search, effort);
      if (!match) break;
      if (match->begin < match->end || match->end != last_match_end) {
        search = match->end;
        last_match_end = match->end;
        return;
      }
      match.reset();
      search += search < text.size() ? decode_utf8(text.data() + search).size : 1;
    }
    search = text.size() + 1;
  }

  std::string_view text = {};
  size_t position = 0;  // where the next part begins
  size_t search = 0;    // where the next match is looked for
  std::optional<size_t> last_match_end = {};
  std::optional<Regex::Match> match = {};  // found, but no part yet
  std::optional<Part> ahead = {};          // looked at, but in no piece yet
  Regex::Effort effort = {};
};

WordCursor::WordCursor(const WordSplitter& splitter, std::string_view text)
    : splitter_(splitter),
      only_match_(splitter.only_match_),
      text_(text),
      cuts_(only_match_ == nullptr ? splitter.stages_.size() : 0) {}
WordCursor::~WordCursor() = default;

// The next run of valid UTF-8, or byte that is none, which is a word. False at the end.
bool WordCursor::next_valid(std::string_view& part, bool& is_word) {
  if (position_ == text_.size()) return false;
  const size_t valid = valid_utf8_size(text_.substr(position_));
  is_word = valid == 0;
  part = text_.substr(position_, is_word ? 1 : valid);
  position_ += part.size();
  return true;
}

// Where the only pattern has no match.
bool WordCursor::next_unmatched(std::string_view& word) {
  if (position_ == valid_end_) {
    bool is_word = false;
    if (!next_valid(word, is_word)) return false;
    valid_end_ = position_;
    if (is_word) return true;
    position_ -= word.size();
    return next(word);
  }
  const char* const begin = text_.data() + position_;
  const char* const end = text_.data() + valid_end_;
  const char* p = begin;
  do {
    p += decode_utf8(p).size;
  } while (p != end && only_match_(p, end) == p);
  word = {begin, static_cast<size_t>(p - begin)};
  position_ += word.size();
  return true;
}

bool WordCursor::next_piece(std::string_view& word) {
  for (;;) {
    if (depth_ == 0) {
      bool is_word = false;
      if (!next_valid(word, is_word)) return false;
      if (is_word || cuts_.empty()) return true;
    } else if (!cuts_[depth_ - 1].next(splitter_.stages_[depth_ - 1], word)) {
      --depth_;
      continue;
    }
    if (depth_ == cuts_.size()) return true;
    cuts_[depth_++].start(word);
  }
}

}  // namespace nmoe
