#include "data/tokenizer/code_point_set.h"

#include <algorithm>
#include <utility>

#include "data/tokenizer/unicode.h"

namespace nmoe {

CodePointSet::CodePointSet(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto found = std::ranges::lower_bound(ranges_, code_point, {}, &Range::last);
  return found != ranges_.end() && found->first <= code_point;
}

CodePointSet CodePointSet::operator|(const CodePointSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(all));
}

CodePointSet CodePointSet::operator~() const {
  CodePointSet rest;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kNumCodePoints) rest.ranges_.push_back({next, kNumCodePoints - 1});
  return rest;
}

}  // namespace nmoe
