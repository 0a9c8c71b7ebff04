// Carries the copies of tokens that a router has assigned to experts to these experts, and their outputs back.
//
// T tokens, K experts of a token, E experts, R the capacity of a layer's experts in rows, D model width.
//
// Threads: driven by the one that drives the device (ops/device.h). What forward
// keeps for backward is in the activations arena.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/pass.h"

namespace nmoe {

// Rows grouped by expert. Their number depends on the routing and is known only to the device: the shape of a tensor of
// them gives the capacity, and rows beyond count() are undefined.
struct RaggedRows {
  int64_t begin = 0, end = 0;  // their range in the layer's R rows
  Tensor offsets;              // [E + 1] i32: expert e owns rows begin + [offsets[e], offsets[e + 1])

  // These rows of a tensor that has all R.
  Tensor of(const Tensor& rows) const { return rows.rows(begin, end); }
  // Rows that are picked are one part.
  OperandRows of(const OperandRows& rows) const {
    if (!rows.index.defined()) return of(rows.source);
    NMOE_CHECK(begin == 0 && end == rows.num_rows(), "rows {} to {} of {} that are picked", begin, end,
               rows.num_rows());
    return rows;
  }
  RowCodes of(const RowCodes& codes) const {
    if (!codes.defined()) return {};
    return {.values = of(codes.values), .scales = of(codes.scales)};
  }
  // codes: of rows.source.
  RowCodes of(const OperandRows& rows, const RowCodes& codes) const { return rows.index.defined() ? codes : of(codes); }
  // [1] i32: the number of rows.
  Tensor count() const { return offsets.rows(offsets.dim(0) - 1, offsets.dim(0)); }
};

// The rows that a layer's experts have to process: R rows in one or several parts, processed one after the other so
// that the result of a part does not depend on the others. If the routing may give more than R rows, the rest is the
// overflow, in chunks of equal capacity, most of which are usually empty.
struct RoutedRows {
  int64_t capacity = 0;  // R
  std::vector<RaggedRows> parts;
  std::vector<RaggedRows> overflow;

  // Capacity of a chunk in rows, at most R; 0: no overflow.
  int64_t chunk_capacity() const { return overflow.empty() ? 0 : overflow.front().end; }
};

// How chunks of overflow, of C rows each, are processed one after the other in the same memory: the exchange fills
// `rows` and `row_weight`, in backward also `drows`, calls work_off, and reads the results. An empty chunk writes
// nothing: this memory may hold other rows, which stay valid as long as all chunks are empty.
struct OverflowWork {
  Tensor rows;         // [C, D]; forward replaces them by the experts' outputs
  Tensor row_weight;   // [C] stat
  Tensor drows;        // [C, D] gradient of the outputs; backward replaces it by that of `rows`
  Tensor drow_weight;  // = [C] stat, in backward: gradient of row_weight
  std::function<void(const RaggedRows& chunk)> work_off;
};

// The rows of a layer's experts, in memory or picked from tokens.
struct ArrivedRows {
  OperandRows rows;     // [R, D]
  RowCodes codes = {};  // of rows.source, until something is begun again; undefined if it has none, or no layer of the
                        // model uses them
};

// A layer's exchange. From plan() to the end of the layer's backward it keeps the plan of one routing on the activation
// stack. The order of rows is a function of the routing alone.
//
// A transfer that begin_x() starts overlaps with the work that is enqueued before the matching end_x(); its arguments
// may not change before that. Only one transfer is under way at a time.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;

  // Plans where each copy goes: top_idx [T, K] i32 are the experts of the tokens. counts [E] i32 += the copies of each
  // expert (undefined: not wanted). The capacity follows from T; the parts' offsets are valid after end_dispatch().
  virtual RoutedRows plan(const Pass& pass, Tensor top_idx, Tensor counts) = 0;

  // Sends tokens x [T, D] and their gate weights [T, K] stat to the experts: returns the rows [R, D], which are picked
  // from x or are in memory that end_dispatch() pushes; row_weight [R] stat =. If x has codes, these are sent, and the
  // rows are the values that they encode, for this rank's own tokens too. Through one window, either everything that is
  // dispatched has codes, or nothing has.
  virtual void begin_dispatch(const Pass& pass, const CodedRows& x, Tensor weights) = 0;
  virtual ArrivedRows end_dispatch(const Pass& pass, Tensor row_weight) = 0;
  // y [T, D] =, with accumulate +=, each token's sum over its rows [R, D], then over those in each chunk of overflow,
  // rounded after each chunk. The overflow's memory may be that of `rows`.
  virtual void combine(const Pass& pass, Tensor rows, Tensor y, bool accumulate, const OverflowWork& overflow) = 0;

  // The gradients [R, D] of combine()'s rows, which are picked from dy [T, D] or are in drows [R, D]; with codes as in
  // dispatch. x and weights: the arguments of forward's dispatch, which overflow needs again; undefined if backward has
  // dispatched once more.
  virtual void begin_combine_backward(const Pass& pass, const CodedRows& dy, const CodedRows& x, Tensor weights) = 0;
  virtual ArrivedRows end_combine_backward(const Pass& pass, Tensor drows) = 0;
  // The gradients of dispatch: dx [T, D] =, with accumulate +=, from drows [R, D]; dweights [T, K] stat = from
  // drow_weight [R] stat. Overflow as in combine(); its memory may be that of drows and drow_weight.
  virtual void begin_dispatch_backward(const Pass& pass, Tensor drows, Tensor drow_weight) = 0;
  virtual void end_dispatch_backward(const Pass& pass, Tensor dx, Tensor dweights, bool accumulate,
                                     const OverflowWork& overflow) = 0;
};

// For experts that are all on this rank. They read tokens where those lie; combine sums a token's K rows in the order
// of its choices. R = T * K: each copy has a row, and there is no overflow.
std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts);

}  // namespace nmoe
