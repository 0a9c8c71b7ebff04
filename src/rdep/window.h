// The memory through which ranks exchange tokens: what each has received for its experts, and what has come back for
// its own tokens.
//
// W ranks, M the largest number of tokens of a rank, D the width of a row that travels, K choices of a token, U experts
// on a rank.
#pragma once

#include <array>

#include "base/kinds.h"
#include "ops/ops.h"
#include "rdep/capacity.h"
#include "rdep/transport.h"
#include "tensor/arena.h"

namespace nmoe {

// What travels, and what becomes of it.
struct ExchangeForm {
  Received received = Received::kTogether;
  RowFormat dispatch_format =
      RowFormat::kDevice;    // of tokens, and of gradients of experts' outputs, on their way to experts
  bool gives_codes = false;  // whether experts get the codes of their rows too, if these travelled as codes
};

// The memory into which other ranks put tokens for this rank's experts, and the outputs of their experts for this
// rank's tokens. All layers use it in turn.
class ExchangeWindow {
 public:
  // Other ranks reach what is allocated through `transport`, which has to outlive the window; `state` is this rank's
  // own.
  ExchangeWindow(Transport& transport, Ops& ops, const ExchangeShape& shape, const ExchangeLimits& limits,
                 const ExchangeForm& form, Arena& state);

  Transport& transport() const { return transport_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t width() const { return width_; }
  Received received() const { return received_; }
  RowFormat dispatch_format() const { return dispatch_format_; }
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
  Transport& transport_;
  int64_t num_slots_;   // U
  int64_t max_tokens_;  // M
  int64_t width_;       // D
  Received received_;
  RowFormat dispatch_format_;
  ExpertRows expert_rows_;
  std::array<ExchangeInbox, 2> inboxes_;
  ExchangeReturns returns_;
  Tensor loads_;
  Copies copies_;
  RowCodes row_codes_;
  size_t turn_ = 0;
};

}  // namespace nmoe
