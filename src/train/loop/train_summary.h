// What came of training a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/loop/validation.h"

namespace nmoe {

struct TrainSummary {
  bool reports = true;    // false in processes other than 0, where nothing else is set
  int64_t steps = 0;      // done in all
  int64_t steps_now = 0;  // done by this call
  double seconds = 0.0;   // of training steps in this call
  double tokens_per_s = 0.0;
  bool interrupted = false;               // by a signal; the run can be resumed from the checkpoint
  std::optional<ValidationResult> valid;  // at the end
  bool target_reached = false;            // by it: train.target_loss
  std::string device;                     // Device::description
  // For a device with its own memory; at the end of the run, by everything on the device.
  int64_t device_bytes_planned = 0;
  int64_t device_bytes_used = 0;
  std::filesystem::path checkpoint;
};

}  // namespace nmoe
