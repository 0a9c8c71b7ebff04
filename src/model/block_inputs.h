// Inputs of blocks that wait for backward in host memory (Recompute::kHost).
//
// Such an input is written into one of two slots on the device, which inputs use in turn. While the block computes, its
// input is sent to the host on the copy lane; in backward it is fetched into its slot while the block behind computes.
// Compute waits for a transfer only where it writes a slot again, or reads what was fetched: at the end of the next
// block's forward, and at the beginning of its own backward. The last two inputs are still in their slots when backward
// begins, and do not travel. Nothing is computed here, so no bit changes, and a recording holds all of it.
//
// An input travels if whatever writes it can write it anywhere: the embedding, and blocks that are made again
// themselves. Behind others, it lies among what these keep, and waits there.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/keep.h"
#include "ops/device.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nmoe {

class BlockInputs {
 public:
  // `host` is in mapped memory, and for this alone.
  BlockInputs(Device& device, Arena& host, std::span<const KeepOptions> layers);

  // Begins a forward over a residual stream [T, D]: slots are pushed on the activation stack, to stay until backward
  // has ended.
  void begin(Arena& activations, DType dtype, const Shape& stream);
  // Whether the input of that layer travels. The others are for such layers alone, and send() does nothing for others.
  bool travels(size_t layer) const { return turns_[layer].has_value(); }
  // Forward, from first to last: where what is enqueued on the compute lane next writes the input of that layer.
  Tensor place(size_t layer);
  // When that is enqueued.
  void send(size_t layer);
  // From last to first, before the backward of that layer is enqueued: its input.
  Tensor fetch(size_t layer);

 private:
  struct Slot {
    Tensor memory;                  // [T, D]
    std::unique_ptr<Event> copied;  // on the copy lane, from or to here
  };
  Slot& slot(size_t turn) { return slots_[turn % slots_.size()]; }
  bool waits_in_host(size_t turn) const { return turn + slots_.size() < num_turns_; }
  void copy(size_t turn, Tensor source, Tensor destination);

  Device& device_;
  Arena& host_;
  std::vector<std::optional<size_t>> turns_;  // of each layer's input among those that travel
  size_t num_turns_ = 0;
  std::array<Slot, kInputSlots> slots_;
  std::vector<Tensor> waiting_;  // [T, D] in host memory, of the inputs that wait there
};

}  // namespace nmoe
