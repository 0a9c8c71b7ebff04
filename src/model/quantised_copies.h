// How products with a weight are rounded: in which formats, from which copies of its value, with which random bits.
//
// Copies are made at the first product of a step, once for all microbatches, since only the optimizer changes the value
// behind them. Random bits belong to a weight, a shard of the step's batch, and a number among the gradients that are
// rounded there, and so not to a number of ranks.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <map>

#include "ops/ops.h"
#include "ops/rows.h"
#include "tensor/arena.h"

namespace nmoe {

class QuantisedCopies {
 public:
  // `stream`: of the random bits, different for every weight.
  explicit QuantisedCopies(uint64_t stream) : stream_(stream) {}

  OperandFormat format = OperandFormat::kAct;       // of products with the weight (model/weight_formats.h)
  OperandFormat grad_format = OperandFormat::kAct;  // of products that give its gradient
  bool in_act = false;                              // both formats are kAct for now: a check of precision said so
  Tensor rounding_key;     // [1] i64 (RandomRounding); undefined: gradients are rounded to nearest
  bool transforms = true;  // OperandRounding::transform
  WeightCodes codes;  // for products that take codes (WeightRounding::kCodes); of joined weights, the first has them
  Tensor coded;       // [E, out, in] what codes encode: value, and weights joined to it (WeightSpec::joins_previous)

  // To be called before the first product of a step, or of a pass outside one: values may have changed.
  void restart();
  // The products that follow belong to this shard of the step's batch: shard m * W + i is the m-th microbatch of rank i
  // of W. If experts process the ranks' tokens one rank after the other, `shard` is the first rank's, and part i is
  // shard `shard` + i.
  void begin_microbatch(int64_t shard) { shard_ = shard, part_ = 0; }
  void begin_part(int64_t part) { part_ = part; }
  int64_t shard() const { return shard_ + part_; }  // of the products that follow

  // The rounding of a forward product: none in batch-invariant arithmetic. The first call since restart() enqueues what
  // makes the codes, if there are any.
  OperandRounding of_forward(Ops& ops);
  // The rounding of the product that gives the gradient of the input, and of the one that gives the weight's; experts:
  // the expert in each slot here (RandomRounding). Each call takes another stream of random bits: to be called once for
  // each product.
  OperandRounding of_input_gradient(Ops& ops, Tensor experts);
  OperandRounding of_weight_gradient(Tensor experts) { return of_gradient(grad_format, experts); }

  // Whether products of `ops` currently take rows in FP8 as codes.
  bool takes_codes(const Ops& ops) const { return codes.defined() && rounds(ops); }
  // Whether the product that gives the weight's gradient currently takes them by columns.
  bool rounds_gradient_in_fp8() const { return codes.defined() && !in_act && grad_format == OperandFormat::kFp8; }
  // Memory for rows [N, width] in FP8 that are multiplied with this weight; undefined if products take none.
  RowCodes push_codes(const Ops& ops, Arena& activations, int64_t num_rows, int64_t width) const {
    return takes_codes(ops) ? push_row_codes(activations, num_rows, width) : RowCodes{};
  }

 private:
  // Whether products of `ops` with the weight are rounded at all: batch-invariant ones are not.
  bool rounds(const Ops& ops) const { return !in_act && ops.arithmetic() != Arithmetic::kBatchInvariant; }
  OperandRounding of_gradient(OperandFormat rounded_to, Tensor experts);
  const WeightCodes& codes_now(Ops& ops);

  uint64_t stream_;
  int64_t shard_ = 0, part_ = 0;
  std::map<int64_t, uint64_t> num_rounded_;  // gradients in this step, by shard
  bool are_current_ = false;
};

}  // namespace nmoe
