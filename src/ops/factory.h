// Makes the backend a run asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ops/backend.h"

namespace nmoe {

struct BackendOptions {
  std::string_view device = "cpu";  // "cpu" or "cuda"
  int num_threads = 0;              // CPU: 0 is one per available CPU
  DType compute_dtype = DType::kF32;
  bool batch_invariant = false;  // a row's bits do not depend on the other rows (ops/backend.h): for generation
};

// Error (usage) when the binary or the machine lacks the device, saying which preset has it.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// One line a device: what this binary was built for. For `n --version`.
std::string compiled_devices();

}  // namespace nmoe
