// The slots of a CachedModel and the pages that sequences have there: which slot a sequence takes, what it need not
// read again, and where its next positions go.
//
// Where states go back, pages are shared by all sequences with the same beginning (infer/page_table.h). Where they do
// not, what a sequence has left stays in its slot, pages included, until the slot or the pages are wanted: another
// sequence goes on from it only behind all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "infer/page_table.h"

namespace nmoe {

class CachedModel;

class CacheSlots {
 public:
  // `model` outlives it, and has its pages set by nobody else.
  explicit CacheSlots(CachedModel& model);

  struct Place {
    int64_t slot = 0;
    int64_t num_held = 0;  // positions that need not be run
  };
  // A free slot with pages for `num_positions` positions, in which a sequence that begins with `ids` goes on behind as
  // many of them as are held. Nothing where there is no slot, or not that many pages and `spare` more; then nothing
  // that is held is given up.
  std::optional<Place> enter(std::span<const int32_t> ids, int64_t num_positions, int64_t spare);
  // Gives the sequence in a slot pages for `num_positions` positions. False where there are none.
  bool grow(int64_t slot, int64_t num_positions);
  // The slot's states have seen `ids`.
  void computed(int64_t slot, std::span<const int32_t> ids);
  // The sequence leaves, and others may go on from `ids`, which the slot's states have seen.
  void leave(int64_t slot, std::span<const int32_t> ids);

  // Pages: all, those of running sequences, and those of none of them that hold what another may go on from.
  int64_t num_pages() const { return pages_.num_pages(); }
  int64_t num_used() const { return pages_.num_used() - num_left(); }
  int64_t num_kept() const { return pages_.num_kept() + num_left(); }

 private:
  struct Slot {
    PageChain chain;
    bool busy = false;
    std::vector<int32_t> left;  // by a sequence, where states do not go back; only of free slots
    uint64_t last_leave = 0;    // 0: never used
  };

  Slot& at(int64_t slot) { return slots_[static_cast<size_t>(slot)]; }
  std::optional<Place> enter_shared(std::span<const int32_t> ids, int64_t num_positions, int64_t spare);
  std::optional<Place> enter_left(std::span<const int32_t> ids, int64_t num_positions, int64_t spare);
  // Of the free slots, the one that has been left for longest: of all, or of those that have pages.
  Slot* oldest(bool with_pages);
  // Pages that free slots have.
  int64_t num_left() const;
  // Gives up what is left in free slots until so many pages are to be had. False, and nothing is given up, where there
  // are not.
  bool free_pages(int64_t num_pages);
  void forget(Slot& slot);

  CachedModel& model_;
  PageTable pages_;
  std::vector<Slot> slots_;
  uint64_t num_leaves_ = 0;
};

}  // namespace nmoe
