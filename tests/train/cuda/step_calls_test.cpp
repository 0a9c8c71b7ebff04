// What a step asks of the driver: one graph launch, a few copies and events, whatever the routing; no allocation and no
// wait.
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/cuda/api_calls.h"
#include "train/loop/trainer.h"
#include "train/tiny_engine.h"

namespace nmoe::test {
namespace {

std::string text_of(const CallCounts& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{} x {}, ", count, name);
  return text;
}

Config cuda_config(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(), {"model.vocab_size=50", "train.microbatch_seqs=4", "run.device=cuda",
                                     "data.mask_documents=true", "model.moe.bias_rate=0"});
  return tiny_config("/nowhere", overrides);
}

class StepCalls : public ::testing::Test {
 protected:
  StepCalls() : config_(cuda_config()), ready_(config_) {
    for (step_ = 1; step_ <= 3; ++step_) random_step(ready_.engine, config_, step_);
  }

  // The calls of one step, which does not wait for those before it.
  CallCounts step(bool in_detail = false) {
    calls_.take();
    enqueue_random(ready_.engine, config_, step_++, in_detail);
    return calls_.take();
  }

  // Every token goes to the two experts from `first` on.
  void route_all_to(int64_t first) {
    for (const Moe* moe : ready_.engine.model().moe_layers()) {
      ready_.ops().fill({moe->router_bias().value, 0.0});
      ready_.ops().fill({moe->router_bias().value.rows(first, first + 2), 100.0});
    }
  }

  Config config_;
  ReadyEngine ready_;
  int64_t step_ = 0;
  ApiCalls calls_;  // last: begins with the steps
};

TEST_F(StepCalls, OneLaunchWhateverTheRouting) {
  const CallCounts expected = step();
  ready_.engine.result();
  RecordProperty("calls", text_of(expected));
  fmt::print("calls of a step: {}\n", text_of(expected));
  EXPECT_EQ(count_of(expected, "cuGraphLaunch"), 1);
  EXPECT_EQ(count_of(expected, "cuLaunchKernel"), 0);
  EXPECT_EQ(count_of(expected, "cuMemcpy"), 3) << text_of(expected);       // in, to its place, and results out
  EXPECT_EQ(count_of(expected, "cuEventRecord"), 3) << text_of(expected);  // sent, taken, done
  EXPECT_EQ(count_of(expected, "cuStreamWaitEvent"), 2) << text_of(expected);
  for (const auto& [name, count] : expected) {
    EXPECT_FALSE(is_allocation(name) || is_wait(name)) << count << " x " << name;
  }
  for (const int64_t first : {0, 4}) {
    route_all_to(first);
    for (int64_t i = 0; i < Engine::kMaxPending; ++i) {  // none is waited for
      const CallCounts counts = step();
      EXPECT_EQ(counts, expected) << text_of(counts);
    }
    ready_.engine.result();
    const std::vector<int32_t> rows = ready_.engine.router_health()[0].counts;
    const int64_t tokens = config_.train.batch_seqs * config_.data.seq_len;
    for (size_t expert = 0; expert < rows.size(); ++expert) {
      const auto offset = static_cast<int64_t>(expert) - first;
      EXPECT_EQ(rows[expert], offset == 0 || offset == 1 ? tokens : 0) << expert;
    }
  }
}

TEST_F(StepCalls, ALoggedStepCopiesMore) {
  const CallCounts plain = step(), logged = step(/*in_detail=*/true);
  const int64_t layers = static_cast<int64_t>(ready_.engine.model().moe_layers().size());
  EXPECT_EQ(count_of(logged, "cuMemcpy"), count_of(plain, "cuMemcpy") + 4 * layers + 1);  // and the token losses
  EXPECT_EQ(count_of(logged, "cuGraphLaunch"), 1);
  for (const auto& [name, count] : logged) {
    EXPECT_FALSE(is_allocation(name) || is_wait(name)) << count << " x " << name;
  }
}

TEST_F(StepCalls, TakingAResultWaitsForThatStepAlone) {
  step();
  step();
  calls_.take();
  ready_.engine.take_result();
  const CallCounts counts = calls_.take();
  EXPECT_EQ(count_of(counts, "cuEventSynchronize"), 1);
  EXPECT_EQ(counts.size(), 1u) << text_of(counts);
}

// A whole run: twenty steps more are twenty launches more, and nothing that allocates or holds up the device.
class RunCalls : public TempDirTest {};

TEST_F(RunCalls, MoreStepsAreMoreLaunchesOnly) {
  write_tiny_corpus(dir_ / "data");
  ApiCalls calls;
  std::map<int64_t, CallCounts> counts;
  for (const int64_t steps : {10, 10, 30}) {  // the first loads what is loaded once
    calls.take();
    train(tiny_config(dir_, {fmt::format("run.name=steps{}-{}", steps, counts.size()), "run.device=cuda",
                             fmt::format("train.steps={}", steps), "train.log_every=100", "train.valid_every=0",
                             "checkpoint.every=0"}),
          {});
    counts[steps] = calls.take();
  }
  EXPECT_EQ(count_of(counts[30], "cuGraphLaunch") - count_of(counts[10], "cuGraphLaunch"), 20);
  EXPECT_EQ(count_of(counts[30], "cuLaunchKernel"), count_of(counts[10], "cuLaunchKernel"));
  for (const auto& [name, count] : counts[30]) {
    if (!is_allocation(name) && !is_wait(name)) continue;
    if (name == "cuEventSynchronize") {
      EXPECT_LE(count - counts[10][name], 20) << name;  // for the step three before
    } else {
      EXPECT_EQ(count, counts[10][name]) << name;
    }
  }
}

}  // namespace
}  // namespace nmoe::test
