#include "rdep/peer_transport.h"

#include <utility>

#include "base/error.h"

namespace nmoe {

void PeerTransport::put(Ops& ops, const TokensToSend& tokens) const { ops.exchange_send({tokens, peers_}); }
void PeerTransport::put(Ops& ops, const SumsToReturn& sums) const { ops.exchange_return({sums, peers_}); }
void PeerTransport::put(Ops& ops, const CopiesToReturn& copies) const { ops.exchange_return_copies({copies, peers_}); }
void PeerTransport::put(Ops& ops, Tensor x, int64_t begin, int64_t end) const {
  ops.peer_spread({.peers = peers_, .x = x, .begin = begin, .end = end});
}
void PeerTransport::get(Ops& ops, int64_t rank, Tensor x, Tensor destination) const {
  ops.peer_fetch({.peers = peers_, .rank = rank, .x = x, .destination = destination});
}

void PeerTransport::signal(Ops&) {
  const bool twice = std::exchange(signalled_, true);
  NMOE_CHECK(!twice, "rank {} signals twice without a wait", index());
}
void PeerTransport::wait(Ops& ops, const PeerPlace& place, Tensor waited) {
  const bool signalled = std::exchange(signalled_, false);
  NMOE_CHECK(signalled, "rank {} waits without having signalled", index());
  ops.peer_barrier({.peers = peers_, .place = place, .waited = waited});
}

}  // namespace nmoe
