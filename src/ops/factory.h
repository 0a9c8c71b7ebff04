// Makes the device that a run needs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ops/ops.h"
#include "ops/planned/gpu_part.h"

namespace nmoe {

struct DeviceOptions {
  std::string_view kind = "cpu";  // "cpu" or "cuda"; a view of what outlives the options
  int index = 0;                  // among the machine's devices of this kind
  int num_threads = 0;            // CPU: 0 is one per available CPU
  DType compute_dtype = DType::kF32;
  int num_sms = 0;  // CUDA: multiprocessors that persistent kernels use; 0: all. Fewer is for tests
  // A kind of GPU that need not be present: the device only counts memory, as one of that kind would.
  std::optional<GpuPart> part = {};
};

// Error (usage) if the binary or the machine lacks the device; it names the preset that supports it.
std::unique_ptr<Device> make_device(const DeviceOptions& options);

// Whether this project's tests have been run on devices of this kind, as compiled
// into this binary: true for the CPU and Hopper.
bool is_tested_device_kind(std::string_view kind);

// One line per device that this binary was built for. For `n --version`.
std::string compiled_devices();

}  // namespace nmoe
