// A recording (ops/device.h) as a CUDA graph, captured from streams.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "ops/device.h"

namespace nmoe::cuda {

// Captures what `work` enqueues on `stream`, and on streams that are ordered behind it by events meanwhile. Those must
// be awaited by `stream` again when `work` returns; a bug (CheckFailure) otherwise. Calls of other threads go on
// unhindered while it captures. The stream's device must be current at construction.
class GraphRecording final : public Recording {
 public:
  GraphRecording(int device_index, cudaStream_t stream, const std::function<void()>& work);
  ~GraphRecording() override;  // waits for the stream
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;
  void run() override;

 private:
  int device_index_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace nmoe::cuda
