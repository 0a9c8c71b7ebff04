// Peers: the ranks of a domain as operations see them, each of which reads and writes the memory of all others
// directly: GPUs of one NVLink domain, or threads that share the host's memory.
//
// Some arenas of a rank are *shared*: of the same size and layout on every rank, so that a tensor in one has a
// counterpart at the same place on every other rank. Made by parallel/domain.h.
//
// Threads: used by the thread that drives the rank's device. The memory of other ranks is touched only by operations,
// between two peer_barriers (contracts/exchange.h) that say when it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace nmoe {

// The largest number of GPUs in an NVLink domain today. Operations pass this many pointers to a kernel.
inline constexpr int64_t kMaxPeers = 72;

class Peers {
 public:
  // The state of peer_barrier.
  struct Barrier {
    Tensor arrivals;  // [W] i64, shared: the last barrier that rank i reached, written by rank i
    Tensor count;     // [1] i64: barriers that this rank has reached
    Tensor aborted;   // [1] i32, shared, in host memory: not 0 once a rank has given up; written by any
    Tensor patience;  // [1] i64, shared, in host memory that devices read: how long others wait for this rank, ns
    Tensor report;    // [6] i64 in host memory that the device writes: a value other than 0, then a Report
  };
  // Which rank waited too long for which, the number of the barrier, and what it was for (PeerWork, layer).
  struct Report {
    int64_t rank, missing, barrier, work, layer;
  };

  // Rank `index` of `count`, not yet connected to the others: shared tensors have shapes, but no counterparts.
  Peers(int64_t index, int64_t count);

  int64_t index() const { return index_; }
  int64_t count() const { return count_; }
  // Whether there are no other ranks to exchange with.
  bool alone() const { return count_ == 1; }

  // Makes an arena's memory shared; `bases` are its beginnings on each rank.
  void share(int64_t num_bytes, std::vector<std::byte*> bases);
  void set_barrier(const Barrier& barrier) { barrier_ = barrier; }
  const Barrier& barrier() const { return barrier_; }
  // Sets how long others wait for this rank in a barrier from now on. From any thread; its memory is in barrier().
  void set_patience_ns(int64_t patience) const;
  int64_t patience_ns_with(int64_t rank) const;
  // The Error (runtime) that ends a run in which a rank has waited too long.
  Error waited_too_long(const Report& report) const;
  // Called repeatedly by operations that wait on the host; throws if a peer has failed.
  void set_check(std::function<void()> check) { check_ = std::move(check); }
  void check() const {
    if (check_) check_();
  }

  // The counterpart on rank `rank` of `mine`, a tensor in a shared arena of this rank.
  Tensor on(int64_t rank, const Tensor& mine) const;

 private:
  struct Region {
    int64_t num_bytes;
    std::vector<std::byte*> bases;  // by rank
  };

  int64_t index_, count_;
  std::vector<Region> regions_;
  Barrier barrier_;
  std::function<void()> check_;
};

}  // namespace nmoe
