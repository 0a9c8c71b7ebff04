// Which kernels a device of a compute capability has, and how fast it is. No CUDA here.
#pragma once

#include "tensor/dtype.h"

namespace nmoe::cuda {

#ifdef NMOE_PLAIN_PRODUCTS
inline constexpr bool kPlainProducts = true;
#else
inline constexpr bool kPlainProducts = false;
#endif

// Which kernels there are: the compute capability's major number, 9 for Hopper, 10 for Blackwell.
struct KernelSet {
  int major = 9;
  constexpr bool has_sm90() const { return major == 9; }
  // Not in a program that is built without Blackwell's own products (NMOE_PLAIN_PRODUCTS in cmake/NmoeCuda.cmake).
  constexpr bool has_sm100() const { return major == 10 && !kPlainProducts; }
};

// The vendor's dense figures for the SXM parts, FLOP/s: H100 and H200, B200.
constexpr double peak_flops(const KernelSet& kernels, DType compute) {
  if (compute == DType::kBF16) return kernels.has_sm90() ? 989.4e12 : 2250e12;
  return kernels.has_sm90() ? 66.9e12 : 75e12;
}

}  // namespace nmoe::cuda
