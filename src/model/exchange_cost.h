// The bytes that the exchange of one layer of experts writes to other ranks' memory (model/remote_exchange.h), computed
// from shapes: for plans, benchmarks and reports of runs.
//
// W ranks, K choices of a token, D model width.
#pragma once

#include "config/config.h"
#include "model/exchange_stats.h"
#include "tensor/dtype.h"

namespace nmoe {

class ExchangeCost {
 public:
  // With activations of dtype `act`, among `num_ranks` ranks that share the experts equally.
  ExchangeCost(const Config& config, DType act, int64_t num_ranks);

  // The mean number of other ranks that a token goes to, and of its copies on them, if all choices of experts are
  // equally likely: (W - 1) (1 - C(E - E / W, K) / C(E, K)) and K (W - 1) / W.
  double rows_per_token() const { return rows_per_token_; }
  double copies_per_token() const { return copies_per_token_; }

  // Bytes sent in a transfer of `rows` rows that stand for `copies` copies, and how often a microbatch makes this
  // transfer, including recomputation in backward.
  double bytes(Transfer transfer, double rows, double copies) const;
  int64_t times(Transfer transfer) const;

  // Bytes sent in all transfers of one microbatch per token, by the token's own
  // rank and by those that have its experts.
  double bytes_per_token() const;

 private:
  double row_bytes_, sent_row_bytes_, slot_bytes_, weight_bytes_;  // of a row, and on its way out; of one choice
  bool apart_;
  Recompute recompute_;
  double top_k_, rows_per_token_, copies_per_token_;
};

}  // namespace nmoe
