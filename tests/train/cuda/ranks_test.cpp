// Ranks on GPUs, a device each. Skipped where there are not two.
#include <gtest/gtest.h>

#include <mutex>

#include "checkpoint/reader.h"
#include "parallel/domain.h"
#include "train/cuda/api_calls.h"
#include "train/trainer_fixture.h"
#include "train/weight_outlier.h"

namespace nmoe::test {
namespace {

class CudaRanks : public TrainerTest {
 protected:
  void SetUp() override {
    try {
      make_device({.kind = "cuda", .index = 1});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static int64_t num_gpus() {
    for (int count = 2;; ++count) {
      try {
        make_device({.kind = "cuda", .index = count});
      } catch (const Error&) {
        return count;
      }
    }
  }
  static std::vector<std::string> on(int64_t ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"run.device=cuda", "model.moe.num_experts=8", "train.microbatch_seqs=2",
                                       fmt::format("parallel.ranks={}", ranks)});
    if (ranks > 1) overrides.emplace_back("parallel.timeout_s=20");
    return overrides;
  }
  // Sizes that products of FP8 codes take.
  static std::vector<std::string> even(int64_t width, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {fmt::format("model.dim={}", width), "model.dense_dim=272", "model.moe.expert_dim=128",
                      "model.mla.kv_lora_rank=32", "model.mla.qk_nope_head_dim=16", "model.mla.qk_rope_head_dim=16",
                      "model.mla.v_head_dim=16"});
    return overrides;
  }
  void expect_near(const std::string& name, const std::string& expected_name) const {
    for (const char* tag : {"train/loss", "valid/loss"}) {
      const auto curve = series(name, tag), expected = series(expected_name, tag);
      ASSERT_FALSE(expected.empty()) << tag;
      // bf16 rounds the sums of a token's experts once more between ranks.
      for (const auto& [step, value] : expected) {
        ASSERT_TRUE(curve.contains(step)) << tag << " of step " << step;
        EXPECT_NEAR(curve.at(step), value, 5e-3 * std::abs(value)) << tag << " of step " << step;
      }
    }
  }
};

TEST_F(CudaRanks, LearnWhatOneLearnsAndTheSameEveryTime) {
  run("one", on(1, {"train.steps=12"}));
  run("two", on(2, {"train.steps=12"}));
  run("again", on(2, {"train.steps=12", "train.valid_every=1", "checkpoint.every=4"}));
  expect_near("two", "one");
  EXPECT_EQ(weights_of(checkpoints("two")), weights_of(checkpoints("again")));
}

// Summed beside backward, bucket by bucket, or all behind it.
TEST_F(CudaRanks, BucketsOfGradientsChangeNoBit) {
  for (int64_t ranks = 2; ranks <= std::min<int64_t>(num_gpus(), 8); ranks *= 2) {
    for (const char* recompute : {"none", "blocks"}) {
      std::map<std::string, std::string> weights;
      for (const char* bucket_bytes : {"1", "4000", "1000000000"}) {
        const std::string name = fmt::format("{}-{}-{}", ranks, recompute, bucket_bytes);
        run(name, on(ranks, {"train.steps=12", "train.batch_seqs=16", "model.num_layers=5", "optim.clip_norm=0",
                             fmt::format("train.recompute={}", recompute),
                             fmt::format("parallel.bucket_bytes={}", bucket_bytes)}));
        weights[bucket_bytes] = weights_of(checkpoints(name));
      }
      EXPECT_EQ(weights["1"], weights["1000000000"]) << ranks << " ranks, recompute " << recompute;
      EXPECT_EQ(weights["4000"], weights["1000000000"]) << ranks << " ranks, recompute " << recompute;
    }
  }
}

TEST_F(CudaRanks, GoOnAsAnyNumber) {
  run("straight", on(2, {"train.steps=12"}));
  run("halves", on(2, {"train.steps=6"}));
  run("other", on(2, {"train.steps=6"}));
  resume("halves", on(2, {"train.steps=12"}));
  EXPECT_EQ(weights_of(checkpoints("halves")), weights_of(checkpoints("straight")));
  resume("other", on(1, {"train.steps=12"}));
  expect_near("other", "straight");
  run("first", on(1, {"train.steps=6"}));
  resume("first", on(2, {"train.steps=12"}));
  expect_near("first", "straight");
}

// Room for the average alone, and tokens whose experts are all on one rank: one of the two has too many rows, always.
TEST_F(CudaRanks, WorkOffWhatThereIsNoRoomFor) {
  for (const auto& [precision, recompute, tolerance] :
       {std::tuple{"bf16", "none", 5e-3}, {"fp32", "none", 1e-4}, {"fp32", "experts", 1e-4}}) {
    const auto with = [&](int64_t ranks, std::vector<std::string> more) {
      more.insert(more.end(),
                  {"train.steps=4", "model.moe.num_groups=2", "model.moe.top_groups=1",
                   fmt::format("run.precision={}", precision), fmt::format("train.recompute={}", recompute)});
      return on(ranks, more);
    };
    const std::string name = fmt::format("{}-{}", precision, recompute);
    run(name + "-one", with(1, {}));
    run(name + "-turns", with(2, {"parallel.capacity_factor=1"}));
    run(name + "-again", with(2, {"parallel.capacity_factor=1"}));
    run(name + "-room", with(2, {"parallel.capacity_factor=2"}));
    const auto turns = series(name + "-turns", "train/loss");
    for (const char* other : {"-one", "-room"}) {
      const auto expected = series(name + other, "train/loss");
      ASSERT_EQ(expected.size(), turns.size());
      for (const auto& [step, value] : expected) {
        EXPECT_NEAR(turns.at(step), value, tolerance * value) << name << other << ", step " << step;
      }
    }
    EXPECT_EQ(weights_of(checkpoints(name + "-turns")), weights_of(checkpoints(name + "-again")));
  }
}

// The same bits as with room for the worst routing, where chunks stay empty.
TEST_F(CudaRanks, ComputeTheSameBitsWhereThereIsRoom) {
  run("room", on(2, {"train.steps=6", "parallel.capacity_factor=2"}));
  run("enough", on(2, {"train.steps=6", "parallel.capacity_factor=1.8"}));
  EXPECT_EQ(weights_of(checkpoints("room")), weights_of(checkpoints("enough")));
}

TEST_F(CudaRanks, ExpertsMoveAndLearnTheSame) {
  const auto moving = [](int64_t steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"train.valid_every=5", fmt::format("train.steps={}", steps)});
    auto overrides = on(2, more);
    overrides.insert(overrides.end(), {"model.moe.num_experts=16", "parallel.rebalance_every=4"});
    return overrides;
  };
  run("moving", moving(14));
  auto still = moving(14);
  still.emplace_back("parallel.rebalance_every=0");
  run("still", still);
  expect_near("moving", "still");
  EXPECT_GT(series("moving", "parallel/expert_moves").at(5), 0);
  EXPECT_LE(series("moving", "parallel/layer_01/load_after_moves").at(5), kBalancedLoad);
  run("again", moving(14, {"checkpoint.every=3"}));
  EXPECT_EQ(weights_of(checkpoints("moving")), weights_of(checkpoints("again")));
  for (const int64_t stop : {6, 8}) {
    const std::string name = fmt::format("stopped{}", stop);
    run(name, moving(stop));
    resume(name, moving(14));
    expect_same_state(checkpoints(name), checkpoints("moving"));
  }
  for (const char* optimizer : {"muon", "adamw"}) {
    const std::vector<std::string> sharded = {"parallel.logical_shards=8",
                                              fmt::format("optim.experts.optimizer={}", optimizer)};
    const auto with = [&](int64_t every) {
      auto overrides = moving(14, sharded);
      overrides.insert(overrides.end(), {"train.microbatch_seqs=1", fmt::format("parallel.rebalance_every={}", every)});
      return overrides;
    };
    const std::string name = fmt::format("sharded_{}", optimizer);
    run(name, with(0));
    run(name + "_moving", with(2));
    double moves = 0;
    for (const auto& [step, count] : series(name + "_moving", "parallel/expert_moves")) moves += count;
    EXPECT_GT(moves, 0);
    expect_same_state(checkpoints(name + "_moving"), checkpoints(name));
  }
}

TEST_F(CudaRanks, WithLogicalShardsEveryNumberOfGpusEndsWithTheSameBits) {
  const auto sharded = [](int64_t ranks, int64_t steps) {
    return on(ranks, {"parallel.logical_shards=8", "train.batch_seqs=16", "data.mask_documents=true",
                      "optim.router.lr=1e-4", fmt::format("train.steps={}", steps)});
  };
  run("one", sharded(1, 20));
  for (int64_t ranks = 2; ranks <= std::min<int64_t>(num_gpus(), 8); ranks *= 2) {
    const std::string name = fmt::format("shards{}", ranks);
    run(name, sharded(ranks, 20));
    expect_same_state(checkpoints(name), checkpoints("one"));
  }
  run("turns", sharded(2, 7));
  resume("turns", sharded(1, 13));
  resume("turns", sharded(2, 20));
  expect_same_state(checkpoints("turns"), checkpoints("one"));
}

// Each rank moves its own shard of the optimizer's state to and from the host.
TEST_F(CudaRanks, StateInHostMemoryChangesNoBit) {
  const auto with = [](int64_t ranks, const std::string& offload, int64_t steps) {
    return on(ranks, {"parallel.logical_shards=8", "train.batch_seqs=16", "optim.router.lr=1e-4",
                      "optim.offload=" + offload, fmt::format("train.steps={}", steps)});
  };
  run("device", with(2, "none", 10));
  run("host", with(2, "state", 10));
  run("turns", with(2, "state", 4));
  resume("turns", with(1, "none", 7));
  resume("turns", with(2, "state", 10));
  for (const char* name : {"host", "turns"}) expect_same_state(checkpoints(name), checkpoints("device"));
}

TEST_F(CudaRanks, BiasesOfExpertsHaveTheBitsOfOneGpu) {
  const auto with = [](int64_t ranks, std::vector<std::string> more) {
    more.insert(more.end(), {"parallel.logical_shards=8", "train.batch_seqs=16", "train.steps=6",
                             "model.moe.biases=true", "model.activation=clamped_swiglu", "model.moe.score=softmax",
                             "model.moe.bias_rate=0", "model.moe.num_shared_experts=0", "optim.router.lr=1e-4"});
    return on(ranks, more);
  };
  run("one", with(1, {}));
  run("two", with(2, {}));
  run("moving", with(2, {"parallel.rebalance_every=2"}));
  for (const char* name : {"two", "moving"}) expect_same_state(checkpoints(name), checkpoints("one"));
}

// What is rounded does not depend on where it is.
TEST_F(CudaRanks, LearnInFp8) {
  const auto fp8 = [](int64_t ranks, std::vector<std::string> more) {
    more.emplace_back("run.precision=fp8");
    return on(ranks, even(144, more));
  };
  // Codes are coarse, and rates steep here: what sums of two ranks are rounded to differently is 0.9 % of the loss at
  // step 8.
  run("one", fp8(1, {"train.steps=6"}));
  run("two", fp8(2, {"train.steps=6"}));
  run("again", fp8(2, {"train.steps=6", "train.valid_every=1"}));
  expect_near("two", "one");
  EXPECT_EQ(weights_of(checkpoints("two")), weights_of(checkpoints("again")));
  run("turns",
      fp8(2, {"train.steps=4", "parallel.capacity_factor=1", "model.moe.num_groups=2", "model.moe.top_groups=1"}));
  run("room",
      fp8(2, {"train.steps=4", "parallel.capacity_factor=2", "model.moe.num_groups=2", "model.moe.top_groups=1"}));
  expect_near("turns", "room");
  for (const int64_t ranks : {1, 2}) {
    run(fmt::format("shards{}", ranks),
        fp8(ranks, {"train.steps=8", "parallel.logical_shards=8", "train.batch_seqs=16", "optim.router.lr=1e-4"}));
  }
  expect_same_state(checkpoints("shards2"), checkpoints("shards1"));
}

// A rank's own tokens are rounded as those that travel, whatever experts compute in. What waits for backward as codes
// is the same wherever experts are, too.
TEST_F(CudaRanks, LearnFromCodesOfRows) {
  const std::vector<std::string> formats[] = {{"run.precision=bf16"},
                                              {"run.precision=fp8"},
                                              {"run.precision=fp8", "precision.fp8_weight_gradients=true"},
                                              {"run.precision=nvfp4"}};
  for (int64_t format = 0; format < std::ssize(formats); ++format) {
    for (const std::string key : {"wire", "saved"}) {
      for (const int64_t width : {144, 256}) {  // norms leave codes of whole blocks
        SCOPED_TRACE(fmt::format("{}, {}, {}", formats[format].back(), key, width));
        const auto coded = [&](int64_t ranks, std::vector<std::string> more) {
          more.insert(more.end(), formats[format].begin(), formats[format].end());
          more.push_back("precision." + key + "=fp8");
          return on(ranks, even(width, more));
        };
        const auto name = [&](const std::string& what) { return fmt::format("{}_{}_{}_{}", what, format, key, width); };
        for (const int64_t ranks : {1, 2}) {
          run(name(fmt::format("shards{}", ranks)), coded(ranks, {"train.steps=6", "parallel.logical_shards=8",
                                                                  "train.batch_seqs=16", "optim.router.lr=1e-4"}));
        }
        expect_same_state(checkpoints(name("shards2")), checkpoints(name("shards1")));
        if (format % 2 == 1 || width != 256) continue;
        run(name("turns"), coded(2, {"train.steps=4", "parallel.capacity_factor=1", "model.moe.num_groups=2",
                                     "model.moe.top_groups=1"}));
        run(name("room"), coded(2, {"train.steps=4", "parallel.capacity_factor=2", "model.moe.num_groups=2",
                                    "model.moe.top_groups=1"}));
        expect_near(name("turns"), name("room"));
      }
    }
  }
}

// All of it at once: tokens and gradients travel as codes, pre-activations wait as codes, products take codes, and rows
// have no room for tokens whose experts are all on one of four GPUs.
TEST_F(CudaRanks, FourLearnFromCodesEverywhereWithoutRoom) {
  if (num_gpus() < 4) GTEST_SKIP() << num_gpus() << " GPUs";
  const auto coded = [](int64_t ranks, std::vector<std::string> more) {
    more.insert(more.end(), {"train.steps=4", "model.moe.num_groups=4", "model.moe.top_groups=1", "run.precision=fp8",
                             "precision.fp8_weight_gradients=true", "precision.wire=fp8", "precision.saved=fp8"});
    return on(ranks, even(256, more));
  };
  run("one", coded(1, {}));
  for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
    SCOPED_TRACE(recompute);
    const auto name = [&](const char* what) { return fmt::format("{}-{}", what, recompute); };
    const std::string dropped = fmt::format("train.recompute={}", recompute);
    run(name("turns"), coded(4, {dropped, "parallel.capacity_factor=1"}));
    run(name("again"), coded(4, {dropped, "parallel.capacity_factor=1", "train.valid_every=1"}));
    run(name("room"), coded(4, {dropped, "parallel.capacity_factor=4"}));
    expect_near(name("turns"), name("room"));
    expect_near(name("turns"), "one");
    EXPECT_EQ(weights_of(checkpoints(name("turns"))), weights_of(checkpoints(name("again"))));
  }
}

// Scales and random bits are those of a shard and of an expert, wherever it is.
TEST_F(CudaRanks, LearnInNvFp4) {
  const auto nvfp4 = [](int64_t ranks, std::vector<std::string> more) {
    more.insert(more.end(),
                {"run.precision=nvfp4", "model.dim=144", "model.dense_dim=272", "model.moe.expert_dim=128"});
    return on(ranks, more);
  };
  run("two", nvfp4(2, {"train.steps=6"}));
  run("again", nvfp4(2, {"train.steps=6", "train.valid_every=1"}));
  EXPECT_EQ(weights_of(checkpoints("two")), weights_of(checkpoints("again")));
  for (const int64_t ranks : {1, 2}) {
    std::vector<std::string> overrides = {"train.steps=8", "parallel.logical_shards=8", "train.batch_seqs=16",
                                          "optim.router.lr=1e-4"};
    if (ranks > 1) overrides.emplace_back("parallel.rebalance_every=3");
    run(fmt::format("shards{}", ranks), nvfp4(ranks, overrides));
  }
  expect_same_state(checkpoints("shards2"), checkpoints("shards1"));
}

// An outlier of an expert on the first of two GPUs (weight_outlier.h): before every step both say the same of all
// parts, and that one leaves its format within the window. With logical shards all that is found, and what follows, is
// what one GPU has, to the bit.
TEST_F(CudaRanks, DecideAlikeAboutPrecision) {
  const auto checked = [&](const std::string& name, const std::string& precision, int64_t ranks, bool sharded) {
    std::vector<std::string> overrides =
        on(ranks, even(144, {"run.precision=" + precision, "train.steps=10", "run.name=" + name,
                             "precision.fallback=act", "precision.check_every=2", "optim.clip_norm=0",
                             "optim.experts.optimizer=adamw", "optim.experts.lr=1e-2"}));
    if (sharded) {
      overrides.insert(overrides.end(), {"parallel.logical_shards=8", "train.batch_seqs=16", "optim.router.lr=1e-4"});
    }
    std::mutex mutex;
    std::map<int64_t, std::map<int64_t, std::vector<PrecisionRole>>> said;  // by rank and step
    const auto outlier = test::outlier_from(3);
    train(test::tiny_config(dir_, overrides),
          {.version = "0.0.0", .commit = "abc", .before_step = [&](Engine& engine, int64_t step) {
             outlier(engine, step);
             const std::scoped_lock lock(mutex);
             said[engine.rank().index()][step] = engine.precision();
           }});
    EXPECT_EQ(said.size(), static_cast<size_t>(ranks));
    for (const auto& [rank, by_step] : said) EXPECT_EQ(by_step, said.at(0)) << "rank " << rank;
    EXPECT_EQ(said.at(0).size(), 10U);
    return said.at(0);
  };
  for (const std::string precision : {"fp8", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(precision);
    const auto two = checked(precision, precision, 2, false);
    EXPECT_EQ(parts_in_act(two.at(8)), "");
    EXPECT_EQ(parts_in_act(two.at(9)), "1 experts;");
    const auto one = checked(precision + "_shards1", precision, 1, true);
    EXPECT_EQ(parts_in_act(one.at(8)), "");
    EXPECT_EQ(parts_in_act(one.at(9)), "1 experts;");
    EXPECT_EQ(checked(precision + "_shards2", precision, 2, true), one);
    expect_same_state(checkpoints(precision + "_shards2"), checkpoints(precision + "_shards1"));
    for (const char* part : {"00/mixer", "00/dense", "01/mixer", "01/shared", "01/experts"}) {
      for (const char* what : {"inputs", "weights", "gradients", "outputs", "input_gradients"}) {
        const std::string tag = fmt::format("precision/layer_{}_{}/snr_db", part, what);
        const auto found = series(precision + "_shards1", tag);
        EXPECT_EQ(found.size(), 5U) << tag;
        EXPECT_EQ(series(precision + "_shards2", tag), found) << tag;
      }
    }
  }
}

// Twenty steps more are twenty launches more of each rank, and nothing that allocates or holds up a device.
TEST_F(CudaRanks, MoreStepsAreMoreLaunchesOnly) {
  ApiCalls calls;
  const auto calls_of = [&](int64_t steps, const std::string& name) {
    calls.take();
    run(name, on(2, {fmt::format("train.steps={}", steps), "train.log_every=100", "train.valid_every=0",
                     "checkpoint.every=0"}));
    return calls.take();
  };
  calls_of(10, "first");  // loads what is loaded once
  CallCounts ten = calls_of(10, "ten");
  const CallCounts thirty = calls_of(30, "thirty");
  EXPECT_EQ(count_of(thirty, "cuGraphLaunch") - count_of(ten, "cuGraphLaunch"), 2 * 20);
  EXPECT_EQ(count_of(thirty, "cuLaunchKernel"), count_of(ten, "cuLaunchKernel"));
  for (const auto& [name, count] : thirty) {
    if (name == "cuEventSynchronize") {
      EXPECT_LE(count - ten[name], 2 * 20) << name;  // for the step three before
    } else if (is_allocation(name) || is_wait(name)) {
      EXPECT_EQ(count, ten[name]) << name;
    }
  }
}

// fp32 on both devices: only the order of sums differs between one rank and two.
TEST_F(CudaRanks, AgreeWithTheCpuInFp32) {
  run("gpus", on(2, {"train.steps=4", "run.precision=fp32"}));
  auto on_cpu = on(2, {"train.steps=4"});
  on_cpu.emplace_back("run.device=cpu");
  run("cpu", on_cpu);
  const auto gpus = series("gpus", "train/loss"), cpu = series("cpu", "train/loss");
  for (const auto& [step, value] : cpu) EXPECT_NEAR(gpus.at(step), value, 1e-4 * value) << step;
}

}  // namespace
}  // namespace nmoe::test
