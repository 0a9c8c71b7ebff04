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

}  // namespace nmoe
