// The operations of operations.h on one lane of a CUDA device.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/ops.h"

namespace nmoe::cuda {

class CudaOps final : public Ops {
 public:
  // `context`: the lane's stream and scratch.
  CudaOps(Device& device, Lane lane, DType compute_dtype, const Context& context)
      : Ops(device, lane), compute_dtype_(compute_dtype), context_(context) {}

  DType compute_dtype() const override { return compute_dtype_; }
  // For what lies below the operations: benches and tests of single parts.
  Context& context() { return context_; }

  // Each makes the device current in the calling thread first: a thread may drive several devices in turn.
#define NMOE_DECLARE_OVERRIDE(name, Arguments) void name(const Arguments& args) override;
  NMOE_OPERATIONS(NMOE_DECLARE_OVERRIDE)
#undef NMOE_DECLARE_OVERRIDE

 private:
  DType compute_dtype_;
  Context context_;
};

}  // namespace nmoe::cuda
