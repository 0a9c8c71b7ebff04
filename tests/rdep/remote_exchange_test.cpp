// Tokens sent to experts of other ranks and back, against what every rank could have computed from the whole routing.
// NMOE_TEST_DEVICE: on CPU threads, or on as many GPUs as there are.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "parallel/thread_group.h"
#include "rdep/cost.h"
#include "rdep/rank_test.h"
#include "support/errors.h"

namespace nmoe::test::rdep {
namespace {

bool device_is_there(int64_t index) {
  try {
    make_device({.kind = NMOE_TEST_DEVICE, .index = static_cast<int>(index)});
    return true;
  } catch (const Error&) {
    return false;
  }
}

class RemoteExchangeTest : public ::testing::TestWithParam<std::tuple<int64_t, Mode>> {
 protected:
  void SetUp() override {
    if (std::string_view(NMOE_TEST_DEVICE) == "cpu") return;
    if (!device_is_there(num_ranks() - 1)) GTEST_SKIP() << "there are no " << num_ranks() << " devices";
  }
  int64_t num_ranks() const { return std::get<int64_t>(GetParam()); }
  const Mode& mode() const { return std::get<Mode>(GetParam()); }
  float arrived(int64_t rank, int64_t token, int64_t column) const {
    return rdep::arrived(mode().dispatch_format, rank, token, column);
  }
  bool apart() const { return mode().received == Received::kApart; }
  void run(const Routing& routing, const std::function<void(RankTest&)>& drive) {
    run_ranks(num_ranks(), std::chrono::seconds(20), [&](Communicator& communicator) {
      RankTest test(routing, num_ranks(), mode(), communicator);
      drive(test);
    });
  }
  int64_t num_slots() const { return kExperts / num_ranks(); }

  struct RankSlice {
    int64_t begin, end;
  };
  // Rows that rank `rank` should have of the tokens of `sources`, in order: (slot, rank the token is of, token), with
  // the choice.
  struct Copy {
    int64_t expert, source, token, choice;
  };
  std::vector<Copy> rows_of(const Routing& routing, int64_t rank, RankSlice sources) const {
    std::vector<Copy> rows;
    for (int64_t place = rank * num_slots(); place < (rank + 1) * num_slots(); ++place) {
      const int64_t expert = std::ranges::find(routing.places, place) - routing.places.begin();
      for (int64_t source = sources.begin; source < sources.end; ++source) {
        for (int64_t token = 0; token < routing.num_tokens[static_cast<size_t>(source)]; ++token) {
          const auto experts = routing.experts(source, token);
          for (int64_t k = 0; k < kTopK; ++k) {
            if (experts[static_cast<size_t>(k)] == expert) rows.push_back({expert, source, token, k});
          }
        }
      }
    }
    return rows;
  }

  // Compares rows [first, first + offsets.back()) of a rank with those that it should have, and makes of them what
  // their experts make; of their weights their doubles.
  void pass_experts(RankTest& test, const std::vector<Copy>& expected, size_t first, const RaggedRows& part,
                    Tensor rows, Tensor row_weight) {
    auto got = test.download<float>(rows);
    auto got_weights = test.download<float>(row_weight);
    const auto offsets = test.download<int32_t>(part.offsets);
    const auto end = first + static_cast<size_t>(part.end - part.begin);
    const size_t num_rows = std::min(expected.size(), end) - std::min(expected.size(), first);
    ASSERT_EQ(static_cast<size_t>(offsets.back()), num_rows) << "from " << first << " on";
    for (size_t row = 0; row < num_rows; ++row) {
      const auto& [expert, source, token, choice] = expected[first + row];
      const auto slot = static_cast<size_t>(test.routing.places[static_cast<size_t>(expert)] % num_slots()),
                 at = static_cast<size_t>(part.begin) + row;
      EXPECT_TRUE(offsets[slot] <= static_cast<int32_t>(row) && static_cast<int32_t>(row) < offsets[slot + 1]);
      EXPECT_EQ(got_weights[at], weight(source, token, choice)) << "row " << first + row;
      for (int64_t column = 0; column < kWidth; ++column) {
        float& x = got[at * kWidth + static_cast<size_t>(column)];
        ASSERT_EQ(x, arrived(source, token, column)) << "row " << first + row << " of rank " << test.rank;
        x = made_of(x, expert);
      }
      got_weights[at] *= 2;
    }
    if (!got.empty()) test.device.upload(rows, got.data());
    if (!got_weights.empty()) test.device.upload(row_weight, got_weights.data());
  }

  // The rows, whose own codes came with them where codes travelled.
  Tensor rows_with_codes(RankTest& test, const RoutedRows& routed, const Rows& arrived) {
    if (mode().dispatch_format == RowFormat::kDevice) return arrived.tensor();
    const Tensor widened = test.push(arrived.tensor().shape());
    test.ops.widen_rows({.codes = arrived.quantised, .x = widened});
    const auto rows = test.download<float>(arrived.tensor()), values = test.download<float>(widened);
    for (const RaggedRows& part : routed.parts) {
      const auto begin = static_cast<size_t>(part.begin * kWidth);
      const size_t size = kWidth * static_cast<size_t>(test.download<int32_t>(part.offsets).back());
      for (size_t i = begin; i < begin + size; ++i) EXPECT_EQ(values[i], rows[i]) << "row " << i / kWidth;
    }
    return arrived.tensor();
  }

  // There and back, forward and backward, with every row compared. `again`: backward begins with dispatch(), as where
  // it computes the experts again.
  void round_trip(RankTest& test, const Routing& routing, bool again = false) {
    const ArenaScope scope(test.arena());
    const Tensor counts = test.arena().allocate(DType::kI32, {kExperts});
    test.ops.fill({counts, 0.0});
    const auto exchange = test.exchange->plan(test.pass, test.top_idx, counts);
    const RoutedRows& routed = exchange->routed();
    const Tensor row_weight = test.push_stat({routed.capacity});
    exchange->begin_dispatch(test.pass, test.sent, test.gate);
    Tensor rows = rows_with_codes(test, routed, exchange->end_dispatch(test.pass, row_weight));

    ASSERT_EQ(routed.parts.size(), apart() ? static_cast<size_t>(num_ranks()) : 1U);
    for (int64_t i = 0; const RaggedRows& part : routed.parts) {
      const RankSlice sources = apart() ? RankSlice{i, i + 1} : RankSlice{0, num_ranks()};
      pass_experts(test, rows_of(routing, test.rank, sources), 0, part, rows, row_weight);
      ++i;
    }

    const std::vector<Copy> all_rows = rows_of(routing, test.rank, {0, num_ranks()});
    const int64_t chunk_rows = routed.chunk_capacity();
    const auto first_of = [&](size_t chunk) {
      return static_cast<size_t>(routed.capacity) + chunk * static_cast<size_t>(chunk_rows);
    };
    size_t chunk = 0;
    const Tensor more_weights = test.push_stat({chunk_rows});
    OverflowPass forward{.rows = rows.rows(0, chunk_rows),
                         .row_weight = more_weights,
                         .drows = {},
                         .drow_weight = {},
                         .run = [&](const RaggedRows& part) {
                           pass_experts(test, all_rows, first_of(chunk++), part, forward.rows, more_weights);
                         }};

    const Tensor y = test.push({test.num_tokens, kWidth}), dx = test.push({test.num_tokens, kWidth});
    const Tensor dweights = test.push_stat({test.num_tokens, kTopK});
    test.ops.fill({y, 1.0});
    exchange->combine(test.pass, rows, y, /*accumulate=*/true, forward);
    EXPECT_EQ(chunk, routed.overflow.size());

    const Tensor drows = test.push({routed.capacity, kWidth});
    if (again) {
      const Tensor once_more = test.push_stat({routed.capacity});
      exchange->begin_dispatch(test.pass, test.sent, test.gate);
      rows = rows_with_codes(test, routed, exchange->end_dispatch(test.pass, once_more));
      exchange->begin_combine_backward(test.pass, test.sent, Tensor(), {});
    } else {
      exchange->begin_combine_backward(test.pass, test.sent, test.sent, test.gate);
    }
    rows_with_codes(test, routed, exchange->end_combine_backward(test.pass, drows));
    chunk = 0;
    OverflowPass backward{.rows = rows.rows(0, chunk_rows),
                          .row_weight = more_weights,
                          .drows = drows.rows(0, chunk_rows),
                          .drow_weight = row_weight.rows(0, chunk_rows),
                          .run = [&](const RaggedRows& part) {
                            const auto gradients = test.download<float>(backward.drows);
                            pass_experts(test, all_rows, first_of(chunk), part, backward.rows, more_weights);
                            if (first_of(chunk) < all_rows.size()) {
                              test.ops.copy({.source = more_weights, .destination = backward.drow_weight});
                            }
                            for (size_t i = 0; i < gradients.size(); ++i) {
                              const size_t row = first_of(chunk) + i / kWidth;
                              if (row >= all_rows.size()) break;
                              const Copy& copy = all_rows[row];
                              ASSERT_EQ(gradients[i],
                                        arrived(copy.source, copy.token, static_cast<int64_t>(i % kWidth)));
                            }
                            ++chunk;
                          }};
    exchange->begin_dispatch_backward(test.pass, drows, row_weight);
    exchange->end_dispatch_backward(test.pass, dx, dweights, /*accumulate=*/false, backward);
    EXPECT_EQ(chunk, routed.overflow.size());
    const auto sums = test.download<float>(y), gradients = test.download<float>(dx),
               weights = test.download<float>(dweights);
    std::vector<int32_t> expected_counts(kExperts);
    for (int64_t token = 0; token < test.num_tokens; ++token) {
      const auto experts = routing.experts(test.rank, token);
      for (int64_t i = 0; i < kWidth; ++i) {
        const auto at = static_cast<size_t>(token * kWidth + i);
        float sum = 1;
        for (const int32_t expert : experts) sum += made_of(arrived(test.rank, token, i), expert);
        ASSERT_EQ(sums[at], sum) << "token " << token << " of rank " << test.rank;
        ASSERT_EQ(gradients[at], kTopK * arrived(test.rank, token, i)) << "token " << token << " of rank " << test.rank;
      }
      for (size_t k = 0; k < kTopK; ++k) {
        EXPECT_EQ(weights[static_cast<size_t>(token * kTopK) + k],
                  2 * weight(test.rank, token, static_cast<int64_t>(k)));
        ++expected_counts[static_cast<size_t>(experts[k])];
      }
    }
    EXPECT_EQ(test.download<int32_t>(counts), expected_counts);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Ranks, RemoteExchangeTest,
    ::testing::Combine(
        ::testing::Values(2, 4),
        ::testing::Values(Mode{.name = "Together"}, Mode{.name = "InTurns", .capacity_factor = 0.4},
                          Mode{.name = "Apart", .received = Received::kApart},
                          Mode{.name = "Codes", .dispatch_format = RowFormat::kFp8},
                          Mode{.name = "CodesInTurns", .capacity_factor = 0.4, .dispatch_format = RowFormat::kFp8},
                          Mode{
                              .name = "CodesApart", .received = Received::kApart, .dispatch_format = RowFormat::kFp8})),
    [](const auto& test) { return fmt::format("{}{}", std::get<1>(test.param).name, std::get<0>(test.param)); });

TEST_P(RemoteExchangeTest, EveryRowArrivesAndComesBack) {
  // An odd number of tokens, none, as many as there is room for; several rounds through the same window.
  const Routing routing{.num_tokens = {5, 0, kRoom, 3}};
  run(routing, [&](RankTest& test) {
    for (int round = 0; round < 4; ++round) round_trip(test, routing, /*again=*/round % 2 == 1);
  });
}

TEST_P(RemoteExchangeTest, ExpertsAreWhereThePlacesSay) {
  const Routing routing{.num_tokens = {5, 2, kRoom, 3}, .places = {6, 1, 4, 0, 7, 2, 5, 3}};
  run(routing, [&](RankTest& test) { round_trip(test, routing); });
}

TEST_P(RemoteExchangeTest, ARankFetchesWhatAnotherHas) {
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  run(routing, [&](RankTest& test) {
    constexpr int64_t kSize = 101;  // of i16: no whole number of wider units
    const Tensor x = test.memory->storage[ArenaKind::kStepState].allocate(DType::kI16, {2 * kSize});
    const Tensor got = test.arena().allocate(DType::kI16, {kSize});
    std::vector<int16_t> mine(2 * kSize);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<int16_t>(1000 * test.rank + static_cast<int64_t>(i));
    test.device.upload(x, mine.data());
    test.ops.peer_barrier({test.domain.experts().peers()});
    for (int64_t rank = 0; rank < num_ranks(); ++rank) {
      test.ops.peer_fetch({test.domain.experts().peers(), rank, x.rows(kSize, 2 * kSize), got});
      const auto values = test.download<int16_t>(got);
      for (int64_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(i)], 1000 * rank + kSize + i) << "of rank " << rank;
      }
    }
    test.ops.peer_barrier({test.domain.experts().peers()});
  });
}

// More than a device's queue takes, behind a barrier that waits for a rank which has still to fetch from there. (Copies
// by the driver hung in the same place only where they were large.)
TEST_P(RemoteExchangeTest, AFullQueueKeepsNobodyFromFetching) {
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  run(routing, [&](RankTest& test) {
    const Peers& peers = test.domain.experts().peers();
    const Tensor x = test.memory->storage[ArenaKind::kStepState].allocate(DType::kI32, {4});
    const Tensor got = test.arena().allocate(DType::kI32, {4});
    const std::vector<int32_t> mine(4, static_cast<int32_t>(test.rank));
    test.device.upload(x, mine.data());
    test.ops.peer_barrier({peers});
    if (test.rank > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      test.ops.peer_fetch({peers, test.rank - 1, x, got});
    }
    test.ops.peer_barrier({peers});
    for (int64_t i = 0; i < 4000; ++i) test.ops.peer_fetch({peers, (test.rank + i) % num_ranks(), x, got});
    const int64_t last = (test.rank + 3999) % num_ranks();
    EXPECT_EQ(test.download<int32_t>(got), std::vector<int32_t>(4, static_cast<int32_t>(last)));
    test.ops.peer_barrier({peers});
    test.domain.check();
  });
}

TEST_P(RemoteExchangeTest, AllTokensToTheExpertsOfOneRank) {
  for (const int64_t first : {int64_t{0}, kExperts - kTopK}) {
    const Routing routing{.num_tokens = {kRoom, kRoom, 1, kRoom}, .first_expert = first};
    run(routing, [&](RankTest& test) { round_trip(test, routing); });
  }
}

// What others write into a rank's memory is what the cost says that rows take, and statistics say which rows those
// were.
TEST_P(RemoteExchangeTest, BytesThatCrossAreThoseOfTheCost) {
  if (mode().capacity_factor < 1) GTEST_SKIP() << "what overflows crosses more than once";
  constexpr auto kMark = std::byte{0xC3};  // in no number that is sent here
  const Routing routing{.num_tokens = {5, kRoom, 3, kRoom}};
  const ExchangeForm form{.received = mode().received, .dispatch_format = mode().dispatch_format};
  const ExchangeCost cost(kShape, form, {}, DType::kF32, num_ranks());
  run(routing, [&](RankTest& test) {
    const int64_t W = num_ranks(), M = kRoom;
    const ArenaScope scope(test.arena());
    const ExchangeStats stats{.traffic = test.push_i32({2, W}),
                              .waited = test.arena().allocate(DType::kF64, {kTransfers.size()}),
                              .lasted = test.arena().allocate(DType::kF64, {kTransfers.size()}),
                              .exposed = test.arena().allocate(DType::kF64, {kTransfers.size()}),
                              .lasts_since = test.arena().allocate(DType::kI64, {1}),
                              .exposed_since = test.arena().allocate(DType::kI64, {1})};
    for (const Tensor& tensor : stats.tensors()) test.ops.fill({tensor, 0.0});
    test.pass.timed = true;
    const auto layer = make_remote_exchange(test.window, 0, test.places, stats);
    const std::array inboxes = {test.window.next_inbox(),
                                test.window.next_inbox()};  // in the order of their next turns

    std::vector<int64_t> tokens_from(static_cast<size_t>(W)), copies_from(tokens_from);  // that have experts here
    for (int64_t source = 0; source < W; ++source) {
      for (int64_t token = 0; token < routing.num_tokens[static_cast<size_t>(source)]; ++token) {
        const auto experts = routing.experts(source, token);
        const auto here = std::ranges::count_if(experts, [&](int64_t e) { return e / num_slots() == test.rank; });
        tokens_from[static_cast<size_t>(source)] += here > 0 ? 1 : 0;
        copies_from[static_cast<size_t>(source)] += here;
      }
    }
    const auto mark = [&](const std::vector<Tensor>& tensors) {
      for (const Tensor& tensor : tensors) {
        if (!tensor.defined()) continue;
        const std::vector<std::byte> marks(static_cast<size_t>(tensor.num_bytes()), kMark);
        test.device.upload(tensor, marks.data());
      }
      test.ops.peer_barrier({test.domain.experts().peers()});
    };
    // Bytes without the mark in the parts that other ranks write, of so many equal parts.
    const auto written = [&](const std::vector<Tensor>& tensors, int64_t num_parts,
                             const std::function<bool(int64_t part)>& is_of_others) {
      int64_t count = 0;
      for (const Tensor& tensor : tensors) {
        if (!tensor.defined()) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_bytes()));
        test.device.download(bytes.data(), tensor);
        const auto part_bytes = static_cast<int64_t>(bytes.size()) / num_parts;
        for (size_t i = 0; i < bytes.size(); ++i) {
          if (is_of_others(static_cast<int64_t>(i) / part_bytes)) count += bytes[i] == kMark ? 0 : 1;
        }
      }
      return static_cast<double>(count);
    };
    const auto from_others = [&](int64_t part) { return part != test.rank; };
    const std::vector<int32_t> experts = test.download<int32_t>(test.top_idx);
    // Of the copies' places at home.
    const auto made_elsewhere = [&](int64_t place) {
      return place < std::ssize(experts) && experts[static_cast<size_t>(place)] / num_slots() != test.rank;
    };
    double rows_here = 0, copies_here = 0, rows_there = 0, copies_there = 0;
    for (int64_t source = 0; source < W; ++source) {
      if (source == test.rank) continue;
      rows_here += static_cast<double>(tokens_from[static_cast<size_t>(source)]);
      copies_here += static_cast<double>(copies_from[static_cast<size_t>(source)]);
    }
    for (int64_t token = 0; token < test.num_tokens; ++token) {
      std::set<int64_t> ranks;
      for (const int32_t expert : routing.experts(test.rank, token)) {
        const int64_t rank = expert / num_slots();
        if (rank == test.rank) continue;
        ranks.insert(rank);
        ++copies_there;
      }
      rows_there += static_cast<double>(ranks.size());
    }

    const auto exchange = layer->plan(test.pass, test.top_idx, test.push_i32({kExperts}));
    const RoutedRows& routed = exchange->routed();
    const Tensor row_weight = test.push_stat({routed.capacity});
    const auto tensors_of = [](const ExchangeInbox& in) {
      return std::vector{in.rows, in.slots, in.weights, in.tokens, in.codes.values, in.codes.scales};
    };
    const std::vector<Tensor> first = tensors_of(inboxes[0]), second = tensors_of(inboxes[1]);
    mark(first);
    exchange->begin_dispatch(test.pass, test.sent, test.gate);
    const Tensor rows = exchange->end_dispatch(test.pass, row_weight).tensor();
    EXPECT_EQ(written(first, W, from_others), cost.bytes(Transfer::kDispatch, rows_here, copies_here));

    const std::vector<Tensor> home = apart() ? std::vector{test.window.copies().rows, test.window.copies().weights}
                                             : std::vector{test.window.returns().rows, test.window.returns().weights};
    const auto returned = [&] {
      return apart() ? written(home, M * kTopK, made_elsewhere) : written(home, W, from_others);
    };
    const Tensor y = test.push({test.num_tokens, kWidth}), dweights = test.push_stat({test.num_tokens, kTopK});
    mark(home);
    exchange->combine(test.pass, rows, y, /*accumulate=*/false, {});
    EXPECT_EQ(returned(), cost.bytes(Transfer::kCombine, rows_there, copies_there));

    mark(second);
    exchange->begin_combine_backward(test.pass, test.sent, Tensor(), {});
    exchange->end_combine_backward(test.pass, rows);
    EXPECT_EQ(written(second, W, from_others), cost.bytes(Transfer::kCombineBackward, rows_here, copies_here));
    mark(home);
    exchange->begin_dispatch_backward(test.pass, rows, row_weight);
    exchange->end_dispatch_backward(test.pass, y, dweights, /*accumulate=*/false, {});
    EXPECT_EQ(returned(), cost.bytes(Transfer::kDispatchBackward, rows_there, copies_there));

    const auto traffic = test.download<int32_t>(stats.traffic);
    double sent = 0, sent_copies = 0;
    for (int64_t rank = 0; rank < W; ++rank) {
      sent += rank == test.rank ? 0 : traffic[static_cast<size_t>(rank)];
      sent_copies += rank == test.rank ? 0 : traffic[static_cast<size_t>(W + rank)];
    }
    EXPECT_EQ(sent, rows_there);
    EXPECT_EQ(sent_copies, copies_there);
    const auto waited = test.download<double>(stats.waited);
    const auto lasted = test.download<double>(stats.lasted), exposed = test.download<double>(stats.exposed);
    for (size_t i = 0; i < kTransfers.size(); ++i) {
      EXPECT_GT(waited[i], 0.0);
      EXPECT_LT(waited[i], 20e9);
      EXPECT_GE(lasted[i], waited[i]);
      EXPECT_GE(exposed[i], 0);
      EXPECT_LT(exposed[i], lasted[i] + 1'000'000);
    }
    test.ops.peer_barrier({test.domain.experts().peers()});  // others read what they got
  });
}

// Half of the ranks have too many rows: what overflows is sent again to them, and nothing to others.
TEST_P(RemoteExchangeTest, SendsAgainToLoadedRanksAlone) {
  const Routing routing{.num_tokens = {kRoom, kRoom, kRoom, kRoom}};
  run(routing, [&](RankTest& test) {
    const ExchangePlan plan{.send_row = test.push_i32({kRoom, num_ranks()}),
                            .num_sent = test.push_i32({num_ranks()}),
                            .placement = test.places,
                            .num_slots = num_slots()};
    test.ops.build_exchange_plan({.top_idx = test.top_idx, .plan = plan, .counts = {}});
    std::vector<int32_t> rows;
    for (int64_t rank = 0; rank < num_ranks(); ++rank) rows.push_back(rank % 2 == 0 ? 7 : 8);
    const Tensor loads = test.upload(DType::kI32, {num_ranks()}, rows.data());
    const ExchangeInbox& inbox = test.window.next_inbox();
    const Tensor places = inbox.codes.defined() ? inbox.codes.values : inbox.rows;
    const std::vector<std::byte> marks(static_cast<size_t>(places.num_bytes()), std::byte{0xFF});  // NaN in both
    test.device.upload(places, marks.data());
    test.ops.fill({inbox.weights, -1.0});
    test.ops.peer_barrier({test.domain.experts().peers()});
    test.transport.put(test.ops, TokensToSend{.plan = plan,
                                              .x = inbox.codes.defined() ? Tensor() : test.x,
                                              .top_idx = test.top_idx,
                                              .weights = test.gate,
                                              .inbox = inbox,
                                              .loads = loads,
                                              .room = 7,
                                              .codes = test.sent.quantised});
    test.ops.peer_barrier({test.domain.experts().peers()});
    // Every token has an expert on a rank of two; the first token of a rank arrives in the first row of its part.
    std::vector<std::byte> got(marks.size());
    test.device.download(got.data(), places);
    const auto weights = test.download<float>(inbox.weights);
    const bool is_loaded = test.rank % 2 == 1;
    EXPECT_EQ(got != marks, is_loaded);
    EXPECT_EQ(std::ranges::any_of(weights, [](float x) { return x != -1.0F; }), is_loaded);
    test.ops.peer_barrier({test.domain.experts().peers()});
  });
}

// Where sums go to a place of their own, they are added to what is there. Each round in another number of blocks.
TEST_P(RemoteExchangeTest, SumsAreAddedRankByRank) {
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  constexpr int64_t kPart = 8192;
  const int64_t size = kPart * num_ranks();
  const auto value_of = [](int64_t rank, int64_t round, int64_t i) {
    return static_cast<float>(rank + 1) * 0.1F + static_cast<float>(round) * 1e-3F + static_cast<float>(i);
  };
  run(routing, [&](RankTest& test) {
    const Tensor x = test.memory->storage[ArenaKind::kStepState].allocate(DType::kF32, {size});
    const int64_t begin = kPart * test.rank, end = begin + kPart;
    const Tensor sum = test.push_stat({end - begin});
    std::vector<float> expected(kPart);
    for (int64_t round = 0; round < 3; ++round) {
      std::vector<float> mine;
      for (int64_t i = 0; i < size; ++i) mine.push_back(value_of(test.rank, round, i));
      test.device.upload(x, mine.data());
      test.domain.shards().reduce_sum(test.ops, std::vector<PeerGroup::Part>{{x, begin, end, sum}},
                                      /*accumulate=*/round > 0,
                                      /*max_blocks=*/round);
      for (int64_t i = begin; i < end; ++i) {
        float& total = expected[static_cast<size_t>(i - begin)];
        for (int64_t rank = 0; rank < num_ranks(); ++rank) {
          total = round == 0 && rank == 0 ? value_of(0, 0, i) : total + value_of(rank, round, i);
        }
      }
      EXPECT_EQ(test.download<float>(sum), expected);
      EXPECT_EQ(test.download<float>(x), mine);
      test.ops.peer_barrier({test.domain.experts().peers()});
    }
  });
}

TEST_P(RemoteExchangeTest, SumsAreInRankOrderOnEveryRank) {
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  const int64_t size = 1001;
  const auto value_of = [](int64_t rank, int64_t i) {
    return static_cast<float>(rank + 1) * 0.1F + static_cast<float>(i);
  };
  run(routing, [&](RankTest& test) {
    Arena& shared = test.memory->storage[ArenaKind::kStepState];
    std::vector<float> mine;
    std::vector<int32_t> counts;
    for (int64_t i = 0; i < size; ++i) {
      mine.push_back(value_of(test.rank, i));
      counts.push_back(static_cast<int32_t>(test.rank * 1000 + i));
    }
    const Tensor x = shared.allocate(DType::kF32, {size}), n = shared.allocate(DType::kI32, {size});
    for (int round = 0; round < 2; ++round) {
      test.device.upload(x, mine.data());
      test.device.upload(n, counts.data());
      test.domain.shards().all_reduce_sum(test.ops, std::vector<Tensor>{x, n});
      const auto sums = test.download<float>(x);
      const auto totals = test.download<int32_t>(n);
      for (int64_t i = 0; i < size; ++i) {
        float sum = value_of(0, i);
        int32_t total = static_cast<int32_t>(i);
        for (int64_t rank = 1; rank < num_ranks(); ++rank) {
          sum += value_of(rank, i);
          total += static_cast<int32_t>(rank * 1000 + i);
        }
        ASSERT_EQ(sums[static_cast<size_t>(i)], sum) << i;
        ASSERT_EQ(totals[static_cast<size_t>(i)], total) << i;
      }
    }
  });
}

// One rank does not come: the others say for whom they waited, and the run ends.
TEST_P(RemoteExchangeTest, ARankThatDoesNotComeIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const Error error = test::error_of([&] {
    run_ranks(num_ranks(), std::chrono::seconds(20), [&](Communicator& communicator) {
      const auto memory =
          RankMemory::make({.kind = NMOE_TEST_DEVICE, .index = RankTest::index_of(communicator), .num_threads = 1},
                           RankTest::plan_for(num_ranks()), communicator);
      Domain domain({*memory->device, communicator}, memory->storage, std::chrono::milliseconds(300));
      if (communicator.index() == 1) {
        for (;;) {  // a rank that hangs outside of any exchange, until it hears of the failure
          communicator.check();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
      memory->device->ops().peer_barrier({domain.experts().peers()});
      const auto done = memory->device->make_event(Lane::kCompute);
      done->record();
      done->wait();
      domain.check();
    });
  });
  EXPECT_TRUE(test::contains(error.what(), "for rank 1 in a barrier (exchange 1)")) << error.what();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// One throws while the others wait for it in an exchange: they end at once, with its reason.
TEST_P(RemoteExchangeTest, ARankThatThrowsEndsAll) {
  const auto begin = std::chrono::steady_clock::now();
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  const Error error = test::error_of([&] {
    run(routing, [&](RankTest& test) {
      if (test.rank == 1) throw runtime_error("no more", "");
      test.ops.peer_barrier({test.domain.experts().peers()});
      const auto done = test.device.make_event(Lane::kCompute);
      done->record();
      done->wait();
      test.domain.check();
    });
  });
  EXPECT_EQ(std::string(error.what()), "no more");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace nmoe::test::rdep
