#include "ops/cuda/runtime/check.h"

#include "base/error.h"

namespace nmoe::cuda {

void check_status(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    throw runtime_error(
        fmt::format("the GPU's memory is used up, beside what was planned ({} in {}:{})", call, file, line),
        "leave some room: train.memory_limit, a smaller train.microbatch_seqs, or fewer other programs "
        "on this GPU (nvidia-smi)");
  }
  check_failed(file, line, call, cudaGetErrorString(status));
}

}  // namespace nmoe::cuda
