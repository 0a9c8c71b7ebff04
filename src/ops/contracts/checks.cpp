// What the contracts' checks say of arguments, for every device.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/contracts/across.h"
#include "ops/contracts/activation.h"
#include "ops/contracts/attention.h"
#include "ops/contracts/cache.h"
#include "ops/contracts/exchange.h"
#include "ops/contracts/linear.h"
#include "ops/contracts/measure_product.h"
#include "ops/contracts/moe.h"
#include "ops/contracts/optimizer.h"
#include "ops/contracts/quantize.h"
#include "ops/contracts/router.h"
#include "ops/contracts/tensor.h"
#include "ops/peers.h"

namespace nmoe {
namespace {

void check_blocks(OperandFormat format, BlockShape blocks) {
  NMOE_CHECK(format != OperandFormat::kAct && !(blocks == BlockShape::kTiles && format == OperandFormat::kMxFp8),
             "there are no such blocks");
}

}  // namespace

void check_sums_of_squares(const SumsOfSquares& args) {
  std::vector<const void*> outs;
  for (const SumOfSquares& one : args.all) {
    if (outs.empty() || outs.back() != one.out.raw()) outs.push_back(one.out.raw());
  }
  std::ranges::sort(outs);
  NMOE_CHECK(std::ranges::adjacent_find(outs) == outs.end(), "squares of {} tensors, those of a sum not together",
             args.all.size());
}

void check_row_codes(const RowCodes& codes, const Shape& rows) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  NMOE_CHECK(codes.values.shape() == rows && codes.scales.shape() == Shape({rows[0], (rows[1] + n - 1) / n}),
             "codes {} with scales {} of rows {}", codes.values.shape(), codes.scales.shape(), rows);
}

void check_abs_max(const AbsMax& args) {
  NMOE_CHECK(args.x.shape().rank() == 3 && args.amax.shape() == Shape({args.x.dim(0)}) &&
                 (!args.num_rows.defined() || args.x.dim(0) == 1),
             "largest magnitudes {} of {}", args.amax.shape(), args.x.shape());
}

void check_measure_rounding(const MeasureRounding& args) {
  const bool tiles = args.blocks == BlockShape::kTiles;
  NMOE_CHECK(args.x.shape().rank() == 3 && args.counts.shape() == Shape({5}) && args.counts.dtype() == DType::kF64,
             "counts {} of {}", args.counts.shape(), args.x.shape());
  check_blocks(args.format, args.blocks);
  NMOE_CHECK(args.offsets.defined() ? args.x.dim(0) == 1 && !tiles : !args.index.defined(),
             "experts' rows, or picked ones, of {} matrices", args.x.dim(0));
}

void check_quantize(const Quantize& args) {
  NMOE_CHECK(args.x.shape().rank() == 3, "rounding of {}", args.x.shape());
  const int64_t G = args.x.dim(0), N = args.x.dim(1), C = args.x.dim(2), n = block_size(args.format);
  const bool is_nvfp4 = args.format == OperandFormat::kNvFp4, tiles = args.blocks == BlockShape::kTiles;
  check_blocks(args.format, args.blocks);
  NMOE_CHECK(args.amax.defined() == is_nvfp4 && (!is_nvfp4 || args.amax.shape() == Shape({G})),
             "NVFP4 alone has a scale of the tensor, from its largest magnitude");
  NMOE_CHECK(!args.random.key.defined() || (is_nvfp4 && !tiles), "E2M1 in rows alone is rounded at random");
  NMOE_CHECK(!args.num_rows.defined() || (G == 1 && !tiles), "a number of rows for {} matrices", G);
  const int64_t across = (C + n - 1) / n;
  NMOE_CHECK(args.values.shape() == Shape({G, N, is_nvfp4 ? (C + 1) / 2 : C}) &&
                 args.scales.shape() == Shape({G, tiles ? (N + n - 1) / n : N, across}),
             "values {} and scales {} of {}", args.values.shape(), args.scales.shape(), args.x.shape());
  if (!args.transposed_values.defined()) return;
  NMOE_CHECK(args.format == OperandFormat::kFp8 && tiles && args.transposed_values.shape() == Shape({G, C, N}) &&
                 args.transposed_scales.shape() == Shape({G, across, (N + n - 1) / n}),
             "transposed values {} and scales {} of {}", args.transposed_values.shape(), args.transposed_scales.shape(),
             args.x.shape());
}

void check_adamw_step(const AdamWStep& args) {
  const int64_t size = args.w.num_elements();
  NMOE_CHECK(args.grad.num_elements() == size && args.m.num_elements() == size && args.v.num_elements() == size,
             "AdamW of w {}, grad {}, m {}, v {}", args.w.shape(), args.grad.shape(), args.m.shape(), args.v.shape());
  NMOE_CHECK(args.rates.num_elements() == 3, "AdamW with {} rates", args.rates.num_elements());
  NMOE_CHECK(args.m.dtype() == args.v.dtype() && (args.m.dtype() == DType::kBF16) == args.random.key.defined(),
             "AdamW of moments in {} and {}, {} random bits", dtype_name(args.m.dtype()), dtype_name(args.v.dtype()),
             args.random.key.defined() ? "with" : "without");
  const Tensor& matrices = args.random.matrices;
  NMOE_CHECK(!matrices.defined() || (size % matrices.num_elements() == 0 && args.random.first == 0),
             "AdamW of {} elements from {} on, in {} matrices", size, args.random.first, matrices.shape());
}

void check_codes(const OperandRounding& rounding, const OperandRows& rows) {
  if (!rounding.rows.defined()) return;
  check_row_codes(rounding.rows, rows.source.shape());
  NMOE_CHECK(!rows.index.defined() || (rows.row_of.defined() && rows.row_of.dim(0) == rows.source.dim(0)),
             "codes of {}, of which rows are picked, with row_of {}", rows.source.shape(), rows.row_of.shape());
}

void check_measure_product(const MeasureProduct& args) {
  const Shape& w = args.w.shape();
  NMOE_CHECK(w.rank() == 3 && args.x.source.shape().rank() == 2 && args.x.width() == w[args.over_out ? 1 : 2] &&
                 args.counts.shape() == Shape({5}) && args.counts.dtype() == DType::kF64,
             "counts {} of rows {} through {}", args.counts.shape(), args.x.source.shape(), w);
  NMOE_CHECK(args.offsets.defined() ? args.offsets.shape() == Shape({w[0] + 1}) : w[0] == 1, "{} matrices", w[0]);
  NMOE_CHECK(args.format != OperandFormat::kAct, "there are no such blocks");
}

void check_leaves_result(const ActivationForward& args) {
  NMOE_CHECK(args.keeps_h || args.h_codes.defined(), "an activation that leaves neither values nor codes");
  NMOE_CHECK(!(args.pre_codes.defined() && args.h_columns.defined()), "codes of pre-activations beside columns");
}

void check(const TreeAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), G = args.k.dim(1);
  NMOE_CHECK(G > 0 && H % G == 0 && args.k.shape() == Shape({T, G, args.q.dim(2)}) &&
                 args.v.shape() == Shape({T, G, args.v.dim(2)}) && args.out.shape() == Shape({T, H, args.v.dim(2)}) &&
                 args.positions.shape() == Shape({T}) && args.bounds.dim(0) >= 2 &&
                 args.parents.shape() == args.bounds.shape(),
             "attention of q {} to k {} and v {}, out {}: positions {}, bounds {}, parents {}", args.q.shape(),
             args.k.shape(), args.v.shape(), args.out.shape(), args.positions.shape(), args.bounds.shape(),
             args.parents.shape());
}

MlaSizes mla_sizes(const MlaCachedAttention& args) {
  const MlaSizes sizes{.tokens = args.q.dim(0),
                       .heads = args.q.dim(1),
                       .nope = args.q.dim(2) - args.k_rope.dim(1),
                       .rope = args.k_rope.dim(1),
                       .rank = args.kv_latent.dim(1),
                       .value = args.out.dim(2)};
  const auto& [T, H, nope, rope, rank, value] = sizes;
  NMOE_CHECK(nope >= 0 && args.kv_latent.dim(0) == T && args.k_rope.dim(0) == T && args.gain.dim(0) == rank &&
                 args.cos.dim(1) * 2 == rope && args.sin.shape() == args.cos.shape() && args.slots.dim(0) == T &&
                 args.positions.dim(0) == T && args.kv_up.shape() == Shape({H * (nope + value), rank}) &&
                 args.cache.dim(2) == rank + rope && args.out.dim(0) == T && args.out.dim(1) == H,
             "MLA of q {}, latents {}, keys {} with {} over a cache {} to {}", args.q.shape(), args.kv_latent.shape(),
             args.k_rope.shape(), args.kv_up.shape(), args.cache.shape(), args.out.shape());
  return sizes;
}

void check_router(const RouterRule& rule, Tensor logits, Tensor top_idx, Tensor weights) {
  const int64_t num_tokens = logits.dim(0), num_experts = logits.dim(1);
  NMOE_CHECK(top_idx.shape() == Shape({num_tokens, rule.top_k}) && weights.shape() == top_idx.shape(),
             "router of logits {}, top_k {}: top_idx {}, weights {}", logits.shape(), rule.top_k, top_idx.shape(),
             weights.shape());
  NMOE_CHECK(rule.num_groups >= 1 && num_experts % rule.num_groups == 0 && rule.top_groups >= 1 &&
                 rule.top_groups <= rule.num_groups && rule.top_k >= 1 &&
                 rule.top_k <= rule.top_groups * (num_experts / rule.num_groups),
             "top_k {} in {} of {} groups of {} experts", rule.top_k, rule.top_groups, rule.num_groups, num_experts);
}

void check_moe_dispatch(const MoeDispatch& args) {
  NMOE_CHECK(args.x.defined() != args.codes.defined(), "dispatch of tokens {} and of codes {}", args.x.shape(),
             args.codes.values.shape());
  const Tensor& tokens = args.x.defined() ? args.x : args.codes.values;
  const int64_t T = tokens.dim(0), D = tokens.dim(1);
  NMOE_CHECK(args.plan.row_of.dim(0) == T && args.rows.dim(1) == D, "dispatch of {} tokens of {} by {} to rows {}", T,
             D, args.plan.row_of.shape(), args.rows.shape());
  if (args.codes.defined()) check_row_codes(args.codes, {T, D});
  if (args.row_codes.defined()) check_row_codes(args.row_codes, args.rows.shape());
  NMOE_CHECK(args.codes.defined() || !args.row_codes.defined(), "codes of rows {} of tokens that have none",
             args.rows.shape());
}

void check_divide_moe_rows(const DivideMoeRows& args) {
  NMOE_CHECK(args.parts.dim(1) == args.offsets.dim(0) && args.capacity >= 0 && args.chunk >= 0 &&
                 (args.chunk > 0 || args.parts.dim(0) <= 1),
             "rows by offsets {} in parts {} of {} and {} rows", args.offsets.shape(), args.parts.shape(),
             args.capacity, args.chunk);
}

void check_exchange_plan(const BuildExchangePlan& args) {
  const int64_t T = args.top_idx.dim(0), E = args.plan.placement.dim(0), W = args.plan.num_sent.dim(0);
  NMOE_CHECK(args.plan.send_row.shape() == Shape({T, W}) && args.plan.num_slots * W >= E &&
                 (!args.counts.defined() || args.counts.dim(0) == E) &&
                 (!args.traffic.defined() || args.traffic.shape() == Shape({2, W})),
             "plan of {} choices over {} experts in {} slots of {} ranks: send_row {}, counts {}, traffic {}",
             args.top_idx.shape(), E, args.plan.num_slots, W, args.plan.send_row.shape(), args.counts.shape(),
             args.traffic.shape());
}

void check_exchange_send(const ExchangeSend& args) {
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

void check_exchange_return(const ExchangeReturn& args) {
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

void check_exchange_return_copies(const ExchangeReturnCopies& args) {
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

void check_exchange_collect(const ExchangeCollect& args) {
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

void check_peer_sum(const PeerSum& args) {
  NMOE_CHECK(args.sum.defined() ? args.sum.num_elements() == args.end - args.begin && args.sum.dtype() == args.x.dtype()
                                : !args.accumulate,
             "sum of elements [{}, {}) of {} into {}", args.begin, args.end, args.x.shape(), args.sum.shape());
}

void check_peer_range(const Tensor& x, int64_t begin, int64_t end) {
  NMOE_CHECK(begin >= 0 && begin <= end && end <= x.num_elements(), "elements [{}, {}) of {}", begin, end, x.shape());
}

void check_peer_fetch(const PeerFetch& args) {
  NMOE_CHECK(args.x.dtype() == args.destination.dtype() && args.x.num_elements() == args.destination.num_elements(),
             "fetching {} {} into {} {}", dtype_name(args.x.dtype()), args.x.shape(),
             dtype_name(args.destination.dtype()), args.destination.shape());
}

void check_sum_across(const SumAcross& args) {
  for (const Tensor& tensor : args.tensors) {
    const DType dtype = tensor.dtype();
    NMOE_CHECK(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32, "a sum over domains of {}",
               dtype_name(dtype));
  }
}

}  // namespace nmoe
