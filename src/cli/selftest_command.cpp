#include <fmt/format.h>

#include <chrono>

#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/proof/device_proof.h"

namespace nmoe::cli {

void selftest_command(const SelfTestArguments& arguments) {
  const DeviceOptions options{
      .kind = arguments.device,
      .num_threads = arguments.threads,
      .compute_dtype = arguments.fp32 || arguments.device == "cpu" ? DType::kF32 : DType::kBF16};
  const auto begin = std::chrono::steady_clock::now();
  const auto counts = prove_device(options, fmt::format("{} {}", version(), commit()));
  int64_t calls = 0;
  for (const auto& [name, count] : counts) calls += count;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print("{}: {} operations in {} calls are the CPU's ({})\n", make_device(options)->description(), counts.size(), calls,
        human_seconds(seconds));
}

}  // namespace nmoe::cli
