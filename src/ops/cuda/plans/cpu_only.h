// Operations that CUDA does not have yet: a counting run refuses them as a step would.
#pragma once

#include <string_view>

#include "base/error.h"
#include "ops/operations.h"

namespace nmoe::cuda {

template <class Arguments>
inline constexpr bool kCpuOnly = false;
template <>
inline constexpr bool kCpuOnly<DeltaRuleForward> = true;
template <>
inline constexpr bool kCpuOnly<DeltaRuleBackward> = true;
template <>
inline constexpr bool kCpuOnly<CachedDeltaRule> = true;

[[noreturn]] inline void refuse_cpu_only(std::string_view operation) {
  throw usage_error(fmt::format("{} is not available on GPUs yet", operation), "set run.device = \"cpu\"");
}

}  // namespace nmoe::cuda
