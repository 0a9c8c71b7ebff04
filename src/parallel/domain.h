// Domain: the ranks of one process (Communicator::process), whose devices reach each other's memory. A rank's Domain
// enqueues on its device what it does together with the others, without the host: collectives inside the domain, and
// with the ranks of the same index in other domains.
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
#include "ops/ops.h"
#include "ops/peers.h"
#include "ops/storage.h"
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

  const Peers& peers() const { return peers_; }
  int64_t index() const { return peers_.index(); }
  int64_t count() const { return peers_.count(); }
  // Whether this is the only rank of the run.
  bool alone() const { return peers_.alone() && across_.alone(); }

  // Enqueues the sum of each of these shared tensors over all ranks, in rank order: the same bits on every rank and
  // every time. F32, F64 or I32.
  void all_reduce_sum(Ops& ops, std::span<const Tensor> tensors) const;

  // A shared tensor, and the range of its flattened elements that this rank owns: the ranks' parts together are the
  // whole.
  struct Part {
    Tensor tensor;
    int64_t begin, end;
    Tensor sum = {};  // [end - begin], for reduce_sum: where the sum goes; undefined: into the tensor
  };
  // Reduce-scatter: enqueues the sum over all ranks, in rank order, of this rank's part of each tensor; with
  // `accumulate` it begins with what is there. The rest of the tensors is left alone. `max_blocks`: of each kernel
  // (ops/contracts/exchange.h).
  void reduce_sum(Ops& ops, std::span<const Part> parts, bool accumulate = false, int64_t max_blocks = 0) const;
  // All-gather: enqueues what copies each rank's parts of these tensors to all others. Any dtype.
  void all_gather(Ops& ops, std::span<const Part> parts) const;

  // Enqueues the sum of each of these tensors over the ranks of this one's index in all domains
  // (ops/contracts/across.h); only these need to have tensors of the same shapes. With one domain it does nothing.
  void sum_across(Ops& ops, std::span<const Tensor> tensors) const;

  // Sets how long others wait for this rank from here on, on their devices and in calls (Communicator::set_patience).
  void set_patience(std::chrono::milliseconds patience) const;

  // Throws what has ended a rank's exchange, if anything has: PeerFailure, or an Error (runtime) that says who waited
  // for whom. To be called after enqueued work is done, before its results are used, and after it has failed.
  void check() const;

 private:
  void connect(const Rank& rank, Storage& storage);
  void raise_abort() const;

  Device& device_;
  Communicator& all_ranks_;
  Communicator& communicator_;  // of the domain
  Peers peers_;
  Across across_;
  int num_exceptions_;          // under way at construction
  std::shared_ptr<void> told_;  // last: the callback on a failure uses all of the above
};

}  // namespace nmoe
