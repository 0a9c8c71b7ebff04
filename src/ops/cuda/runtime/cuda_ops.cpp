#include "ops/cuda/runtime/cuda_ops.h"

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

}  // namespace

#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void CudaOps::name(const Arguments& args) { \
    check_rounding(args);                     \
    make_current(context_.device_index);      \
    cuda::name(context_, args);               \
  }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

}  // namespace nmoe::cuda
