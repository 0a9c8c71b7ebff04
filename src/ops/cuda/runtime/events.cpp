#include "ops/cuda/runtime/events.h"

#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

CudaEvent::CudaEvent(unsigned flags) {
  NMOE_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags | cudaEventDisableTiming));
}

void StreamEvent::record() {
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaEventRecord(event_.get(), stream_));
}

bool StreamEvent::reached() const {
  make_current(device_index_);
  const cudaError_t status = cudaEventQuery(event_.get());
  if (status == cudaErrorNotReady) return false;
  NMOE_CUDA_CHECK(status);
  return true;
}

void StreamEvent::wait() const {
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaEventSynchronize(event_.get()));
}

// A copy that was sent and never taken may still be reading the host memory, whose owner frees it next.
StreamPrefetch::~StreamPrefetch() {
  try_make_current(device_index_);
  cudaStreamSynchronize(copy_stream_);
}

void StreamPrefetch::send(const void* host) {
  if (staging_.raw() == nullptr) return;  // a counting run's
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_, taken_.get(), 0));
  NMOE_CUDA_CHECK(cudaMemcpyAsync(staging_.raw(), host, static_cast<size_t>(staging_.num_bytes()),
                                  cudaMemcpyHostToDevice, copy_stream_));
  NMOE_CUDA_CHECK(cudaEventRecord(sent_.get(), copy_stream_));
}

void StreamPrefetch::take() {
  if (staging_.raw() == nullptr) return;
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaStreamWaitEvent(stream_, sent_.get(), 0));
  NMOE_CUDA_CHECK(cudaMemcpyAsync(destination_.raw(), staging_.raw(), static_cast<size_t>(staging_.num_bytes()),
                                  cudaMemcpyDeviceToDevice, stream_));
  NMOE_CUDA_CHECK(cudaEventRecord(taken_.get(), stream_));
}

}  // namespace nmoe::cuda
