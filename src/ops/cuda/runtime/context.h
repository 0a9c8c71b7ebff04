// What every CUDA operation gets: the stream to enqueue on and scratch to use. An operation first claims all its
// scratch, then returns if counting(): that is how a plan learns how much scratch a step needs.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tensor/arena.h"

namespace nmoe::cuda {

struct Context {
  cudaStream_t stream = nullptr;
  Arena& scratch;
  int num_sms = 0;
  cublasLtHandle_t cublas = nullptr;

  bool counting() const { return scratch.counting(); }
};

}  // namespace nmoe::cuda
