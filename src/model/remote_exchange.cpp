#include "model/remote_exchange.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace nmoe {

ExchangeWindow::ExchangeWindow(const Peers& peers, Ops& ops, const ModelConfig& config, int64_t max_tokens,
                               Arena& window, Arena& state)
    : peers_(peers), num_slots_(config.moe.num_experts / peers.count()), max_tokens_(max_tokens) {
  const int64_t W = peers.count(), M = max_tokens, D = config.dim, K = config.moe.top_k, E = config.moe.num_experts;
  for (ExchangeInbox& inbox : inboxes_) {
    inbox = {.rows = window.allocate(ops.compute_dtype(), {W, M, D}),
             .slots = window.allocate(DType::kI32, {W, M, K}),
             .weights = window.allocate(ops.stat_dtype(), {W, M, K}),
             .counts = window.allocate(DType::kI32, {W})};
  }
  returns_ = {.rows = window.allocate(ops.compute_dtype(), {W, M, D}),
              .weights = window.allocate(ops.stat_dtype(), {W, M, K})};
  placement_ = state.allocate(DType::kI32, {E});
  std::vector<int32_t> places(static_cast<size_t>(E));
  std::iota(places.begin(), places.end(), 0);
  ops.device().upload(placement_, places.data());
}

namespace {

class RemoteExchange final : public TokenExchange {
 public:
  explicit RemoteExchange(ExchangeWindow& window) : window_(window), peers_(window.peers()) {}

  RaggedRows plan(const Pass& pass, Tensor top_idx, Tensor counts) override {
    const int64_t T = top_idx.dim(0), K = top_idx.dim(1), W = peers_.count(), M = window_.max_tokens(),
                  U = window_.num_slots();
    top_idx_ = top_idx;
    sent_ = {.send_row = pass.push_i32({T, W}),
             .num_sent = pass.push_i32({W}),
             .placement = window_.placement(),
             .num_slots = U};
    num_received_ = pass.push_i32({W});
    rows_ = {.offsets = pass.push_i32({U + 1}), .row_of = pass.push_i32({W * M, K})};
    pass.ops.build_exchange_plan({.top_idx = top_idx, .plan = sent_, .counts = counts});
    return {.capacity = W * M * std::min(K, U), .offsets = rows_.offsets};
  }

  void dispatch(const Pass& pass, Tensor x, Tensor weights, Tensor rows, Tensor row_weight) override {
    Ops& ops = pass.ops;
    const ExchangeInbox& inbox = window_.next_inbox();
    ops.exchange_send(
        {.peers = peers_, .plan = sent_, .x = x, .top_idx = top_idx_, .weights = weights, .inbox = inbox});
    ops.peer_barrier({peers_});
    ops.copy({.source = inbox.counts, .destination = num_received_});
    const Shape received = rows_.row_of.shape();
    ops.build_moe_plan(
        {.top_idx = inbox.slots.reshape(received), .plan = rows_, .counts = {}, .part_sizes = num_received_});
    ops.moe_dispatch_weights({.weights = inbox.weights.reshape(received), .plan = rows_, .row_weight = row_weight});
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
  void gather(Ops& ops, const ExchangeInbox& inbox, Tensor rows) const {
    const int64_t num_received = inbox.rows.dim(0) * inbox.rows.dim(1);
    ops.moe_dispatch({.x = inbox.rows.reshape({num_received, inbox.rows.dim(2)}), .plan = rows_, .rows = rows});
  }

  void send_home(Ops& ops, Tensor rows, Tensor row_weight, Tensor y, Tensor weights, bool accumulate) const {
    ops.exchange_return({.peers = peers_,
                         .rows = rows,
                         .row_weight = row_weight,
                         .row_of = rows_.row_of,
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

  ExchangeWindow& window_;
  const Peers& peers_;
  Tensor top_idx_;       // [T, K] i32
  ExchangePlan sent_;    // this rank's tokens
  Tensor num_received_;  // [W] i32 tokens of each rank
  MoePlan rows_;         // of the received tokens' copies
};

}  // namespace

std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window) {
  return std::make_unique<RemoteExchange>(window);
}

}  // namespace nmoe
