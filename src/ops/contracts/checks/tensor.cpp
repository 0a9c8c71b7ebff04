#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

void check(const Fill& args) { NMOE_CHECK(args.x.defined(), "nothing to fill with {}", args.value); }

void check(const FillTruncatedNormal& args) {
  NMOE_CHECK(args.x.defined() && is_stat(args.x.dtype()) && args.draws.truncation > 0, "normal numbers {} up to {}",
             dtype_name(args.x.dtype()), args.draws.truncation);
}

void check(const Copy& args) {
  NMOE_CHECK(
      args.source.dtype() == args.destination.dtype() && args.source.num_elements() == args.destination.num_elements(),
      "copy of {} {} to {} {}", dtype_name(args.source.dtype()), args.source.shape(),
      dtype_name(args.destination.dtype()), args.destination.shape());
}

namespace {

void check_weight(const Tensor& master, const Tensor& w, const Tensor& low) {
  NMOE_CHECK(is_stat(master.dtype()) && w.num_elements() == master.num_elements() &&
                 (w.dtype() == DType::kBF16 ? low.dtype() == DType::kI16 && low.num_elements() == w.num_elements()
                                            : w.dtype() == master.dtype() && !low.defined()),
             "a weight {} {} with a low part {} of a master {} {}", dtype_name(w.dtype()), w.shape(), low.shape(),
             dtype_name(master.dtype()), master.shape());
}

}  // namespace

void check(const SplitWeight& args) { check_weight(args.master, args.w, args.low); }

void check(const JoinWeight& args) { check_weight(args.master, args.w, args.low); }

void check(const AddTime& args) {
  NMOE_CHECK(is_one(args.sum, DType::kF64) && is_one(args.begun, DType::kI64), "time since {} added to {}",
             args.begun.shape(), args.sum.shape());
}

void check(const Sum& args) {
  NMOE_CHECK(is_act(args.x.dtype()) && is_one(args.out, DType::kF64), "sum of {} {} to {} {}",
             dtype_name(args.x.dtype()), args.x.shape(), dtype_name(args.out.dtype()), args.out.shape());
}

void check(const SumsOfSquares& args) {
  std::vector<const void*> outs;
  for (const SumOfSquares& one : args.all) {
    NMOE_CHECK((one.parts.defined() ? one.parts.dtype() == DType::kF64 : is_act(one.x.dtype())) &&
                   is_one(one.out, DType::kF64),
               "squares of {} {}, parts {} {}, to {} {}", dtype_name(one.x.dtype()), one.x.shape(),
               dtype_name(one.parts.dtype()), one.parts.shape(), dtype_name(one.out.dtype()), one.out.shape());
    // In a counting run nothing is anywhere, and all seems to be one sum.
    if (outs.empty() || outs.back() != one.out.raw()) outs.push_back(one.out.raw());
  }
  std::ranges::sort(outs);
  NMOE_CHECK(std::ranges::adjacent_find(outs) == outs.end(), "squares of {} tensors, those of a sum not together",
             args.all.size());
}

void check(const SumInOrder& args) {
  NMOE_CHECK(args.x.dtype() == DType::kF64 && is_one(args.out, DType::kF64) &&
                 (!args.order.defined() ||
                  (args.order.dtype() == DType::kI32 && args.order.num_elements() == args.x.num_elements())),
             "sum of {} {} in the order {} {}", dtype_name(args.x.dtype()), args.x.shape(),
             dtype_name(args.order.dtype()), args.order.shape());
}

void check(const CountNonFinite& args) {
  NMOE_CHECK(is_act(args.x.dtype()) && is_one(args.out, DType::kI32), "counts of {} {} to {} {}",
             dtype_name(args.x.dtype()), args.x.shape(), dtype_name(args.out.dtype()), args.out.shape());
}

void check(const ClipScale& args) {
  NMOE_CHECK(is_one(args.sum_squares, DType::kF64) && is_one(args.loss_sum, DType::kF64) &&
                 is_one(args.scale, DType::kF64) && is_one(args.stopped, DType::kI32) && args.max_norm >= 0,
             "clipping by squares {}, a loss {} and a norm of {}: scale {}, stopped {}", args.sum_squares.shape(),
             args.loss_sum.shape(), args.max_norm, args.scale.shape(), args.stopped.shape());
}

}  // namespace nmoe
