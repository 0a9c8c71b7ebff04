#include "infer/page_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/contracts/cache.h"

namespace nmoe {
namespace {

// FNV-1a over whole ids. Whoever finds a page by it compares the ids.
uint64_t hash_of(int32_t before, std::span<const int32_t> ids) {
  uint64_t hash = 0xcbf29ce484222325 ^ static_cast<uint32_t>(before);
  for (const int32_t id : ids) {
    hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
    hash ^= hash >> 32;
  }
  return hash;
}

uint64_t behind(int32_t before, int32_t first_id) {
  return uint64_t{static_cast<uint32_t>(before)} << 32 | static_cast<uint32_t>(first_id);
}

std::span<const int32_t> ids_from(std::span<const int32_t> ids, int64_t begin) {
  return ids.subspan(static_cast<size_t>(begin));
}
std::span<const int32_t> ids_of_block(std::span<const int32_t> ids, int64_t block) {
  return ids.subspan(static_cast<size_t>(block * kPagePositions), static_cast<size_t>(kPagePositions));
}

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

template <class Map>
void erase_pair(Map& map, const typename Map::key_type& key, int32_t page) {
  const auto [begin, end] = map.equal_range(key);
  const auto found = std::find_if(begin, end, [&](const auto& pair) { return pair.second == page; });
  NMOE_CHECK(found != end, "page {} is not listed", page);
  map.erase(found);
}

}  // namespace

int64_t PageTable::pages_for(int64_t num_positions) { return (num_positions + kPagePositions - 1) / kPagePositions; }

PageTable::PageTable(int64_t num_pages) : pages_(static_cast<size_t>(num_pages)), free_(pages_.size()) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // the first page is taken first
}

int32_t PageTable::find_sealed(int32_t before, std::span<const int32_t> ids) const {
  const auto [begin, end] = sealed_.equal_range(hash_of(before, ids));
  const auto found = std::find_if(begin, end, [&](const auto& pair) {
    const Page& page = at(pair.second);
    return page.before == before && std::ranges::equal(page.ids, ids);
  });
  return found == end ? kNone : found->second;
}

PageTable::Found PageTable::find(std::span<const int32_t> ids) const {
  Found found;
  int32_t before = kNone;
  for (int64_t block = 0; (block + 1) * kPagePositions <= std::ssize(ids); ++block) {
    const int32_t page = find_sealed(before, ids_of_block(ids, block));
    if (page == kNone) break;
    found.sealed.push_back(before = page);
  }
  found.positions = std::ssize(found.sealed) * kPagePositions;
  const std::span<const int32_t> rest = ids_from(ids, found.positions);
  if (rest.empty()) return found;
  int64_t longest_tail = 0, longest = 0;
  const auto [begin, end] = behind_.equal_range(behind(before, rest.front()));
  for (auto page = begin; page != end; ++page) {
    const int64_t common = common_prefix(at(page->second).ids, rest);
    if (is_tail(page->second) && common == std::ssize(at(page->second).ids) && common > longest_tail) {
      longest_tail = common;
      found.tail = page->second;
    }
    if (common > longest) {
      longest = common;
      found.copied = page->second;
    }
  }
  if (longest < longest_tail + kLeastCopied) {
    found.copied = kNone;
    longest = longest_tail;
  } else {
    found.tail = kNone;
  }
  found.positions += longest;
  return found;
}

PageTable::Found PageTable::look_up(std::span<const int32_t> ids) {
  if (refused_ && std::ranges::equal(refused_->ids, ids)) return refused_->found;
  ++num_lookups_;
  return find(ids);
}

std::tuple<uint64_t, int64_t, int32_t> PageTable::turn_of(int32_t page) const {
  return {at(page).last_release, -at(page).depth, page};
}

bool PageTable::is_tail(int32_t page) const { return std::ssize(at(page).ids) < kPagePositions; }

int32_t PageTable::take() {
  if (free_.empty()) {
    NMOE_CHECK(!kept_.empty(), "none of {} pages is free", num_pages());
    const int32_t page = std::get<2>(*kept_.begin());
    detach(page);
    return page;
  }
  const int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void PageTable::use(int32_t page) {
  if (at(page).users++ == 0) kept_.erase(turn_of(page));
}

void PageTable::stop_using(int32_t page) {
  at(page).last_release = num_releases_;
  if (--at(page).users == 0) kept_.insert(turn_of(page));
}

void PageTable::attach(int32_t page, int32_t before, std::span<const int32_t> ids) {
  refused_.reset();
  Page& named = at(page);
  named.before = before;
  named.depth = before == kNone ? 0 : at(before).depth + 1;
  named.ids.assign(ids.begin(), ids.end());
  if (before != kNone) ++at(before).followers;
  if (!is_tail(page)) sealed_.emplace(hash_of(before, ids), page);
  behind_.emplace(behind(before, ids.front()), page);
}

void PageTable::detach(int32_t page) {
  const Page& named = at(page);
  NMOE_CHECK(named.users == 0 && named.followers == 0, "page {} has {} users, {} pages behind it", page, named.users,
             named.followers);
  refused_.reset();
  kept_.erase(turn_of(page));
  if (!is_tail(page)) erase_pair(sealed_, hash_of(named.before, named.ids), page);
  erase_pair(behind_, behind(named.before, named.ids.front()), page);
  if (named.before != kNone) --at(named.before).followers;
  at(page) = {};
}

std::optional<PageTable::Begun> PageTable::begin(PageChain& chain, std::span<const int32_t> ids, int64_t num_positions,
                                                 int64_t spare) {
  NMOE_CHECK(chain.pages.empty() && std::ssize(ids) <= num_positions, "a chain of {} pages begins with {} ids of {}",
             chain.pages.size(), ids.size(), num_positions);
  Found found = look_up(ids);
  const auto is_kept = [&](int32_t page) { return at(page).users == 0; };
  const int64_t num_sealed = std::ssize(found.sealed);
  const int64_t available = num_available() - std::ranges::count_if(found.sealed, is_kept);
  const int64_t wanted = pages_for(num_positions) - num_sealed;
  if (available < wanted + spare) {
    refused_ = {.ids = {ids.begin(), ids.end()}, .found = std::move(found)};
    return std::nullopt;
  }
  if (found.copied != kNone && available - (is_kept(found.copied) ? 1 : 0) < wanted) {  // it has to go itself
    found.copied = kNone;
    found.positions = num_sealed * kPagePositions;
  }
  chain.pages = found.sealed;
  chain.num_sealed = num_sealed;
  for (const int32_t page : found.sealed) use(page);
  if (found.copied != kNone) use(found.copied);
  if (found.tail != kNone) {
    detach(found.tail);
    chain.pages.push_back(found.tail);
  }
  NMOE_CHECK(grow(chain, num_positions), "{} pages are there, and were not", wanted);
  if (found.copied != kNone) stop_using(found.copied);
  return Begun{.positions = found.positions, .copied = found.copied};
}

bool PageTable::grow(PageChain& chain, int64_t num_positions) {
  const int64_t missing = pages_for(num_positions) - std::ssize(chain.pages);
  if (missing > num_available()) return false;
  for (int64_t i = 0; i < missing; ++i) chain.pages.push_back(take());
  return true;
}

int64_t PageTable::seal(PageChain& chain, std::span<const int32_t> ids) {
  int64_t first_changed = std::ssize(chain.pages);
  for (; (chain.num_sealed + 1) * kPagePositions <= std::ssize(ids); ++chain.num_sealed) {
    const int64_t block = chain.num_sealed;
    int32_t& own = chain.pages[static_cast<size_t>(block)];
    const int32_t before = block == 0 ? kNone : chain.pages[static_cast<size_t>(block - 1)];
    const std::span<const int32_t> of_block = ids_of_block(ids, block);
    if (const int32_t other = find_sealed(before, of_block); other != kNone) {
      use(other);
      free_.push_back(own);
      own = other;
      first_changed = std::min(first_changed, block);
      continue;
    }
    attach(own, before, of_block);
    at(own).users = 1;
  }
  return first_changed;
}

// Of tails of which one begins with all of the other, the longer stays.
void PageTable::keep_tail(int32_t page, int32_t before, std::span<const int32_t> ids) {
  const auto [begin, end] = behind_.equal_range(behind(before, ids.front()));
  std::vector<int32_t> others;
  for (auto other = begin; other != end; ++other) {
    if (is_tail(other->second)) others.push_back(other->second);
  }
  for (const int32_t other : others) {
    const int64_t size = std::ssize(at(other).ids), common = common_prefix(at(other).ids, ids);
    if (common < std::min(size, std::ssize(ids))) continue;
    if (common < size) {
      use(other);
      stop_using(other);
      free_.push_back(page);
      return;
    }
    detach(other);
    free_.push_back(other);
  }
  attach(page, before, ids);
  use(page);
  stop_using(page);
}

void PageTable::release(PageChain& chain, std::span<const int32_t> ids) {
  seal(chain, ids);
  ++num_releases_;
  const int64_t num_sealed = chain.num_sealed;
  const std::span<const int32_t> pages = chain.pages;
  const std::span<const int32_t> tail = ids_from(ids, std::min(num_sealed * kPagePositions, std::ssize(ids)));
  int64_t first_free = num_sealed;
  for (const int32_t page : pages.first(static_cast<size_t>(num_sealed))) stop_using(page);
  if (!tail.empty()) {
    ++first_free;
    const int32_t before = num_sealed == 0 ? kNone : pages[static_cast<size_t>(num_sealed - 1)];
    keep_tail(pages[static_cast<size_t>(num_sealed)], before, tail);
  }
  for (const int32_t page : pages.subspan(static_cast<size_t>(first_free))) free_.push_back(page);
  chain = {};
}

}  // namespace nmoe
