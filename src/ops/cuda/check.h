// Checks for CUDA code. Kernel files include this and not base/error.h: nvcc does not compile fmt 9.
#pragma once

#include <cuda_runtime_api.h>

namespace nmoe::cuda {

// Throws CheckFailure with CUDA's own words unless `status` is cudaSuccess.
void check_status(cudaError_t status, const char* call, const char* file, int line);
// Throws CheckFailure unless `holds`.
void check_argument(bool holds, const char* condition, const char* file, int line);

}  // namespace nmoe::cuda

#define NMOE_CUDA_CHECK(call) ::nmoe::cuda::check_status((call), #call, __FILE__, __LINE__)
#define NMOE_CUDA_REQUIRE(condition) ::nmoe::cuda::check_argument((condition), #condition, __FILE__, __LINE__)
