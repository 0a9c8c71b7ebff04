// Tokens sent to experts of other ranks and back, against what every rank could have computed from the whole routing.
// NMOE_TEST_DEVICE: on CPU threads, or on as many GPUs as there are.
#include "model/remote_exchange.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/rng.h"
#include "parallel/domain.h"
#include "parallel/thread_group.h"
#include "support/errors.h"

namespace nmoe {
namespace {

constexpr int64_t kExperts = 8, kTopK = 3, kWidth = 24, kRoom = 9;  // tokens of a rank at most

// What a test routes: tokens of each rank, and the experts of a token.
struct Routing {
  std::vector<int64_t> num_tokens;  // by rank
  int64_t first_expert = -1;        // all tokens go to three experts from this one on; -1: at random

  std::vector<int32_t> experts(int64_t rank, int64_t token) const {
    std::vector<int32_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    if (first_expert >= 0) return {all.begin() + first_expert, all.begin() + first_expert + kTopK};
    const Philox rng(7, static_cast<uint64_t>(rank));
    for (size_t i = 0; i < kTopK; ++i) {
      const uint64_t bits = rng.bits(static_cast<uint64_t>(token) * kTopK + i);
      std::swap(all[i], all[i + bits % (kExperts - i)]);
    }
    return {all.begin(), all.begin() + kTopK};
  }
};

// Small integers, which sums in fp32 keep exact.
float value(int64_t rank, int64_t token, int64_t column) { return static_cast<float>(16 * rank + token + column % 5); }
float weight(int64_t rank, int64_t token, int64_t choice) {
  return static_cast<float>(64 * rank + 4 * token + choice + 1);
}
// What expert e makes of a row.
float made_of(float x, int64_t expert) { return x * static_cast<float>(expert + 1); }

struct RankTest {
  RankTest(const Routing& what, int64_t num_ranks, Received received, Communicator& communicator)
      : routing(what),
        memory(RankMemory::make({.kind = NMOE_TEST_DEVICE, .index = index_of(communicator), .num_threads = 1},
                                plan_for(num_ranks), communicator)),
        device(*memory->device),
        ops(device.ops()),
        domain({device, communicator}, memory->storage, std::chrono::seconds(20)),
        window(domain.peers(), ops, config(), kRoom, received, memory->storage[ArenaKind::kPeerWindow],
               memory->storage[ArenaKind::kStepState]),
        exchange(make_remote_exchange(window)),
        rank(communicator.index()),
        num_tokens(routing.num_tokens[static_cast<size_t>(rank)]),
        pass{.ops = ops, .activations = arena(), .batch = batch, .rope = rope, .scale = {}, .inspect = {}} {
    std::vector<int32_t> experts;
    std::vector<float> values, weights;
    for (int64_t token = 0; token < num_tokens; ++token) {
      for (const int32_t expert : routing.experts(rank, token)) experts.push_back(expert);
      for (int64_t k = 0; k < kTopK; ++k) weights.push_back(weight(rank, token, k));
      for (int64_t i = 0; i < kWidth; ++i) values.push_back(value(rank, token, i));
    }
    top_idx = upload(DType::kI32, {num_tokens, kTopK}, experts.data());
    x = upload(DType::kF32, {num_tokens, kWidth}, values.data());
    gate = upload(DType::kF32, {num_tokens, kTopK}, weights.data());
  }

  static int index_of(const Communicator& communicator) {
    return std::string_view(NMOE_TEST_DEVICE) == "cpu" ? 0 : static_cast<int>(communicator.index());
  }
  static ModelConfig config() {
    ModelConfig config;
    config.dim = kWidth;
    config.moe.num_experts = kExperts;
    config.moe.top_k = kTopK;
    return config;
  }
  static StoragePlan plan_for(int64_t) {
    StoragePlan plan;
    for (const ArenaKind kind : {ArenaKind::kActivations, ArenaKind::kScratch, ArenaKind::kStepState,
                                 ArenaKind::kPeerWindow, ArenaKind::kExchange}) {
      plan.set(kind, 1 << 20);
    }
    return plan;
  }
  Arena& arena() { return memory->storage[ArenaKind::kActivations]; }
  Tensor upload(DType dtype, Shape shape, const void* values) {
    const Tensor tensor = arena().allocate(dtype, shape);
    if (tensor.num_elements() > 0) device.upload(tensor, values);
    return tensor;
  }
  template <class T>
  std::vector<T> download(Tensor tensor) {
    std::vector<T> host(static_cast<size_t>(tensor.num_elements()));
    if (!host.empty()) device.download(host.data(), tensor);
    return host;
  }

  const Routing& routing;
  std::shared_ptr<RankMemory> memory;
  Device& device;
  Ops& ops;
  Domain domain;
  ExchangeWindow window;
  std::unique_ptr<TokenExchange> exchange;
  int64_t rank, num_tokens;
  Batch batch;
  RopeTables rope;
  Pass pass;
  Tensor top_idx, x, gate;
};

bool device_is_there(int64_t index) {
  try {
    make_device({.kind = NMOE_TEST_DEVICE, .index = static_cast<int>(index)});
    return true;
  } catch (const Error&) {
    return false;
  }
}

class RemoteExchangeTest : public ::testing::TestWithParam<std::tuple<int64_t, Received>> {
 protected:
  void SetUp() override {
    if (std::string_view(NMOE_TEST_DEVICE) != "cpu" && !device_is_there(num_ranks() - 1)) {
      GTEST_SKIP() << "there are no " << num_ranks() << " devices";
    }
  }
  int64_t num_ranks() const { return std::get<int64_t>(GetParam()); }
  bool apart() const { return std::get<Received>(GetParam()) == Received::kApart; }
  void run(const Routing& routing, const std::function<void(RankTest&)>& drive) {
    run_ranks(num_ranks(), std::chrono::seconds(20), [&](Communicator& communicator) {
      RankTest test(routing, num_ranks(), std::get<Received>(GetParam()), communicator);
      drive(test);
    });
  }
  int64_t num_slots() const { return kExperts / num_ranks(); }

  struct RankSlice {
    int64_t begin, end;
  };
  // Rows that rank `rank` should have of the tokens of `sources`, in order: (expert, rank the token is of, token), with
  // the choice.
  struct Copy {
    int64_t expert, source, token, choice;
  };
  std::vector<Copy> rows_of(const Routing& routing, int64_t rank, RankSlice sources) const {
    std::vector<Copy> rows;
    for (int64_t expert = rank * num_slots(); expert < (rank + 1) * num_slots(); ++expert) {
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

  // There and back, forward and backward, with every row compared.
  void round_trip(RankTest& test, const Routing& routing) {
    const ArenaScope scope(test.arena());
    const Tensor counts = test.arena().allocate(DType::kI32, {kExperts});
    test.ops.fill({counts, 0.0});
    const RoutedRows routed = test.exchange->plan(test.pass, test.top_idx, counts);
    const Tensor rows = test.pass.push({routed.capacity, kWidth});
    const Tensor row_weight = test.pass.push_stat({routed.capacity});
    test.exchange->dispatch(test.pass, test.x, test.gate, rows, row_weight);

    auto got = test.download<float>(rows);
    auto got_weights = test.download<float>(row_weight);
    ASSERT_EQ(routed.parts.size(), apart() ? static_cast<size_t>(num_ranks()) : 1U);
    for (int64_t i = 0; const RaggedRows& part : routed.parts) {
      const RankSlice sources = apart() ? RankSlice{i, i + 1} : RankSlice{0, num_ranks()};
      const std::vector<Copy> expected = rows_of(routing, test.rank, sources);
      const auto offsets = test.download<int32_t>(part.offsets);
      ASSERT_EQ(offsets.back(), static_cast<int64_t>(expected.size()));
      for (size_t row = 0; row < expected.size(); ++row) {
        const auto& [expert, source, token, choice] = expected[row];
        const auto slot = static_cast<size_t>(expert % num_slots()), at = static_cast<size_t>(part.begin) + row;
        EXPECT_TRUE(offsets[slot] <= static_cast<int32_t>(row) && static_cast<int32_t>(row) < offsets[slot + 1]);
        EXPECT_EQ(got_weights[at], weight(source, token, choice)) << "row " << row;
        for (int64_t column = 0; column < kWidth; ++column) {
          float& x = got[at * kWidth + static_cast<size_t>(column)];
          ASSERT_EQ(x, value(source, token, column)) << "row " << row << " of rank " << test.rank;
          x = made_of(x, expert);
        }
        got_weights[at] *= 2;
      }
      ++i;
    }
    if (!got.empty()) test.device.upload(rows, got.data());
    if (!got_weights.empty()) test.device.upload(row_weight, got_weights.data());

    const Tensor y = test.pass.push({test.num_tokens, kWidth}), dx = test.pass.push({test.num_tokens, kWidth});
    const Tensor dweights = test.pass.push_stat({test.num_tokens, kTopK});
    test.ops.fill({y, 1.0});
    test.exchange->combine(test.pass, rows, y, /*accumulate=*/true);
    const Tensor drows = test.pass.push({routed.capacity, kWidth});
    test.exchange->combine_backward(test.pass, test.x, drows);
    test.exchange->dispatch_backward(test.pass, drows, row_weight, dx, dweights, /*accumulate=*/false);
    const auto sums = test.download<float>(y), gradients = test.download<float>(dx),
               weights = test.download<float>(dweights);
    std::vector<int32_t> expected_counts(kExperts);
    for (int64_t token = 0; token < test.num_tokens; ++token) {
      const auto experts = routing.experts(test.rank, token);
      for (int64_t i = 0; i < kWidth; ++i) {
        const auto at = static_cast<size_t>(token * kWidth + i);
        float sum = 1;
        for (const int32_t expert : experts) sum += made_of(value(test.rank, token, i), expert);
        ASSERT_EQ(sums[at], sum) << "token " << token << " of rank " << test.rank;
        ASSERT_EQ(gradients[at], kTopK * value(test.rank, token, i)) << "token " << token << " of rank " << test.rank;
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

INSTANTIATE_TEST_SUITE_P(Ranks, RemoteExchangeTest,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(Received::kTogether, Received::kApart)));

TEST_P(RemoteExchangeTest, EveryRowArrivesAndComesBack) {
  // An odd number of tokens, none, as many as there is room for; several rounds through the same window.
  const Routing routing{.num_tokens = {5, 0, kRoom, 3}};
  run(routing, [&](RankTest& test) {
    for (int round = 0; round < 3; ++round) round_trip(test, routing);
  });
}

TEST_P(RemoteExchangeTest, AllTokensToTheExpertsOfOneRank) {
  for (const int64_t first : {int64_t{0}, kExperts - kTopK}) {
    const Routing routing{.num_tokens = {kRoom, kRoom, 1, kRoom}, .first_expert = first};
    run(routing, [&](RankTest& test) { round_trip(test, routing); });
  }
}

// Where sums go to a place of their own, they are added to what is there.
TEST_P(RemoteExchangeTest, SumsAreAddedRankByRank) {
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  const int64_t size = 64 * num_ranks();
  const auto value_of = [](int64_t rank, int64_t round, int64_t i) {
    return static_cast<float>(rank + 1) * 0.1F + static_cast<float>(round) * 1e-3F + static_cast<float>(i);
  };
  run(routing, [&](RankTest& test) {
    const Tensor x = test.memory->storage[ArenaKind::kStepState].allocate(DType::kF32, {size});
    const int64_t begin = 64 * test.rank, end = begin + 64;
    const Tensor sum = test.pass.push_stat({end - begin});
    std::vector<float> expected(64);
    for (int64_t round = 0; round < 3; ++round) {
      std::vector<float> mine;
      for (int64_t i = 0; i < size; ++i) mine.push_back(value_of(test.rank, round, i));
      test.device.upload(x, mine.data());
      test.domain.reduce_sum(test.ops, std::vector<Domain::Part>{{x, begin, end, sum}}, /*accumulate=*/round > 0);
      for (int64_t i = begin; i < end; ++i) {
        float& total = expected[static_cast<size_t>(i - begin)];
        for (int64_t rank = 0; rank < num_ranks(); ++rank) {
          total = round == 0 && rank == 0 ? value_of(0, 0, i) : total + value_of(rank, round, i);
        }
      }
      EXPECT_EQ(test.download<float>(sum), expected);
      EXPECT_EQ(test.download<float>(x), mine);
      test.ops.peer_barrier({test.domain.peers()});
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
      test.domain.all_reduce_sum(test.ops, std::vector<Tensor>{x, n});
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
      memory->device->ops().peer_barrier({domain.peers()});
      const auto done = memory->device->make_event(Lane::kCompute);
      done->record();
      done->wait();
      domain.check();
    });
  });
  EXPECT_TRUE(test::contains(error.what(), "for rank 1 in exchange 1")) << error.what();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// One throws while the others wait for it in an exchange: they end at once, with its reason.
TEST_P(RemoteExchangeTest, ARankThatThrowsEndsAll) {
  const auto begin = std::chrono::steady_clock::now();
  const Routing routing{.num_tokens = {1, 1, 1, 1}};
  const Error error = test::error_of([&] {
    run(routing, [&](RankTest& test) {
      if (test.rank == 1) throw runtime_error("no more", "");
      test.ops.peer_barrier({test.domain.peers()});
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
}  // namespace nmoe
