// A stream of its own, which does not wait for the default stream.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {

// Of the device that is current when it is made. kFirst: blocks of its kernels that are ready get room before those of
// other streams.
enum class StreamPriority { kNormal, kFirst };
class CudaStream {
 public:
  explicit CudaStream(StreamPriority priority = StreamPriority::kNormal) {
    int least = 0, greatest = 0;
    NMOE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NMOE_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                                 priority == StreamPriority::kFirst ? greatest : least));
  }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace nmoe::cuda
