#include "ops/cuda/runtime/check.h"

#include "base/error.h"

namespace nmoe::cuda {

void check_status(cudaError_t status, const char* call, const char* file, int line) {
  if (status != cudaSuccess) check_failed(file, line, call, cudaGetErrorString(status));
}

}  // namespace nmoe::cuda
