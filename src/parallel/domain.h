// Domain: the ranks of one process (Mesh::process), whose devices reach each other's memory. A rank's Domain connects
// its device with theirs and with those of its index in other domains, and so gives the groups of a run's ranks in
// which devices work together without the host (parallel/device_groups.h).
//
// Ranks share gradients, parameters, the state of a step and the window for tokens. These arenas have the same layout
// on all ranks.
//
// Threads: driven by the one that drives the rank's device (ops/device.h). All ranks make the same calls in the same
// order.
#pragma once

#include <chrono>
#include <span>

#include "ops/across.h"
#include "ops/peers.h"
#include "ops/storage.h"
#include "parallel/device_groups.h"
#include "parallel/rank.h"

namespace nmoe {

// The memory of one rank, and the device that it lies on.
struct RankMemory {
  // Error (runtime) where there is too little memory. It is kept until all ranks of the communicator have ended, since
  // others may still access it.
  static std::shared_ptr<RankMemory> make(const DeviceOptions& options, const StoragePlan& plan,
                                          Communicator& communicator);

  std::unique_ptr<Device> device;
  Storage storage;
};

class Domain {
 public:
  // Connects `rank` with the ranks of its domain, whose memory it maps, and with those of its index in other domains;
  // with neither where `storage` only counts. `patience`: as for set_patience(). Error (usage) where the devices cannot
  // reach each other.
  //
  // Once a rank has failed, nothing waits for others on this one's device any more (Communicator::on_failure).
  Domain(const Rank& rank, Storage& storage, std::chrono::milliseconds patience);
  // Where an exception ends it, the other ranks are told. Waits for what is enqueued on the compute lane, which may
  // still access others' memory.
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  // --- the groups that parts of a run mean, as Mesh names them (parallel/mesh.h). Where a sum is of all ranks that
  // read data, those of shard_replicas() come first, then those of shards(), which have what is left to add.

  PeerGroup experts() const { return PeerGroup(peers_); }
  AcrossGroup expert_data() const { return AcrossGroup(across_); }
  PeerGroup shards() const { return PeerGroup(peers_); }
  AcrossGroup shard_replicas() const { return AcrossGroup(across_); }
  // Enqueues the sums of gradients over the ranks that have the same: `shards` over shard_replicas(), `experts` over
  // expert_data(). These are the same ranks today, and so this is one exchange.
  void sum_replicas(Ops& ops, std::span<const Tensor> shards, std::span<const Tensor> experts) const;

  // Whether this is the only rank of the run.
  bool alone() const { return peers_.alone() && across_.alone(); }

  // Sets how long others wait for this rank from here on, on their devices and in calls (Communicator::set_patience).
  void set_patience(std::chrono::milliseconds patience) const;

  // Throws what has ended a rank's exchange, if anything has: PeerFailure, or an Error (runtime) that says who waited
  // for whom. To be called after enqueued work is done, before its results are used, and after it has failed.
  void check() const;

 private:
  void connect(const Rank& rank, Storage& storage);
  void raise_abort() const;

  Device& device_;
  Mesh mesh_;
  Peers peers_;
  Across across_;
  int num_exceptions_;          // under way at construction
  std::shared_ptr<void> told_;  // last: the callback on a failure uses all of the above
};

}  // namespace nmoe
