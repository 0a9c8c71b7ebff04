// What orders streams among themselves and for the host: events and prefetches (ops/backend.h) by CUDA events.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/backend.h"

namespace nmoe::cuda {

class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags);  // of cudaEventCreateWithFlags; without timing
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class StreamEvent final : public Event {
 public:
  explicit StreamEvent(cudaStream_t stream) : event_(cudaEventBlockingSync), stream_(stream) {}
  void set() override;
  bool reached() const override;
  void wait() const override;  // asleep, not spinning

 private:
  CudaEvent event_;
  cudaStream_t stream_;
};

// send() copies on `copy_stream` into `staging`, which is free once the last take() is done; take() copies on from
// there on `stream`.
class StreamPrefetch final : public Prefetch {
 public:
  StreamPrefetch(cudaStream_t stream, cudaStream_t copy_stream, Tensor staging, Tensor destination)
      : sent_(cudaEventDefault),
        taken_(cudaEventDefault),
        stream_(stream),
        copy_stream_(copy_stream),
        staging_(staging),
        destination_(destination) {}
  ~StreamPrefetch() override;
  void send(const void* host) override;
  void take() override;

 private:
  CudaEvent sent_, taken_;
  cudaStream_t stream_, copy_stream_;
  Tensor staging_, destination_;
};

}  // namespace nmoe::cuda
