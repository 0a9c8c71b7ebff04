// Of samples of GPUs that fall between two logged steps, what the last alone would hide.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "track/record.h"

namespace nmoe {

// Not thread-safe.
class GpuExtremes {
 public:
  // Adds to a sample (gpu_watch.h) of step `record.step` what all samples of that step have come to: power_max_w,
  // temperature_max_c and clock_sm_min_mhz of each GPU, and makes its throttle_reasons all that held.
  void add(MetricRecord& record);

 private:
  int64_t step_ = -1;
  std::map<std::string, double> by_tag_;
};

}  // namespace nmoe
