// GPUs by name, known without CUDA: what a plan needs of a part that is not in this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nmoe {

struct GpuPart {
  std::string name;          // "h200-141g", or the size that was asked for
  int64_t memory_bytes = 0;  // as the CUDA runtime counts it
  int compute_major = 9;     // of its compute capability: 9 for Hopper, 10 for Blackwell
};

// What the CUDA context, loaded kernels and cuDNN's plans take of a device, and CUDA's libraries of the host's memory.
// Measured on one H200 (driver 580.159, CUDA 13.0, cuDNN 9.19): 600 MiB after the first steps of small models, 805 in a
// process that has loaded the kernels of many configurations.
inline constexpr int64_t kGpuContextBytes = int64_t{700} << 20;
inline constexpr int64_t kGpuLibraryHostBytes = int64_t{680} << 20;
// Of the host's memory that is pinned, which every GPU of the process has tables of: 0.17 to 0.23 GiB were measured on
// H200s (driver 580.159) for 60 GiB, so two words of 8 bytes for every 4 KiB.
inline constexpr int64_t kPinnedBytesPerTableByte = 256;
// More than that of each GPU, where several work together: 0.76 GiB were measured on two H200s (driver 580.159) with 27
// layers and 32 microbatches a step. What of it grows with either is not known.
inline constexpr int64_t kGpuPeerBytes = int64_t{800} << 20;

// A known part's name ("h100-80g", "h200-141g", "b200-192g"), or a size ("80 GiB") of memory on Hopper. Error (usage)
// for anything else, beginning with `what`.
GpuPart parse_gpu_part(std::string_view text, std::string_view what);

}  // namespace nmoe
