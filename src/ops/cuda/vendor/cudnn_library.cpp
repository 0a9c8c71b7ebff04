#include "ops/cuda/vendor/cudnn_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace nmoe::cuda {
namespace {

constexpr const char* kRemedy =
    "install cuDNN 9.19 or newer for CUDA 13 (NVIDIA's packages, or Python's nvidia-cudnn-cu13), name the folder of "
    "its "
    "libraries in LD_LIBRARY_PATH, or set run.precision = \"fp32\"";

template <class Function>
void find(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw usage_error(fmt::format("{} has no {}", path, name), kRemedy);
}

// The first that is new enough. Never closed: cuDNN keeps state until the process ends.
void* open_library(CudnnLibrary& result, std::string& path) {
  std::string tried;
  for (const char* candidate : {"libcudnn.so.9", NMOE_CUDNN_LIBRARY}) {
    if (!tried.empty()) tried += "; ";
    void* const library = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += dlerror();
      continue;
    }
    path = candidate;
    find(library, path, "cudnnGetVersion", result.get_version);
    if (result.get_version() >= kMinCudnnVersion) return library;
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(result.get_version), &info);
    tried += fmt::format("{} is {}", info.dli_fname == nullptr ? path : info.dli_fname,
                         cudnn_version_text(result.get_version()));
  }
  throw usage_error(fmt::format("attention in bf16 needs cuDNN {}: {}", cudnn_version_text(kMinCudnnVersion), tried),
                    kRemedy);
}

CudnnLibrary load() {
  std::string path;
  CudnnLibrary result{};
  void* const library = open_library(result, path);
  find(library, path, "cudnnGetErrorString", result.get_error_string);
  find(library, path, "cudnnGetLastErrorString", result.get_last_error_string);
  find(library, path, "cudnnCreate", result.create);
  find(library, path, "cudnnDestroy", result.destroy);
  find(library, path, "cudnnSetStream", result.set_stream);
  find(library, path, "cudnnBackendCreateDescriptor", result.create_descriptor);
  find(library, path, "cudnnBackendDestroyDescriptor", result.destroy_descriptor);
  find(library, path, "cudnnBackendSetAttribute", result.set_attribute);
  find(library, path, "cudnnBackendGetAttribute", result.get_attribute);
  find(library, path, "cudnnBackendFinalize", result.finalize);
  find(library, path, "cudnnBackendExecute", result.execute);
  return result;
}

}  // namespace

const CudnnLibrary& cudnn() {
  static const CudnnLibrary library = load();
  return library;
}

std::string cudnn_version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnn().get_last_error_string(detail, sizeof(detail));
  check_failed(file, line, call, fmt::format("{}: {}", cudnn().get_error_string(status), detail));
}

}  // namespace nmoe::cuda
