#include "infer/draft/ngram_drafter.h"

#include <algorithm>
#include <bit>
#include <ranges>
#include <utility>

namespace nmoe {
namespace {

// FNV-1a over ids, whose upper bits depend on all of them.
uint64_t hash_of(std::span<const int32_t> ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
  return hash ^ hash >> 32;
}

}  // namespace

size_t NgramIndex::Places::slot_of(std::span<const int32_t> tokens, size_t place) const {
  const std::span<const int32_t> run = tokens.subspan(place - size, size);
  size_t slot = hash_of(run) & (slots.size() - 1);
  while (slots[slot] != 0 && !std::ranges::equal(tokens.subspan(slots[slot] - size, size), run)) {
    slot = (slot + 1) & (slots.size() - 1);
  }
  return slot;
}

// For as many runs as `tokens` may have.
void NgramIndex::Places::reserve(std::span<const int32_t> tokens) {
  if (2 * tokens.size() <= slots.size()) return;
  const std::vector<uint32_t> before = std::exchange(slots, std::vector<uint32_t>(std::bit_ceil(2 * tokens.size())));
  for (const uint32_t place : before) {
    if (place != 0) slots[slot_of(tokens, place)] = place;
  }
}

size_t NgramIndex::find(const Places& places, std::span<const int32_t> tokens) {
  return tokens.size() <= places.size ? 0 : places.slots[places.slot_of(tokens, tokens.size())];
}

void NgramIndex::draft(std::span<const int32_t> tokens, int64_t max_drafts, std::vector<int32_t>& drafts) {
  const size_t begin = num_indexed_;
  num_indexed_ = std::min(tokens.size(), begin + kMostPlaces);
  for (Places& places : places_) {
    places.reserve(tokens);
    for (size_t place = std::max(begin, places.size); place < num_indexed_; ++place) {
      places.slots[places.slot_of(tokens, place)] = static_cast<uint32_t>(place);
    }
  }
  drafts.clear();
  size_t place = 0;
  for (const Places& places : places_ | std::views::reverse) {
    if (place == 0) place = find(places, tokens);
  }
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
