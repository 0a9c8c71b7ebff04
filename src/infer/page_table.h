// Which pages of a cache (ops/contracts/cache.h) hold what: those of running sequences, and, of sequences that have
// ended, what another with the same beginning can go on from.
//
// A page all of whose positions have been computed is sealed: it is never written again, and is found by its ids and
// the page before it. What it holds depends on these ids and those before them alone, to the bit, so all sequences that
// begin with them share it, those that run at the same time included. The last, partly filled page of a sequence that
// has ended is kept as its tail, which whoever goes on from all of it takes over. Where a sequence has the beginning of
// a page's ids in common, that page is to be copied.
//
// Pages that no running sequence has are kept until their memory is wanted: those go first that were let go first, and
// of a sequence's pages the last ones.
//
// Nothing here touches the cache itself. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace nmoe {

// The pages of one running sequence, by block of its positions. Made and changed by a PageTable; let go by release().
struct PageChain {
  std::vector<int32_t> pages;
  int64_t num_sealed = 0;  // of these, from the first on: not to be written
};

class PageTable {
 public:
  explicit PageTable(int64_t num_pages);

  static constexpr int32_t kNone = -1;
  // A copy is a few kernels for each layer: fewer positions than this are not worth it.
  static constexpr int64_t kLeastCopied = 16;

  // What the first `positions` positions of a chain hold, once the page `copied` has been copied to that of the last of
  // them, before anything else is written.
  struct Begun {
    int64_t positions = 0;
    int32_t copied = kNone;
  };
  // Gives an empty chain pages for `num_positions` positions, of which the first hold a beginning of `ids` already: as
  // long a one as is found. Nothing, and changes nothing, where there are not as many pages, or not `spare` more; asked
  // again with the same ids, they are looked up again only once some page has got or lost its name.
  std::optional<Begun> begin(PageChain& chain, std::span<const int32_t> ids, int64_t num_positions, int64_t spare);
  // Gives a chain pages for `num_positions` positions, if it has fewer. False where there are none.
  bool grow(PageChain& chain, int64_t num_positions);
  // The chain's first positions hold `ids`. Seals those of its pages that are full by them. A page that another
  // sequence has sealed with the same content replaces the chain's own: returns the first block that now has another
  // page, or chain.pages.size().
  int64_t seal(PageChain& chain, std::span<const int32_t> ids);
  // Lets a chain go. What holds `ids`, its first positions, is kept.
  void release(PageChain& chain, std::span<const int32_t> ids);

  static int64_t pages_for(int64_t num_positions);

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_kept() const {
    return static_cast<int64_t>(kept_.size());
  }  // of no running sequence, but holding something
  int64_t num_used() const { return num_pages() - num_kept() - static_cast<int64_t>(free_.size()); }  // of running ones
  // To be had by chains.
  int64_t num_available() const { return static_cast<int64_t>(free_.size()) + num_kept(); }
  int64_t num_lookups() const { return num_lookups_; }  // of beginnings, so far

 private:
  struct Page {
    std::vector<int32_t> ids;  // that it holds, once it is sealed or kept as a tail: once it is named
    int32_t before = kNone;    // the page of the positions before; kNone: it begins a sequence
    int64_t depth = 0;         // pages before it
    int64_t users = 0;         // chains that have it, once it is named
    int64_t followers = 0;     // pages that name it as the one before
    uint64_t last_release = 0;
  };
  // In the order of eviction. A page was let go no earlier than those behind it, which are deeper.
  using Kept = std::set<std::tuple<uint64_t, int64_t, int32_t>>;

  // What a sequence that begins with some ids can go on from.
  struct Found {
    std::vector<int32_t> sealed;
    int32_t tail = kNone;    // to be taken over
    int32_t copied = kNone;  // if there is no such tail
    int64_t positions = 0;   // of all of that
  };
  // Those ids had no pages to begin with, and since then no page has got or lost its name.
  struct Refused {
    std::vector<int32_t> ids;
    Found found;
  };
  Found find(std::span<const int32_t> ids) const;
  Found look_up(std::span<const int32_t> ids);  // the same, or what refused_ knows
  int32_t find_sealed(int32_t before, std::span<const int32_t> ids) const;

  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  std::tuple<uint64_t, int64_t, int32_t> turn_of(int32_t page) const;
  bool is_tail(int32_t page) const;
  // A page that nobody has; there is one. Evicts what is kept, if it must.
  int32_t take();
  void use(int32_t page);
  void stop_using(int32_t page);
  // Names what the page holds, and forgets it again where nobody uses it.
  void attach(int32_t page, int32_t before, std::span<const int32_t> ids);
  void detach(int32_t page);
  void keep_tail(int32_t page, int32_t before, std::span<const int32_t> ids);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  Kept kept_;
  std::unordered_multimap<uint64_t, int32_t> sealed_;  // by hash_of
  std::unordered_multimap<uint64_t, int32_t> behind_;  // sealed ones and tails, by the page before and their first id
  std::optional<Refused> refused_;
  uint64_t num_releases_ = 0;
  int64_t num_lookups_ = 0;
};

}  // namespace nmoe
