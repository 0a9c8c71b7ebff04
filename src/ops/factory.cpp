#include "ops/factory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cpu/cpu_device.h"
#include "ops/planned/planned_device.h"
#ifdef NMOE_CUDA
#include "ops/cuda/runtime/cuda_device.h"
#endif

namespace nmoe {
namespace {

// NMOE_CUDA_ARCH is the architecture of the compiled CUDA kernels, "" without any.
constexpr std::string_view kCudaArch = NMOE_CUDA_ARCH;

}  // namespace

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  if (options.kind == "cpu") {
    NMOE_CHECK(options.index == 0, "CPU {}: there is one", options.index);
    return std::make_unique<cpu::CpuDevice>(options.num_threads, options.compute_dtype);
  }
  NMOE_CHECK(options.kind == "cuda", "device {}", options.kind);
  if (options.part) return std::make_unique<planned::PlannedDevice>(*options.part, options.compute_dtype);
#ifdef NMOE_CUDA
  return std::make_unique<cuda::CudaDevice>(options.index, options.compute_dtype, options.num_sms);
#else
  throw usage_error("run.device = \"cuda\", but this program was built for the CPU only",
                    "build the preset 'hopper' or 'blackwell', or set run.device = \"cpu\"; `n plan --device-memory` "
                    "plans for a GPU anywhere");
#endif
}

bool is_tested_device_kind(std::string_view kind) { return kind == "cpu" || kCudaArch == "90a"; }

std::string compiled_devices() {
  std::string text = "cpu: x86-64-v3, fp32";
  if (!kCudaArch.empty()) text += fmt::format("\ncuda: sm_{}, bf16 and fp32", kCudaArch);
  if (kCudaArch == "90a") text += ", operands in fp8, mxfp8 and nvfp4";
  if (kCudaArch == "100a") text += cuda::kPlainProducts ? ", by plain kernels" : ", operands in mxfp8 and nvfp4";
  return text;
}

}  // namespace nmoe
