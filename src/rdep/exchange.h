// RDEP (remote direct expert parallelism): carries the copies of tokens that a router has assigned to experts to these
// experts, and their outputs back, by direct writes to the memory of the ranks that have them.
// ops/contracts/exchange.h says what is sent, and why the host need not order it.
//
// T tokens, K experts of a token, E experts, R the capacity of a layer's experts in rows, D the width of a row that
// travels.
//
// Under any routing a rank receives at most W * M rows of D, which is the size of its inbox. Expanded to one row for
// each choice, its experts have M * K rows on average over the ranks, and W * M * min(K, U) at worst. There is room for
// a multiple of the average; rows beyond it are processed in chunks (RoutedRows), for which backward sends the tokens
// once more, but only to the ranks that had too many rows.
//
// Threads: driven by the one that drives the device (ops/device.h). What forward
// keeps for backward is in the activations arena.
#pragma once

#include <functional>
#include <memory>

#include "ops/ops.h"
#include "ops/rows.h"
#include "rdep/routed_rows.h"
#include "rdep/statistics.h"
#include "rdep/window.h"
#include "tensor/arena.h"

namespace nmoe {

// What an exchange needs of the pass that it is part of.
struct ExchangePass {
  Ops& ops;
  Arena& activations;
  bool timed = false;  // whether it adds to ExchangeStats how long transfers take
};

// How chunks of overflow, of C rows each, are processed one after the other in the same memory: the exchange fills
// `rows` and `row_weight`, in backward also `drows`, calls run, and reads the results. An empty chunk writes
// nothing: this memory may hold other rows, which stay valid as long as all chunks are empty.
struct OverflowPass {
  Tensor rows;         // [C, D]; forward replaces them by the experts' outputs
  Tensor row_weight;   // [C] stat
  Tensor drows;        // [C, D] gradient of the outputs; backward replaces it by that of `rows`
  Tensor drow_weight;  // = [C] stat, in backward: gradient of row_weight
  std::function<void(const RaggedRows& chunk)> run;
};

// The exchange of one routing: the tokens' way to their experts and back, in forward and backward. Until the end of
// backward its plan is on the activation stack. The order of rows is a function of the routing alone.
//
// A transfer that begin_x() starts overlaps with the work that is enqueued before the matching end_x(); its arguments
// may not change before that. Only one transfer is under way at a time, of all exchanges through one window.
class RoutedExchange {
 public:
  RoutedExchange() = default;
  RoutedExchange(const RoutedExchange&) = delete;
  RoutedExchange& operator=(const RoutedExchange&) = delete;
  virtual ~RoutedExchange() = default;

  // The capacity follows from T; the parts' offsets are valid after end_dispatch().
  const RoutedRows& routed() const { return routed_; }

  // Sends tokens x [T, D] and their gate weights [T, K] stat to the experts: returns the rows [R, D], which are picked
  // from x or are in memory that end_dispatch() pushes; row_weight [R] stat =. Where tokens travel in FP8 they are
  // quantised first, if x is not yet, and the rows are the values that the quantised ones stand for, for this rank's
  // own tokens too. Rows are quantised as well, until something is begun again, where their source is, or where they
  // came so and products use it.
  virtual void begin_dispatch(const ExchangePass& pass, const Rows& x, Tensor weights) = 0;
  virtual Rows end_dispatch(const ExchangePass& pass, Tensor row_weight) = 0;
  // y [T, D] =, with accumulate +=, each token's sum over its rows [R, D], then over those in each chunk of overflow,
  // rounded after each chunk. The overflow's memory may be that of `rows`.
  virtual void combine(const ExchangePass& pass, Tensor rows, Tensor y, bool accumulate,
                       const OverflowPass& overflow) = 0;

  // The gradients [R, D] of combine()'s rows, which are picked from dy [T, D] or are in drows [R, D]; quantised as in
  // dispatch. x and weights: the arguments of forward's dispatch, which overflow needs again; undefined if backward has
  // dispatched once more.
  virtual void begin_combine_backward(const ExchangePass& pass, const Rows& dy, const Rows& x, Tensor weights) = 0;
  virtual Rows end_combine_backward(const ExchangePass& pass, Tensor drows) = 0;
  // The gradients of dispatch: dx [T, D] =, with accumulate +=, from drows [R, D]; dweights [T, K] stat = from
  // drow_weight [R] stat. Overflow as in combine(); its memory may be that of drows and drow_weight.
  virtual void begin_dispatch_backward(const ExchangePass& pass, Tensor drows, Tensor drow_weight) = 0;
  virtual void end_dispatch_backward(const ExchangePass& pass, Tensor dx, Tensor dweights, bool accumulate,
                                     const OverflowPass& overflow) = 0;

 protected:
  RoutedRows routed_;
};

// A layer's exchange. It keeps nothing of a pass.
class TokenExchange {
 public:
  explicit TokenExchange(RowFormat dispatch_format) : dispatch_format_(dispatch_format) {}
  TokenExchange(const TokenExchange&) = delete;
  TokenExchange& operator=(const TokenExchange&) = delete;
  virtual ~TokenExchange() = default;
  // The form in which tokens travel.
  RowFormat dispatch_format() const { return dispatch_format_; }
  // Plans where each copy goes: top_idx [T, K] i32 are the experts of the tokens. counts [E] i32 += the copies of each
  // expert (undefined: not wanted).
  virtual std::unique_ptr<RoutedExchange> plan(const ExchangePass& pass, Tensor top_idx, Tensor counts) const = 0;

 private:
  RowFormat dispatch_format_;
};

// Those rows quantised, in memory of the activations arena unless they are already.
RowCodes quantised(const ExchangePass& pass, const Rows& x);

// For experts that are all on this rank. They read tokens where those lie; combine sums a token's K rows in the order
// of its choices. R = T * K: each copy has a row, and there is no overflow.
// `dispatch_format`: the form in which tokens would travel.
std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts, RowFormat dispatch_format = RowFormat::kDevice);

// A layer's exchange through `window`, which has to outlive it. `layer`: its index in the model, for messages. places
// [E] i32, as ExchangePlan::placement, is read in every pass; `stats`, this rank's of the layer, may be undefined. Rows
// are sorted by (slot, rank of the token, token); with Received::kApart by (rank, slot, token).
std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window, int64_t layer, Tensor places,
                                                    const ExchangeStats& stats = {});

}  // namespace nmoe
