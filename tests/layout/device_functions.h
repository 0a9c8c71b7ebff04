// How long the bodies of functions for GPUs are.
#pragma once

#include <string>
#include <vector>

#include "layout/layout.h"

namespace nmoe::test {

// One message for each function of these files that is marked __global__, __device__ or NMOE_HOST_DEVICE and whose body
// has more than `max_lines` lines, its braces included.
std::vector<std::string> long_device_functions(const std::vector<fs::path>& files, int max_lines, const ReadFile& read);

}  // namespace nmoe::test
