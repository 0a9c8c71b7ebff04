// State of optimizers that lies in host memory, and its way through the device's memory during the update.
//
// State is cut into blocks. In turn p, block p is fetched into a ring of buffers on the device, block p - 1 is updated
// there, and block p - 2 is written back: on the copy lane, the compute lane and the communication lane, which has
// nothing else to do then. So both directions of the link to the host are in use at the same time, and a recording
// holds all of it. The update's kernels and their results are those of state that lies on the device.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/device.h"
#include "tensor/arena.h"
#include "tensor/chunks.h"
#include "tensor/tensor.h"

namespace nmoe {

// What an update needs of a weight's elements besides value and gradient. Undefined where there is none.
struct WeightState {
  Tensor low;  // i16, the rest of the master (ops/ops.h)
  Tensor m;    // AdamW's first moment or Muon's momentum
  Tensor v;    // AdamW's second moment

  // The state of some of the elements, flat.
  WeightState of(ElementRange elements) const;
  int64_t bytes() const { return low_bytes() + m.num_bytes() + (v.defined() ? v.num_bytes() : 0); }
  // Calls visit with every tensor there is.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Tensor* tensor : {&low, &m, &v}) {
      if (tensor->defined()) visit(*tensor);
    }
  }

 private:
  int64_t low_bytes() const { return low.defined() ? low.num_bytes() : 0; }
};

// Some elements that are updated, and moved, as one.
struct StatePart {
  size_t slot = 0;        // of the optimizer
  ElementRange elements;  // among those that this rank updates of the weight
  WeightState state;      // of these
};

class HostState {
 public:
  struct Weight {
    size_t slot;
    WeightState state;  // in mapped memory of the host
    int64_t together;   // elements that are not to be separated: parts begin at multiples of so many
  };
  HostState() = default;  // of no weights
  explicit HostState(std::span<const Weight> weights);

  // Enqueues the update of everything: `enqueue` is called for each block in turn, with parts whose state is on the
  // device, and enqueues their update on the compute lane. All other lanes must have joined that one. The ring of
  // buffers is at the top of `room`, a device's arena, until the call returns.
  void update(Device& device, Arena& room, const std::function<void(std::span<const StatePart>)>& enqueue) const;

  size_t num_blocks() const { return blocks_.size(); }
  int64_t buffer_bytes() const { return buffer_bytes_; }  // of the largest block

 private:
  using Block = std::vector<StatePart>;
  std::vector<Block> blocks_;
  int64_t buffer_bytes_ = 0;
};

}  // namespace nmoe
