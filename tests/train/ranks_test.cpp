// Engines of several ranks compute what one does.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "model/experts_exchange.h"
#include "parallel/processes.h"
#include "parallel/thread_group.h"
#include "support/tensors.h"
#include "train/rank_engines.h"
#include "train/report/exchange_report.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::Bytes;
using test::contains;
using test::error_of;
using test::look_at_written;
using test::near;
using test::random_step;
using test::ReadyEngine;
using test::run_engines;
using test::skew_routing;
using test::snapshot;
using test::weight_of;
using test::whole_state;

// Of so many ranks, with 8 experts and, if nothing else is said, batches of 8 sequences in microbatches of 2.
Config config_with(int64_t ranks, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"model.vocab_size=50", "model.moe.num_experts=8", "train.microbatch_seqs=2",
                                       fmt::format("parallel.ranks={}", ranks)});
  return test::tiny_config("/nowhere", overrides);
}
Config config_of(int64_t ranks) { return config_with(ranks, {"model.moe.balance_loss=1e-3"}); }

// The bytes of a rank's weights; on the CPU these are their masters.
Bytes weight_bytes(Engine& engine) {
  Bytes bytes;
  for (const Weight& weight : engine.model().weights().all()) {
    bytes[weight.spec.name].assign(static_cast<const char*>(weight.value.raw()),
                                   static_cast<size_t>(weight.value.num_bytes()));
  }
  return bytes;
}

// Of a rank of several, against those of the only one.
void expect_same_gradients(Engine& several, Engine& one) {
  auto other = one.model().weights().all().begin();
  for (const Weight& mine : several.model().weights().all()) {
    if (mine.grad.defined()) {
      const int64_t first = mine.shard.updated_elements().front().offset, n = mine.shard.updated.extent;
      const Tensor theirs = other->grad.reshape({other->grad.num_elements()}).rows(first, first + n);
      EXPECT_TRUE(near(mine.shard.updated_of(mine.grad).reshape({n}), theirs, 2e-3)) << mine.spec.name;
    }
    ++other;
  }
}

// The first step of a run of one rank, to which those of ranks of several add up: only the order of sums over tokens
// differs. `prepare` changes an engine before it.
class FirstStep {
 public:
  explicit FirstStep(const Config& whole, std::function<void(ReadyEngine&)> prepare = {})
      : prepare_(std::move(prepare)), one_(whole), result_(step(one_, whole)) {}

  Engine& engine() { return one_.engine; }
  // Makes it on a rank of several.
  void expect_on(ReadyEngine& rank, const Config& config) {
    const StepResult result = step(rank, config);
    EXPECT_LE(std::abs(result.loss(kNextToken) - result_.loss(kNextToken)), 1e-6 * result_.loss(kNextToken));
    EXPECT_LE(std::abs(result.grad_norm - result_.grad_norm), 1e-5 * result_.grad_norm);
  }
  void expect_gradients_on(ReadyEngine& rank, const Config& config) {
    expect_on(rank, config);
    expect_same_gradients(rank.engine, one_.engine);
  }

 private:
  StepResult step(ReadyEngine& ready, const Config& config) const {
    if (prepare_) prepare_(ready);
    return random_step(ready.engine, config, 1);
  }

  std::function<void(ReadyEngine&)> prepare_;
  ReadyEngine one_;
  StepResult result_;
};

// Runs `drive` on engines of all ranks, twice, and returns the weights of the ranks, which are the same both times.
std::vector<Bytes> weights_of_two_runs(const Config& config, const std::function<void(ReadyEngine&)>& drive) {
  std::array<std::vector<Bytes>, 2> states;
  for (auto& of_ranks : states) {
    of_ranks.resize(static_cast<size_t>(config.parallel.ranks));
    run_engines(config, [&](ReadyEngine& ready) {
      drive(ready);
      of_ranks[static_cast<size_t>(ready.engine.rank().index())] = weight_bytes(ready.engine);
    });
  }
  EXPECT_EQ(states[0], states[1]);
  return states[0];
}

// Only the order of sums over tokens differs, as it does between microbatches.
TEST(RankEngines, AddUpToTheBatch) {
  FirstStep one(config_of(1));
  const RouterHealth expected_health = one.engine().router_health().at(0);
  for (const int64_t ranks : {2, 4}) {
    const Config config = config_of(ranks);
    run_engines(config, [&](ReadyEngine& ready) {
      ASSERT_EQ(ready.engine.num_microbatches(), 4 / ranks);
      one.expect_gradients_on(ready, config);
      const RouterHealth health = ready.engine.router_health().at(0);
      EXPECT_EQ(health.counts, expected_health.counts);
      EXPECT_EQ(health.bias, expected_health.bias);
      EXPECT_NEAR(health.entropy, expected_health.entropy, 1e-6);
      EXPECT_NEAR(health.balance_loss, expected_health.balance_loss, 1e-9);
    });
  }
}

// Experts are shared inside a process, so their number need not be one that all ranks divide.
TEST(RankEngines, OfThreeProcessesAddUpToTheBatch) {
  const std::vector<std::string> overrides = {"train.batch_seqs=6", "train.microbatch_seqs=1",
                                              "model.moe.num_experts=4"};
  FirstStep one(config_with(1, overrides));
  const Config config = config_with(6, overrides);
  const auto errors = test::run_processes(3, 6, std::chrono::seconds(60), [&](Communicator& ranks) {
    ReadyEngine ready(config, 1, ranks);
    one.expect_on(ready, config);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

// Every rank knows what each of them did in the exchanges of a step.
TEST(RankEngines, TellWhatTheyExchanged) {
  for (const int64_t ranks : {1, 2, 4}) {
    const Config config = config_of(ranks);
    std::vector<std::vector<LayerTraffic>> told(static_cast<size_t>(ranks));
    std::vector<int32_t> counts;
    run_engines(config, [&](ReadyEngine& ready) {
      test::enqueue_random(ready.engine, config, 1);
      test::enqueue_random(ready.engine, config, 2, /*in_detail=*/true);  // of this step alone
      const StepResult result = ready.engine.result();
      const auto rank = static_cast<size_t>(ready.engine.rank().index());
      told[rank] = result.traffic;
      if (rank == 0) counts = result.routers.at(0).counts;
    });
    if (ranks == 1) {
      EXPECT_TRUE(told[0].empty());
      continue;
    }
    ASSERT_EQ(told[0].size(), 1u);
    const LayerTraffic& layer = told[0][0];
    EXPECT_EQ(layer.layer, 1);
    ASSERT_EQ(std::ssize(layer.ranks), ranks);
    int64_t sent = 0, received = 0;
    double worst = 0.0;
    for (size_t i = 0; i < layer.ranks.size(); ++i) {
      const RankTraffic& rank = layer.ranks[i];
      const auto slots = std::ssize(counts) / ranks, first = static_cast<std::ptrdiff_t>(i) * slots;
      const int64_t rows = std::reduce(counts.begin() + first, counts.begin() + first + slots, int64_t{0});
      EXPECT_EQ(rank.rows, rows);
      worst = std::max(worst, static_cast<double>(rows * ranks) / (128.0 * 2));
      EXPECT_LE(rank.sent, rank.sent_copies);
      EXPECT_GT(rank.sent, 0);
      EXPECT_LE(rank.sent, (ranks - 1) * 128 / ranks);
      sent += rank.sent_copies;
      received += rank.received_copies;
      for (const double ms : rank.waited_ms) EXPECT_GT(ms, 0.0);
      for (const auto& others : told) {
        EXPECT_EQ(others.at(0).ranks[i].sent, rank.sent);
        EXPECT_EQ(others.at(0).ranks[i].received, rank.received);
        EXPECT_EQ(others.at(0).ranks[i].waited_ms, rank.waited_ms);
      }
    }
    EXPECT_EQ(sent, received);
    EXPECT_DOUBLE_EQ(rank_load_max_over_mean(layer), worst);
  }
}

TEST(RankEngines, KeepTheSameBitsOnEveryRankAndEveryTime) {
  for (const int64_t ranks : {2, 4}) {
    const Config config = config_of(ranks);
    const std::vector<Bytes> states = weights_of_two_runs(config, [&](ReadyEngine& ready) {
      for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
    });
    for (const Bytes& state : states) {
      for (const auto& [name, bytes] : state) {
        if (!contains(name, "experts_")) {
          EXPECT_EQ(bytes, states[0].at(name)) << name;
        }
      }
    }
  }
}

// An embedding and a head of several chunks, so that ranks update parts of them.
TEST(RankEngines, UpdatePartsOfWhatAllHave) {
  const auto wide = [](int64_t ranks) {
    return test::tiny_config("/nowhere",
                             {"model.vocab_size=6000", "model.dim=64", "model.moe.num_experts=8", "train.batch_seqs=4",
                              "train.microbatch_seqs=1", "run.seed=3", fmt::format("parallel.ranks={}", ranks)});
  };
  constexpr int64_t kSteps = 2;
  const Config whole = wide(1);
  ReadyEngine one(whole);
  for (int64_t step = 1; step <= kSteps; ++step) random_step(one.engine, whole, step);
  Bytes saved = snapshot(one.engine);
  std::map<std::string, Tensor> expected;
  for (const NamedPart& part : test::parts_of(one.engine, saved)) expected[part.name] = part.tensor;
  for (const int64_t ranks : {2, 4}) {
    const Config config = wide(ranks);
    std::map<std::string, std::map<int64_t, int64_t>> parts;  // of each tensor: [begin, end) that are written
    std::set<int64_t> cuts;                                   // of the head
    look_at_written(config, kSteps, [&](const NamedPart& part) {
      const int64_t begin = part.offset, end = begin + part.tensor.num_elements();
      EXPECT_TRUE(parts[part.name].emplace(begin, end).second) << part.name << " has two writers";
      EXPECT_TRUE(near(part.tensor.reshape({end - begin}), expected.at(part.name).rows(begin, end), 2e-2)) << part.name;
      if (part.name == "head") cuts.insert(begin);
    });
    EXPECT_EQ(cuts.size(), ranks == 2 ? 1U : 2U);  // two ranks have one of the two large weights each
    for (const auto& [name, tensor] : expected) {
      int64_t end = 0;
      for (const auto& [begin, part_end] : parts[name]) {
        EXPECT_EQ(begin, end) << name;
        end = part_end;
      }
      EXPECT_EQ(end, tensor.num_elements()) << name;
    }
  }
}

Config uneven(int64_t ranks, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"model.moe.num_experts=16", "model.moe.bias_rate=0", "train.microbatch_seqs=1"});
  return config_with(ranks, std::move(overrides));
}

// The load of the fullest rank in the engine's last step.
double last_rank_load(Engine& engine) {
  const std::vector<int32_t> counts = engine.router_health().at(0).counts;
  return rank_load(std::vector<int64_t>(counts.begin(), counts.end()), engine.experts().places.at(0),
                   engine.rank().count());
}

// A router that prefers some experts, those of the first rank among them, and does not learn.
TEST(RankEngines, ExpertsMoveUntilRanksAreEven) {
  for (const int64_t ranks : {2, 4}) {
    const Config config = uneven(ranks, {"train.batch_seqs=32", "optim.router.lr=0", "optim.matrices.lr=0",
                                         "optim.experts.lr=0", "optim.rest.lr=0"});
    std::array<Rebalancing::Layer, 4> done;
    std::array<ExpertPlacement, 4> places;
    run_engines(config, [&](ReadyEngine& ready) {
      Engine& engine = ready.engine;
      const Tensor bias = weight_of(engine, "layers.1.moe.router_bias").value;
      ready.ops().fill({bias.rows(0, 6), 0.02});
      for (int64_t step = 1; step <= 3; ++step) random_step(engine, config, step);
      EXPECT_GT(last_rank_load(engine), 1.25);
      const auto mine = static_cast<size_t>(engine.rank().index());
      done[mine] = engine.rebalance().layers.at(0);
      places[mine] = engine.experts().places;
      for (int64_t step = 1; step <= 3; ++step) {
        random_step(engine, config, step);
        EXPECT_LE(last_rank_load(engine), 1.1) << ranks;
      }
      EXPECT_EQ(engine.rebalance().moves(), 0);
    });
    EXPECT_EQ(done[0].layer, 1);
    EXPECT_GT(done[0].moves, 0);
    EXPECT_LE(done[0].moves, 8);
    EXPECT_GT(done[0].load_before, 1.25);
    EXPECT_LE(done[0].load_after, kBalancedLoad);
    for (int64_t rank = 1; rank < ranks; ++rank) EXPECT_EQ(places[static_cast<size_t>(rank)], places[0]);
  }
}

// Every expert is written as itself, once, with its moments, wherever it is; and read back there.
TEST(RankEngines, MovedExpertsAreWhatTheyWere) {
  for (const char* optimizer : {"muon", "adamw"}) {
    const Config config = uneven(4, {fmt::format("optim.experts.optimizer={}", optimizer)});
    std::mutex mutex;
    Bytes before, after, rest;  // of experts, and of others
    std::set<std::string> with_slices;
    const auto put = [&](Engine& engine, Bytes& whole) {
      Bytes mine = snapshot(engine);
      const std::scoped_lock lock(mutex);
      for (const StateTensor& tensor : engine.state_ring().tensors()) {
        if (tensor.slices().size() > 1) with_slices.insert(tensor.name);
      }
      for (const NamedPart& part : test::parts_of(engine, mine)) {
        test::add_to(contains(part.name, "experts_") ? whole : rest, part);
      }
      return mine;
    };
    run_engines(config, [&](ReadyEngine& ready) {
      Engine& engine = ready.engine;
      for (int64_t step = 1; step <= 3; ++step) random_step(engine, config, step);
      put(engine, before);
      EXPECT_GT(engine.rebalance().moves(), 0);
      const Bytes mine = put(engine, after);
      random_step(engine, config, 4);  // which no rank ends before all have put theirs
      Bytes whole = after;
      whole.insert(rest.begin(), rest.end());
      test::restore_from(engine, whole);
      EXPECT_EQ(test::differences(mine, snapshot(engine)), std::vector<std::string>());
    });
    EXPECT_EQ(test::differences(before, after), std::vector<std::string>()) << optimizer;
    EXPECT_EQ(before.size(), optimizer == std::string_view("muon") ? 4U : 6U);
    EXPECT_EQ(with_slices.size(), before.size());
  }
}

// And the format of their moments.
constexpr std::pair<const char*, const char*> kOptimizersOfExperts[] = {
    {"muon", "fp32"}, {"muon", "bf16"}, {"adamw", "fp32"}, {"adamw", "bf16"}, {"adamw", "fp8"}};

// Under routing that gives experts few rows of a shard, or none; with a weight that is cut, which has to be larger
// where state is narrower, and with Muon.
TEST(RankEngines, WithLogicalShardsTheBitsAreThoseOfOneRank) {
  for (const auto& [experts, state] : kOptimizersOfExperts) {
    const std::string_view products = state == std::string_view("bf16") ? "bf16" : "device";
    const auto with = [&](int64_t ranks) {
      return test::tiny_config(
          "/nowhere",
          {fmt::format("model.vocab_size={}", state == std::string_view("fp8") ? 20'000 : 5000), "model.dim=64",
           "model.moe.num_experts=16", "model.moe.balance_loss=1e-3", "train.microbatch_seqs=1",
           "parallel.logical_shards=8", fmt::format("parallel.ranks={}", ranks),
           fmt::format("optim.experts.optimizer={}", experts), fmt::format("optim.{}.state={}", experts, state),
           fmt::format("optim.muon.products={}", products)});
    };
    const Bytes expected = whole_state(with(1), 3);
    for (const int64_t ranks : {2, 4, 8}) {
      EXPECT_EQ(test::differences(whole_state(with(ranks), 3), expected), std::vector<std::string>()) << ranks;
    }
  }
}

// What travels has the experts' width, as it is or as codes; wherever experts are, and whether rows were kept or made
// again, the bits are the same.
TEST(RankEngines, LatentExpertsHaveTheBitsOfOneRank) {
  for (const char* wire : {"device", "fp8"}) {
    const auto with = [&](int64_t ranks, const std::string& recompute = "none") {
      return test::tiny_config(
          "/nowhere", {"model.vocab_size=50", "model.dim=64", "model.moe.latent_dim=24", "model.moe.num_experts=16",
                       "model.moe.balance_loss=1e-3", "model.activation=relu_squared", "train.microbatch_seqs=1",
                       "parallel.logical_shards=8", fmt::format("parallel.ranks={}", ranks),
                       "train.recompute=" + recompute, fmt::format("precision.wire={}", wire)});
    };
    ASSERT_EQ(exchange_shape(with(2).model).width, 24);
    const Bytes expected = whole_state(with(1), 3);
    for (const int64_t ranks : {2, 4}) {
      EXPECT_EQ(test::differences(whole_state(with(ranks), 3), expected), std::vector<std::string>()) << ranks;
    }
    for (const char* recompute : {"norms", "experts", "blocks"}) {
      EXPECT_EQ(test::differences(whole_state(with(2, recompute), 3), expected), std::vector<std::string>())
          << wire << ", " << recompute;
    }
  }
}

// Latent tokens that have no room at first are sent once more in backward.
TEST(RankEngines, LatentExpertsWorkOffWhatThereIsNoRoomFor) {
  const auto with = [](int64_t ranks, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"train.microbatch_seqs=1", "model.moe.num_shared_experts=1", "model.moe.latent_dim=12"});
    return config_with(ranks, more);
  };
  FirstStep one(with(1), [](ReadyEngine& ready) { skew_routing(ready, 3, 2); });
  const Config config = with(2, {"parallel.capacity_factor=1"});
  ASSERT_GT(plan_expert_rows(config).num_chunks, 0);
  weights_of_two_runs(config, [&](ReadyEngine& ready) { one.expect_gradients_on(ready, config); });
}

// Biases of experts are where the experts are, and move with them; rows that find no room at first are added up to
// them, too.
std::vector<std::string> with_biases(std::vector<std::string> more) {
  more.insert(more.end(), {"model.moe.biases=true", "model.moe.score=softmax", "model.moe.bias_rate=0",
                           "model.activation=clamped_swiglu", "model.moe.num_shared_experts=0"});
  return more;
}

TEST(RankEngines, BiasesOfExpertsHaveTheBitsOfOneRank) {
  for (const auto& [experts, state] : kOptimizersOfExperts) {
    const std::string wire = std::string_view(experts) == "muon" ? "device" : "fp8";
    const auto with = [&](int64_t ranks, bool moves = false) {
      std::vector<std::string> overrides = {"train.microbatch_seqs=1",
                                            "parallel.logical_shards=8",
                                            fmt::format("optim.experts.optimizer={}", experts),
                                            "optim.adamw.state=" + std::string(state),
                                            "model.moe.balance_loss=1e-3",
                                            "precision.wire=" + wire};
      if (moves) overrides.emplace_back("parallel.rebalance_every=1");
      return config_with(ranks, with_biases(overrides));
    };
    const Bytes expected = whole_state(with(1), 3);
    ASSERT_EQ(expected.count("adamw.v.layers.1.moe.experts_in_bias"), 1U);
    for (const int64_t ranks : {2, 4}) {
      for (const bool moves : {false, true}) {
        EXPECT_EQ(test::differences(whole_state(with(ranks, moves), 3), expected), std::vector<std::string>())
            << experts << ", " << state << ", " << ranks << " ranks, moving: " << moves;
      }
    }
  }
}

TEST(RankEngines, BiasesOfExpertsWorkOffWhatThereIsNoRoomFor) {
  const auto with = [](int64_t ranks, std::vector<std::string> more = {}) {
    more.emplace_back("train.microbatch_seqs=1");
    return config_with(ranks, with_biases(more));
  };
  FirstStep one(with(1), [](ReadyEngine& ready) { skew_routing(ready, 3, 2); });
  const Config config = with(2, {"parallel.capacity_factor=1"});
  ASSERT_GT(plan_expert_rows(config).num_chunks, 0);
  weights_of_two_runs(config, [&](ReadyEngine& ready) { one.expect_gradients_on(ready, config); });
}

// A rank's own tokens are rounded as those that travel, whatever the experts take them in; and what waits for backward
// as codes is the same wherever experts are, and whether it was kept or made again.
TEST(RankEngines, CodesOfRowsAreThoseOfOneRank) {
  const std::vector<std::string> formats[] = {{"run.precision=fp32"},
                                              {"run.precision=fp8"},
                                              {"run.precision=fp8", "precision.fp8_weight_gradients=true"},
                                              {"run.precision=nvfp4"}};
  for (const std::string key : {"precision.wire=", "precision.saved="}) {
    for (const std::vector<std::string>& format : formats) {
      const auto with = [&](int64_t ranks, const std::string& rows, const std::string& recompute = "none") {
        std::vector<std::string> overrides = format;
        overrides.insert(overrides.end(), {"model.dim=136", "model.moe.num_experts=16", "train.microbatch_seqs=1",
                                           "parallel.logical_shards=8", key + rows, "train.recompute=" + recompute});
        return config_with(ranks, overrides);
      };
      const Bytes expected = whole_state(with(1, "fp8"), 2);
      for (const int64_t ranks : {2, 4}) {
        EXPECT_EQ(test::differences(whole_state(with(ranks, "fp8"), 2), expected), std::vector<std::string>())
            << key << ", " << format.back() << " on " << ranks;
      }
      for (const char* recompute : {"norms", "experts", "blocks"}) {
        EXPECT_EQ(test::differences(whole_state(with(2, "fp8", recompute), 2), expected), std::vector<std::string>())
            << key << ", " << format.back() << ", " << recompute;
      }
      EXPECT_NE(whole_state(with(1, "device"), 2), expected) << key << ", " << format.back();
    }
  }
}

// Rows without room, which are sent once more in backward, and without logical shards.
TEST(RankEngines, CodesOfRowsAddUpToTheBatch) {
  const std::vector<std::string> settings[] = {
      {"precision.wire=fp8"},
      {"precision.saved=fp8"},
      {"precision.saved=fp8", "run.precision=fp8", "precision.fp8_weight_gradients=true"}};
  for (const std::vector<std::string>& setting : settings) {
    const auto with = [&](int64_t ranks, const std::string& factor) {
      std::vector<std::string> overrides = setting;
      if (ranks > 1) overrides.push_back("parallel.capacity_factor=" + factor);
      return config_with(ranks, overrides);
    };
    FirstStep one(with(1, ""));
    for (const int64_t ranks : {2, 4}) {
      for (const char* factor : {"1", "4"}) {
        SCOPED_TRACE(fmt::format("{} on {} ranks, {}", setting.back(), ranks, factor));
        const Config config = with(ranks, factor);
        run_engines(config, [&](ReadyEngine& ready) { one.expect_gradients_on(ready, config); });
      }
    }
  }
}

// All of it at once: tokens and gradients travel as codes, pre-activations wait as codes, products take codes, and rows
// have no room: all tokens go to experts of one rank, or of two of four.
TEST(RankEngines, CodesEverywhereAndNoRoomAddUpToTheBatch) {
  for (const int64_t chosen : {1, 5}) {
    for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
      const auto with = [&](int64_t ranks) {
        std::vector<std::string> overrides = {
            "train.microbatch_seqs=1", "run.precision=fp8",   "precision.fp8_weight_gradients=true",
            "precision.wire=fp8",      "precision.saved=fp8", fmt::format("train.recompute={}", recompute)};
        if (ranks > 1) overrides.emplace_back("parallel.capacity_factor=1");
        return config_with(ranks, overrides);
      };
      FirstStep one(with(1), [&](ReadyEngine& ready) { skew_routing(ready, chosen, 2); });
      for (const int64_t ranks : {2, 4}) {
        SCOPED_TRACE(fmt::format("{} ranks, recompute {}, experts from {} on", ranks, recompute, chosen));
        const Config config = with(ranks);
        ASSERT_EQ(plan_expert_rows(config).num_chunks, ranks - 1);
        weights_of_two_runs(config, [&](ReadyEngine& ready) { one.expect_gradients_on(ready, config); });
      }
    }
  }
}

TEST(RankEngines, WithLogicalShardsMovesOfExpertsChangeNoBit) {
  for (const auto& [experts, state] : kOptimizersOfExperts) {
    const auto with = [&](int64_t ranks) {
      std::vector<std::string> overrides = {"parallel.logical_shards=8",
                                            fmt::format("optim.experts.optimizer={}", experts),
                                            fmt::format("optim.{}.state={}", experts, state)};
      if (ranks > 1) overrides.emplace_back("parallel.rebalance_every=1");
      return uneven(ranks, overrides);
    };
    const Bytes expected = whole_state(with(1), 4);
    for (const int64_t ranks : {2, 4}) {
      EXPECT_EQ(test::differences(whole_state(with(ranks), 4), expected), std::vector<std::string>()) << ranks;
    }
  }
}

// State in host memory, with experts that move.
TEST(RankEngines, WhereStateLivesChangesNoBit) {
  for (const auto& [experts, state] : kOptimizersOfExperts) {
    for (const int64_t ranks : {1, 2, 4}) {
      const auto with = [&](const std::string& offload, int64_t on_device = -1) {
        std::vector<std::string> overrides = {fmt::format("optim.experts.optimizer={}", experts),
                                              fmt::format("optim.{}.state={}", experts, state),
                                              "optim.offload=" + offload};
        if (ranks > 1) overrides.emplace_back("parallel.rebalance_every=1");
        Config config = uneven(ranks, overrides);
        config.optim.state_on_device = on_device;
        return config;
      };
      const Bytes expected = whole_state(with("none"), 4);
      const int64_t whole = plan_engine_storage(with("none"))[ArenaKind::kOptimizer];
      const Config some = with("fit", whole / 2);
      const StoragePlan plan = plan_engine_storage(some);
      EXPECT_GT(plan[ArenaKind::kHostState], whole / 4);
      EXPECT_GT(plan[ArenaKind::kOptimizer], whole / 4);
      for (const Config& config : {with("state"), some}) {
        EXPECT_EQ(test::differences(whole_state(config, 4), expected), std::vector<std::string>())
            << experts << " " << state << " on " << ranks;
      }
    }
  }
}

// Inputs of blocks in host memory beside state there, with experts that move and batches of several microbatches.
TEST(RankEngines, WhereBlockInputsWaitChangesNoBit) {
  for (const int64_t ranks : {1, 2}) {
    const auto with = [&](std::vector<std::string> overrides) {
      overrides.emplace_back("model.num_layers=5");
      if (ranks > 1) overrides.emplace_back("parallel.rebalance_every=1");
      return config_with(ranks, overrides);
    };
    const Bytes expected = whole_state(with({"train.recompute=none"}), 3);
    for (const char* levels : {"host", "norms, 4 x host", "4 x host, none"}) {
      for (const char* offload : {"none", "state"}) {
        const Config config =
            with({fmt::format("train.recompute={}", levels), fmt::format("optim.offload={}", offload)});
        EXPECT_EQ(test::differences(whole_state(config, 3), expected), std::vector<std::string>())
            << levels << ", " << offload << " on " << ranks;
      }
    }
  }
}

TEST(RankEngines, WhatIsNotFiniteOnOneStopsAll) {
  const Config config = config_with(2, {"model.moe.balance_loss=1e-3", "optim.offload=state"});
  std::array<int64_t, 2> places{};
  run_engines(config, [&](ReadyEngine& ready) {
    ASSERT_TRUE(random_step(ready.engine, config, 1).finite);
    const bool is_bad = ready.engine.rank().index() == 1;
    if (is_bad) ready.ops().fill({weight_of(ready.engine, "layers.1.moe.experts_in").value, 3e38});
    const Bytes before = snapshot(ready.engine);
    EXPECT_FALSE(random_step(ready.engine, config, 2).finite);
    EXPECT_EQ(test::differences(before, snapshot(ready.engine)), std::vector<std::string>());
    const NonFinite first = ready.engine.find_non_finite();
    places[is_bad ? 1 : 0] = first.place;
    if (is_bad) {
      EXPECT_TRUE(contains(first.name, "layers.1.moe.expert_hidden"));
    } else {  // which gets it back for its tokens
      EXPECT_TRUE(contains(first.name, "layers.1.mlp_out"));
    }
  });
  EXPECT_LT(places[1], places[0]);
}

// Experts that no token goes to, and one rank whose experts all tokens go to.
TEST(RankEngines, ComputeTheSameUnderAnyRouting) {
  for (const int64_t chosen : {0, 3}) {
    const Config whole = config_of(1);
    FirstStep one(whole, [&](ReadyEngine& ready) { skew_routing(ready, chosen, 2); });
    const auto expected_counts = one.engine().router_health().at(0).counts;
    for (const int64_t ranks : {2, 4}) {
      const Config config = config_of(ranks);
      run_engines(config, [&](ReadyEngine& ready) {
        one.expect_on(ready, config);
        const auto counts = ready.engine.router_health().at(0).counts;
        EXPECT_EQ(counts[static_cast<size_t>(chosen)], whole.train.batch_seqs * whole.data.seq_len);
        EXPECT_EQ(counts, expected_counts);
      });
    }
  }
}

// Room for the average number of rows, and routing that gives a rank up to all: to one expert of one rank, to all
// experts of one of four, to two ranks of four; an odd number of tokens; and whatever backward computes again.
TEST(RankEngines, WorkOffWhatThereIsNoRoomFor) {
  for (const auto& [top_k, chosen] : {std::pair<int64_t, int64_t>{1, 5}, {2, 0}, {2, 3}, {2, 6}}) {
    for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
      const auto with = [&](int64_t ranks, std::vector<std::string> more = {}) {
        more.insert(more.end(),
                    {"data.seq_len=15", "train.microbatch_seqs=1", "model.moe.num_shared_experts=1",
                     fmt::format("model.moe.top_k={}", top_k), fmt::format("train.recompute={}", recompute)});
        return config_with(ranks, more);
      };
      FirstStep one(with(1), [&, count = top_k](ReadyEngine& ready) { skew_routing(ready, chosen, count); });
      for (const int64_t ranks : {2, 4}) {
        const Config config = with(ranks, {"parallel.capacity_factor=1"});
        ASSERT_EQ(plan_expert_rows(config).num_chunks, ranks - 1);
        SCOPED_TRACE(fmt::format("{} ranks, recompute {}, {} experts from {} on", ranks, recompute, top_k, chosen));
        weights_of_two_runs(config, [&](ReadyEngine& ready) {
          one.expect_gradients_on(ready, config);
          EXPECT_EQ(ready.memory->storage[ArenaKind::kActivations].high_water(), ready.plan[ArenaKind::kActivations]);
        });
      }
    }
  }
}

// Chunks that stay empty leave no trace.
TEST(RankEngines, ComputeTheSameBitsWhereThereIsRoom) {
  const auto with = [](int64_t ranks, double factor) {
    return config_with(ranks, {fmt::format("parallel.capacity_factor={}", factor)});
  };
  for (const auto& [ranks, enough] : {std::pair<int64_t, double>{2, 1.75}, {4, 1.9}}) {
    const Config config = with(ranks, enough), all_at_once = with(ranks, 4);
    ASSERT_GT(plan_expert_rows(config).num_chunks, 0);
    ASSERT_EQ(plan_expert_rows(all_at_once).num_chunks, 0);
    EXPECT_EQ(test::differences(whole_state(config, 3), whole_state(all_at_once, 3)), std::vector<std::string>());
  }
}

TEST(RankEngines, OneThatFailsEndsTheStepsOfAll) {
  const Config config = config_of(4);
  const Error error = error_of([&] {
    run_engines(config, [&](ReadyEngine& ready) {
      for (int64_t step = 1;; ++step) {
        if (ready.engine.rank().index() == 2 && step == 3) throw runtime_error("no more", "");
        random_step(ready.engine, config, step);
        EXPECT_LE(step, 2);
      }
    });
  });
  EXPECT_EQ(std::string(error.what()), "no more");
}

}  // namespace
}  // namespace nmoe
