// The memory of whatever runs a model: which arenas there are, how large they have to be, and the arenas themselves.
//
// Users build what they need on a Storage. The same code runs twice: against counting arenas, which plan_storage()
// does, and then against a Storage that has exactly those capacities. Nothing allocates again after that.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ops/device.h"
#include "ops/factory.h"
#include "tensor/arena.h"

namespace nmoe {

enum class ArenaKind {
  kParameters,
  kWeightCodes,
  kGradients,
  kOptimizer,
  kHostState,
  kHostInputs,
  kActivations,
  kScratch,
  kCopyScratch,
  kCommunicationScratch,
  kStepState,
  kCache,
  kPeerWindow,
  kPeerFlags,
  kExchange,
  kCheckpointStaging,
};
inline constexpr size_t kNumArenas = 16;

// Where an arena's memory is: the device's own; the host's, for transfers; the host's, for operations of all devices.
enum class Placement { kDevice, kHost, kMapped };

struct ArenaDescription {
  ArenaKind kind;
  std::string_view name;
  std::string_view meaning;
  Placement placement;
  bool at_first_use = false;  // its memory is taken by Storage::reserve(), not at the start
  std::string_view remedy;    // where there is no such memory; empty: what the memory itself says
};
// One entry an ArenaKind, in the order of the enumerators.
std::span<const ArenaDescription, kNumArenas> arena_table();

// Bytes of each arena.
class StoragePlan {
 public:
  int64_t operator[](ArenaKind kind) const { return bytes_[static_cast<size_t>(kind)].value_or(0); }
  void set(ArenaKind kind, int64_t bytes) { bytes_[static_cast<size_t>(kind)] = bytes; }
  // The arena will stay a counting one: its tensors have shapes and no data. For what a user makes and never touches.
  void leave_out(ArenaKind kind) { bytes_[static_cast<size_t>(kind)].reset(); }
  bool leaves_out(ArenaKind kind) const { return !bytes_[static_cast<size_t>(kind)].has_value(); }
  int64_t total() const;
  // Of each arena the larger of both; neither leaves one out.
  StoragePlan max(const StoragePlan& other) const;

 private:
  std::array<std::optional<int64_t>, kNumArenas> bytes_{};
};

class Storage {
 public:
  // Counting arenas.
  explicit Storage(Device& device);
  // Arenas of these capacities, but for those that are left out or taken at first use. The scratch of the device's
  // lanes is reserved with them: a device has one such Storage. Error (runtime) where the memory is not to be had.
  Storage(Device& device, const StoragePlan& plan);
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device& device() const { return device_; }
  Arena& operator[](ArenaKind kind);
  // Takes the memory of an arena that is described as at_first_use. Nothing in a counting run, or a second time.
  void reserve(ArenaKind kind);
  StoragePlan used();  // most bytes ever in use

 private:
  Device& device_;
  StoragePlan plan_;
  bool counting_;
  std::array<std::optional<Arena>, kNumArenas> arenas_;  // empty where the device has them: scratch
};

// What `build` uses of each arena. It gets a counting Storage on a device like those that `options` make.
StoragePlan plan_storage(const DeviceOptions& options, const std::function<void(Storage&)>& build);

// Error (usage) with `remedy` where the plan asks for more memory than is free on the device: "`work` needs ...".
void check_free_memory(const StoragePlan& plan, Device& device, std::string_view work, const std::string& remedy);

}  // namespace nmoe
