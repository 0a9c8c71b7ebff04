// The distinct ids of a text that grows: what a repetition penalty goes by.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

namespace nmoe {

class SeenIds {
 public:
  void add(int32_t id) {
    if (is_seen_.insert(id).second) ids_.push_back(id);
  }
  bool contains(int32_t id) const { return is_seen_.contains(id); }
  // Each once, in the order in which they came first.
  std::span<const int32_t> ids() const { return ids_; }

 private:
  std::vector<int32_t> ids_;
  std::unordered_set<int32_t> is_seen_;
};

// Those ids and `more`, each once.
inline std::vector<int32_t> ids_with(const SeenIds& seen, std::span<const int32_t> more) {
  SeenIds others;
  for (const int32_t id : more) {
    if (!seen.contains(id)) others.add(id);
  }
  std::vector<int32_t> all(seen.ids().begin(), seen.ids().end());
  all.insert(all.end(), others.ids().begin(), others.ids().end());
  return all;
}

}  // namespace nmoe
