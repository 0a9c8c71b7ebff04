// How the copies of tokens that a router sends to experts get to those experts and back.
//
// T tokens, K experts of a token, E experts, R rows that a layer's experts have room for, D model width.
//
// Threads: driven by the one that drives the device (ops/device.h). What forward keeps lies in the activations arena
// until backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/pass.h"

namespace nmoe {

// Rows grouped by expert, of which there are as many as the routing gives: the shape of a tensor of them says how many
// there can be, the device alone knows how many there are. What lies behind those is undefined.
struct RaggedRows {
  int64_t begin = 0, end = 0;  // where they are among the rows that a layer has room for
  Tensor offsets;              // [E + 1] i32: expert e owns rows begin + [offsets[e], offsets[e + 1])

  // These rows of a tensor with all of them.
  Tensor of(const Tensor& rows) const { return rows.rows(begin, end); }
  OperandRows of(const OperandRows& rows) const {
    return rows.index.defined() ? OperandRows(rows.source, of(rows.index)) : of(rows.source);
  }
  RowCodes of(const RowCodes& codes) const {
    if (!codes.defined()) return {};
    return {.values = of(codes.values), .scales = of(codes.scales)};
  }
  // [1] i32: how many rows there are.
  Tensor count() const { return offsets.rows(offsets.dim(0) - 1, offsets.dim(0)); }
};

// What a layer's experts are to do: R rows in one part or in several, which are worked off in turn so that what comes
// of one does not depend on the others. Where the routing may give more rows than R, those behind them are the
// overflow, in chunks of as many rows each, most of them empty most of the time.
struct RoutedRows {
  int64_t capacity = 0;  // R
  std::vector<RaggedRows> parts;
  std::vector<RaggedRows> overflow;

  // Rows of a chunk, at most R; 0: there are none.
  int64_t chunk_capacity() const { return overflow.empty() ? 0 : overflow.front().end; }
};

// How the chunks of overflow, of C rows, are worked off one after another in the same memory: the exchange fills
// `rows` and `row_weight`, in backward also `drows`, calls work_off, and takes what that left. Of an empty chunk
// nothing is written: as long as all are, the memory is that of other rows, which are still wanted.
struct OverflowWork {
  Tensor rows;         // [C, D]; what a forward leaves: what the chunk's rows became
  Tensor row_weight;   // [C] stat
  Tensor drows;        // [C, D]; what a backward leaves: the gradient of `rows`
  Tensor drow_weight;  // [C] stat; the same of row_weight
  std::function<void(const RaggedRows& chunk)> work_off;
};

// A layer's exchange. It holds the plan of the last routing, on the activation stack, for all that follows until the
// layer's backward is over. The order of rows is a function of the routing alone.
//
// What begin_... is given travels beside the work that is enqueued before the end_... that belongs to it, and stays as
// it is until then. There is one such pair at a time.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;

  // Says where each copy goes, top_idx [T, K] i32 being the experts of the tokens, and adds how many go to each expert
  // to counts [E] i32 (+=; undefined: not wanted). The capacity follows from T. The offsets of rows are known once
  // dispatch() was.
  virtual RoutedRows plan(const Pass& pass, Tensor top_idx, Tensor counts) = 0;

  // To each expert its tokens, and what they weigh: [R, D] of x [T, D], row_weight [R] stat = weights [T, K] stat. The
  // rows are x's, picked, or lie in memory that the end pushes. Where x has codes these travel, and rows are what they
  // stand for, of this rank's own tokens too. Through one window either all that is dispatched has codes, or nothing.
  virtual void begin_dispatch(const Pass& pass, const CodedRows& x, Tensor weights) = 0;
  virtual OperandRows end_dispatch(const Pass& pass, Tensor row_weight) = 0;
  // y [T, D] = or, with accumulate, += the sums of each token's rows [R, D], then of those in each chunk of overflow,
  // rounded chunk by chunk. Overflow's memory may be that of `rows`.
  virtual void combine(const Pass& pass, Tensor rows, Tensor y, bool accumulate, const OverflowWork& overflow) = 0;

  // The gradients [R, D] of combine's rows, from dy [T, D]: dy's rows, picked, or in drows [R, D]; of codes as in
  // dispatch. Where the last dispatch was forward's, x and weights are what it got, which overflow needs again; else
  // undefined.
  virtual void begin_combine_backward(const Pass& pass, const CodedRows& dy, const CodedRows& x, Tensor weights) = 0;
  virtual OperandRows end_combine_backward(const Pass& pass, Tensor drows) = 0;
  // dx [T, D] = or, with accumulate, +=, from drows [R, D]; dweights [T, K] stat = from drow_weight [R] stat. Overflow
  // as in combine(); its memory may be that of both.
  virtual void begin_dispatch_backward(const Pass& pass, Tensor drows, Tensor drow_weight) = 0;
  virtual void end_dispatch_backward(const Pass& pass, Tensor dx, Tensor dweights, bool accumulate,
                                     const OverflowWork& overflow) = 0;
};

// All experts are where the tokens are: with `in_place` they read them there, else dispatch gathers; combine sums a
// token's K rows in the order of its choices. The same bits either way.
// Each of the T * K copies has a row, so all rows there are room for are used, and there is no overflow.
std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts, bool in_place);

}  // namespace nmoe
