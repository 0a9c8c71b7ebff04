// Domain: the ranks whose devices reach each other's memory, those of one process (Communicator::domain), and what one
// of them does together with the others on its device, without the host; and with those that hold the same in other
// domains.
//
// What a rank shares: gradients, parameters, the state of a step and the window for tokens. These arenas are laid out
// alike on all ranks.
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
  // Error (runtime) where the memory is not to be had. Kept until all ranks of the communicator have ended: others may
  // reach it as long as one of them works.
  static std::shared_ptr<RankMemory> make(const DeviceOptions& options, const StoragePlan& plan,
                                          Communicator& communicator);

  std::unique_ptr<Device> device;
  Storage storage;
};

class Domain {
 public:
  // `rank` meets the ranks of its domain, and maps their memory, and its counterparts in other domains, unless
  // `storage` counts. `patience` is set_patience()'s. Error (usage) where the devices cannot reach each other.
  //
  // Where a rank fails, what waits on this one's device ends, now and from now on (Communicator::on_failure).
  Domain(const Rank& rank, Storage& storage, std::chrono::milliseconds patience);
  // After an exception other ranks learn that this one does not come. Waits for what is enqueued on the compute lane:
  // it may still use others' memory.
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const Peers& peers() const { return peers_; }
  int64_t index() const { return peers_.index(); }
  int64_t count() const { return peers_.count(); }
  // Whether the run has no other rank, in this domain or another.
  bool alone() const { return peers_.alone() && across_.alone(); }

  // Enqueues what makes each of these shared tensors its sum over all ranks, in rank order: the same bits on every rank
  // and every time. F32, F64 or I32.
  void all_reduce_sum(Ops& ops, std::span<const Tensor> tensors) const;

  // A tensor that all ranks have, and the elements of it, flattened, that this one keeps for all: together the ranks'
  // parts are the whole.
  struct Part {
    Tensor tensor;
    int64_t begin, end;
    Tensor sum = {};  // [end - begin], for reduce_sum: where the sum goes; undefined: into the tensor
  };
  // Enqueues what makes this rank's part of each of these shared tensors the sum over all ranks, as all_reduce_sum, or
  // with `accumulate` adds to what is there rank 0's, then rank 1's and so on. What else they hold is left there.
  // `max_blocks`: of each kernel (ops/contracts/exchange.h).
  void reduce_sum(Ops& ops, std::span<const Part> parts, bool accumulate = false, int64_t max_blocks = 0) const;
  // Enqueues what makes each of these shared tensors on every rank what the ranks keep of it. Any dtype.
  void all_gather(Ops& ops, std::span<const Part> parts) const;

  // Enqueues what makes each of these tensors its sum over domains (ops/contracts/across.h), of those ranks alone that
  // have this one's index in their domains; only these need to have tensors alike. Nothing in a run of one domain.
  void sum_across(Ops& ops, std::span<const Tensor> tensors) const;

  // How long others wait for this rank, on their devices and in calls, from here on (Communicator::set_patience).
  void set_patience(std::chrono::milliseconds patience) const;

  // Throws what ended the exchange of a rank, if anything has: PeerFailure, or an Error (runtime) that says who waited
  // for whom. To be called when enqueued work is done and its results are about to be believed, or it has failed.
  void check() const;

 private:
  void connect(const Rank& rank, Storage& storage);
  void raise_abort() const;

  Device& device_;
  Communicator& all_ranks_;
  Communicator& communicator_;  // of the domain
  Peers peers_;
  Across across_;
  int num_exceptions_;          // at the start
  std::shared_ptr<void> told_;  // last: what is told uses all of the above
};

}  // namespace nmoe
