// Operations that CUDA does not have yet: a counting run refuses them as a step would.
#pragma once

#include <string_view>

#include "base/error.h"
#include "ops/operations.h"

namespace nmoe::cuda {

template <class Arguments>
inline constexpr bool kCpuOnly = false;
template <>
inline constexpr bool kCpuOnly<GateForward> = true;
template <>
inline constexpr bool kCpuOnly<GateBackward> = true;
template <>
inline constexpr bool kCpuOnly<DeltaRuleForward> = true;
template <>
inline constexpr bool kCpuOnly<DeltaRuleBackward> = true;
template <>
inline constexpr bool kCpuOnly<CachedDeltaRule> = true;

[[noreturn]] inline void refuse_cpu_only(std::string_view operation) {
  throw usage_error(fmt::format("{} is not available on GPUs yet", operation), "set run.device = \"cpu\"");
}

// The same of arguments that CUDA's operation does not take yet.
template <class Arguments>
void check_not_cpu_only(const Arguments& /*args*/) {}
template <class Arguments>
void check_gain_offset(const Arguments& args) {
  if (args.gain_offset != 0.0) refuse_cpu_only("a norm with zero-centred gains");
}
template <>
inline void check_not_cpu_only(const RmsNormForward& args) {
  check_gain_offset(args);
}
template <>
inline void check_not_cpu_only(const RmsNormBackward& args) {
  check_gain_offset(args);
}
template <class Arguments>
void check_has_biases(const Arguments& args) {
  if (!args.bias.defined()) refuse_cpu_only("a convolution without biases");
}
template <>
inline void check_not_cpu_only(const ConvolutionForward& args) {
  check_has_biases(args.in);
}
template <>
inline void check_not_cpu_only(const ConvolutionBackward& args) {
  check_has_biases(args.in);
}
template <>
inline void check_not_cpu_only(const CachedConvolution& args) {
  check_has_biases(args);
}

}  // namespace nmoe::cuda
