// A stream of its own, which does not wait for the default stream.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {

// Of the device that is current when it is made.
class CudaStream {
 public:
  CudaStream() { NMOE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace nmoe::cuda
