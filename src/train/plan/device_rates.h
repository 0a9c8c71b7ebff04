// How fast kinds of GPUs are at what a step consists of: the constants of the model of its time
// (train/plan/step_time.h).
#pragma once

#include <string_view>

namespace nmoe {

struct DeviceRates {
  std::string_view part;    // as GpuPart::name
  std::string_view device;  // as such a device calls itself, to a comma: others of a like name are slower
  // Products of bf16 and of fp8 operands, and Muon's in TF32, without what they read and write; FLOP/s.
  double product = 0.0, low_product = 0.0, muon_product = 0.0;
  // Attention between its projections: FLOP/s of ModelCost's count, and seconds more for each pair of positions of each
  // head, forward and backward, which are its exponentials.
  double attention = 0.0, attention_pair = 0.0;
  double memory = 0.0;       // bytes/s that kernels read and write, which is less than the memory's own
  double host_link = 0.0;    // bytes/s each way, both ways at once
  double device_link = 0.0;  // bytes/s that a device puts into the memory of others
};

// Those of the kind with this name: of a part, or as a device calls itself. Null: nothing was measured there.
const DeviceRates* find_device_rates(std::string_view name);
// Those by which choices are ordered where none are known: the slowest.
const DeviceRates& reference_rates();

}  // namespace nmoe
