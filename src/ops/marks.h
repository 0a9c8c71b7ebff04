// When points in the work of a device's compute lane are reached, by the device's own clock.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/device.h"

namespace nmoe {

// Set inside a recording (Device::record), a mark is part of it: each run reaches it anew. Threads and lifetimes: as of
// what a device makes.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual void set(size_t index) = 0;  // behind everything that is enqueued by now
  // Both were reached.
  virtual double ms_between(size_t from, size_t to) const = 0;
};

std::unique_ptr<Marks> make_marks(Device& device);

}  // namespace nmoe
