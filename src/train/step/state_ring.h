// What a rank has of a checkpoint, and its way there and back through a bounded piece of host memory.
//
// A rank's state, masters of weights and what optimizers keep of them, is cut into pieces of tensors, in the order of a
// checkpoint's files, and pieces are packed into segments. To save it, the rank's thread copies segments into the slots
// of a ring, as many as are free, while those who write read them in about the same order; a slot is free again when
// all of its segment, and of those before it, has been read. State that fits into the memory as a whole is one segment:
// then nothing waits for a disk. To restore it, segments as large as the memory are loaded and copied one after the
// other. What is read does not depend on the memory's size.
//
// Threads: the rank's, but for read() and is_read(), which any may call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "model/weight.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "tensor/arena.h"
#include "tensor/named_tensor.h"

namespace nmoe {

// A rank's part of a checkpoint's tensor: what it has for the elements that it updates.
struct StateTensor {
  std::string name;
  DType dtype;
  Weight* weight;               // whose master it is, or whose update keeps it
  const OptimizerState* state;  // null: the master
  bool is_written;              // by this rank: of ranks that have the same elements, one writes them

  StateLayout layout() const { return state != nullptr ? state->layout : StateLayout(); }
  Shape shape_here() const { return layout().shape_here(weight->spec, weight->shard); }
  Shape shape() const { return layout().shape(weight->spec); }  // of the whole tensor
  // Where this rank's elements are in the whole, slice by slice. Moves of experts change it.
  std::vector<ElementRange> slices() const { return layout().slices(weight->spec, weight->shard); }
  int64_t num_elements() const { return layout().part(weight->spec, weight->shard.updated).extent; }
  int64_t num_bytes() const { return num_elements() * static_cast<int64_t>(dtype_bytes(dtype)); }

  // Copies `elements` of those that this rank stores, as Weight::begin_download() and upload() do.
  void begin_download(Ops& ops, ElementRange elements, void* host) const;
  void upload(Ops& ops, ElementRange elements, const void* host) const;
};

class StateRing {
 public:
  // `tensors`: the model's, `num_model` of them, then the optimizer's. Takes memory of `arena`, in host_memory(): as
  // much as all of them need, but no more than `most_bytes`.
  StateRing(Ops& ops, Arena& arena, std::vector<StateTensor> tensors, size_t num_model, int64_t most_bytes);

  std::span<const StateTensor> tensors() const { return tensors_; }
  std::span<const StateTensor> model() const { return tensors().first(num_model_); }
  std::span<const StateTensor> optimizer() const { return tensors().subspan(num_model_); }

  // Whether all that is written has room at once.
  bool holds_all() const { return slots_.size() == 1; }

  // --- saving. No state may change from begin() until fill() is true; it may once that is.
  // Begins to copy what this rank writes, as fill() does. Nobody may be reading.
  void begin();
  // Enqueues copies, which overwrite gradients, to whatever slots are free, without waiting. Whether all has been
  // enqueued.
  bool fill();
  // Waits until fill() has something to do, or for so long.
  void wait_for_room(std::chrono::milliseconds limit) const;
  // Ends reading: who reads from now on, or waits, is thrown Abandoned. For when fill() will not be called again.
  void abandon();

  // out = the bytes of `tensor`, one of tensors() that is written, from byte `begin` on. Each byte may be read once.
  // Waits for what is not in host memory yet: reading has to begin in order, as whatever comes later may need the place
  // of what comes earlier.
  void read(const StateTensor& tensor, size_t begin, std::span<std::byte> out);
  bool is_read() const;  // all of what begin() began with
  class Abandoned : public std::runtime_error {
   public:
    Abandoned() : std::runtime_error("the state was not copied to its end") {}
  };

  // --- restoring. Fills the parts' tensors, in host memory.
  using Load = std::function<void(std::span<const NamedPart> parts)>;
  // Loads `tensors`, the first ones of tensors(), and copies them to the device.
  void restore(std::span<const StateTensor> tensors, const Load& load);

 private:
  struct Piece {
    const StateTensor* tensor;
    ElementRange elements;  // among those that this rank stores
    int64_t offset;         // in its segment, in bytes
    int64_t num_bytes() const { return elements.extent * static_cast<int64_t>(dtype_bytes(tensor->dtype)); }
    int64_t end() const;  // of its place in the segment
  };
  using Segment = std::vector<Piece>;
  struct Where {  // a piece is
    size_t segment, piece;
  };
  using IsChosen = std::function<bool(const StateTensor&)>;

  static std::vector<Segment> pack(std::span<const StateTensor> tensors, int64_t room, const IsChosen& is_chosen);
  Tensor place(int64_t slot_begin, const Piece& piece) const;  // in memory_, flat
  int64_t slot_begin(size_t segment) const { return static_cast<int64_t>(segment % slots_.size()) * slot_bytes_; }
  bool has_room() const { return num_filled_ < segments_.size() && num_filled_ - num_freed_ < slots_.size(); }
  const Piece& piece_at(const Where& where) const { return segments_[where.segment][where.piece]; }
  Where find(const StateTensor& tensor, int64_t element) const;
  void wait_for(size_t segment) const;
  void has_read(size_t segment, size_t bytes);

  Ops& ops_;
  const std::vector<StateTensor> tensors_;
  const size_t num_model_;
  Tensor memory_;  // [bytes] u8
  int64_t slot_bytes_ = 0;
  std::vector<std::unique_ptr<Event>> slots_;  // behind the copies to each
  std::vector<Segment> segments_;              // of what is written
  std::vector<std::vector<Where>> pieces_;     // of each tensor, in order

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  size_t num_filled_ = 0, num_freed_ = 0;  // segments, from the first on
  std::vector<size_t> unread_;             // bytes of each segment
  bool abandoned_ = false;
};

}  // namespace nmoe
