// What NVIDIA's libraries keep for a device: handles, choices of algorithms, compiled kernels.
#pragma once

#include "ops/cuda/vendor/cublaslt.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::cuda {

// Of one physical device. All CudaDevice objects of its index share it, one after another or side by side: a run counts
// its scratch on one, with which it compiles the kernels that the next one then has. Thread-safe, as its members are.
struct DeviceLibraries {
  explicit DeviceLibraries(int device_index) : cudnn_attention(device_index) {}

  CublasLt cublas_lt;
  CudnnAttention cudnn_attention;
};

// Made at the first call for an index, which makes that device current; kept until the process ends. Thread-safe.
DeviceLibraries& device_libraries(int device_index);

}  // namespace nmoe::cuda
