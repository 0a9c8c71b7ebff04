// How many rows of routed tokens a rank's experts have room for.
//
// W ranks, M the largest number of tokens of a rank, K choices of a token, U experts on a rank.
#pragma once

#include <cstdint>

namespace nmoe {

// What a layer's experts exchange, besides how many tokens there are.
struct ExchangeShape {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t width = 0;  // values of a row that travels
};

// How a rank processes the tokens that its experts receive.
enum class Received {
  kTogether,  // all at once; each other rank returns one row for a token, the sum over its experts there
  kApart,     // rank by rank, and each copy is returned by itself: no sum depends on where experts are
};

// The capacity of a rank.
struct ExchangeLimits {
  int64_t max_tokens = 0;        // M
  double capacity_factor = 1.0;  // rows that a layer's experts keep for backward, over the ranks' average
};

// Rows of a layer's experts on a rank.
struct ExpertRows {
  int64_t worst = 0;       // W * M * min(K, U)
  int64_t kept = 0;        // rows that there is room for
  int64_t num_chunks = 0;  // of overflow, at worst
  int64_t chunk = 0;       // rows of a chunk, at most `kept`
};
// With Received::kApart all rows are kept: the bounds of chunks would depend on the number of ranks.
ExpertRows expert_rows(const ExchangeShape& shape, int64_t num_ranks, const ExchangeLimits& limits, Received received);

}  // namespace nmoe
