// Tests whether a device computes the same as the CPU: in training steps and generation of small models, in every
// precision that the device supports, every operation is compared with the CPU's (ops/checked/checked_device.h), and
// so is its choice of tokens (train/proof/sampler_check.h), where it has one.
//
// The models have layers of all kinds, of sizes for fast kernels and of odd ones. Exchange between ranks is not tested.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ops/factory.h"

namespace nmoe {

// Returns how often each operation was checked. Throws checked::MismatchError if one differs; Error as make_device(),
// and (runtime) if memory is lacking. `say` gets a line before each part. `wrap` replaces the device that `options`
// name, for tests of the self-test itself.
std::map<std::string, int64_t> run_self_test(const DeviceOptions& options,
                                             const std::function<void(const std::string&)>& say,
                                             const std::function<std::unique_ptr<Device>(Device& device)>& wrap = {});

}  // namespace nmoe
