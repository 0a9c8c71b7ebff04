// What every CUDA operation gets: the stream to enqueue on, and what belongs to its device. Scratch is in an
// operation's plan (ops/cuda/plans.h); a counting run makes plans alone, so operations are not called in one.
//
// The device must be current in the calling thread, which CudaOps (cuda_ops.h) sees to. Operations of one context come
// from one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

namespace nmoe::cuda {

class CublasLt;
class CudnnAttention;

struct Context {
  cudaStream_t stream;
  int device_index;
  int num_sms;  // multiprocessors of the device
  CublasLt& cublas_lt;
  CudnnAttention& cudnn_attention;
  // Whether kernels may start before those in front have ended (launch_early): for steps of many short ones.
  bool starts_early = false;
};

}  // namespace nmoe::cuda
