#include "infer/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "ops/contracts/cache.h"

namespace nmoe {
namespace {

using Ids = std::vector<int32_t>;

Ids ids_of(int64_t count, int32_t first) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}
Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::span<const int32_t> first_of(const Ids& ids, int64_t count) {
  return std::span(ids).first(static_cast<size_t>(count));
}

// Runs all of `ids` and lets them go. Returns how many were there.
int64_t run(PageTable& table, const Ids& ids) {
  PageChain chain;
  const auto begun = table.begin(chain, first_of(ids, std::ssize(ids) - 1), std::ssize(ids), 0);
  EXPECT_TRUE(begun.has_value());
  table.release(chain, ids);
  return begun ? begun->positions : -1;
}

TEST(PageTableTest, WholePagesAreSharedWhileTheyAreWritten) {
  PageTable table(8);
  const Ids ids = ids_of(300, 0);
  PageChain first, second;
  EXPECT_EQ(table.begin(first, first_of(ids, 299), 300, 0)->positions, 0);
  EXPECT_EQ(table.num_used(), 3);
  EXPECT_EQ(table.seal(first, first_of(ids, 255)), 3);
  EXPECT_EQ(first.num_sealed, 1);
  table.seal(first, ids);
  EXPECT_EQ(first.num_sealed, 2);
  EXPECT_EQ(table.begin(second, first_of(ids, 299), 300, 0)->positions, 256);
  EXPECT_EQ(table.num_used(), 4) << "a page of its own for what is not full";
  EXPECT_EQ(first.pages[1], second.pages[1]);
  EXPECT_NE(first.pages[2], second.pages[2]);
  table.release(first, ids);
  table.release(second, ids);
  EXPECT_EQ(table.num_used(), 0);
  EXPECT_EQ(table.num_kept(), 3) << "one tail of two that are equal";
}

TEST(PageTableTest, PagesOfTheSameContentBecomeOne) {
  PageTable table(8);
  const Ids ids = ids_of(256, 0);
  PageChain first, second;
  table.begin(first, {}, 256, 0);
  table.begin(second, {}, 256, 0);
  EXPECT_EQ(table.num_used(), 4);
  EXPECT_EQ(table.seal(first, ids), 2);
  EXPECT_EQ(table.seal(second, ids), 0) << "from the first block on it has other pages";
  EXPECT_EQ(second.pages, first.pages);
  EXPECT_EQ(table.num_used(), 2);
  table.release(first, ids);
  EXPECT_EQ(table.num_used(), 2);
  table.release(second, ids);
  EXPECT_EQ(table.num_kept(), 2);
}

TEST(PageTableTest, TheSameIdsBehindOthersAreOthers) {
  PageTable table(16);
  const Ids end = ids_of(128, 500);
  run(table, ids_of(128, 0) + end + Ids{1});
  EXPECT_EQ(run(table, ids_of(128, 1) + end + Ids{1}), 0);
  EXPECT_EQ(run(table, ids_of(128, 0) + end + Ids{1, 2}), 257);
}

TEST(PageTableTest, ATailIsTakenOverByWhoGoesOnFromIt) {
  PageTable table(8);
  const Ids turn = ids_of(150, 0);
  run(table, turn);
  EXPECT_EQ(run(table, turn + ids_of(90, 700)), 150);
  EXPECT_EQ(table.num_kept(), 2) << "the tail went on";
}

TEST(PageTableTest, WhatIsInCommonWithAPageIsCopied) {
  PageTable table(8);
  const Ids ids = ids_of(240, 0);
  run(table, ids);
  PageChain running, other;
  EXPECT_EQ(table.begin(running, first_of(ids, 239), 300, 0)->positions, 239);
  table.seal(running, ids + ids_of(60, 900));
  // Of a tail, of a page that is being used, and less than is worth it.
  const auto of_tail = table.begin(other, ids_of(200, 0), 300, 0);
  EXPECT_EQ(of_tail->positions, 200);
  EXPECT_NE(of_tail->copied, PageTable::kNone);
  EXPECT_NE(of_tail->copied, other.pages[1]);
  table.release(other, ids_of(200, 0));
  const auto of_first = table.begin(other, ids_of(100, 0), 100, 0);
  EXPECT_EQ(of_first->positions, 100);
  EXPECT_EQ(of_first->copied, running.pages[0]);
  table.release(other, ids_of(100, 0));
  EXPECT_EQ(table.begin(other, ids_of(PageTable::kLeastCopied - 1, 0) + ids_of(40, 500), 90, 0)->positions, 0);
}

// A page is not copied where its own memory is what is wanted.
TEST(PageTableTest, APageThatHasToGoIsNotCopied) {
  PageTable table(2);
  run(table, ids_of(200, 0));
  PageChain chain;
  const auto begun = table.begin(chain, ids_of(100, 0), 200, 0);
  EXPECT_EQ(begun->positions, 0);
  EXPECT_EQ(begun->copied, PageTable::kNone);
}

// Least recently let go first, of one sequence the last page first.
TEST(PageTableTest, EvictsInOrder) {
  PageTable table(6);
  const Ids first = ids_of(256, 0), second = ids_of(256, 1000), third = ids_of(200, 2000);
  run(table, first + Ids{1});   // three pages
  run(table, second + Ids{1});  // three more
  EXPECT_EQ(table.num_kept(), 6);
  run(table, first + Ids{1});
  run(table, third);  // in place of the second's tail and its last whole page
  EXPECT_EQ(run(table, first + Ids{1, 2}), 257);
  EXPECT_EQ(run(table, second + Ids{1}), 128);
}

TEST(PageTableTest, WithoutPagesEnoughNothingChanges) {
  PageTable table(4);
  const Ids ids = ids_of(256, 0);
  run(table, ids);
  PageChain chain, other;
  EXPECT_FALSE(table.begin(chain, ids, 600, 0).has_value());
  EXPECT_FALSE(table.begin(chain, ids, 400, 1).has_value());
  EXPECT_TRUE(chain.pages.empty());
  EXPECT_EQ(table.num_kept(), 2);
  EXPECT_EQ(table.begin(chain, ids, 400, 0)->positions, 256);
  EXPECT_EQ(table.begin(other, ids, 256, 0)->positions, 256);
  EXPECT_EQ(table.num_used(), 4);
  EXPECT_FALSE(table.grow(other, 257));
  EXPECT_TRUE(table.grow(other, 200));
  EXPECT_EQ(other.pages.size(), 2u);
  table.release(chain, ids);
  EXPECT_TRUE(table.grow(other, 400));
}

// One that waits for pages asks at every step: its beginning is looked up once until some page holds something else.
TEST(PageTableTest, WhatHasNoPagesIsLookedUpOnce) {
  PageTable table(5);
  const Ids ids = ids_of(400, 0);
  PageChain running, other, waiting;
  ASSERT_TRUE(table.begin(running, first_of(ids, 383), 384, 0).has_value());
  ASSERT_TRUE(table.begin(other, {}, 128, 0).has_value());
  const int64_t before = table.num_lookups();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(table.begin(waiting, first_of(ids, 399), 400, i % 2).has_value());
  EXPECT_EQ(table.num_lookups(), before + 1);
  EXPECT_FALSE(table.begin(waiting, first_of(ids, 398), 400, 0).has_value());
  EXPECT_FALSE(table.begin(waiting, first_of(ids, 399), 400, 0).has_value());
  EXPECT_EQ(table.num_lookups(), before + 3) << "only the last one is known";
  // Two of its pages are there now, which is not enough yet.
  table.seal(running, first_of(ids, 256));
  EXPECT_FALSE(table.begin(waiting, first_of(ids, 399), 400, 0).has_value());
  EXPECT_EQ(table.num_lookups(), before + 4);
  // A page that nobody has a name for changes nothing of that, and is enough.
  table.release(other, {});
  EXPECT_EQ(table.begin(waiting, first_of(ids, 399), 400, 0)->positions, 256);
  EXPECT_EQ(table.num_lookups(), before + 4);
}

TEST(PageTableTest, WhatWasFoundForOneThatWaitsMayGo) {
  PageTable table(4);
  const Ids ids = ids_of(256, 0);
  run(table, ids);
  PageChain waiting, chain;
  EXPECT_FALSE(table.begin(waiting, ids, 600, 0).has_value());
  ASSERT_TRUE(table.begin(chain, {}, 384, 0).has_value());  // in place of its second page
  table.release(chain, {});
  EXPECT_EQ(table.begin(waiting, ids, 300, 0)->positions, 128);
}

// Many sequences over few beginnings, against a plain model of the cache: what every position of every page holds is
// written down, as the whole text up to it. Whatever a chain is said to hold must be there, nobody else's pages may be
// written, and no page may get lost.
class RandomPages {
 public:
  RandomPages(int64_t num_pages, uint64_t seed)
      : table_(num_pages), rng_(seed, "pages"), cache_(static_cast<size_t>(num_pages * kPagePositions)) {}

  void step() {
    if (running_.size() < 6 && bits() % 3 == 0) return start();
    if (running_.empty()) return;
    Running& one = running_[bits() % running_.size()];
    if (bits() % 8 == 0) return end(one);
    write(one, 1 + static_cast<int64_t>(bits() % 90));
  }
  void check() {
    int64_t used = 0;
    std::map<int32_t, int64_t> users;
    for (const Running& one : running_) {
      for (const int32_t page : one.chain.pages) ++users[page];
    }
    used = std::ssize(users);
    EXPECT_EQ(table_.num_used(), used);
    EXPECT_LE(table_.num_kept() + used, table_.num_pages());
    for (const Running& one : running_) {
      for (size_t block = static_cast<size_t>(one.chain.num_sealed); block < one.chain.pages.size(); ++block) {
        EXPECT_EQ(users[one.chain.pages[block]], 1) << "a page that is written has two users";
      }
      for (int64_t i = 0; i < one.computed; ++i) ASSERT_EQ(cache_[place(one, i)], text_of(one, i + 1));
    }
  }
  void end_all() {
    while (!running_.empty()) end(running_.back());
    EXPECT_EQ(table_.num_used(), 0);
  }
  int64_t num_held() const { return held_; }
  int64_t num_refused() const { return refused_; }
  int64_t num_copied() const { return copied_; }

 private:
  struct Running {
    PageChain chain;
    Ids ids;
    int64_t computed = 0;
  };

  uint64_t bits() { return rng_.bits(turn_++); }
  static size_t place(const Running& one, int64_t i) {
    return static_cast<size_t>(one.chain.pages[static_cast<size_t>(i / kPagePositions)] * kPagePositions +
                               i % kPagePositions);
  }
  static Ids text_of(const Running& one, int64_t size) { return Ids(one.ids.begin(), one.ids.begin() + size); }

  // Pieces of a few kinds one after the other: texts have beginnings of many lengths in common.
  void start() {
    Running one;
    const auto pieces = static_cast<int64_t>(1 + bits() % 6);
    for (int64_t i = 0; i < pieces; ++i) {
      one.ids = one.ids + ids_of(i % 2 == 0 ? 70 : 96, static_cast<int32_t>(1000 * (bits() % 2)));
    }
    const auto reusable = static_cast<int64_t>(bits() % 5 == 0 ? 0 : one.ids.size() - 1);
    const auto begun = table_.begin(one.chain, first_of(one.ids, reusable), std::ssize(one.ids), 0);
    if (!begun) {
      ++refused_;
      EXPECT_TRUE(one.chain.pages.empty());
      return;
    }
    EXPECT_LE(begun->positions, reusable);
    one.computed = begun->positions;
    held_ += begun->positions;
    if (begun->copied != PageTable::kNone) {
      const size_t to = place(one, begun->positions - 1) / kPagePositions * kPagePositions;
      EXPECT_GE((begun->positions - 1) / kPagePositions, one.chain.num_sealed);
      std::copy_n(cache_.begin() + begun->copied * kPagePositions, kPagePositions,
                  cache_.begin() + static_cast<std::ptrdiff_t>(to));
      ++copied_;
    }
    running_.push_back(std::move(one));
  }
  void write(Running& one, int64_t count) {
    const int64_t end = one.computed + count;
    if (!table_.grow(one.chain, end)) {
      ++refused_;
      return;
    }
    for (int64_t i = one.computed; i < end; ++i) {
      if (i == std::ssize(one.ids)) one.ids.push_back(static_cast<int32_t>(bits() % 2));
      EXPECT_GE(i / kPagePositions, one.chain.num_sealed) << "a sealed page is written";
      cache_[place(one, i)] = text_of(one, i + 1);
    }
    one.computed = end;
    const std::vector<int32_t> before = one.chain.pages;
    const int64_t changed = table_.seal(one.chain, first_of(one.ids, end));
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + changed, one.chain.pages.begin()));
  }
  void end(Running& one) {
    // Also as one that is taken off its pages without their being kept.
    table_.release(one.chain,
                   first_of(one.ids, bits() % 7 == 0 ? one.chain.num_sealed * kPagePositions : one.computed));
    running_.erase(running_.begin() + (&one - running_.data()));
  }

  PageTable table_;
  Philox rng_;
  uint64_t turn_ = 0;
  std::vector<Ids> cache_;
  std::vector<Running> running_;
  int64_t held_ = 0, refused_ = 0, copied_ = 0;
};

TEST(PageTableTest, HoldsWhatItSaysOverRandomOperations) {
  int64_t held = 0, refused = 0, copied = 0;
  for (const int64_t num_pages : {3, 9, 40}) {
    RandomPages pages(num_pages, static_cast<uint64_t>(num_pages));
    for (int i = 0; i < 1500 && !testing::Test::HasFailure(); ++i) {
      pages.step();
      pages.check();
    }
    pages.end_all();
    held += pages.num_held(), refused += pages.num_refused(), copied += pages.num_copied();
  }
  EXPECT_GT(held, 10000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(copied, 50);
}

}  // namespace
}  // namespace nmoe
