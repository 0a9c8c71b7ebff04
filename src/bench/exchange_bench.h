// Times the exchange of tokens between ranks by itself: all ranks at once, on rows as a layer of a configuration has
// them, with as many blocks as one likes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "ops/device.h"

namespace nmoe {

struct ExchangeBenchOptions {
  // For each a run in which kernels that put rows have so many blocks at most; 0: as many as fill the device.
  std::vector<int64_t> max_blocks = {0};
  // The share of choices that falls on the experts of rank 0, over the mean of ranks: 1, every choice of experts is as
  // likely, to the number of ranks, all on rank 0 as long as it has experts left.
  double skew = 1.0;
};

struct ExchangeBench {
  // Medians over rounds of many calls behind each other, of the slowest rank, in ms.
  struct Run {
    int64_t max_blocks = 0;
    double send_ms = 0.0;     // every token to the ranks of its experts
    double return_ms = 0.0;   // the sums of rows back to other ranks
    double barrier_ms = 0.0;  // all ranks being there at once
    double collect_ms = 0.0;  // the sum of what came back and of the rows here
    double layer_ms = 0.0;    // a layer's way there and back: send, barrier, return, barrier, collect
  };
  std::string device;  // of the first rank
  SoftwareVersions software;
  int64_t num_ranks = 0;
  int64_t tokens = 0;  // of each rank
  int64_t width = 0, num_experts = 0, top_k = 0;
  int64_t row_bytes = 0, sent_row_bytes = 0;  // of a row that comes back, and of one that goes to experts
  double rank_load_max_over_mean = 0.0;       // copies at the most loaded rank
  std::vector<int64_t> rows_to_others;        // by rank: rows that it sends to other ranks
  std::vector<int64_t> rows_for_others;       // by rank: rows that it returns to other ranks
  double expected_rows_per_token = 0.0;       // model/experts_exchange.h; with a skew of 1 that of rows_to_others
  std::vector<Run> runs;                      // by max_blocks

  // A rank's mean, of sending and returning: rows alone, and those alone that cross to another rank.
  double send_gb_per_s(double ms) const;
  double return_gb_per_s(double ms) const;
};

// On config.parallel.ranks ranks, in microbatches of the configuration, with routing drawn from run.seed. Each round
// trip is checked once: experts that leave rows as they are make top_k times what was sent. Error (usage) for one rank,
// for a model without experts, for logical shards, for max_blocks on CPUs, and for a skew below 1 or above the ranks.
ExchangeBench bench_exchange(const Config& config, const ExchangeBenchOptions& options);

}  // namespace nmoe
