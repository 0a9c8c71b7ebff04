// The operations of operations.h on one lane of a CUDA device.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/ops.h"

namespace nmoe::cuda {

class CudaOps : public Ops {
 public:
  // `context`: the lane's stream and scratch.
  CudaOps(Device& device, Lane lane, DType compute_dtype, const Context& context)
      : CudaOps(device, lane, Arithmetic::kFastest, compute_dtype, context) {}

  DType compute_dtype() const override { return compute_dtype_; }
  WeightRounding weight_rounding(OperandFormat format) const override;
  // For what lies below the operations: benches and tests of single parts.
  Context& context() { return context_; }

  // Each makes the device current in the calling thread first: a thread may drive several devices in turn.
#define NMOE_DECLARE_OVERRIDE(name, Arguments) void name(const Arguments& args) override;
  NMOE_OPERATIONS(NMOE_DECLARE_OVERRIDE)
#undef NMOE_DECLARE_OVERRIDE

 protected:
  CudaOps(Device& device, Lane lane, Arithmetic arithmetic, DType compute_dtype, const Context& context)
      : Ops(device, lane, arithmetic), compute_dtype_(compute_dtype), context_(context) {}

 private:
  DType compute_dtype_;
  Context context_;
};

// The same, batch invariant (ops/device.h): forward products whose sums have one order for any number of rows. Many
// rows go through the same kernels (plans/invariant_products.h).
class InvariantCudaOps final : public CudaOps {
 public:
  InvariantCudaOps(Device& device, Lane lane, DType compute_dtype, const Context& context)
      : CudaOps(device, lane, Arithmetic::kBatchInvariant, compute_dtype, context) {}

  void linear_forward(const LinearForward& args) override;
  void linear_activation_forward(const LinearActivationForward& args) override;
  void grouped_linear_forward(const GroupedLinearForward& args) override;
  void grouped_activation_forward(const GroupedActivationForward& args) override;
};

}  // namespace nmoe::cuda
