// Checks of CUDA's own calls.
#pragma once

#include <cuda_runtime_api.h>

namespace nmoe::cuda {

// Throws CheckFailure with CUDA's own words unless `status` is cudaSuccess; Error (runtime) where the GPU has no memory
// left.
void check_status(cudaError_t status, const char* call, const char* file, int line);

}  // namespace nmoe::cuda

#define NMOE_CUDA_CHECK(call) ::nmoe::cuda::check_status((call), #call, __FILE__, __LINE__)
