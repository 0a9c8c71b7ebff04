// Device: a place where arithmetic is done, with its memory, its lanes of work and the way in and out. What is computed
// there is in ops/ops.h. Only ops/factory.cpp names the implementations.
//
// A lane is an order of work: what is enqueued on one runs one thing after the other; what is on different lanes may
// overlap, unless order() says otherwise. Each lane has Ops of its own, and scratch of its own, so that operations of
// two lanes never share temporaries. On the CPU everything is done when the call that enqueues it returns.
//
// Threads. A device is driven by one thread at a time, whichever that is: the one that enqueues, transfers, records and
// reserves memory. A thread may drive several devices in turn. From any thread, at any time: Event::reached() and
// wait(), and the methods that are const.
//
// Lifetimes. Whatever was made by a device or lies in its memory (arenas, events, recordings, prefetches) goes before
// the device does.
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

enum class Lane { kCompute, kCopy, kCommunication };
inline constexpr Lane kLanes[] = {Lane::kCompute, Lane::kCopy, Lane::kCommunication};
inline constexpr size_t kNumLanes = std::size(kLanes);

// Work that was recorded once and runs as often as wanted, on what its tensors hold then.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;  // enqueues it on the compute lane
};

// A point in the order of a lane's work, to wait for from the host.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record() = 0;         // behind everything that is enqueued on the lane by now
  virtual bool reached() const = 0;  // true before the first record()
  virtual void wait() const = 0;     // asleep, until it is reached
};

// A tensor whose next content travels to the device on the copy lane while work on the present one goes on.
class Prefetch {
 public:
  virtual ~Prefetch() = default;
  // Begins to copy: `host`, in host_memory(), is as large as the tensor and stays as it is until an event that was
  // recorded after take() is reached.
  virtual void send(const void* host) = 0;
  // Enqueued on the compute lane: from here on the tensor holds what was sent last.
  virtual void take() = 0;
};

// What lies between the operations and a device of its own, for reports; empty where there is none.
struct SoftwareVersions {
  std::string driver;
  std::string toolkit;  // "CUDA 13.0"
};

// Memory of a device apart from the host's.
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
  virtual std::string peak_source() const = 0;  // "measured: ..." or whose figure it is

  // --- memory. Sources outlive the device's users, not the device.
  virtual MemorySource& memory() = 0;
  virtual MemorySource& host_memory() = 0;  // that the device copies to and from without a stop in between
  virtual std::optional<DeviceMemoryUse> memory_use() const = 0;  // nothing where memory() is the host's
  // From here on operations of this device may read and write the memory of the device of this kind at `index`. Error
  // (usage) where the machine has no direct way between the two.
  virtual void enable_peer_access(int index) = 0;
  // A way to the devices of ranks in other domains; null where memory() is the host's, which then sums (ops/across.h).
  // The `count` ranks that belong together call it at the same time, from domain `index` of them each; `gather` lets
  // them meet. Waits until all have. Error (usage) where two share a device or the machine lacks what it takes.
  virtual std::unique_ptr<AcrossLink> link_across(int64_t index, int64_t count, const GatherAcross& gather) = 0;
  // Temporary storage of single operations; reserved once, after a counting run (ops/storage.h).
  virtual Arena& scratch(Lane lane) = 0;
  // Whether operations only claim their scratch: until that of the compute lane is reserved.
  bool counting() { return scratch(Lane::kCompute).counting(); }

  // --- work
  Ops& ops(Lane lane = Lane::kCompute) { return lane_ops(lane); }
  // Whether work of several lanes may go on at the same time.
  virtual bool lanes_overlap() const = 0;
  // What is enqueued on `waiting` from here on begins when what is on `awaited` by now is done. Inside a recording this
  // is how a lane forks from the compute lane and joins it again; each that forked must have joined at the end.
  virtual void order(Lane awaited, Lane waiting) = 0;
  // Records what `work` enqueues on the compute lane and on lanes that fork from it, without doing it where the device
  // can. `work` may neither upload nor download, and what it uses must have run once before: libraries load kernels at
  // their first use.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) = 0;
  virtual std::unique_ptr<Event> make_event(Lane lane) = 0;
  // `arena`, in memory(), gives what a device needs to receive into.
  virtual std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) = 0;

  // --- transfers, on the compute lane. A counting run transfers nothing.
  virtual void upload(Tensor destination, const void* host) = 0;  // `host` may be reused at return
  virtual void download(void* host, Tensor source) = 0;           // waits: `host` has the values at return
  // `host`, in host_memory(), has the values once an event recorded after this is reached, and must live until then.
  virtual void begin_download(void* host, Tensor source) = 0;

 private:
  virtual Ops& lane_ops(Lane lane) = 0;
};

}  // namespace nmoe
