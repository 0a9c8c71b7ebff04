#include "ops/cuda/runtime/cuda_ops.h"

#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void CudaOps::name(const Arguments& args) { \
    make_current(context_.device_index);      \
    cuda::name(context_, args);               \
  }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

}  // namespace nmoe::cuda
