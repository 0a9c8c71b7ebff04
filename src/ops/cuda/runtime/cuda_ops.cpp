#include "ops/cuda/runtime/cuda_ops.h"

#include "ops/contracts/checks.h"
#include "ops/cuda/kernels/experts/expert_bias.h"
#include "ops/cuda/kernels/experts/sort_workspace.h"
#include "ops/cuda/kernels/low_precision/emulated_operands.h"
#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/plans/invariant_products.h"
#include "ops/cuda/runtime/current_device.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};

// What libraries say on this device.
class LibraryRoom final : public VendorRoom {
 public:
  explicit LibraryRoom(Context& ctx) : ctx_(ctx) {}
  int64_t attention_forward(const AttentionForward& args, bool counting) override {
    return ctx_.cudnn_attention.forward_workspace(args, counting);
  }
  int64_t attention_backward(const AttentionBackward& args) override {
    return ctx_.cudnn_attention.backward_workspace(args);
  }
  int64_t sort(int64_t num_keys) override { return sort_workspace(num_keys); }

 private:
  Context& ctx_;
};

// Plans the operation and, but in a counting run, runs it by that.
template <class Arguments>
void run(Context& ctx, Arena& scratch, const Arguments& args, Run<Arguments>* operation) {
  if constexpr (Planned<Arguments>) {
    LibraryRoom libraries(ctx);
    Planner planner{scratch, kKernels, &libraries};
    const OperationPlan<Arguments> planned = plan_operation(planner, args);
    if (scratch.counting()) return;
    if constexpr (requires { args.rounding; }) {
      if (planned.widened) {
        widen(ctx, args, *planned.widened);
        return operation(ctx, planned.widened->args, planned.plan);
      }
    }
    operation(ctx, args, planned.plan);
  } else {
    if (!scratch.counting()) operation(ctx, args);
  }
}

}  // namespace

#define NMOE_DEFINE_OVERRIDE(name, Arguments)               \
  void CudaOps::name(const Arguments& args) {               \
    check(args);                                            \
    make_current(context_.device_index);                    \
    run<Arguments>(context_, scratch(), args, &cuda::name); \
  }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

WeightRounding CudaOps::weight_rounding(OperandFormat format) const {
  return cuda::weight_rounding(kKernels, compute_dtype_, format);
}

void InvariantCudaOps::linear_forward(const LinearForward& args) {
  check(args);
  check_batch_invariant(args);
  if (takes_training_kernels(kKernels, args)) return CudaOps::linear_forward(args);
  if (counting() || args.y.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_product(context(), args.x, args.w, args.addend, args.y);
}

void InvariantCudaOps::linear_activation_forward(const LinearActivationForward& args) {
  check(args);
  check_batch_invariant(args);
  if (takes_training_kernels(kKernels, args)) return CudaOps::linear_activation_forward(args);
  if (counting() || args.pre.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_activation(
      context(),
      {.kind = args.kind, .x = args.x, .w = args.w, .offsets = {}, .row_weight = {}, .pre = args.pre, .h = args.h});
}

void InvariantCudaOps::grouped_linear_forward(const GroupedLinearForward& args) {
  check(args);
  check_batch_invariant(args);
  if (takes_training_kernels(kKernels, args)) return CudaOps::grouped_linear_forward(args);
  if (counting() || args.y.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_grouped_product(context(), args.x, args.w, args.offsets, args.y);
  add_expert_bias(context(), args.bias, args.offsets, args.y);
}

void InvariantCudaOps::grouped_activation_forward(const GroupedActivationForward& args) {
  check(args);
  check_batch_invariant(args);
  if (takes_training_kernels(kKernels, args)) return CudaOps::grouped_activation_forward(args);
  if (counting() || args.pre.num_elements() == 0) return;
  make_current(context().device_index);
  invariant_activation(context(), args);
}

}  // namespace nmoe::cuda
