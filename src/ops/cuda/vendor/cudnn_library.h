// cuDNN, found and loaded when it is first wanted: a program that computes in fp32 or on the CPU runs without it.
#pragma once

#include <cudnn.h>

#include <string>

namespace nmoe::cuda {

// The functions of libcudnn.so.9 that this program calls.
struct CudnnLibrary {
  decltype(&cudnnGetVersion) get_version;
  decltype(&cudnnGetErrorString) get_error_string;
  decltype(&cudnnGetLastErrorString) get_last_error_string;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

// Looks where the loader looks (run path, LD_LIBRARY_PATH, the system's folders), then in the folder it was found in
// when this program was built. Error (usage) when it is nowhere or older than kMinCudnnVersion.
const CudnnLibrary& cudnn();

// 9.19.0, in cudnnGetVersion's terms: what attention was tested with.
inline constexpr size_t kMinCudnnVersion = 91900;
// "9.19.0"
std::string cudnn_version_text(size_t version);

// Throws CheckFailure with cuDNN's own words unless `status` is CUDNN_STATUS_SUCCESS.
void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line);

}  // namespace nmoe::cuda

#define NMOE_CUDNN_CHECK(call) ::nmoe::cuda::check_cudnn((call), #call, __FILE__, __LINE__)
