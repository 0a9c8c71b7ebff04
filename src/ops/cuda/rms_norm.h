// RMSNorm on CUDA devices. Contract and formula: ops/backend.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nmoe::cuda {

// N vectors of D values, all fp32, row-major, on the device. Enqueued on `stream`; neither allocates nor waits.
struct RmsNormForward {
  const float* x;     // [N, D]
  const float* gain;  // [D]
  float* y;           // = [N, D]; may be x
  float* rstd;        // = [N]
  int64_t num_vectors = 0;
  int64_t dim = 0;
  float eps = 0.0F;
};
void rms_norm_forward(const RmsNormForward& args, cudaStream_t stream);

}  // namespace nmoe::cuda
