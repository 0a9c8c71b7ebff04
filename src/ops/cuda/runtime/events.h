// Order between streams, and between a stream and the host: events and prefetches (ops/device.h) by CUDA events.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "ops/device.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

// Of the device that is current when it is made; only streams of that device record it.
class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags = cudaEventDisableTiming);  // of cudaEventCreateWithFlags
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class StreamEvent final : public Event {
 public:
  // streams: of all lanes of the device, in the order of kLanes.
  StreamEvent(int device_index, const std::array<cudaStream_t, kNumLanes>& streams, Lane lane)
      : event_(cudaEventBlockingSync | cudaEventDisableTiming),
        device_index_(device_index),
        streams_(streams),
        stream_(streams[static_cast<size_t>(lane)]) {}
  void record() override;
  bool reached() const override;
  void wait() const override;  // asleep, not spinning
  void before(Lane waiting) override;

 private:
  CudaEvent event_;
  int device_index_;  // made current before every call: those of other threads would begin a context on device 0
  std::array<cudaStream_t, kNumLanes> streams_;
  cudaStream_t stream_;
};

// In a graph marks are nodes that record events.
class StreamMarks final : public Marks {
 public:
  StreamMarks(int device_index, cudaStream_t stream) : device_index_(device_index), stream_(stream) {}
  void set(size_t index) override;
  double ms_between(size_t from, size_t to) const override;

 private:
  int device_index_;
  cudaStream_t stream_;
  std::vector<std::unique_ptr<CudaEvent>> events_;
};

// send() copies on `copy_stream` into `staging`, which is free once the last take() is done; take() copies on from
// there on `stream`.
class StreamPrefetch final : public Prefetch {
 public:
  StreamPrefetch(int device_index, cudaStream_t stream, cudaStream_t copy_stream, Tensor staging, Tensor destination)
      : device_index_(device_index),
        stream_(stream),
        copy_stream_(copy_stream),
        staging_(staging),
        destination_(destination) {}
  ~StreamPrefetch() override;
  void send(const void* host) override;
  void take() override;

 private:
  CudaEvent sent_, taken_;
  int device_index_;
  cudaStream_t stream_, copy_stream_;
  Tensor staging_, destination_;
};

}  // namespace nmoe::cuda
