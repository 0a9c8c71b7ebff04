// What every CUDA operation gets: the stream to enqueue on, scratch to use, and what belongs to its device. An
// operation first claims all its scratch, then returns if counting(): that is how a plan learns how much scratch a step
// needs.
//
// The device must be current in the calling thread, which CudaOps (cuda_ops.h) sees to. Operations of one context come
// from one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include "tensor/arena.h"

namespace nmoe::cuda {

class CublasLt;
class CudnnAttention;

struct Context {
  cudaStream_t stream;
  Arena& scratch;
  int device_index;
  int num_sms;  // multiprocessors of the device
  CublasLt& cublas_lt;
  CudnnAttention& cudnn_attention;
  // Whether kernels may start before those in front have ended (launch_early): for steps of many short ones.
  bool starts_early = false;

  bool counting() const { return scratch.counting(); }
};

}  // namespace nmoe::cuda
