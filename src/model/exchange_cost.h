// What the exchange of one layer of experts puts into the memory of other ranks (model/remote_exchange.h), counted from
// shapes: for plans, for benches, and for what a run reports.
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

  // Other ranks that a token goes to, and of its copies those that are there: means, if all choices of experts are as
  // likely. (W - 1) (1 - C(E - E / W, K) / C(E, K)) and K (W - 1) / W.
  double rows_per_token() const { return rows_per_token_; }
  double copies_per_token() const { return copies_per_token_; }

  // Bytes that cross in a transfer of so many rows, and of the copies that these stand for; how often a microbatch
  // makes it, what backward computes again included.
  double bytes(Transfer transfer, double rows, double copies) const;
  int64_t times(Transfer transfer) const;

  // Of all transfers of one microbatch, a token that a rank has: what it causes to be put, by its own rank and by those
  // that have its experts.
  double bytes_per_token() const;

 private:
  double row_bytes_, sent_row_bytes_, slot_bytes_, weight_bytes_;  // of a row, and on its way out; of one choice
  bool apart_;
  Recompute recompute_;
  double top_k_, rows_per_token_, copies_per_token_;
};

}  // namespace nmoe
