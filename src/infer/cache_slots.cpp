#include "infer/cache_slots.h"

#include <algorithm>

#include "infer/cached_model.h"

namespace nmoe {

CacheSlots::CacheSlots(CachedModel& model)
    : model_(model), pages_(model.num_pages()), slots_(static_cast<size_t>(model.num_slots())) {}

CacheSlots::Slot* CacheSlots::oldest(bool with_pages) {
  Slot* found = nullptr;
  for (Slot& slot : slots_) {
    if (slot.busy || (with_pages && slot.chain.pages.empty())) continue;
    if (found == nullptr || slot.last_leave < found->last_leave) found = &slot;
  }
  return found;
}

void CacheSlots::forget(Slot& slot) {
  pages_.release(slot.chain, {});
  slot.left.clear();
}

int64_t CacheSlots::num_left() const {
  int64_t num_pages = 0;
  for (const Slot& slot : slots_) num_pages += slot.busy ? 0 : std::ssize(slot.chain.pages);
  return num_pages;
}

bool CacheSlots::free_pages(int64_t num_pages) {
  if (pages_.num_available() + num_left() < num_pages) return false;
  while (pages_.num_available() < num_pages) forget(*oldest(/*with_pages=*/true));
  return true;
}

std::optional<CacheSlots::Place> CacheSlots::enter(std::span<const int32_t> ids, int64_t num_positions, int64_t spare) {
  const std::optional<Place> place =
      model_.goes_back() ? enter_shared(ids, num_positions, spare) : enter_left(ids, num_positions, spare);
  if (!place) return place;
  at(place->slot).busy = true;
  model_.set_pages(place->slot, 0, at(place->slot).chain.pages);
  return place;
}

std::optional<CacheSlots::Place> CacheSlots::enter_shared(std::span<const int32_t> ids, int64_t num_positions,
                                                          int64_t spare) {
  Slot* const slot = oldest(/*with_pages=*/false);
  if (slot == nullptr) return std::nullopt;
  const std::optional<PageTable::Begun> begun = pages_.begin(slot->chain, ids, num_positions, spare);
  if (!begun) return std::nullopt;
  if (begun->copied != PageTable::kNone) {
    model_.copy_page(begun->copied, slot->chain.pages[static_cast<size_t>((begun->positions - 1) / kPagePositions)]);
  }
  return Place{.slot = slot - slots_.data(), .num_held = begun->positions};
}

// A slot that holds at least half of the prompt already, or else the one that has not been used for longest.
std::optional<CacheSlots::Place> CacheSlots::enter_left(std::span<const int32_t> ids, int64_t num_positions,
                                                        int64_t spare) {
  Slot* slot = oldest(/*with_pages=*/false);
  if (slot == nullptr) return std::nullopt;
  size_t held = 0;
  for (Slot& other : slots_) {
    const size_t size = other.left.size();
    if (other.busy || size <= held || size > ids.size() || 2 * size < ids.size()) continue;
    if (!std::ranges::equal(other.left, ids.first(size))) continue;
    held = size;
    slot = &other;
  }
  slot->busy = held > 0;  // then its pages stay
  const int64_t has = held > 0 ? std::ssize(slot->chain.pages) : 0;
  if (!free_pages(PageTable::pages_for(num_positions) - has + spare)) {
    slot->busy = false;
    return std::nullopt;
  }
  if (held == 0) forget(*slot);
  NMOE_CHECK(pages_.grow(slot->chain, num_positions), "{} positions have no pages", num_positions);
  slot->left.clear();
  return Place{.slot = slot - slots_.data(), .num_held = static_cast<int64_t>(held)};
}

bool CacheSlots::grow(int64_t slot, int64_t num_positions) {
  PageChain& chain = at(slot).chain;
  const int64_t has = std::ssize(chain.pages);
  if (!free_pages(PageTable::pages_for(num_positions) - has)) return false;
  NMOE_CHECK(pages_.grow(chain, num_positions), "{} positions have no pages", num_positions);
  model_.set_pages(slot, has, std::span(chain.pages).subspan(static_cast<size_t>(has)));
  return true;
}

void CacheSlots::computed(int64_t slot, std::span<const int32_t> ids) {
  if (!model_.goes_back()) return;
  PageChain& chain = at(slot).chain;
  const int64_t changed = pages_.seal(chain, ids);
  model_.set_pages(slot, changed, std::span(chain.pages).subspan(static_cast<size_t>(changed)));
}

void CacheSlots::leave(int64_t slot, std::span<const int32_t> ids) {
  Slot& left = at(slot);
  left.busy = false;
  left.last_leave = ++num_leaves_;
  if (model_.goes_back()) return pages_.release(left.chain, ids);
  left.left.assign(ids.begin(), ids.end());
  if (ids.empty()) forget(left);
}

}  // namespace nmoe
