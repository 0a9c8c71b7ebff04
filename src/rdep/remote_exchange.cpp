#include <functional>
#include <initializer_list>
#include <vector>

#include "rdep/exchange.h"

namespace nmoe {

namespace {

// A layer's place in the exchange of all.
struct RemoteLayer {
  ExchangeWindow& window;
  int64_t layer;
  Tensor places;  // [E] i32
  ExchangeStats stats;
};

class RemoteRouting final : public RoutedExchange {
 public:
  RemoteRouting(const RemoteLayer& of, const ExchangePass& pass, Tensor top_idx, Tensor counts)
      : window_(of.window),
        transport_(window_.transport()),
        layer_(of.layer),
        apart_(window_.received() == Received::kApart),
        stats_(of.stats),
        top_idx_(top_idx) {
    const auto push_i32 = [&](const Shape& shape) { return pass.activations.allocate(DType::kI32, shape); };
    const ExpertRows& sizes = window_.expert_rows();
    const int64_t T = top_idx.dim(0), K = top_idx.dim(1), W = transport_.count(), M = window_.max_tokens(),
                  U = window_.num_slots(), num_parts = apart_ ? W : 1, capacity = sizes.kept;
    sent_ = {.send_row = push_i32({T, W}), .num_sent = push_i32({W}), .placement = of.places, .num_slots = U};
    num_received_ = push_i32({W});
    if (apart_) tokens_ = push_i32({W, M});
    row_of_ = push_i32({W * M, K});
    pass.ops.build_exchange_plan(
        {.top_idx = top_idx, .plan = sent_, .counts = counts, .traffic = counts.defined() ? stats_.traffic : Tensor()});
    routed_.capacity = capacity;
    for (int64_t i = 0; i < num_parts; ++i) {
      const RaggedRows& rows = routed_.parts.emplace_back(RaggedRows{.begin = capacity / num_parts * i,
                                                                     .end = capacity / num_parts * (i + 1),
                                                                     .part = i,
                                                                     .num_parts = num_parts,
                                                                     .offsets = push_i32({U + 1})});
      parts_.push_back({.first_rank = i,
                        .num_ranks = W / num_parts,
                        .rows = rows,
                        .plan = {.offsets = rows.offsets,
                                 .row_of = row_of_.rows(W * M / num_parts * i, W * M / num_parts * (i + 1))}});
    }
    if (sizes.num_chunks == 0) return;

    // The offsets of all rows, and those of what is kept and of each chunk.
    loads_ = push_i32({W});
    offsets_ = parts_[0].plan.offsets;
    part_offsets_ = push_i32({1 + sizes.num_chunks, U + 1});
    parts_[0].plan.offsets = parts_[0].rows.offsets = routed_.parts[0].offsets = part_offsets_[0];
    for (int64_t i = 0; i < sizes.num_chunks; ++i) {
      Part& chunk = chunks_.emplace_back(parts_[0]);
      chunk.rows = {.begin = 0, .end = sizes.chunk, .offsets = part_offsets_[1 + i]};
      chunk.plan.offsets = chunk.rows.offsets;
      chunk.plan.first_row = sizes.kept + i * sizes.chunk;
      routed_.overflow.push_back(chunk.rows);
    }
  }

  void begin_dispatch(const ExchangePass& pass, const Rows& x, Tensor weights) override {
    inbox_ = &window_.next_inbox();
    const Rows sent = travelling(pass, x);
    begin_moving(pass, Transfer::kDispatch, [&](Ops& ops) {
      transport_.put(ops, TokensToSend{.plan = sent_,
                                       .x = sent.tensor(),
                                       .top_idx = top_idx_,
                                       .weights = weights,
                                       .inbox = *inbox_,
                                       .max_blocks = kBlocksBeside,
                                       .codes = sent.quantised});
      meet(pass, ops, Transfer::kDispatch);
    });
  }
  Rows end_dispatch(const ExchangePass& pass, Tensor row_weight) override {
    Ops& ops = pass.ops;
    const Tensor rows = pass.activations.allocate(ops.compute_dtype(), {window_.expert_rows().kept, window_.width()});
    end_moving(pass, Transfer::kDispatch);
    const ExchangeInbox& inbox = *inbox_;
    ops.copy({.source = inbox.counts, .destination = num_received_});
    if (apart_) ops.copy({.source = inbox.tokens, .destination = tokens_});
    for (const Part& part : parts_) {
      MoePlan plan = part.plan;
      if (!chunks_.empty()) plan.offsets = offsets_;
      ops.build_moe_plan({.top_idx = part.of(inbox.slots),
                          .plan = plan,
                          .counts = {},
                          .part_sizes = num_received_.rows(part.first_rank, part.first_rank + part.num_ranks)});
    }
    if (!chunks_.empty()) {
      const ExpertRows& sizes = window_.expert_rows();
      ops.divide_moe_rows({.offsets = offsets_, .capacity = sizes.kept, .chunk = sizes.chunk, .parts = part_offsets_});
    }
    for (const Part& part : parts_) gather_weights(ops, part, inbox, row_weight);
    for (const Part& part : parts_) gather(ops, part, inbox, rows, window_.row_codes());
    arrived_ = &inbox;
    return {OperandRows(rows), window_.row_codes()};
  }

  void combine(const ExchangePass& pass, Tensor rows, Tensor y, bool accumulate,
               const OverflowPass& overflow) override {
    begin_returning(pass, Transfer::kCombine, rows, {});
    if (!chunks_.empty()) tell_load(pass.ops);
    end_returning(pass, Transfer::kCombine, y, {}, accumulate, [&](const Part& chunk) {
      gather_chunk(pass.ops, chunk, overflow);
      overflow.run(chunk.rows);
      return_sums(pass.ops, chunk, overflow.rows, {});
    });
    if (!chunks_.empty()) pass.ops.copy({.source = window_.loads(), .destination = loads_});
  }

  // As on one rank, a sum's gradient is a dispatch, and that of copies a sum.
  void begin_combine_backward(const ExchangePass& pass, const Rows& dy, const Rows& x, Tensor weights) override {
    const bool again = !chunks_.empty() && x.has_values();
    const Rows sent = travelling(pass, dy), sent_again = again ? travelling(pass, x) : Rows();
    // Both inboxes are free: everybody came to the barrier of a return since they were read.
    if (again) arrived_ = &window_.next_inbox();
    inbox_ = &window_.next_inbox();
    begin_moving(pass, Transfer::kCombineBackward, [&](Ops& ops) {
      if (again) {
        transport_.put(ops, TokensToSend{.plan = sent_,
                                         .x = sent_again.tensor(),
                                         .top_idx = top_idx_,
                                         .weights = weights,
                                         .inbox = *arrived_,
                                         .loads = loads_,
                                         .room = window_.expert_rows().kept,
                                         .codes = sent_again.quantised});
      }
      transport_.put(ops, TokensToSend{.plan = sent_,
                                       .x = sent.tensor(),
                                       .top_idx = {},
                                       .weights = {},
                                       .inbox = *inbox_,
                                       .max_blocks = kBlocksBeside,
                                       .codes = sent.quantised});
      meet(pass, ops, Transfer::kCombineBackward);
    });
  }
  Rows end_combine_backward(const ExchangePass& pass, Tensor drows) override {
    end_moving(pass, Transfer::kCombineBackward);
    for (const Part& part : parts_) gather(pass.ops, part, *inbox_, drows, window_.row_codes());
    return {OperandRows(drows), window_.row_codes()};
  }
  void begin_dispatch_backward(const ExchangePass& pass, Tensor drows, Tensor drow_weight) override {
    begin_returning(pass, Transfer::kDispatchBackward, drows, drow_weight);
  }
  void end_dispatch_backward(const ExchangePass& pass, Tensor dx, Tensor dweights, bool accumulate,
                             const OverflowPass& overflow) override {
    end_returning(pass, Transfer::kDispatchBackward, dx, dweights, accumulate, [&](const Part& chunk) {
      gather_chunk(pass.ops, chunk, overflow);
      gather(pass.ops, chunk, *inbox_, overflow.drows);
      overflow.run(chunk.rows);
      return_sums(pass.ops, chunk, overflow.drows, overflow.drow_weight);
    });
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
    // Of its [W * M, width].
    RowCodes of(const RowCodes& received, int64_t max_tokens) const {
      const int64_t begin = first_rank * max_tokens, end = begin + num_ranks * max_tokens;
      return {.values = received.values.rows(begin, end), .scales = received.scales.rows(begin, end)};
    }
  };

  // x in the one form in which it goes.
  Rows travelling(const ExchangePass& pass, const Rows& x) const {
    return window_.dispatch_format() == RowFormat::kFp8 ? Rows({}, quantised(pass, x)) : Rows(x.tensor());
  }
  void gather(Ops& ops, const Part& part, const ExchangeInbox& inbox, Tensor rows,
              const RowCodes& row_codes = {}) const {
    const bool coded = inbox.codes.defined();
    ops.moe_dispatch({.x = coded ? Tensor() : part.of(inbox.rows),
                      .plan = part.plan,
                      .rows = part.rows.of(rows),
                      .codes = coded ? part.of(inbox.codes, window_.max_tokens()) : RowCodes(),
                      .row_codes = part.rows.of(row_codes)});
  }
  void gather_weights(Ops& ops, const Part& part, const ExchangeInbox& inbox, Tensor row_weight) const {
    ops.moe_dispatch_weights(
        {.weights = part.of(inbox.weights), .plan = part.plan, .row_weight = part.rows.of(row_weight)});
  }
  void gather_chunk(Ops& ops, const Part& chunk, const OverflowPass& overflow) const {
    gather_weights(ops, chunk, *arrived_, overflow.row_weight);
    gather(ops, chunk, *arrived_, overflow.rows);
  }

  // Adds to those sums that are kept how long `work` takes on the lane of `ops`.
  template <class Work>
  static void timed(Ops& ops, std::initializer_list<AddTime> sums, const Work& work) {
    for (AddTime time : sums) {
      time.begin = true;
      if (time.sum.defined()) ops.add_time(time);
    }
    work();
    for (const AddTime& time : sums) {
      if (time.sum.defined()) ops.add_time(time);
    }
  }
  AddTime lasted(const ExchangePass& pass, Transfer transfer) const {
    return {.sum = kept(pass, stats_.lasted, transfer), .begun = stats_.lasts_since};
  }
  AddTime exposed(const ExchangePass& pass, Transfer transfer) const {
    return {.sum = kept(pass, stats_.exposed, transfer), .begun = stats_.exposed_since};
  }
  // All that goes to other ranks does so on the communication lane. What comes before on the compute lane is done by
  // then, also what others are told by its barrier that they may write over.
  template <class Move>
  void begin_moving(const ExchangePass& pass, Transfer transfer, const Move& move) const {
    Device& device = pass.ops.device();
    device.order(Lane::kCompute, Lane::kCommunication);
    Ops& ops = device.ops(Lane::kCommunication);
    timed(ops, {lasted(pass, transfer)}, [&] { move(ops); });
  }
  void end_moving(const ExchangePass& pass, Transfer transfer) const {
    timed(pass.ops, {exposed(pass, transfer)}, [&] { pass.ops.device().order(Lane::kCommunication, Lane::kCompute); });
  }
  void meet(const ExchangePass& pass, Ops& ops, Transfer transfer) const {
    transport_.signal(ops);
    transport_.wait(ops, {work_of(transfer), layer_}, kept(pass, stats_.waited, transfer));
  }
  static PeerWork work_of(Transfer transfer) {
    switch (transfer) {
      case Transfer::kDispatch:
        return PeerWork::kDispatch;
      case Transfer::kCombine:
        return PeerWork::kCombine;
      case Transfer::kCombineBackward:
        return PeerWork::kCombineBackward;
      case Transfer::kDispatchBackward:
        return PeerWork::kDispatchBackward;
    }
    NMOE_CHECK(false, "a transfer {}", static_cast<int>(transfer));
  }
  // Where a transfer's time is kept: in a step alone, that of what backward does again included.
  static Tensor kept(const ExchangePass& pass, const Tensor& times, Transfer transfer) {
    const auto i = static_cast<int64_t>(transfer);
    return pass.timed && times.defined() ? times.rows(i, i + 1) : Tensor();
  }

  // The number of rows that came, of which there may be more than are kept: overflow.
  Tensor all_rows() const {
    return chunks_.empty() ? Tensor() : offsets_.rows(window_.num_slots(), window_.num_slots() + 1);
  }
  // What a part's rows add to the tokens they are of.
  void return_sums(Ops& ops, const Part& part, Tensor rows, Tensor row_weight) const {
    const int64_t first_row = part.plan.first_row;
    transport_.put(ops, SumsToReturn{.rows = part.rows.of(rows),
                                     .row_weight = row_weight.defined() ? part.rows.of(row_weight) : Tensor(),
                                     .row_of = row_of_,
                                     .counts = num_received_,
                                     .returns = window_.returns(),
                                     .first_row = first_row,
                                     .num_rows = first_row > 0 ? part.rows.count() : Tensor(),
                                     .all_rows = all_rows()});
  }
  // All ranks learn how many rows this one's experts have: who sent them sends again in backward where that is too
  // many.
  void tell_load(Ops& ops) const {
    const int64_t rank = transport_.index();
    ops.copy({.source = all_rows(), .destination = window_.loads().rows(rank, rank + 1)});
    transport_.put(ops, window_.loads(), rank, rank + 1);
  }

  // In all blocks: rows are summed on their way, for which few have not the bandwidth of the memory. The barrier comes
  // when all rows have been returned: overflow's are behind what was begun.
  void begin_returning(const ExchangePass& pass, Transfer transfer, Tensor rows, Tensor row_weight) {
    const int64_t rank = transport_.index(), M = window_.max_tokens();
    own_ = {.rank = rank,
            .rows = rows,
            .row_weight = row_weight,
            .row_of = row_of_.rows(rank * M, (rank + 1) * M),
            .all_rows = all_rows()};
    begin_moving(pass, transfer, [&](Ops& ops) {
      if (apart_) {
        return_copies(ops, rows, row_weight);
      } else {
        return_sums(ops, parts_[0], rows, row_weight);
      }
      if (chunks_.empty()) meet(pass, ops, transfer);
    });
  }
  void end_returning(const ExchangePass& pass, Transfer transfer, Tensor y, Tensor weights, bool accumulate,
                     const std::function<void(const Part& chunk)>& run_pass) const {
    end_moving(pass, transfer);
    for (const Part& chunk : chunks_) run_pass(chunk);
    if (!chunks_.empty()) {
      timed(pass.ops, {lasted(pass, transfer), exposed(pass, transfer)}, [&] { meet(pass, pass.ops, transfer); });
    }
    if (apart_) return sum_copies(pass.ops, y, weights, accumulate);
    pass.ops.exchange_collect({.plan = sent_,
                               .top_idx = top_idx_,
                               .own = own_,
                               .returns = window_.returns(),
                               .y = y,
                               .accumulate = accumulate,
                               .weights = weights});
  }

  void return_copies(Ops& ops, Tensor rows, Tensor row_weight) const {
    const int64_t W = transport_.count(), D = rows.dim(1), C = rows.dim(0) / W;
    const ExchangeWindow::Copies& copies = window_.copies();
    const int64_t M = copies.rows.dim(0), K = copies.rows.dim(1);
    transport_.put(ops, CopiesToReturn{.rows = rows.reshape({W, C, D}),
                                       .row_weight = row_weight.defined() ? row_weight.reshape({W, C}) : Tensor(),
                                       .row_of = row_of_.reshape({W, M, K}),
                                       .tokens = tokens_,
                                       .counts = num_received_,
                                       .copies = copies.rows,
                                       .weights = copies.weights});
  }
  // Home adds a token's copies in the order of its choices, as one rank does.
  void sum_copies(Ops& ops, Tensor y, Tensor weights, bool accumulate) const {
    const ExchangeWindow::Copies& copies = window_.copies();
    const int64_t T = y.dim(0), M = copies.rows.dim(0), K = copies.rows.dim(1), D = y.dim(1);
    const MoePlan plan{.offsets = {}, .row_of = copies.row_of.rows(0, T)};
    ops.moe_combine({.rows = copies.rows.reshape({M * K, D}), .plan = plan, .y = y, .accumulate = accumulate});
    if (weights.defined()) ops.copy({.source = copies.weights.rows(0, T), .destination = weights});
  }

  ExchangeWindow& window_;
  Transport& transport_;
  const int64_t layer_;
  const bool apart_;
  const ExchangeStats stats_;
  const Tensor top_idx_;                  // [T, K] i32
  ExchangePlan sent_;                     // this rank's tokens
  Tensor num_received_;                   // [W] i32 tokens of each rank
  Tensor tokens_;                         // [W, M] i32, received apart: which of their ranks' tokens they are
  Tensor row_of_;                         // [W * M, K] i32: the received tokens' copies, each within its part
  std::vector<Part> parts_;               // of the rows that are kept
  OwnRows own_{};                         // of what is on its way back
  const ExchangeInbox* inbox_ = nullptr;  // where what was begun last goes
  // Overflow, where there can be any.
  std::vector<Part> chunks_;
  Tensor offsets_;                          // [U + 1] i32, of all rows
  Tensor part_offsets_;                     // [1 + chunks, U + 1] i32: the same of those kept, then of each chunk
  Tensor loads_;                            // [W] i32: rows of each rank's experts
  const ExchangeInbox* arrived_ = nullptr;  // where the tokens are
};

class RemoteExchange final : public TokenExchange {
 public:
  explicit RemoteExchange(const RemoteLayer& layer) : TokenExchange(layer.window.dispatch_format()), layer_(layer) {}

  std::unique_ptr<RoutedExchange> plan(const ExchangePass& pass, Tensor top_idx, Tensor counts) const override {
    return std::make_unique<RemoteRouting>(layer_, pass, top_idx, counts);
  }

 private:
  const RemoteLayer layer_;
};

}  // namespace

std::unique_ptr<TokenExchange> make_remote_exchange(ExchangeWindow& window, int64_t layer, Tensor places,
                                                    const ExchangeStats& stats) {
  return std::make_unique<RemoteExchange>(RemoteLayer{window, layer, places, stats});
}

}  // namespace nmoe
