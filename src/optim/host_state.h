// State of optimizers that lies in host memory, and its way through the device's memory during the update.
//
// State is cut into blocks, which pass through buffers of the device: block by block it is fetched on the copy lane,
// updated on the compute lane, and written back on the communication lane, which has nothing else to do then. So both
// directions of the link to the host are in use at the same time, and a recording holds all of it. As many blocks as
// there are buffers are fetched ahead of their update, the first ones beside the end of backward. Other work of the
// compute lane is enqueued between blocks, so that it has something to do while they travel. The update's kernels and
// their results are those of state that lies on the device.
//
// The first blocks stay in their buffers when they are updated, and are written back on the copy lane beside the next
// step's forward, which has no other use for the way to the host. Buffers are at the far end of the activation stack,
// and the stack waits for one only where it grows into it. Between steps, what lies in host memory is therefore not the
// state until settle() has been called.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
  int64_t bytes() const;
  // Calls visit with every tensor there is.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Tensor* tensor : {&low, &m, &v}) {
      if (tensor->defined()) visit(*tensor);
    }
  }
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
  // `held_bytes`: of state that is to stay on the device behind an update, rounded up to a block.
  HostState(Device& device, std::span<const Weight> weights, int64_t held_bytes);

  // --- between steps, outside of recordings, with `room` as below
  // Puts blocks that the next step writes back where it expects them, unless they are there: they are, behind an
  // update.
  void hold(Arena& room);
  // Enqueues on the compute lane what makes host memory hold the state, and gives `room` everything back. To be called
  // before anything but a step reads or writes either.
  void settle(Arena& room);

  // --- a step, in this order
  // Begins to write back what is held, beside what the compute lane does from here on. Until prefetch(), `room` gets a
  // buffer back as soon as its stack grows into it: what is enqueued on the compute lane then waits for the copy.
  void write_held(Arena& room);
  // Begins to fetch what is updated first, beside what the compute lane does from here on. Buffers are lent by `room`,
  // an arena of the device, as many as `bytes` have room for, which all that is enqueued on the compute lane later
  // leaves alone. To be called with a larger number when there is more room.
  void prefetch(Arena& room, int64_t bytes);
  // Enqueues the update of everything: `enqueue` is called for each block in turn, with parts whose state is on the
  // device, and enqueues their update on the compute lane. `beside` is called whenever a block is on its way back, with
  // the share of those that are still to go there: what it enqueues on the compute lane runs beside transfers, and
  // delays the updates of later blocks alone. The communication lane must have joined that one. `room` has everything
  // back when the call returns, but for the buffers of what is held.
  void update(Arena& room, const std::function<void(std::span<const StatePart>)>& enqueue,
              const std::function<void(double share_left)>& beside);

  size_t num_blocks() const { return blocks_.size(); }
  int64_t buffer_bytes() const { return buffer_bytes_; }  // of the largest block

 private:
  using Block = std::vector<StatePart>;
  struct Buffer {
    Tensor memory;                  // [buffer_bytes_] u8, while it is lent
    std::unique_ptr<Event> copied;  // on the copy lane, to here or, of what is held, from here
  };
  size_t num_held_in(const Arena& room) const;
  void lend(Arena& room);
  void give_back(Arena& room, int64_t bytes);
  void fetch_first(Arena& room, size_t count);
  void fetch(size_t block);
  // Each of what is held has a buffer of its own, the first ones lent; the others use the rest in turn.
  Buffer& buffer_of(size_t block) {
    return buffers_[block < num_held_ ? block : num_held_ + (block - num_held_) % (num_lent_ - num_held_)];
  }

  Device& device_;
  std::vector<Block> blocks_;
  int64_t buffer_bytes_ = 0;
  std::vector<Buffer> buffers_;
  size_t num_lent_ = 0;  // buffers, each of which the block of its number was fetched into
  int64_t held_bytes_;
  size_t num_held_ = 0;      // blocks, the first ones
  bool holds_ = false;       // between steps: they are in their buffers, and host memory lacks them
  bool is_writing_ = false;  // them, back to the host
};

}  // namespace nmoe
