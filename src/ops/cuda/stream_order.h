// What orders streams among themselves and for the host: milestones and feeds (ops/backend.h) by events.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/backend.h"

namespace nmoe::cuda {

class Event {
 public:
  explicit Event(unsigned flags);  // of cudaEventCreateWithFlags; without timing
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class StreamMilestone final : public Milestone {
 public:
  explicit StreamMilestone(cudaStream_t stream) : event_(cudaEventBlockingSync), stream_(stream) {}
  void set() override;
  bool reached() const override;
  void wait() const override;  // asleep, not spinning

 private:
  Event event_;
  cudaStream_t stream_;
};

// send() copies on `copy_stream` into `staging`, which is free once the last take() is done; take() copies on from
// there on `stream`.
class StreamFeed final : public Feed {
 public:
  StreamFeed(cudaStream_t stream, cudaStream_t copy_stream, Tensor staging, Tensor destination)
      : sent_(cudaEventDefault),
        taken_(cudaEventDefault),
        stream_(stream),
        copy_stream_(copy_stream),
        staging_(staging),
        destination_(destination) {}
  ~StreamFeed() override;
  void send(const void* host) override;
  void take() override;

 private:
  Event sent_, taken_;
  cudaStream_t stream_, copy_stream_;
  Tensor staging_, destination_;
};

}  // namespace nmoe::cuda
