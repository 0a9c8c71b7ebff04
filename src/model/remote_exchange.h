// Exchange of tokens with the experts of other ranks, by direct puts into their memory (RDEP: remote direct expert
// parallelism). What travels, and why it needs no order from the host: ops/contracts/exchange.h.
//
// W ranks, M tokens of a rank at most, D model width, K choices of a token, U experts on a rank.
#pragma once

#include <array>
#include <memory>

#include "config/config.h"
#include "model/token_exchange.h"
#include "ops/peers.h"

namespace nmoe {

// How the tokens that a rank's experts get are worked off.
enum class Received {
  kTogether,  // all at once; of a token one row comes back from each rank, the sum of what its experts there made
  kApart,  // rank by rank, and every copy comes back by itself: no sum has an order that depends on where experts are
};

// Where other ranks put tokens for this one's experts, and what their experts made of this one's: shared by all layers,
// which use it in turn.
class ExchangeWindow {
 public:
  // Expert e is in slot e % U of rank e / U. `window` is shared, `state` this rank's own. `peers` outlive the window.
  ExchangeWindow(const Peers& peers, Ops& ops, const ModelConfig& config, int64_t max_tokens, Received received,
                 Arena& window, Arena& state);

  const Peers& peers() const { return peers_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t max_tokens() const { return max_tokens_; }
  Tensor placement() const { return placement_; }
  Received received() const { return received_; }

  // The inbox for what is sent next. There are two in turn: behind the barrier of one sending, a rank may send into the
  // other while others still read what came before.
  const ExchangeInbox& next_inbox() { return inboxes_[turn_++ % inboxes_.size()]; }
  // One suffices: between two returns there is always a sending, with its barrier.
  const ExchangeReturns& returns() const { return returns_; }  // kTogether
  // kApart: the copies' rows [M, K, D] and weights [M, K], and which of those rows a token's are, [M, K] i32.
  struct Copies {
    Tensor rows, weights, row_of;
  };
  const Copies& copies() const { return copies_; }

 private:
  const Peers& peers_;
  int64_t num_slots_;   // U
  int64_t max_tokens_;  // M
  Received received_;
  Tensor placement_;  // [E] i32
  std::array<ExchangeInbox, 2> inboxes_;
  ExchangeReturns returns_;
  Copies copies_;
  size_t turn_ = 0;
};

// A layer's exchange through `window`, which outlives it. Rows are sorted by (expert, rank that the token is of,
// token), or, received apart, by (rank, expert, token). There is room for every token of all ranks having as many of
// its choices here as can be.
std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window);

}  // namespace nmoe
