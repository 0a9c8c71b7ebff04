#include "ops/cuda/runtime/cuda_ops.h"

#include "ops/cuda/kernels/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {
namespace {

// Operands of products are not rounded here.
template <class Arguments>
void check_rounding(const Arguments& args) {
  if constexpr (requires { args.rounding; }) {
    NMOE_CHECK(args.rounding.format == OperandFormat::kAct, "CUDA multiplies operands as they are");
  }
}

void check_groups(const OperandRows& x, Tensor w, Tensor offsets, Tensor y) {
  NMOE_CHECK(x.width() == w.dim(2) && y.shape() == Shape({x.num_rows(), w.dim(1)}) && offsets.dim(0) == w.dim(0) + 1 &&
                 w.dim(0) <= 65535,
             "grouped product of {} and {} into {}, offsets {}", x.source.shape(), w.shape(), y.shape(),
             offsets.shape());
}

}  // namespace

#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void CudaOps::name(const Arguments& args) { \
    check_rounding(args);                     \
    make_current(context_.device_index);      \
    cuda::name(context_, args);               \
  }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

void InvariantCudaOps::linear_forward(const LinearForward& args) {
  check_rounding(args);
  const Tensor x = args.x, w = args.w, y = args.y, addend = args.addend;
  NMOE_CHECK(x.dim(1) == w.dim(1) && y.shape() == Shape({x.dim(0), w.dim(0)}) &&
                 (!addend.defined() || (addend.shape() == y.shape() && addend.dtype() == y.dtype())),
             "product of {} and {} into {}, {} added", x.shape(), w.shape(), y.shape(), addend.shape());
  if (counting() || y.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_product(context(), x, w, addend, y);
}

void InvariantCudaOps::linear_activation_forward(const LinearActivationForward& args) {
  check_rounding(args);
  const Tensor x = args.x, w = args.w, pre = args.pre;
  NMOE_CHECK(x.dim(1) == w.dim(1) && pre.shape() == Shape({x.dim(0), w.dim(0)}), "product of {} and {} into {}",
             x.shape(), w.shape(), pre.shape());
  if (counting() || pre.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_activation(context(),
                       {.kind = args.kind, .x = x, .w = w, .offsets = {}, .row_weight = {}, .pre = pre, .h = args.h});
}

void InvariantCudaOps::grouped_linear_forward(const GroupedLinearForward& args) {
  check_rounding(args);
  check_groups(args.x, args.w, args.offsets, args.y);
  if (counting() || args.y.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_grouped_product(context(), args.x, args.w, args.offsets, args.y);
}

void InvariantCudaOps::grouped_activation_forward(const GroupedActivationForward& args) {
  check_rounding(args);
  check_groups(args.x, args.w, args.offsets, args.pre);
  if (counting() || args.pre.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_activation(context(), args);
}

}  // namespace nmoe::cuda
