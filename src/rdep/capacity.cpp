#include "rdep/capacity.h"

#include <algorithm>
#include <cmath>

namespace nmoe {

ExpertRows expert_rows(const ExchangeShape& shape, int64_t num_ranks, const ExchangeLimits& limits, Received received) {
  const int64_t W = num_ranks, M = limits.max_tokens, K = shape.top_k, U = shape.num_experts / W;
  ExpertRows rows{.worst = W * M * std::min(K, U)};
  const double wanted = std::ceil(limits.capacity_factor * static_cast<double>(M * K));
  const bool all = received == Received::kApart || wanted >= static_cast<double>(rows.worst);
  rows.kept = all ? rows.worst : std::max<int64_t>(static_cast<int64_t>(wanted), 1);
  const auto pieces_of = [](int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; };
  if (rows.kept == rows.worst) return rows;
  rows.num_chunks = pieces_of(rows.worst - rows.kept, rows.kept);
  rows.chunk = pieces_of(rows.worst - rows.kept, rows.num_chunks);
  return rows;
}

}  // namespace nmoe
