// Transport: how the ranks that share experts reach each other's memory. An exchange of tokens puts rows there, signals
// that they are, and waits for what the others put; so do moves of experts. Implementations: rdep/peer_transport.h.
//
// The memory that others reach is the window, which belongs to the transport, and what its maker shares besides. It is
// laid out alike on all ranks, so that a tensor in it names a place on each of them.
//
// All calls enqueue work on the lane of `ops`; the host orders nothing. All ranks make them in the same order. What a
// rank put before a signal is there on the others when these have waited for it; it may be put over once the wait is
// over that belongs to the first signal after it was read.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nmoe {

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual int64_t index() const = 0;  // of this rank, from 0
  virtual int64_t count() const = 0;  // of ranks

  // Where memory of the window is allocated, before anything is put into it.
  virtual Arena& window() = 0;

  // Writes what these describe (ops/contracts/exchange.h) to the ranks that it is for.
  virtual void put(Ops& ops, const TokensToSend& tokens) const = 0;
  virtual void put(Ops& ops, const SumsToReturn& sums) const = 0;
  virtual void put(Ops& ops, const CopiesToReturn& copies) const = 0;
  // Writes the elements [begin, end) of x, flattened, to every other rank's x.
  virtual void put(Ops& ops, Tensor x, int64_t begin, int64_t end) const = 0;
  // Reads rank `rank`'s x into a tensor of the same size, anywhere on this rank.
  virtual void get(Ops& ops, int64_t rank, Tensor x, Tensor destination) const = 0;

  // Tells all others that everything put before is there.
  virtual void signal(Ops& ops) = 0;
  // Waits for the signals of all others. Nothing else is called between a signal and its wait, on the same lane.
  // `place` is named where one is waited for in vain; `waited`, if defined, [1] f64 += nanoseconds until the last one
  // came.
  virtual void wait(Ops& ops, const PeerPlace& place, Tensor waited) = 0;
};

}  // namespace nmoe
