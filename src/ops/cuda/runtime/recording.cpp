#include "ops/cuda/runtime/recording.h"

#include "base/error.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

GraphRecording::GraphRecording(int device_index, cudaStream_t stream, const std::function<void()>& work)
    : device_index_(device_index), stream_(stream) {
  NMOE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);  // the failure of `work` is the one to report
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // or the next check would report the broken capture
    throw;
  }
  cudaError_t status = cudaStreamEndCapture(stream, &graph);
  if (status == cudaErrorStreamCaptureUnjoined) {
    cudaGetLastError();
    NMOE_CHECK(false, "a recording ends while a lane that forked from the compute lane has not joined it: {}",
               "order(lane, Lane::kCompute) is missing after the lane's last work");
  }
  NMOE_CUDA_CHECK(status);
  status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  NMOE_CUDA_CHECK(status);
}

GraphRecording::~GraphRecording() {
  try_make_current(device_index_);
  cudaStreamSynchronize(stream_);  // it may be running still
  cudaGraphExecDestroy(graph_);
}

void GraphRecording::run() {
  make_current(device_index_);
  NMOE_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
}

}  // namespace nmoe::cuda
