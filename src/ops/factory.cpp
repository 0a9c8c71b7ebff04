#include "ops/factory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"

namespace nmoe {

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == "cpu") {
    return std::make_unique<cpu::CpuBackend>(options.num_threads, options.compute_dtype);
  }
  throw usage_error(fmt::format("run.device = \"{}\": this program trains on the CPU only so far", options.device),
                    "set run.device = \"cpu\"");
}

std::string_view compiled_devices() { return "cpu: x86-64-v3, fp32"; }

}  // namespace nmoe
