// An exchange works by what a transport offers, whatever that is.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "parallel/thread_group.h"
#include "rdep/rank_test.h"
#include "support/tensors.h"

namespace nmoe::test::rdep {
namespace {

// Does what another transport does, and keeps what it was asked for.
class Witness final : public Transport {
 public:
  explicit Witness(Transport& to) : to_(to) {}
  std::vector<std::string> take() { return std::exchange(calls_, {}); }

  int64_t index() const override { return to_.index(); }
  int64_t count() const override { return to_.count(); }
  Arena& window() override { return to_.window(); }
  void put(Ops& ops, const TokensToSend& tokens) const override { told("tokens"), to_.put(ops, tokens); }
  void put(Ops& ops, const SumsToReturn& sums) const override { told("sums"), to_.put(ops, sums); }
  void put(Ops& ops, const CopiesToReturn& copies) const override { told("copies"), to_.put(ops, copies); }
  void put(Ops& ops, Tensor x, int64_t begin, int64_t end) const override {
    told("range"), to_.put(ops, x, begin, end);
  }
  void get(Ops& ops, int64_t rank, Tensor x, Tensor destination) const override {
    told("get"), to_.get(ops, rank, x, destination);
  }
  void signal(Ops& ops) override { told("signal"), to_.signal(ops); }
  void wait(Ops& ops, const PeerPlace& place, Tensor waited) override { told("wait"), to_.wait(ops, place, waited); }

 private:
  void told(const char* call) const { calls_.emplace_back(call); }

  Transport& to_;
  mutable std::vector<std::string> calls_;
};

// Experts that do nothing: each token comes back once for each of its choices.
void expect_round_trip(RankTest& test, Witness& transport, const ExchangeForm& form, double capacity_factor,
                       const std::vector<std::string>& forward, const std::vector<std::string>& backward) {
  ExchangeWindow window(transport, test.ops, kShape, {.max_tokens = kRoom, .capacity_factor = capacity_factor}, form,
                        test.memory->storage[ArenaKind::kStepState]);
  const auto exchange = make_remote_exchange(window, 0, test.places)->plan(test.pass, test.top_idx, {});
  const int64_t capacity = exchange->routed().capacity;
  const Tensor row_weight = test.push_stat({capacity}), y = test.push({test.num_tokens, kWidth}),
               dx = test.push({test.num_tokens, kWidth}), dweights = test.push_stat({test.num_tokens, kTopK}),
               drows = test.push({capacity, kWidth});
  exchange->begin_dispatch(test.pass, test.x, test.gate);
  const Tensor rows = exchange->end_dispatch(test.pass, row_weight).tensor();
  const int64_t chunk = exchange->routed().chunk_capacity();
  const OverflowPass idle{.rows = test.push({chunk, kWidth}),
                          .row_weight = test.push_stat({chunk}),
                          .drows = test.push({chunk, kWidth}),
                          .drow_weight = test.push_stat({chunk}),
                          .run = [](const RaggedRows&) {}};
  exchange->combine(test.pass, rows, y, /*accumulate=*/false, idle);
  EXPECT_EQ(transport.take(), forward);
  exchange->begin_combine_backward(test.pass, test.x, test.x, test.gate);
  exchange->end_combine_backward(test.pass, drows);
  exchange->begin_dispatch_backward(test.pass, drows, row_weight);
  exchange->end_dispatch_backward(test.pass, dx, dweights, /*accumulate=*/false, idle);
  EXPECT_EQ(transport.take(), backward);
  for (const Tensor& sums : {y, dx}) {
    const auto got = test.download<float>(sums);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      EXPECT_EQ(got[i], kTopK * value(test.rank, at / kWidth, at % kWidth)) << i;
    }
  }
}

TEST(Transport, CarriesAllThatAnExchangeSends) {
  const std::vector<std::string> once = {"tokens", "signal", "wait", "sums", "signal", "wait"};
  const std::vector<std::string> apart = {"tokens", "signal", "wait", "copies", "signal", "wait"};
  const Routing routing{.num_tokens = {5, kRoom}};
  run_ranks(2, std::chrono::seconds(20), [&](Communicator& communicator) {
    RankTest test(routing, 2, {}, communicator);
    Witness transport(test.transport);
    expect_round_trip(test, transport, {}, 100.0, once, once);
    expect_round_trip(test, transport, {.received = Received::kApart}, 100.0, apart, apart);
  });
}

// What there may be no room for comes back in several puts before one signal, and tells the other how much it is.
TEST(Transport, CarriesOverflow) {
  const Routing routing{.num_tokens = {5, kRoom}};
  run_ranks(2, std::chrono::seconds(20), [&](Communicator& communicator) {
    RankTest test(routing, 2, {}, communicator);
    Witness transport(test.transport);
    expect_round_trip(test, transport, {}, 1.0, {"tokens", "signal", "wait", "sums", "range", "sums", "signal", "wait"},
                      {"tokens", "tokens", "signal", "wait", "sums", "sums", "signal", "wait"});
  });
}

TEST(Transport, AWaitBelongsToASignal) {
  const ReadyDevice device = cpu_device(DType::kF32);
  const Peers peers(0, 1);
  Arena window("window");
  PeerTransport transport(peers, window);
  EXPECT_THROW(transport.wait(*device, {}, {}), std::exception);
  transport.signal(*device);
  EXPECT_THROW(transport.signal(*device), std::exception);
}

}  // namespace
}  // namespace nmoe::test::rdep
