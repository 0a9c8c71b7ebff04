// How the ranks of a domain exchange rows and sums by writing into each other's memory (ops/peers.h). Letters and
// conventions: ops/ops.h. Further: W ranks, M tokens of a rank at most, U slots for experts on a rank.
//
// A token is sent once to each rank that has at least one of its experts. There its copies go to their rows as on one
// rank (contracts/moe.h); the token's rows are summed on that rank, and one row is returned. The place of every row
// follows from the routing alone, so that nothing is counted by atomics and every sum has one
// order.
//
// What an operation has written on other ranks may be read there after the next peer_barrier, and written once more
// after the barrier that follows the reading.
//
// max_blocks: the most blocks that an operation's kernel may have, each of which takes up to a whole multiprocessor, so
// that other work can run beside it; 0: as many as the device has multiprocessors, for sums a few times that. The CPU
// ignores it.
#pragma once

#include "base/error.h"
#include "ops/contracts/quantize.h"
#include "ops/peers.h"
#include "tensor/tensor.h"

namespace nmoe {

// max_blocks of kernels that move data between ranks beside other work: few enough to leave multiprocessors to
// products, and enough for sends to reach nine tenths of the link's bandwidth.
inline constexpr int64_t kBlocksBeside = 16;

// A barrier of all ranks of the domain, after which each sees what the others wrote before it. A rank that has waited
// for another for longer than that one's patience, counted from when it was set, notes this in its report, makes every
// rank give up and lets the lane go on: what follows computes on undefined values, and the host throws when it reads
// the report. On the CPU the call itself throws.
struct PeerBarrier {
  const Peers& peers;
  PeerPlace place = {};  // for the report
  Tensor waited = {};    // [1] f64 += nanoseconds, by the device's clock, from this rank's arrival to the last one's
};

// Which tokens go to which rank.
struct ExchangePlan {
  Tensor send_row;   // [T, W] i32: the token's row among those sent to a rank, in the order of tokens; -1: not sent
  Tensor num_sent;   // [W] i32 rows sent to a rank
  Tensor placement;  // [E] i32: an expert's rank times U, plus its slot there
  int64_t num_slots = 0;  // U
};
struct BuildExchangePlan {
  Tensor top_idx;       // [T, K] i32
  ExchangePlan plan;    // send_row, num_sent =
  Tensor counts;        // [E] i32 += copies for each expert; undefined: not wanted
  Tensor traffic = {};  // [2, W] i32 += rows, then copies, for each rank; undefined: not wanted
};

// The tokens that a rank receives: those from rank w are the first rows of part w.
struct ExchangeInbox {
  Tensor rows;          // [W, M, D]; undefined: codes are received
  Tensor slots;         // [W, M, K] i32: the slot of a choice's expert; -1: it is on another rank
  Tensor weights;       // [W, M, K] stat, of all choices
  Tensor counts;        // [W] i32 rows received
  Tensor tokens;        // [W, M] i32: the index of a row's token on the rank it is from; undefined: not wanted
  RowCodes codes = {};  // [W * M, D], instead of rows
};
// Puts each token into the inboxes of the ranks that have its experts.
struct ExchangeSend {
  const Peers& peers;
  ExchangePlan plan;
  Tensor x;             // [T, D]; undefined: codes are sent instead
  Tensor top_idx;       // [T, K] i32; undefined: rows only, the rest was sent with them before
  Tensor weights;       // [T, K] stat; with top_idx
  ExchangeInbox inbox;  // = on other ranks and this one
  // loads [W] i32: tokens are sent to ranks with loads[w] > room only; undefined: to all.
  Tensor loads = {};
  int64_t room = 0;
  int64_t max_blocks = 0;
  RowCodes codes = {};  // [T, D], instead of x, for an inbox of codes
};

// What is returned to a rank for its tokens: by rank w in part w, in the rows in which they were sent there.
struct ExchangeReturns {
  Tensor rows;     // [W, M, D]
  Tensor weights;  // [W, M, K] stat
};
// Returns the sum of each received token's rows, in the order of its choices, to the rank that the token is from. A
// rank's own tokens need no return (OwnRows), unless there are more than R rows.
struct ExchangeReturn {
  const Peers& peers;
  Tensor rows;              // [R, D]
  Tensor row_weight;        // [R] stat, returned for each copy as it is; undefined: not returned
  Tensor row_of;            // [W * M, K] i32, of the received tokens (contracts/moe.h)
  Tensor counts;            // [W] i32, of the inbox
  ExchangeReturns returns;  // = on other ranks and this one
  // For a part of the rows, that begins at row first_row of all, from which row_of counts: its sums are added to those
  // that were returned for the rows before, and rounded once with them. num_rows [1] i32 is the number of the part's
  // rows; where it is 0, the operation ends at once.
  int64_t first_row = 0;
  Tensor num_rows = {};  // with first_row
  // [1] i32 rows of the layer; undefined: at most R. With first_row, more than R wherever num_rows is not 0.
  Tensor all_rows = {};
  int64_t max_blocks = 0;
};
// The rows of this rank's own tokens, with members as in ExchangeReturn: where there are at most R rows,
// ExchangeCollect reads them directly.
struct OwnRows {
  int64_t rank;
  Tensor rows;        // [R, D]
  Tensor row_weight;  // [R] stat; undefined: not wanted
  Tensor row_of;      // [M, K] i32, of the tokens received from this rank itself
  Tensor all_rows = {};
};
// Sums what the ranks have returned for each token, in the order of ranks.
struct ExchangeCollect {
  ExchangePlan plan;
  Tensor top_idx;  // [T, K] i32; for weights
  OwnRows own;
  ExchangeReturns returns;
  Tensor y;  // = [T, D]
  bool accumulate = false;
  Tensor weights;  // = [T, K] stat: the row_weight of its copies; undefined: not wanted
};

// Returns the row of each received copy by itself, to the place of its choice. All choices of a token are returned.
struct ExchangeReturnCopies {
  const Peers& peers;
  Tensor rows;        // [W, C, D]: of rank w's tokens in part w
  Tensor row_weight;  // [W, C] stat, returned likewise; undefined: not returned
  Tensor row_of;      // [W, M, K] i32, of the received tokens within their part; -1: none
  Tensor tokens;      // [W, M] i32, of the inbox
  Tensor counts;      // [W] i32, of the inbox
  Tensor copies;      // [M, K, D] = on other ranks and this one
  Tensor weights;     // [M, K] stat =; with row_weight
  int64_t max_blocks = 0;
};

// The sum of the elements [begin, end) of all ranks' flattened tensors `x`: rank 0's value, plus rank 1's and so on,
// with `accumulate` to what is in the destination, each addition rounded to the dtype (F32, F64 or I32).
struct PeerSum {
  const Peers& peers;
  Tensor x;  // shared
  int64_t begin = 0, end = 0;
  Tensor sum = {};  // = [end - begin], or += ; undefined: = these elements of this rank's x
  bool accumulate = false;
  int64_t max_blocks = 0;
};
// Those elements of every rank's `x` become this rank's. Any dtype.
struct PeerSpread {
  const Peers& peers;
  Tensor x;  // shared
  int64_t begin = 0, end = 0;
};

// What rank `rank` has in its counterpart of `x`.
struct PeerFetch {
  const Peers& peers;
  int64_t rank;
  Tensor x;            // shared
  Tensor destination;  // = as large, anywhere on this rank
};

// What both devices check of the above.
inline void check_exchange_plan(const BuildExchangePlan& args) {
  const int64_t T = args.top_idx.dim(0), E = args.plan.placement.dim(0), W = args.plan.num_sent.dim(0);
  NMOE_CHECK(args.plan.send_row.shape() == Shape({T, W}) && args.plan.num_slots * W >= E &&
                 (!args.counts.defined() || args.counts.dim(0) == E) &&
                 (!args.traffic.defined() || args.traffic.shape() == Shape({2, W})),
             "plan of {} choices over {} experts in {} slots of {} ranks: send_row {}, counts {}, traffic {}",
             args.top_idx.shape(), E, args.plan.num_slots, W, args.plan.send_row.shape(), args.counts.shape(),
             args.traffic.shape());
}

inline void check_exchange_send(const ExchangeSend& args) {
  const ExchangeInbox& inbox = args.inbox;
  const bool as_codes = args.codes.defined();
  NMOE_CHECK(as_codes != args.x.defined() && as_codes == inbox.codes.defined() && as_codes != inbox.rows.defined(),
             "sending {} of rows and {} of codes", args.x.shape(), args.codes.values.shape());
  const Tensor x = as_codes ? args.codes.values : args.x, rows = as_codes ? inbox.codes.values : inbox.rows;
  const int64_t T = x.dim(0), D = x.dim(1), W = args.peers.count(), M = inbox.slots.dim(1);
  NMOE_CHECK(T <= M && rows.num_elements() == W * M * D && rows.dim(-1) == D && rows.dtype() == x.dtype() &&
                 args.plan.send_row.shape() == Shape({T, W}),
             "sending {} {} by {} into {} {}", dtype_name(x.dtype()), x.shape(), args.plan.send_row.shape(),
             dtype_name(rows.dtype()), rows.shape());
  if (as_codes) check_row_codes(args.codes, {T, D}), check_row_codes(inbox.codes, {W * M, D});
  NMOE_CHECK(!args.loads.defined() || args.loads.shape() == Shape({W}), "sending by loads {}", args.loads.shape());
  if (!args.top_idx.defined()) return;
  const Shape choices({W, M, args.top_idx.dim(1)});
  NMOE_CHECK(args.weights.shape() == args.top_idx.shape() && inbox.slots.shape() == choices &&
                 inbox.weights.shape() == choices && inbox.counts.dim(0) == W,
             "sending choices {} and weights {} into {}, {} and {}", args.top_idx.shape(), args.weights.shape(),
             inbox.slots.shape(), inbox.weights.shape(), inbox.counts.shape());
}

inline void check_exchange_return(const ExchangeReturn& args) {
  const ExchangeReturns& returns = args.returns;
  const int64_t W = args.peers.count(), M = returns.rows.dim(1), K = args.row_of.dim(1);
  NMOE_CHECK(returns.rows.shape() == Shape({W, M, args.rows.dim(1)}) && returns.rows.dtype() == args.rows.dtype() &&
                 args.row_of.shape() == Shape({W * M, K}) && args.counts.dim(0) == W &&
                 (!args.row_weight.defined() || returns.weights.shape() == Shape({W, M, K})),
             "returning {} {} by {} into {} {}", dtype_name(args.rows.dtype()), args.rows.shape(), args.row_of.shape(),
             dtype_name(returns.rows.dtype()), returns.rows.shape());
  NMOE_CHECK((args.first_row > 0) == args.num_rows.defined(), "returning rows from {} on, as many as {} says",
             args.first_row, args.num_rows.shape());
}

inline void check_exchange_return_copies(const ExchangeReturnCopies& args) {
  const int64_t W = args.peers.count(), C = args.rows.dim(1), D = args.rows.dim(2), M = args.tokens.dim(1),
                K = args.row_of.dim(2);
  NMOE_CHECK(args.rows.dim(0) == W && args.row_of.shape() == Shape({W, M, K}) && args.tokens.dim(0) == W &&
                 args.counts.dim(0) == W && args.copies.shape() == Shape({M, K, D}) &&
                 args.copies.dtype() == args.rows.dtype() &&
                 (!args.row_weight.defined() ||
                  (args.row_weight.shape() == Shape({W, C}) && args.weights.shape() == Shape({M, K}))),
             "returning copies {} {} by {} of tokens {} into {} {}", dtype_name(args.rows.dtype()), args.rows.shape(),
             args.row_of.shape(), args.tokens.shape(), dtype_name(args.copies.dtype()), args.copies.shape());
}

inline void check_exchange_collect(const ExchangeCollect& args) {
  const int64_t T = args.y.dim(0), W = args.plan.num_sent.dim(0), M = args.returns.rows.dim(1);
  NMOE_CHECK(T <= M && args.returns.rows.shape() == Shape({W, M, args.y.dim(1)}) &&
                 args.returns.rows.dtype() == args.y.dtype() && args.plan.send_row.shape() == Shape({T, W}) &&
                 args.top_idx.dim(0) == T && (!args.weights.defined() || args.weights.shape() == args.top_idx.shape()),
             "collecting {} {} by {} from {} {}", dtype_name(args.y.dtype()), args.y.shape(),
             args.plan.send_row.shape(), dtype_name(args.returns.rows.dtype()), args.returns.rows.shape());
  const OwnRows& own = args.own;
  NMOE_CHECK(own.rank >= 0 && own.rank < W && own.rows.dim(1) == args.y.dim(1) && own.rows.dtype() == args.y.dtype() &&
                 own.row_of.shape() == Shape({M, args.top_idx.dim(1)}) &&
                 args.weights.defined() == own.row_weight.defined(),
             "collecting {} of rank {}'s own {} {} by {}", args.y.shape(), own.rank, dtype_name(own.rows.dtype()),
             own.rows.shape(), own.row_of.shape());
}

inline void check_peer_sum(const PeerSum& args) {
  NMOE_CHECK(args.sum.defined() ? args.sum.num_elements() == args.end - args.begin && args.sum.dtype() == args.x.dtype()
                                : !args.accumulate,
             "sum of elements [{}, {}) of {} into {}", args.begin, args.end, args.x.shape(), args.sum.shape());
}

inline void check_peer_range(const Tensor& x, int64_t begin, int64_t end) {
  NMOE_CHECK(begin >= 0 && begin <= end && end <= x.num_elements(), "elements [{}, {}) of {}", begin, end, x.shape());
}

inline void check_peer_fetch(const PeerFetch& args) {
  NMOE_CHECK(args.x.dtype() == args.destination.dtype() && args.x.num_elements() == args.destination.num_elements(),
             "fetching {} {} into {} {}", dtype_name(args.x.dtype()), args.x.shape(),
             dtype_name(args.destination.dtype()), args.destination.shape());
}

}  // namespace nmoe
