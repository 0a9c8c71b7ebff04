#include "rdep/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace nmoe {
namespace {

// Where moving ends, and the least that a pair has to take off the most loaded rank, as shares of the mean: below that
// chance decides.
constexpr double kWantedLoad = 1.02;
constexpr double kWorthMoving = 0.005;

// Of one layer while pairs change places.
class Ranks {
 public:
  Ranks(std::span<const int64_t> rows, std::span<const int32_t> places, int64_t num_ranks)
      : rows_(rows), experts_(static_cast<size_t>(num_ranks)), loads_(experts_.size()) {
    const auto num_slots = static_cast<int64_t>(rows.size()) / num_ranks;
    for (size_t expert = 0; expert < rows.size(); ++expert) {
      const auto rank = static_cast<size_t>(places[expert] / num_slots);
      experts_[rank].push_back(static_cast<int32_t>(expert));
      loads_[rank] += rows[expert];
    }
    for (auto& experts : experts_) sort(experts);
    mean_ = static_cast<double>(std::reduce(loads_.begin(), loads_.end())) / static_cast<double>(num_ranks);
  }

  double load() const { return mean_ > 0 ? static_cast<double>(std::ranges::max(loads_)) / mean_ : 1.0; }
  const std::vector<std::vector<int32_t>>& experts() const { return experts_; }

  // False where no pair is worth it.
  bool swap_best_pair() {
    const auto heavy = static_cast<size_t>(std::ranges::max_element(loads_) - loads_.begin());
    Pair best{.higher = loads_[heavy] - static_cast<int64_t>(kWorthMoving * mean_)};
    for (size_t light = 0; light < loads_.size(); ++light) {
      if (loads_[light] < loads_[heavy]) best_pair_with(heavy, light, best);
    }
    if (best.light == kNone) return false;
    auto &here = experts_[heavy], &there = experts_[best.light];
    const int64_t difference = rows_of(here[best.from]) - rows_of(there[best.to]);
    loads_[heavy] -= difference;
    loads_[best.light] += difference;
    std::swap(here[best.from], there[best.to]);
    sort(here);
    sort(there);
    return true;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Pair {
    int64_t higher;  // load of the two ranks once it has changed places
    size_t light = kNone, from = 0, to = 0;
  };

  int64_t rows_of(int32_t expert) const { return rows_[static_cast<size_t>(expert)]; }
  void sort(std::vector<int32_t>& experts) const {
    std::ranges::sort(experts, {}, [this](int32_t expert) { return std::pair(rows_of(expert), expert); });
  }

  // The two loads meet where the experts differ by half of what the ranks do.
  void best_pair_with(size_t heavy, size_t light, Pair& best) const {
    const auto &here = experts_[heavy], &there = experts_[light];
    const int64_t gap = loads_[heavy] - loads_[light];
    for (size_t from = 0; from < here.size(); ++from) {
      const int64_t wanted = rows_of(here[from]) - gap / 2;
      const auto at = std::ranges::lower_bound(there, wanted, {}, [this](int32_t expert) { return rows_of(expert); });
      const auto first = static_cast<size_t>(at - there.begin());
      for (size_t to = first == 0 ? 0 : first - 1; to <= first && to < there.size(); ++to) {
        const int64_t difference = rows_of(here[from]) - rows_of(there[to]);
        const int64_t higher = std::max(loads_[heavy] - difference, loads_[light] + difference);
        if (higher < best.higher) best = {.higher = higher, .light = light, .from = from, .to = to};
      }
    }
  }

  std::span<const int64_t> rows_;
  std::vector<std::vector<int32_t>> experts_;  // of each rank, by rising rows
  std::vector<int64_t> loads_;
  double mean_ = 0.0;
};

}  // namespace

std::vector<int32_t> places_in_order(int64_t num_experts) {
  std::vector<int32_t> places(static_cast<size_t>(num_experts));
  std::iota(places.begin(), places.end(), 0);
  return places;
}

std::vector<int32_t> experts_at(std::span<const int32_t> places, int64_t rank, int64_t num_slots) {
  std::vector<int32_t> experts(static_cast<size_t>(num_slots));
  for (size_t expert = 0; expert < places.size(); ++expert) {
    const int64_t slot = places[expert] - rank * num_slots;
    if (slot >= 0 && slot < num_slots) experts[static_cast<size_t>(slot)] = static_cast<int32_t>(expert);
  }
  return experts;
}

double rank_load(std::span<const int64_t> rows, std::span<const int32_t> places, int64_t num_ranks) {
  return Ranks(rows, places, num_ranks).load();
}

std::vector<int32_t> rebalance(std::span<const int64_t> rows, std::span<const int32_t> places, int64_t num_ranks) {
  const auto num_experts = static_cast<int64_t>(rows.size());
  NMOE_CHECK(rows.size() == places.size() && num_experts % num_ranks == 0, "{} experts in {} places of {} ranks",
             num_experts, places.size(), num_ranks);
  std::vector<int32_t> moved(places.begin(), places.end());
  Ranks ranks(rows, places, num_ranks);
  if (ranks.load() <= kBalancedLoad) return moved;
  while (ranks.load() > kWantedLoad && ranks.swap_best_pair()) {
  }

  // Those that come to a rank take the slots of those that leave it.
  const int64_t num_slots = num_experts / num_ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const int64_t first = rank * num_slots;
    std::vector<bool> is_taken(static_cast<size_t>(num_slots));
    std::vector<int32_t> come;
    for (const int32_t expert : ranks.experts()[static_cast<size_t>(rank)]) {
      const int64_t slot = places[static_cast<size_t>(expert)] - first;
      if (slot >= 0 && slot < num_slots) {
        is_taken[static_cast<size_t>(slot)] = true;
      } else {
        come.push_back(expert);
      }
    }
    std::ranges::sort(come);
    for (int64_t slot = 0, next = 0; slot < num_slots; ++slot) {
      if (is_taken[static_cast<size_t>(slot)]) continue;
      moved[static_cast<size_t>(come[static_cast<size_t>(next++)])] = static_cast<int32_t>(first + slot);
    }
  }
  return moved;
}

}  // namespace nmoe
