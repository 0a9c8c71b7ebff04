#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/commands.h"
#include "ops/checked/checked_device.h"
#include "train/self_test.h"

namespace nmoe::cli {

void selftest_command(const SelfTestArguments& arguments) {
  const DeviceOptions options{
      .kind = arguments.device,
      .num_threads = arguments.threads,
      .compute_dtype = arguments.fp32 || arguments.device == "cpu" ? DType::kF32 : DType::kBF16};
  const std::string device = make_device(options)->description();
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto counts = run_self_test(options, [](const std::string& what) { say("{}\n", what); });
    int64_t calls = 0;
    for (const auto& [name, count] : counts) calls += count;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    fmt::print("{}: {} operations in {} calls are the CPU's ({})\n", device, counts.size(), calls,
               human_seconds(seconds));
  } catch (const checked::MismatchError& error) {
    throw runtime_error(fmt::format("{} computes {} otherwise than the CPU: {}", device, error.mismatch().operation,
                                    error.mismatch().what),
                        "do not train on it; report this line with the versions that n --version prints");
  }
}

}  // namespace nmoe::cli
