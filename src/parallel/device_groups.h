// Groups of ranks as the work on their devices sees them: what is enqueued here is done together, without the host.
// Which group is meant for what is said by Domain (parallel/domain.h), as Mesh does for calls of the host.
//
// Threads: driven by the one that drives the rank's device (ops/device.h). All ranks of a group make the same calls in
// the same order.
#pragma once

#include <cstdint>
#include <span>

#include "ops/across.h"
#include "ops/ops.h"
#include "ops/peers.h"

namespace nmoe {

// Ranks that reach each other's memory. Tensors are in memory that they share (ops/peers.h).
class PeerGroup {
 public:
  // A handle: `peers` must outlive it.
  explicit PeerGroup(const Peers& peers) : peers_(peers) {}

  const Peers& peers() const { return peers_; }
  int64_t index() const { return peers_.index(); }
  int64_t count() const { return peers_.count(); }
  bool alone() const { return peers_.alone(); }

  // Enqueues the sum of each of these tensors over the group, in rank order: the same bits on every rank and every
  // time. F32, F64 or I32.
  void all_reduce_sum(Ops& ops, std::span<const Tensor> tensors) const;

  // A shared tensor, and the range of its flattened elements that this rank owns: the ranks' parts together are the
  // whole.
  struct Part {
    Tensor tensor;
    int64_t begin, end;
    Tensor sum = {};  // [end - begin], for reduce_sum: where the sum goes; undefined: into the tensor
  };
  // Reduce-scatter: enqueues the sum over the group, in rank order, of this rank's part of each tensor; with
  // `accumulate` it begins with what is there. The rest of the tensors is left alone. `max_blocks`: of each kernel
  // (ops/contracts/exchange.h).
  void reduce_sum(Ops& ops, std::span<const Part> parts, bool accumulate = false, int64_t max_blocks = 0) const;
  // All-gather: enqueues what copies each rank's parts of these tensors to all others. Any dtype.
  void all_gather(Ops& ops, std::span<const Part> parts) const;

 private:
  const Peers& peers_;
};

// Ranks that do not reach each other's memory.
class AcrossGroup {
 public:
  // A handle: `across` must outlive it.
  explicit AcrossGroup(const Across& across) : across_(across) {}

  int64_t index() const { return across_.index(); }
  int64_t count() const { return across_.count(); }
  bool alone() const { return across_.alone(); }

  // Enqueues the sum of each of these tensors over the group (ops/contracts/across.h); alone it does nothing.
  void sum(Ops& ops, std::span<const Tensor> tensors) const;

 private:
  const Across& across_;
};

}  // namespace nmoe
