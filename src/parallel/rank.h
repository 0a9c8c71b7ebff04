// Rank: one of the equals that a run is divided among, as its parts see it.
#pragma once

#include <cstdint>

#include "ops/device.h"
#include "parallel/mesh.h"

namespace nmoe {

// A handle: device and communicator outlive all that was made with it. Driven by one thread, as its device is.
struct Rank {
  Device& device;
  Communicator& communicator;

  int64_t index() const { return communicator.index(); }
  int64_t count() const { return communicator.count(); }
  Mesh mesh() const { return Mesh(communicator); }
  bool is_first() const { return index() == 0; }  // the one that prints, records and writes
};

}  // namespace nmoe
