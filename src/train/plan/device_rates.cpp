#include "train/plan/device_rates.h"

#include <algorithm>

namespace nmoe {
namespace {

// Sources, in docs/: results.md and log/steps.md (products of layers and of large matrices under the limit of power),
// log/precision.md (fp8), log/attention.md and the phases in log/steps.md (attention), log/optimizer.md (the update's
// bytes; the host link), log/memory.md (the host link of an H200: an update of 28.4 GB in 560 ms), scale.md (NVLink).
// The H100's products are those of the same chip under the same limit. log/memory.md has what steps are predicted by
// them, beside what they took.
constexpr DeviceRates kRates[] = {
    {.part = "h100-80g",
     .device = "NVIDIA H100 80GB HBM3",
     .product = 690e12,
     .low_product = 1000e12,
     .muon_product = 400e12,
     .attention = 460e12,
     .attention_pair = 0.9e-12,
     .memory = 2.9e12,
     .host_link = 46e9,
     .device_link = 320e9},
    {.part = "h200-141g",
     .device = "NVIDIA H200",
     .product = 690e12,
     .low_product = 1000e12,
     .muon_product = 400e12,
     .attention = 460e12,
     .attention_pair = 0.9e-12,
     .memory = 4.1e12,
     .host_link = 50e9,
     .device_link = 320e9},
};

}  // namespace

const DeviceRates* find_device_rates(std::string_view name) {
  const auto found = std::ranges::find_if(kRates, [&](const DeviceRates& rates) {
    const std::string_view begin = name.substr(0, name.find(','));  // what follows is not the part's name
    return begin == rates.part || begin == rates.device;
  });
  return found == std::end(kRates) ? nullptr : found;
}

const DeviceRates& reference_rates() { return kRates[0]; }

}  // namespace nmoe
