// GPUs by name, known without CUDA: what a plan needs of a part that is not in this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

struct Part {
  std::string name;          // "h200-141g", or the size that was asked for
  int64_t memory_bytes = 0;  // as the CUDA runtime counts it
  KernelSet kernels;         // which it runs
};

// What the CUDA context, loaded kernels and cuDNN's plans take of a device, and CUDA's libraries of the host's memory.
// Measured on one H200 (driver 580.159, CUDA 13.0, cuDNN 9.19): 600 MiB after the first steps of small models, 805 in a
// process that has loaded the kernels of many configurations.
constexpr int64_t kContextBytes = int64_t{700} << 20;
constexpr int64_t kHostLibraryBytes = int64_t{680} << 20;

// A known part's name ("h100-80g", "h200-141g", "b200-192g"), or a size ("80 GiB") of memory on Hopper. Error (usage)
// for anything else, beginning with `what`.
Part parse_part(std::string_view text, std::string_view what);

// The vendor's dense figures for the SXM parts, FLOP/s: H100 and H200, B200.
constexpr double peak_flops(const KernelSet& kernels, DType compute) {
  if (compute == DType::kBF16) return kernels.has_sm90() ? 989.4e12 : 2250e12;
  return kernels.has_sm90() ? 66.9e12 : 75e12;
}

}  // namespace nmoe::cuda
