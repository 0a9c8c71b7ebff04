// The transport between ranks whose devices write into each other's memory (ops/peers.h): GPUs of one NVLink domain, or
// threads of one process.
#pragma once

#include "ops/peers.h"
#include "rdep/transport.h"

namespace nmoe {

class PeerTransport final : public Transport {
 public:
  // `window` is an arena that `peers` share; both must outlive the transport.
  PeerTransport(const Peers& peers, Arena& window) : peers_(peers), window_(window) {}

  int64_t index() const override { return peers_.index(); }
  int64_t count() const override { return peers_.count(); }
  Arena& window() override { return window_; }
  void put(Ops& ops, const TokensToSend& tokens) const override;
  void put(Ops& ops, const SumsToReturn& sums) const override;
  void put(Ops& ops, const CopiesToReturn& copies) const override;
  void put(Ops& ops, Tensor x, int64_t begin, int64_t end) const override;
  void get(Ops& ops, int64_t rank, Tensor x, Tensor destination) const override;
  void signal(Ops& ops) override;
  void wait(Ops& ops, const PeerPlace& place, Tensor waited) override;

 private:
  const Peers& peers_;
  Arena& window_;
  bool signalled_ = false;  // and not waited: one kernel does both, when the wait is enqueued
};

}  // namespace nmoe
