// What is known of devices without CUDA: which kernels they have, how fast they are, how their memory is handed out.
#pragma once

#include <cstdint>

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

// Memory that an allocation takes: the driver maps pages of 2 MiB, which small blocks share.
constexpr int64_t device_allocation_bytes(int64_t bytes) {
  constexpr int64_t kPage = int64_t{2} << 20;
  return bytes <= kPage / 2 ? bytes : (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace nmoe::cuda
