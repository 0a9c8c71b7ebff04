#include "data/synthetic/khop.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/synthetic/draws.h"

namespace nmoe {

KHopSource::KHopSource(uint64_t seed, SettingReader& settings)
    : seed_(seed),
      num_entities_(settings.integer("entities", 16, 2, 4096)),
      pool_(settings.integer("pool", 64, 2, 1 << 16)),
      max_hops_(settings.integer("max_hops", 4, 1, 4096)),
      num_queries_(settings.integer("queries", 4, 1, 4096)) {
  settings_ = settings.resolved();
  if (num_entities_ > pool_) {
    throw usage_error(fmt::format("{} entities with only {} names", num_entities_, pool_), "raise pool");
  }
  for (int64_t name = 0; name < pool_; ++name) words_.push_back(std::to_string(name));
  for (int64_t hops = 1; hops <= max_hops_; ++hops) words_.push_back(fmt::format("hop{}", hops));
}

void KHopSource::document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const {
  Draws draws(seed_, "synthetic.documents", index);
  const auto n = static_cast<size_t>(num_entities_);
  // The first n places of a shuffled pool: entity j of the cycle is followed by entity j + 1.
  std::vector<int32_t> cycle(static_cast<size_t>(pool_));
  std::iota(cycle.begin(), cycle.end(), 0);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i < n; ++i) {
    std::swap(cycle[i], cycle[i + static_cast<size_t>(draws.below(pool_ - static_cast<int64_t>(i)))]);
  }
  for (size_t i = 0; i + 1 < n; ++i) {
    std::swap(order[i], order[i + static_cast<size_t>(draws.below(num_entities_ - static_cast<int64_t>(i)))]);
  }

  tokens.clear();
  for (const size_t place : order) {
    tokens.push_back(cycle[place]);
    tokens.push_back(cycle[(place + 1) % n]);
  }
  loss_mask.assign(tokens.size(), 0);
  for (int64_t query = 0; query < num_queries_; ++query) {
    const int64_t hops = 1 + draws.below(max_hops_);
    const auto place = static_cast<size_t>(draws.below(num_entities_));
    tokens.push_back(static_cast<int32_t>(pool_ + hops - 1));
    tokens.push_back(cycle[place]);
    tokens.push_back(cycle[(place + static_cast<size_t>(hops)) % n]);
    loss_mask.insert(loss_mask.end(), {0, 0, 1});
  }
}

// The first names of the pairs: n of the pool in some order. What follows each: one of (n - 1)! cycles. Then the
// queries.
EntropyFloor KHopSource::floor() const {
  const auto n = static_cast<double>(num_entities_), pool = static_cast<double>(pool_);
  const auto queries = static_cast<double>(num_queries_);
  const double names = std::lgamma(pool + 1) - std::lgamma(pool - n + 1), cycles = std::lgamma(n);
  return {.document_nats = names + cycles + queries * std::log(n * static_cast<double>(max_hops_)),
          .tokens_per_document = 2 * n + 3 * queries + 1,
          .targets_per_document = queries};
}

}  // namespace nmoe
