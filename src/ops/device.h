// Device: a processor (the CPU, or a GPU) with its memory, its lanes of work and its transfers. What it computes is in
// ops/ops.h. Only ops/factory.cpp names the implementations.
//
// A lane is a queue, like a CUDA stream: work that is enqueued on a lane runs in order, and work on different lanes may
// overlap unless order() forbids it. Each lane has its own Ops and its own scratch, so operations on two lanes never
// share temporaries. On the CPU, work is done when the call that enqueues it returns.
//
// Threads. A device is driven by one thread at a time, which enqueues, transfers, records and reserves memory; it need
// not always be the same thread, and a thread may drive several devices in turn. Event::reached() and wait(), and const
// methods, may be called from any thread at any time.
//
// Lifetimes. Whatever a device has made or holds in its memory (arenas, events, marks, recordings, prefetches) must be
// destroyed before the device.
//
// A capability that some devices have and others lack is a pointer that may be null, never a cast to a kind of device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ops/across.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nmoe {

class Ops;
class ProductAlgorithms;
class TokenSampler;

enum class Lane { kCompute, kCopy, kCommunication };
inline constexpr Lane kLanes[] = {Lane::kCompute, Lane::kCopy, Lane::kCommunication};
inline constexpr size_t kNumLanes = std::size(kLanes);

// In which order operations sum. A pass names one, and its operations have it; a device gives both.
enum class Arithmetic {
  // Of a step, and of everything over many rows: which sums a product divides may depend on its shape (not in F32 on
  // the CPU, where both arithmetics are one).
  kFastest,
  // The bits of a row of any forward operation's output depend neither on other rows nor on their number: a token's
  // result depends on its own sequence alone. For generation: on CUDA faster for a few rows. Operands are not
  // rounded. On CUDA, products read weights before the preceding kernel has ended: between whatever wrote
  // weights and such a pass lies an upload, as of its inputs.
  kBatchInvariant,
};
inline constexpr size_t kNumArithmetics = 2;

// Work that was recorded once and can run any number of times, on the current contents of its tensors.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;  // enqueues it on the compute lane
};

// A point in a lane's queue that the host can wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record() = 0;         // after everything that has been enqueued on the lane so far
  virtual bool reached() const = 0;  // true before the first record()
  virtual void wait() const = 0;     // sleeps until it is reached
};

// When points in the work of the compute lane are reached, by the device's own clock. Set inside a recording, a mark is
// part of it: each run reaches it anew.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual void set(size_t index) = 0;  // behind everything that is enqueued by now
  // Both were reached.
  virtual double ms_between(size_t from, size_t to) const = 0;
};

// A tensor whose next contents are copied to the device on the copy lane while work on the present ones continues.
class Prefetch {
 public:
  virtual ~Prefetch() = default;
  // Begins to copy from `host`, in host_memory(), of the tensor's size, which must not change until an event that was
  // recorded after take() is reached.
  virtual void send(const void* host) = 0;
  // Enqueued on the compute lane: from here on the tensor holds what was sent last.
  virtual void take() = 0;
};

// Software between the operations and a separate device, for reports; empty if there is none.
struct SoftwareVersions {
  std::string driver;
  std::string toolkit;  // "CUDA 13.0"
};

// The memory of a device that has its own.
struct DeviceMemoryUse {
  int64_t used_bytes = 0;  // by everything: the context, libraries, arenas, other processes
  int64_t free_bytes = 0;
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual int index() const = 0;                // among the machine's devices of this kind, from 0
  virtual std::string description() const = 0;  // "CPU, 2 threads, fp32, AVX2"
  virtual SoftwareVersions software() const = 0;
  virtual double peak_flops() = 0;              // FLOP/s of the compute dtype
  virtual std::string peak_source() const = 0;  // "measured: ..." or the source of the figure

  // --- memory. Sources live as long as the device.
  virtual MemorySource& memory() = 0;
  // Host memory for transfers, from and to which the device copies directly. Where so much cannot be pinned, it is
  // pageable: copies take longer.
  virtual MemorySource& host_memory() = 0;
  // Host memory that operations of all devices read and write themselves, such as flags between ranks, or state of
  // optimizers that has no room on the device. Where it cannot be pinned there is none: Error (runtime).
  virtual MemorySource& mapped_memory() = 0;
  virtual std::optional<DeviceMemoryUse> memory_use() const = 0;  // nothing if memory() is the host's
  // Allows operations of this device to read and write the memory of the device of the same kind at `index`. Error
  // (usage) if the machine has no direct connection between the two.
  virtual void enable_peer_access(int index) = 0;
  // A link to the devices of ranks in other domains; null if memory() is the host's, which then sums (ops/across.h).
  // The `count` ranks of a group call it at the same time, each from its own domain `index`, and meet through `gather`.
  // Waits until all have called. Error (usage) if two share a device, or the machine lacks a requirement.
  virtual std::unique_ptr<AcrossLink> link_across(int64_t index, int64_t count, const GatherAcross& gather) = 0;
  // Temporary storage of single operations; reserved once, after a counting run (ops/storage.h).
  virtual Arena& scratch(Lane lane) = 0;
  // Whether operations only claim their scratch: true until the scratch of the compute lane is reserved.
  bool counting() { return scratch(Lane::kCompute).counting(); }

  // --- work
  // Operations of one lane share its queue and its scratch, whatever their arithmetic.
  Ops& ops(Lane lane = Lane::kCompute, Arithmetic arithmetic = Arithmetic::kFastest) {
    return lane_ops(lane, arithmetic);
  }
  Ops& ops(Arithmetic arithmetic) { return ops(Lane::kCompute, arithmetic); }
  // Whether work on several lanes may run at the same time.
  virtual bool lanes_overlap() const = 0;
  // What is enqueued on `waiting` after this call begins when everything enqueued on `awaited` before it is done.
  // Within a recording, this is how a lane forks from the compute lane and joins it again; each that forked must join.
  virtual void order(Lane awaited, Lane waiting) = 0;
  // Records what `work` enqueues on the compute lane and on lanes that fork from it, without running it if the device
  // supports that. `work` may neither upload nor download, and its operations must have run once before, since
  // libraries load kernels on first use.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) = 0;
  virtual std::unique_ptr<Event> make_event(Lane lane) = 0;
  virtual std::unique_ptr<Marks> make_marks() = 0;
  // `arena`, in memory(), provides the buffer that a device may need for receiving.
  virtual std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) = 0;

  // --- what not every device has: null where there is none. They live as long as the device.
  // Chooses tokens where the logits are (ops/sampling.h).
  virtual TokenSampler* token_sampler() { return nullptr; }
  // What chooses the algorithms of its dense products (ops/products/products.h).
  virtual const ProductAlgorithms* product_algorithms() const { return nullptr; }

  // --- transfers, on the compute lane, from and to memory() or mapped_memory(). A counting run transfers nothing.
  virtual void upload(Tensor destination, const void* host) = 0;  // `host` may be reused on return
  virtual void download(void* host, Tensor source) = 0;           // waits: `host` has the values on return
  // `host`, in host_memory(), must live until an event recorded after this call is reached; it then has the values.
  virtual void begin_download(void* host, Tensor source) = 0;

 private:
  virtual Ops& lane_ops(Lane lane, Arithmetic arithmetic) = 0;
};

}  // namespace nmoe
