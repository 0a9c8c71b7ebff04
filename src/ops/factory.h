// Makes the device a run asked for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ops/cuda/parts.h"
#include "ops/ops.h"

namespace nmoe {

struct DeviceOptions {
  std::string_view kind = "cpu";  // "cpu" or "cuda"; a view of what outlives the options
  int index = 0;                  // among the machine's devices of this kind
  int num_threads = 0;            // CPU: 0 is one per available CPU
  DType compute_dtype = DType::kF32;
  // A row's bits do not depend on the other rows (ops/ops.h): for generation, slower where rows are many. On CUDA its
  // products read weights before what is enqueued in front of them has ended: no kernel right before one writes them.
  bool batch_invariant = false;
  int num_sms = 0;  // CUDA: multiprocessors that kernels take which stay on them; 0: all there are. Fewer is for tests
  // A CUDA part that need not be here: the device only counts, as one with that part would.
  std::optional<cuda::Part> part = {};
};

// Error (usage) when the binary or the machine lacks the device, saying which preset has it.
std::unique_ptr<Device> make_device(const DeviceOptions& options);

// Whether the tests of this project have run on devices of this kind, as this binary is compiled for them: the CPU, and
// Hopper.
bool is_tested_device_kind(std::string_view kind);

// One line a device: what this binary was built for. For `n --version`.
std::string compiled_devices();

}  // namespace nmoe
