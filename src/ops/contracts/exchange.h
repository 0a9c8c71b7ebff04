// How the ranks of a domain exchange rows and sums by writing into each other's memory
// (ops/peers.h). Letters and conventions: ops/ops.h. In addition: W ranks, M the largest number of
// tokens of a rank, U slots for experts on a rank.
//
// A token is sent once to each rank that has at least one of its experts. There it is copied to its rows as on a single
// rank (contracts/moe.h); its output rows are summed on that rank, and one row is returned. The place of every row
// follows from the routing alone, so nothing is counted with atomics, and every sum has a fixed order.
//
// What an operation has written on other ranks may be read there after the next peer_barrier, and overwritten after the
// barrier that follows the reading.
//
// max_blocks: the largest number of thread blocks of an operation's kernel, each of which takes up to a whole
// multiprocessor, so that other work can run at the same time. 0: as many as the device has multiprocessors, or, for
// sums, a few times as many. The CPU ignores it.
#pragma once

#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

class Peers;

// max_blocks of kernels that move data between ranks while other work runs: few enough to leave multiprocessors to
// products, and enough for sends to reach 90 % of the link's bandwidth.
inline constexpr int64_t kBlocksBeside = 16;

// What a barrier is for, for the report if one is waited in for too long.
enum class PeerWork { kOther, kDispatch, kCombine, kCombineBackward, kDispatchBackward, kSum, kGather };
struct PeerPlace {
  PeerWork work = PeerWork::kOther;
  int64_t layer = -1;  // of the model; none: -1
};

// A barrier of all ranks of the domain, after which each sees what the others wrote before it. If a rank waits for
// another for longer than that rank's patience (ops/peers.h), counted from when it was set, it records this in its
// report, makes every rank give up, and lets the lane continue: what follows computes on undefined values, and the host
// throws when it reads the report. On the CPU the call itself throws.
struct PeerBarrier {
  const Peers& peers;
  PeerPlace place = {};  // for the report
  Tensor waited = {};    // [1] f64 += nanoseconds, by the device's clock, from this rank's arrival to the last one's
};

// Which tokens go to which rank.
struct ExchangePlan {
  Tensor send_row;   // [T, W] i32: the token's row among those sent to a rank, in the order of tokens; -1: not sent
  Tensor num_sent;   // [W] i32: rows sent to a rank
  Tensor placement;  // [E] i32: an expert's rank times U, plus its slot there
  int64_t num_slots = 0;  // U
};
struct BuildExchangePlan {
  Tensor top_idx;       // [T, K] i32
  ExchangePlan plan;    // send_row, num_sent =
  Tensor counts;        // [E] i32 += copies for each expert; undefined: not wanted
  Tensor traffic = {};  // [2, W] i32 += rows, then copies, for each rank; undefined: not wanted
};

// The tokens that a rank receives: those from rank w are at the beginning of part w.
struct ExchangeInbox {
  Tensor rows;          // [W, M, D]; undefined: codes are received
  Tensor slots;         // [W, M, K] i32: the slot of each chosen expert; -1: it is on another rank
  Tensor weights;       // [W, M, K] stat, of all choices
  Tensor counts;        // [W] i32: rows received
  Tensor tokens;        // [W, M] i32: the index of a row's token on its own rank; undefined: not wanted
  RowCodes codes = {};  // [W * M, D], instead of rows
};
// Tokens, each for the inboxes of the ranks that have its experts.
struct TokensToSend {
  ExchangePlan plan;
  Tensor x;             // [T, D]; undefined: codes are sent instead
  Tensor top_idx;       // [T, K] i32; undefined: only rows are sent, the rest was sent before
  Tensor weights;       // [T, K] stat; with top_idx
  ExchangeInbox inbox;  // = on other ranks and this one
  // [W] i32: tokens are sent only to ranks with loads[w] > room; undefined: to all.
  Tensor loads = {};
  int64_t room = 0;
  int64_t max_blocks = 0;
  RowCodes codes = {};  // [T, D], instead of x, for an inbox of codes
};
struct ExchangeSend : TokensToSend {
  const Peers& peers;
};

// What is returned to a rank for its tokens: by rank w in part w, in the rows in which they were sent to rank w.
struct ExchangeReturns {
  Tensor rows;     // [W, M, D]
  Tensor weights;  // [W, M, K] stat
};
// The sum of each received token's rows, in the order of its choices, for the token's own rank. A rank returns nothing
// for its own tokens (OwnRows), unless there are more than R rows.
struct SumsToReturn {
  Tensor rows;              // [R, D]
  Tensor row_weight;        // [R] stat, returned unchanged for each copy; undefined: not returned
  Tensor row_of;            // [W * M, K] i32, of the received tokens (contracts/moe.h)
  Tensor counts;            // [W] i32, of the inbox
  ExchangeReturns returns;  // = on other ranks and this one
  // If not 0, `rows` are a part of all rows, which begins at row first_row; row_of counts from the first row of all.
  // The part's sums are added to those returned for the rows before it, and rounded once with them. num_rows [1] i32 is
  // the number of rows in the part; if it is 0, the operation does nothing.
  int64_t first_row = 0;
  Tensor num_rows = {};  // with first_row
  // [1] i32: the layer's rows; undefined: at most R. With first_row, more than R unless num_rows is 0.
  Tensor all_rows = {};
  int64_t max_blocks = 0;
};
struct ExchangeReturn : SumsToReturn {
  const Peers& peers;
};
// The rows of this rank's own tokens, with members as in ExchangeReturn: if there are at
// most R rows, ExchangeCollect reads them directly.
struct OwnRows {
  int64_t rank;
  Tensor rows;        // [R, D]
  Tensor row_weight;  // [R] stat; undefined: not wanted
  Tensor row_of;      // [M, K] i32, of this rank's own tokens
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
  Tensor weights;  // = [T, K] stat: row_weight of each copy; undefined: not wanted
};

// Each copy's row by itself, for the place of its token and choice. All choices of a token are returned.
struct CopiesToReturn {
  Tensor rows;        // [W, C, D]: rows of rank w's tokens in part w
  Tensor row_weight;  // [W, C] stat, returned in the same way; undefined: not returned
  Tensor row_of;      // [W, M, K] i32, of the received tokens within their part; -1: none
  Tensor tokens;      // [W, M] i32, of the inbox
  Tensor counts;      // [W] i32, of the inbox
  Tensor copies;      // [M, K, D] = on other ranks and this one
  Tensor weights;     // [M, K] stat =; with row_weight
  int64_t max_blocks = 0;
};
struct ExchangeReturnCopies : CopiesToReturn {
  const Peers& peers;
};

// The sum of the elements [begin, end) of all ranks' flattened tensors `x`: rank 0's value, plus rank 1's and so on,
// each addition rounded to the dtype (F32, F64 or I32). With `accumulate`, the destination's value comes first.
struct PeerSum {
  const Peers& peers;
  Tensor x;  // shared
  int64_t begin = 0, end = 0;
  Tensor sum = {};  // = or += [end - begin]; undefined: written to these elements of this rank's x
  bool accumulate = false;
  int64_t max_blocks = 0;
};
// Copies these elements of this rank's `x` to every other rank's. Any dtype.
struct PeerSpread {
  const Peers& peers;
  Tensor x;  // shared
  int64_t begin = 0, end = 0;
};

// Copies the contents of rank `rank`'s counterpart of `x`.
struct PeerFetch {
  const Peers& peers;
  int64_t rank;
  Tensor x;            // shared
  Tensor destination;  // = of the same size, anywhere on this rank
};

}  // namespace nmoe
