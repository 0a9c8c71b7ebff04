// Whether a device computes what the CPU does: training steps and generation of small models, in every precision that
// the device has, every operation of which is held against the CPU's (ops/checked/checked_device.h).
//
// The models have layers of all kinds, of sizes that fast kernels take and of odd ones. What ranks exchange is no part.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ops/factory.h"

namespace nmoe {

// How often each operation was checked. Throws checked::MismatchError where one differs; Error as make_device(), and
// (runtime) where memory is lacking. `say` gets a line about what comes next. `wrap`: makes the device that is tested
// of the one that `options` name, for tests of this one.
std::map<std::string, int64_t> run_self_test(const DeviceOptions& options,
                                             const std::function<void(const std::string&)>& say,
                                             const std::function<std::unique_ptr<Device>(Device& device)>& wrap = {});

}  // namespace nmoe
