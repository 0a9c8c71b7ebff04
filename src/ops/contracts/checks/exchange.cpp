#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"
#include "ops/peers.h"

namespace nmoe {

namespace {

void check_range(const Tensor& x, int64_t begin, int64_t end) {
  NMOE_CHECK(begin >= 0 && begin <= end && end <= x.num_elements(), "elements [{}, {}) of {}", begin, end, x.shape());
}

}  // namespace

void check(const PeerBarrier& args) {
  NMOE_CHECK(is_one_if_defined(args.waited, DType::kF64), "time waited in {} {}", dtype_name(args.waited.dtype()),
             args.waited.shape());
}

void check(const BuildExchangePlan& args) {
  const int64_t T = args.top_idx.dim(0), E = args.plan.placement.dim(0), W = args.plan.num_sent.dim(0);
  NMOE_CHECK(args.plan.send_row.shape() == Shape({T, W}) && args.plan.num_slots * W >= E &&
                 (!args.counts.defined() || args.counts.dim(0) == E) &&
                 (!args.traffic.defined() || args.traffic.shape() == Shape({2, W})),
             "plan of {} choices over {} experts in {} slots of {} ranks: send_row {}, counts {}, traffic {}",
             args.top_idx.shape(), E, args.plan.num_slots, W, args.plan.send_row.shape(), args.counts.shape(),
             args.traffic.shape());
}

void check(const ExchangeSend& args) {
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
  check_codes(args.codes, {T, D});
  check_codes(inbox.codes, {W * M, D});
  NMOE_CHECK(!args.loads.defined() || args.loads.shape() == Shape({W}), "sending by loads {}", args.loads.shape());
  if (!args.top_idx.defined()) return;
  const Shape choices({W, M, args.top_idx.dim(1)});
  NMOE_CHECK(args.weights.shape() == args.top_idx.shape() && inbox.slots.shape() == choices &&
                 inbox.weights.shape() == choices && inbox.counts.dim(0) == W,
             "sending choices {} and weights {} into {}, {} and {}", args.top_idx.shape(), args.weights.shape(),
             inbox.slots.shape(), inbox.weights.shape(), inbox.counts.shape());
}

void check(const ExchangeReturn& args) {
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

void check(const ExchangeReturnCopies& args) {
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

void check(const ExchangeCollect& args) {
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

void check(const PeerSum& args) {
  check_range(args.x, args.begin, args.end);
  const DType dtype = args.x.dtype();
  NMOE_CHECK(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32, "a sum over ranks of {}",
             dtype_name(dtype));
  NMOE_CHECK(args.sum.defined() ? args.sum.num_elements() == args.end - args.begin && args.sum.dtype() == dtype
                                : !args.accumulate,
             "sum of elements [{}, {}) of {} into {}", args.begin, args.end, args.x.shape(), args.sum.shape());
}

void check(const PeerSpread& args) { check_range(args.x, args.begin, args.end); }

void check(const PeerFetch& args) {
  NMOE_CHECK(args.x.dtype() == args.destination.dtype() && args.x.num_elements() == args.destination.num_elements(),
             "fetching {} {} into {} {}", dtype_name(args.x.dtype()), args.x.shape(),
             dtype_name(args.destination.dtype()), args.destination.shape());
  NMOE_CHECK(args.rank >= 0 && args.rank < args.peers.count(), "fetching from rank {} of {}", args.rank,
             args.peers.count());
}

}  // namespace nmoe
