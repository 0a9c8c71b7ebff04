#include "infer/draft/ngram_drafter.h"

#include <algorithm>

namespace nmoe {
namespace {

// FNV-1a over ids.
uint64_t hash_of(std::span<const int32_t> ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
  return hash;
}

}  // namespace

size_t NgramIndex::find(std::span<const int32_t> tokens, size_t size) const {
  if (tokens.size() <= size) return 0;
  const std::span<const int32_t> run = tokens.last(size);
  const auto& places = places_[size - kShortest];
  const auto found = places.find(hash_of(run));
  if (found == places.end() || !std::ranges::equal(tokens.subspan(found->second - size, size), run)) return 0;
  return found->second;
}

void NgramIndex::draft(std::span<const int32_t> tokens, int64_t max_drafts, std::vector<int32_t>& drafts) {
  for (size_t place = num_indexed_; place < tokens.size(); ++place) {
    for (size_t size = kShortest; size <= std::min(kLongest, place); ++size) {
      places_[size - kShortest][hash_of(tokens.subspan(place - size, size))] = static_cast<uint32_t>(place);
    }
  }
  num_indexed_ = tokens.size();
  drafts.clear();
  size_t place = 0;
  for (size_t size = kLongest; size >= kShortest && place == 0; --size) place = find(tokens, size);
  if (place == 0) return;
  while (std::ssize(drafts) < max_drafts) {
    const size_t next = place + drafts.size();
    drafts.push_back(next < tokens.size() ? tokens[next] : drafts[next - tokens.size()]);
  }
}

std::vector<DraftPass> NgramDrafter::draft(std::span<const DraftedText> texts) {
  for (const DraftedText& text : texts) texts_[text.id].draft(text.tokens, text.max_drafts, *text.drafts);
  return {};
}

}  // namespace nmoe
