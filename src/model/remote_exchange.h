// Exchange of tokens with the experts of other ranks, by direct puts into their memory (RDEP: remote direct expert
// parallelism). What travels, and why it needs no order from the host: ops/contracts/exchange.h.
//
// W ranks, M tokens of a rank at most, D model width, K choices of a token, U experts on a rank.
//
// What travels is at most W * M rows of D under any routing, and so large are the inboxes. Expanded, a rank's experts
// have M * K rows on average over the ranks, and W * M * min(K, U) at worst. There is room for some multiple of the
// average; what is beyond it is worked off in chunks (RoutedRows), for which the tokens are sent once more in backward,
// to the ranks alone that had too many rows.
#pragma once

#include <array>
#include <memory>

#include "base/kinds.h"
#include "config/config.h"
#include "model/exchange_stats.h"
#include "model/token_exchange.h"
#include "ops/peers.h"

namespace nmoe {

// How the tokens that a rank's experts get are worked off.
enum class Received {
  kTogether,  // all at once; of a token one row comes back from each other rank, the sum of what its experts there made
  kApart,  // rank by rank, and every copy comes back by itself: no sum has an order that depends on where experts are
};

// What a rank has room for.
struct ExchangeLimits {
  int64_t max_tokens = 0;        // M
  double capacity_factor = 1.0;  // rows that a layer's experts keep for backward, over the average of ranks
};

// Rows of a layer's experts on a rank.
struct ExpertRows {
  int64_t worst = 0;       // W * M * min(K, U)
  int64_t kept = 0;        // that there is room for
  int64_t num_chunks = 0;  // for the others at worst
  int64_t chunk = 0;       // rows of each, at most as many as are kept
};
// Received apart, where a chunk would begin at another row of an expert on another number of ranks, all are kept.
ExpertRows expert_rows(const ModelConfig& config, int64_t num_ranks, const ExchangeLimits& limits, Received received);

// Where other ranks put tokens for this one's experts, and what their experts made of this one's: shared by all layers,
// which use it in turn.
class ExchangeWindow {
 public:
  // `window` is shared, `state` this rank's own. `peers` outlive the window. wire: what tokens, and gradients of what
  // experts made of them, travel as.
  ExchangeWindow(const Peers& peers, Ops& ops, const ModelConfig& config, const ExchangeLimits& limits,
                 Received received, WireFormat wire, Arena& window, Arena& state);

  const Peers& peers() const { return peers_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t width() const { return width_; }
  Received received() const { return received_; }
  const ExpertRows& expert_rows() const { return expert_rows_; }

  // The inbox for what is sent next. There are two in turn: behind the barrier of one sending, a rank may send into the
  // other while others still read what came before.
  const ExchangeInbox& next_inbox() { return inboxes_[turn_++ % inboxes_.size()]; }
  // One suffices: between two returns there is always a sending, with its barrier.
  const ExchangeReturns& returns() const { return returns_; }  // kTogether
  // [W] i32: rows of each rank's experts in the layer that was last combined. Undefined where none can be too many.
  Tensor loads() const { return loads_; }
  // kApart: the copies' rows [M, K, D] and weights [M, K], and which of those rows a token's are, [M, K] i32.
  struct Copies {
    Tensor rows, weights, row_of;
  };
  const Copies& copies() const { return copies_; }

 private:
  const Peers& peers_;
  int64_t num_slots_;   // U
  int64_t max_tokens_;  // M
  int64_t width_;       // D
  Received received_;
  ExpertRows expert_rows_;
  std::array<ExchangeInbox, 2> inboxes_;
  ExchangeReturns returns_;
  Tensor loads_;
  Copies copies_;
  size_t turn_ = 0;
};

// A layer's exchange through `window`, which outlives it. `layer`: of the model, for messages. places [E] i32 says
// where its experts are, as ExchangePlan::placement does, whenever a pass is run; `stats` are this rank's of the layer;
// undefined: not kept. Rows are sorted by (slot, rank that the token is of, token), or, received apart, by (rank, slot,
// token).
std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window, int64_t layer, Tensor places,
                                                    const ExchangeStats& stats = {});

}  // namespace nmoe
