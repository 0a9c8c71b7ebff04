#include "ops/cuda/runtime/events.h"

#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

CudaEvent::CudaEvent(unsigned flags) { NMOE_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }

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

void StreamEvent::before(Lane waiting) {
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaStreamWaitEvent(streams_[static_cast<size_t>(waiting)], event_.get(), 0));
}

void StreamMarks::set(size_t index) {
  make_current(device_index_);
  while (events_.size() <= index) events_.push_back(std::make_unique<CudaEvent>(cudaEventDefault));
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  NMOE_CUDA_CHECK(cudaStreamIsCapturing(stream_, &capturing));
  // While capturing, an event would otherwise only order streams, and have no time.
  const unsigned flags = capturing == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  NMOE_CUDA_CHECK(cudaEventRecordWithFlags(events_[index]->get(), stream_, flags));
}

double StreamMarks::ms_between(size_t from, size_t to) const {
  make_current(device_index_);
  float ms = 0.0F;
  NMOE_CUDA_CHECK(cudaEventElapsedTime(&ms, events_.at(from)->get(), events_.at(to)->get()));
  return static_cast<double>(ms);
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
