#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"
#include "ops/moment_codes.h"

namespace nmoe {

namespace {

// A weight, its gradient and the scalars of its step.
void check_trained(const char* optimizer, const Tensor& w, const Tensor& low, const Tensor& grad,
                   const Tensor& grad_scale) {
  NMOE_CHECK((is_stat(grad.dtype()) || grad.dtype() == DType::kBF16) && grad.num_elements() == w.num_elements() &&
                 is_one(grad_scale, DType::kF64),
             "{} of w {}, grad {} {}, scaled by {}", optimizer, w.shape(), dtype_name(grad.dtype()), grad.shape(),
             grad_scale.shape());
  NMOE_CHECK(w.dtype() == DType::kBF16 ? low.dtype() == DType::kI16 && low.num_elements() == w.num_elements()
                                       : is_stat(w.dtype()) && !low.defined(),
             "{} of w {} {} with a low part {}", optimizer, dtype_name(w.dtype()), w.shape(), low.shape());
}

// The random bits of moments of `moments`, of `size` elements.
void check_random(const char* optimizer, DType moments, int64_t size, const MomentRounding& random) {
  NMOE_CHECK(is_stat(moments) != random.key.defined(), "{} of moments in {}, {} random bits", optimizer,
             dtype_name(moments), random.key.defined() ? "with" : "without");
  const Tensor& matrices = random.matrices;
  NMOE_CHECK(!matrices.defined() || (size % matrices.num_elements() == 0 && random.first == 0),
             "{} of {} elements from {} on, in {} matrices", optimizer, size, random.first, matrices.shape());
}

// The scales of moments' codes.
void check_scales(const AdamWStep& args) {
  const bool has_codes = args.m.dtype() == DType::kU8;
  int64_t blocks = 0;
  if (has_codes) {
    const Tensor& matrices = args.random.matrices;
    const int64_t count = matrices.defined() ? matrices.num_elements() : 1;
    if (args.m.num_elements() > 0) blocks = count * moments::num_blocks(args.m.num_elements() / count);
    NMOE_CHECK(args.random.first % moments::kBlock == 0, "AdamW of codes from element {} on", args.random.first);
  }
  for (const Tensor* scales : {&args.m_scales, &args.v_scales}) {
    const bool fits = blocks == 0 ? has_codes || !scales->defined()
                                  : scales->dtype() == DType::kU8 && scales->num_elements() == blocks;
    NMOE_CHECK(fits, "AdamW of moments in {}, scales {} of {} blocks", dtype_name(args.m.dtype()), scales->shape(),
               blocks);
  }
}

void check_step(const AdamWStep& args) {
  check_trained("AdamW", args.w, args.low, args.grad, args.grad_scale);
  const int64_t size = args.w.num_elements();
  NMOE_CHECK(args.m.num_elements() == size && args.v.num_elements() == size, "AdamW of w {}, m {}, v {}",
             args.w.shape(), args.m.shape(), args.v.shape());
  NMOE_CHECK(args.rates.dtype() == DType::kF64 && args.rates.num_elements() == 3, "AdamW with {} rates",
             args.rates.num_elements());
  NMOE_CHECK(args.m.dtype() == args.v.dtype(), "AdamW of moments in {} and {}", dtype_name(args.m.dtype()),
             dtype_name(args.v.dtype()));
  check_random("AdamW", args.m.dtype(), size, args.random);
  check_scales(args);
}

}  // namespace

void check(const AdamWSteps& args) {
  for (const AdamWStep& one : args.all) check_step(one);
}

void check(const MuonStep& args) {
  const int rank = args.w.shape().rank();
  NMOE_CHECK(rank == 2 || rank == 3, "Muon of w {}", args.w.shape());
  check_trained("Muon", args.w, args.low, args.grad, args.grad_scale);
  const DType state = args.momentum.dtype();
  NMOE_CHECK((is_stat(state) || state == DType::kBF16) && args.momentum.num_elements() == args.w.num_elements(),
             "Muon of w {}, momentum {} {}", args.w.shape(), dtype_name(state), args.momentum.shape());
  check_random("Muon", state, args.w.num_elements(), args.random);
  const Tensor& matrices = args.random.matrices;
  const int64_t one = args.w.shape()[-2] * args.w.shape()[-1];
  NMOE_CHECK(!matrices.defined() || one == 0 || args.w.num_elements() / matrices.num_elements() % one == 0,
             "Muon of matrices {} in {} of the whole tensor", args.w.shape(), matrices.shape());
  NMOE_CHECK(args.rates.dtype() == DType::kF64 && args.rates.num_elements() >= 1 && args.iterations >= 1,
             "Muon with {} rates, {} iterations", args.rates.num_elements(), args.iterations);
}

}  // namespace nmoe
