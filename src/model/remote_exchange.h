// Exchange of tokens with the experts of other ranks, by direct writes to their memory (RDEP: remote direct expert
// parallelism). ops/contracts/exchange.h says what is sent, and why the host need not order it.
//
// W ranks, M the largest number of tokens of a rank, D model width, K choices of a token, U experts on a rank.
//
// Under any routing a rank receives at most W * M rows of D, which is the size of its inbox. Expanded to one row for
// each choice, its experts have M * K rows on average over the ranks, and W * M * min(K, U) at worst. There is room for
// a multiple of the average; rows beyond it are processed in chunks (RoutedRows), for which backward sends the tokens
// once more, but only to the ranks that had too many rows.
#pragma once

#include <array>
#include <memory>

#include "base/kinds.h"
#include "config/config.h"
#include "model/exchange_stats.h"
#include "model/token_exchange.h"
#include "ops/peers.h"

namespace nmoe {

// How a rank processes the tokens that its experts receive.
enum class Received {
  kTogether,  // all at once; each other rank returns one row for a token, the sum over its experts there
  kApart,     // rank by rank, and each copy is returned by itself: no sum depends on where experts are
};

// What travels, and what becomes of it.
struct ExchangeForm {
  Received received = Received::kTogether;
  RowFormat wire = RowFormat::kDevice;  // of tokens, and of gradients of experts' outputs, on their way to experts
  bool gives_codes = false;             // whether experts get the codes of their rows too, if these travelled as codes
};

// The capacity of a rank.
struct ExchangeLimits {
  int64_t max_tokens = 0;        // M
  double capacity_factor = 1.0;  // rows that a layer's experts keep for backward, over the ranks' average
};

// Rows of a layer's experts on a rank.
struct ExpertRows {
  int64_t worst = 0;       // W * M * min(K, U)
  int64_t kept = 0;        // rows that there is room for
  int64_t num_chunks = 0;  // of overflow, at worst
  int64_t chunk = 0;       // rows of a chunk, at most `kept`
};
// With Received::kApart all rows are kept: the bounds of chunks would depend on the number of ranks.
ExpertRows expert_rows(const ModelConfig& config, int64_t num_ranks, const ExchangeLimits& limits, Received received);

// The memory into which other ranks put tokens for this rank's experts, and the outputs of their experts for this
// rank's tokens. All layers use it in turn.
class ExchangeWindow {
 public:
  // `window` is memory that other ranks reach, `state` this rank's own. `peers` have to outlive the window.
  ExchangeWindow(const Peers& peers, Ops& ops, const ModelConfig& config, const ExchangeLimits& limits,
                 const ExchangeForm& form, Arena& window, Arena& state);

  const Peers& peers() const { return peers_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t width() const { return width_; }
  Received received() const { return received_; }
  const ExpertRows& expert_rows() const { return expert_rows_; }

  // The inbox for the next dispatch. Two are used in turn: after the barrier of one dispatch, a rank may send into the
  // other inbox while others still read the first.
  const ExchangeInbox& next_inbox() { return inboxes_[turn_++ % inboxes_.size()]; }
  // One is enough: between two returns there is always a dispatch, with its barrier.
  const ExchangeReturns& returns() const { return returns_; }  // kTogether
  // [W] i32: rows of each rank's experts in the layer that was combined last. Undefined where there is no overflow.
  Tensor loads() const { return loads_; }
  // kApart: the copies' rows [M, K, D] and weights [M, K], and the rows of each token among them [M, K] i32.
  struct Copies {
    Tensor rows, weights, row_of;
  };
  const Copies& copies() const { return copies_; }
  // [R, D]: codes of the rows that arrived last; undefined if experts do not get them.
  const RowCodes& row_codes() const { return row_codes_; }

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
  RowCodes row_codes_;
  size_t turn_ = 0;
};

// A layer's exchange through `window`, which has to outlive it. `layer`: its index in the model, for messages. places
// [E] i32, as ExchangePlan::placement, is read in every pass; `stats`, this rank's of the layer, may be undefined. Rows
// are sorted by (slot, rank of the token, token); with Received::kApart by (rank, slot, token).
std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window, int64_t layer, Tensor places,
                                                    const ExchangeStats& stats = {});

}  // namespace nmoe
