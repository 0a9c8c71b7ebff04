// The bytes that the exchange of one layer of experts writes to other ranks' memory (rdep/exchange.h), computed from
// shapes: for plans, benchmarks and reports of runs.
//
// W ranks, K choices of a token, D the width of a row that travels.
#pragma once

#include "rdep/statistics.h"
#include "rdep/window.h"
#include "tensor/dtype.h"

namespace nmoe {

// How often a microbatch makes a transfer of forward, those that backward repeats included.
struct ForwardTransfers {
  int64_t dispatches = 1;
  int64_t combines = 1;
};

class ExchangeCost {
 public:
  // With activations of dtype `act`, among `num_ranks` ranks that share the experts equally.
  ExchangeCost(const ExchangeShape& shape, const ExchangeForm& form, const ForwardTransfers& forward, DType act,
               int64_t num_ranks);

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
  ForwardTransfers forward_;
  double top_k_, rows_per_token_, copies_per_token_;
};

}  // namespace nmoe
