#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// A weight, its gradient and the scalars of its step.
void check_trained(const char* optimizer, const Tensor& w, const Tensor& low, const Tensor& grad,
                   const Tensor& grad_scale) {
  NMOE_CHECK(is_stat(grad.dtype()) && grad.num_elements() == w.num_elements() && is_one(grad_scale, DType::kF64),
             "{} of w {}, grad {} {}, scaled by {}", optimizer, w.shape(), dtype_name(grad.dtype()), grad.shape(),
             grad_scale.shape());
  NMOE_CHECK(w.dtype() == DType::kBF16 ? low.dtype() == DType::kI16 && low.num_elements() == w.num_elements()
                                       : is_stat(w.dtype()) && !low.defined(),
             "{} of w {} {} with a low part {}", optimizer, dtype_name(w.dtype()), w.shape(), low.shape());
}

void check_step(const AdamWStep& args) {
  check_trained("AdamW", args.w, args.low, args.grad, args.grad_scale);
  const int64_t size = args.w.num_elements();
  NMOE_CHECK(args.m.num_elements() == size && args.v.num_elements() == size, "AdamW of w {}, m {}, v {}",
             args.w.shape(), args.m.shape(), args.v.shape());
  NMOE_CHECK(args.rates.dtype() == DType::kF64 && args.rates.num_elements() == 3, "AdamW with {} rates",
             args.rates.num_elements());
  NMOE_CHECK(args.m.dtype() == args.v.dtype() && (args.m.dtype() == DType::kBF16) == args.random.key.defined(),
             "AdamW of moments in {} and {}, {} random bits", dtype_name(args.m.dtype()), dtype_name(args.v.dtype()),
             args.random.key.defined() ? "with" : "without");
  const Tensor& matrices = args.random.matrices;
  NMOE_CHECK(!matrices.defined() || (size % matrices.num_elements() == 0 && args.random.first == 0),
             "AdamW of {} elements from {} on, in {} matrices", size, args.random.first, matrices.shape());
}

}  // namespace

void check(const AdamWSteps& args) {
  for (const AdamWStep& one : args.all) check_step(one);
}

void check(const MuonStep& args) {
  const int rank = args.w.shape().rank();
  NMOE_CHECK(rank == 2 || rank == 3, "Muon of w {}", args.w.shape());
  check_trained("Muon", args.w, args.low, args.grad, args.grad_scale);
  NMOE_CHECK(is_stat(args.momentum.dtype()) && args.momentum.num_elements() == args.w.num_elements(),
             "Muon of w {}, momentum {} {}", args.w.shape(), dtype_name(args.momentum.dtype()), args.momentum.shape());
  NMOE_CHECK(args.rates.dtype() == DType::kF64 && args.rates.num_elements() >= 1 && args.iterations >= 1,
             "Muon with {} rates, {} iterations", args.rates.num_elements(), args.iterations);
}

}  // namespace nmoe
