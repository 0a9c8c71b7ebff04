#include "model/remote_exchange.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace nmoe {

ExchangeWindow::ExchangeWindow(const Peers& peers, Ops& ops, const ModelConfig& config, int64_t max_tokens,
                               Received received, Arena& window, Arena& state)
    : peers_(peers), num_slots_(config.moe.num_experts / peers.count()), max_tokens_(max_tokens), received_(received) {
  const int64_t W = peers.count(), M = max_tokens, D = config.dim, K = config.moe.top_k, E = config.moe.num_experts;
  const bool apart = received == Received::kApart;
  for (ExchangeInbox& inbox : inboxes_) {
    inbox = {.rows = window.allocate(ops.compute_dtype(), {W, M, D}),
             .slots = window.allocate(DType::kI32, {W, M, K}),
             .weights = window.allocate(ops.stat_dtype(), {W, M, K}),
             .counts = window.allocate(DType::kI32, {W}),
             .tokens = apart ? window.allocate(DType::kI32, {W, M}) : Tensor()};
  }
  const auto upload_ids = [&](const Tensor& tensor) {  // 0, 1, 2 and so on
    std::vector<int32_t> ids(static_cast<size_t>(tensor.num_elements()));
    std::iota(ids.begin(), ids.end(), 0);
    ops.device().upload(tensor, ids.data());
  };
  if (apart) {
    copies_ = {.rows = window.allocate(ops.compute_dtype(), {M, K, D}),
               .weights = window.allocate(ops.stat_dtype(), {M, K}),
               .row_of = state.allocate(DType::kI32, {M, K})};
    upload_ids(copies_.row_of);
  } else {
    returns_ = {.rows = window.allocate(ops.compute_dtype(), {W, M, D}),
                .weights = window.allocate(ops.stat_dtype(), {W, M, K})};
  }
  placement_ = state.allocate(DType::kI32, {E});
  upload_ids(placement_);
}

namespace {

class RemoteExchange final : public TokenExchange {
 public:
  explicit RemoteExchange(ExchangeWindow& window)
      : window_(window), peers_(window.peers()), apart_(window.received() == Received::kApart) {}

  RoutedRows plan(const Pass& pass, Tensor top_idx, Tensor counts) override {
    const int64_t T = top_idx.dim(0), K = top_idx.dim(1), W = peers_.count(), M = window_.max_tokens(),
                  U = window_.num_slots(), num_parts = apart_ ? W : 1, capacity = W * M * std::min(K, U);
    top_idx_ = top_idx;
    sent_ = {.send_row = pass.push_i32({T, W}),
             .num_sent = pass.push_i32({W}),
             .placement = window_.placement(),
             .num_slots = U};
    num_received_ = pass.push_i32({W});
    if (apart_) tokens_ = pass.push_i32({W, M});
    row_of_ = pass.push_i32({W * M, K});
    pass.ops.build_exchange_plan({.top_idx = top_idx, .plan = sent_, .counts = counts});
    RoutedRows routed{.capacity = capacity, .parts = {}};
    parts_.clear();
    for (int64_t i = 0; i < num_parts; ++i) {
      const RaggedRows& rows = routed.parts.emplace_back(RaggedRows{
          .begin = capacity / num_parts * i, .end = capacity / num_parts * (i + 1), .offsets = pass.push_i32({U + 1})});
      parts_.push_back({.first_rank = i,
                        .num_ranks = W / num_parts,
                        .rows = rows,
                        .plan = {.offsets = rows.offsets,
                                 .row_of = row_of_.rows(W * M / num_parts * i, W * M / num_parts * (i + 1))}});
    }
    return routed;
  }

  void dispatch(const Pass& pass, Tensor x, Tensor weights, Tensor rows, Tensor row_weight) override {
    Ops& ops = pass.ops;
    const ExchangeInbox& inbox = window_.next_inbox();
    ops.exchange_send(
        {.peers = peers_, .plan = sent_, .x = x, .top_idx = top_idx_, .weights = weights, .inbox = inbox});
    ops.peer_barrier({peers_});
    ops.copy({.source = inbox.counts, .destination = num_received_});
    if (apart_) ops.copy({.source = inbox.tokens, .destination = tokens_});
    for (const Part& part : parts_) {
      ops.build_moe_plan({.top_idx = part.of(inbox.slots),
                          .plan = part.plan,
                          .counts = {},
                          .part_sizes = num_received_.rows(part.first_rank, part.first_rank + part.num_ranks)});
      ops.moe_dispatch_weights(
          {.weights = part.of(inbox.weights), .plan = part.plan, .row_weight = part.rows.of(row_weight)});
    }
    gather(ops, inbox, rows);
  }

  void combine(const Pass& pass, Tensor rows, Tensor y, bool accumulate) override {
    send_home(pass.ops, rows, {}, y, {}, accumulate);
  }

  // As on one rank, a sum's gradient is a dispatch, and that of copies a sum.
  void combine_backward(const Pass& pass, Tensor dy, Tensor drows) override {
    const ExchangeInbox& inbox = window_.next_inbox();
    pass.ops.exchange_send({.peers = peers_, .plan = sent_, .x = dy, .top_idx = {}, .weights = {}, .inbox = inbox});
    pass.ops.peer_barrier({peers_});
    gather(pass.ops, inbox, drows);
  }
  void dispatch_backward(const Pass& pass, Tensor drows, Tensor drow_weight, Tensor dx, Tensor dweights,
                         bool accumulate) override {
    send_home(pass.ops, drows, drow_weight, dx, dweights, accumulate);
  }

 private:
  // What came from some ranks, and where it goes.
  struct Part {
    int64_t first_rank, num_ranks;
    RaggedRows rows;
    MoePlan plan;

    // [n, width] of an inbox's [W, M, width]
    Tensor of(const Tensor& received) const {
      const Tensor mine = received.rows(first_rank, first_rank + num_ranks);
      return mine.reshape({num_ranks * received.dim(1), received.dim(2)});
    }
  };

  void gather(Ops& ops, const ExchangeInbox& inbox, Tensor rows) const {
    for (const Part& part : parts_) {
      ops.moe_dispatch({.x = part.of(inbox.rows), .plan = part.plan, .rows = part.rows.of(rows)});
    }
  }

  void send_home(Ops& ops, Tensor rows, Tensor row_weight, Tensor y, Tensor weights, bool accumulate) const {
    if (apart_) return send_copies_home(ops, rows, row_weight, y, weights, accumulate);
    ops.exchange_return({.peers = peers_,
                         .rows = rows,
                         .row_weight = row_weight,
                         .row_of = row_of_,
                         .counts = num_received_,
                         .returns = window_.returns()});
    ops.peer_barrier({peers_});
    ops.exchange_collect({.plan = sent_,
                          .top_idx = top_idx_,
                          .returns = window_.returns(),
                          .y = y,
                          .accumulate = accumulate,
                          .weights = weights});
  }

  // Home adds a token's copies in the order of its choices, as one rank does.
  void send_copies_home(Ops& ops, Tensor rows, Tensor row_weight, Tensor y, Tensor weights, bool accumulate) const {
    const int64_t T = y.dim(0), W = peers_.count(), D = y.dim(1), C = rows.dim(0) / W;
    const ExchangeWindow::Copies& copies = window_.copies();
    const int64_t M = copies.rows.dim(0), K = copies.rows.dim(1);
    ops.exchange_return_copies({.peers = peers_,
                                .rows = rows.reshape({W, C, D}),
                                .row_weight = row_weight.defined() ? row_weight.reshape({W, C}) : Tensor(),
                                .row_of = row_of_.reshape({W, M, K}),
                                .tokens = tokens_,
                                .counts = num_received_,
                                .copies = copies.rows,
                                .weights = copies.weights});
    ops.peer_barrier({peers_});
    const MoePlan plan{.offsets = {}, .row_of = copies.row_of.rows(0, T)};
    ops.moe_combine({.rows = copies.rows.reshape({M * K, D}), .plan = plan, .y = y, .accumulate = accumulate});
    if (weights.defined()) ops.copy({.source = copies.weights.rows(0, T), .destination = weights});
  }

  ExchangeWindow& window_;
  const Peers& peers_;
  const bool apart_;
  Tensor top_idx_;           // [T, K] i32
  ExchangePlan sent_;        // this rank's tokens
  Tensor num_received_;      // [W] i32 tokens of each rank
  Tensor tokens_;            // [W, M] i32, received apart: which of their ranks' tokens they are
  Tensor row_of_;            // [W * M, K] i32: the received tokens' copies, each within its part
  std::vector<Part> parts_;  // of the layer's rows
};

}  // namespace

std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window) {
  return std::make_unique<RemoteExchange>(window);
}

}  // namespace nmoe
