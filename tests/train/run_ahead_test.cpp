// The engine runs ahead of the results: the same steps to the bit, and nothing after a step that is not finite. Built
// for each device, NMOE_TEST_DEVICE.
#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "support/tiny_corpus.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"

namespace nmoe::test {
namespace {

Config device_config(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(),
                   {"model.vocab_size=50", "train.microbatch_seqs=4", fmt::format("run.device={}", NMOE_TEST_DEVICE)});
  return tiny_config("/nowhere", overrides);
}

void set_first(ReadyEngine& ready, const std::string& name, double value) {
  for (const Weight& weight : ready.engine.model().weights().all()) {
    if (weight.spec.name != name) continue;
    ready.ops().fill({weight.value.reshape({weight.value.num_elements()}).rows(0, 1), value});
    return;
  }
  FAIL() << "no parameter " << name;
}

void expect_equal(const StepResult& actual, const StepResult& expected) {
  EXPECT_EQ(actual.loss(kNextToken), expected.loss(kNextToken));
  EXPECT_EQ(actual.grad_norm, expected.grad_norm);
  EXPECT_EQ(actual.finite, expected.finite);
}

// Documents' bounds differ from step to step: inputs of one step must not show up in another.
TEST(RunAhead, StepsAreThoseOfALoopThatWaits) {
  for (const char* masked : {"data.mask_documents=false", "data.mask_documents=true"}) {
    const Config config = device_config({masked});
    ReadyEngine waiting(config), ahead(config);
    std::vector<StepResult> expected, results;
    constexpr int64_t kSteps = 7;
    for (int64_t step = 1; step <= kSteps; ++step) {
      expected.push_back(random_step(waiting.engine, config, step));
      expected.back().routers = waiting.engine.router_health();
    }
    for (int64_t step = 1; step <= kSteps; ++step) {
      enqueue_random(ahead.engine, config, step, /*in_detail=*/step % 2 == 0);
      if (ahead.engine.num_pending() == Engine::kMaxPending) results.push_back(ahead.engine.take_result());
    }
    while (ahead.engine.num_pending() > 0) results.push_back(ahead.engine.take_result());
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(results[i], expected[i]);
      ASSERT_EQ(results[i].routers.size(), i % 2 == 1 ? 1u : 0u);
      if (results[i].routers.empty()) continue;
      const RouterHealth &actual = results[i].routers[0], &wanted = expected[i].routers[0];
      EXPECT_EQ(actual.counts, wanted.counts);
      EXPECT_EQ(actual.entropy, wanted.entropy);
      EXPECT_EQ(actual.bias, wanted.bias);
    }
    EXPECT_NE(results[0].loss(kNextToken), results[1].loss(kNextToken));
    EXPECT_EQ(differences(snapshot(ahead.engine), snapshot(waiting.engine)), std::vector<std::string>{});
  }
}

TEST(RunAhead, ResultsThatNobodyTookAreDroppedOldestFirst) {
  const Config config = device_config();
  ReadyEngine ready(config), other(config);
  StepResult last;
  for (int64_t step = 1; step <= Engine::kMaxPending + 2; ++step) {
    enqueue_random(ready.engine, config, step);
    last = random_step(other.engine, config, step);
  }
  EXPECT_EQ(ready.engine.num_pending(), Engine::kMaxPending);
  expect_equal(ready.engine.result(), last);
  EXPECT_EQ(ready.engine.num_pending(), 0);
  EXPECT_FALSE(ready.engine.has_result());
}

// The steps behind the bad one have good batches, and would change weights.
TEST(RunAhead, NothingHappensAfterAStepThatIsNotFinite) {
  const Config config = device_config();
  ReadyEngine ready(config);
  for (int64_t step = 1; step <= 2; ++step) ASSERT_TRUE(random_step(ready.engine, config, step).finite);
  const auto good = snapshot(ready.engine);

  // What only the bad step reads: a row of the embedding, by an id that no other has.
  const auto tokens = static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len);
  const std::vector<int32_t> fine(tokens, 7);
  std::vector<int32_t> bad = fine;
  bad[tokens / 2] = 0;
  set_first(ready, "embedding", std::numeric_limits<double>::infinity());
  const auto before = snapshot(ready.engine);
  EXPECT_EQ(differences(before, good), std::vector<std::string>{"embedding"});
  const int64_t step_tokens = config.train.batch_seqs * config.data.seq_len;
  for (int64_t step = 3; step < 3 + Engine::kMaxPending; ++step) {
    for (int64_t i = 0; i < ready.engine.num_microbatches(); ++i) {
      const Documents documents = documents_of(fine, config);
      ready.engine.load(i, microbatch_of(step == 3 && i == 1 ? bad : fine, fine, documents));
    }
    ready.engine.step({.steps = step, .tokens = step * step_tokens}, step_tokens);
  }
  EXPECT_FALSE(ready.engine.take_result().finite);
  EXPECT_EQ(differences(snapshot(ready.engine), before), std::vector<std::string>{});
  // The batch is the bad step's, though others came after it.
  EXPECT_TRUE(contains(ready.engine.find_non_finite().name, "weight embedding (1 of "));
  EXPECT_EQ(ready.engine.num_pending(), 0);

  // Until a state is restored that is known to be good.
  set_first(ready, "embedding", 0.25);
  const auto mended = snapshot(ready.engine);
  EXPECT_TRUE(random_step(ready.engine, config, 3).finite);
  EXPECT_EQ(differences(snapshot(ready.engine), mended), std::vector<std::string>{});
  restore_from(ready.engine, mended);
  EXPECT_TRUE(random_step(ready.engine, config, 3).finite);
  EXPECT_GE(differences(snapshot(ready.engine), mended).size(), mended.size() - 1);
}

// All weights are finite: only the batch of the bad step leads to the tensor, and its layer.
TEST(RunAhead, NamesTheTensorOfTheStepThatWentBad) {
  const Config config = device_config();
  ReadyEngine ready(config);
  ASSERT_TRUE(random_step(ready.engine, config, 1).finite);
  for (const Weight& weight : ready.engine.model().weights().all()) {
    if (weight.spec.name == "layers.1.moe.experts_in") ready.ops().fill({weight.value, 3e38});
  }
  for (int64_t step = 2; step < 2 + Engine::kMaxPending; ++step) enqueue_random(ready.engine, config, step);
  EXPECT_FALSE(ready.engine.take_result().finite);
  const std::string first = ready.engine.find_non_finite().name;
  EXPECT_TRUE(contains(first, "layers.1.moe.")) << first;
}

// The copies are of the step before them, whatever is enqueued behind.
TEST(RunAhead, SavedCopiesAreOfTheirStep) {
  const Config config = device_config();
  ReadyEngine ready(config), waiting(config);
  for (int64_t step = 1; step <= 6; ++step) {
    enqueue_random(ready.engine, config, step);
    if (step == 4) ready.engine.state_ring().begin();
    if (step <= 4) random_step(waiting.engine, config, step);
  }
  EXPECT_EQ(differences(saved_bytes(ready.engine), snapshot(waiting.engine)), std::vector<std::string>{});
}

TEST(RunAhead, TwoRunsGiveEqualBits) {
  const Config config = device_config();
  ReadyEngine first(config), second(config);
  for (int64_t step = 1; step <= 6; ++step) {
    enqueue_random(first.engine, config, step);
    random_step(second.engine, config, step);
    const std::vector<int32_t> ids = random_ids(config.data.seq_len, 50, 99);
    std::vector<float> losses(ids.size());
    if (step == 3) second.engine.evaluate(ids, ids, losses);  // leaves the steps as they are
  }
  EXPECT_EQ(differences(snapshot(first.engine), snapshot(second.engine)), std::vector<std::string>{});
}

using RunAheadFailure = TrainerTest;

// What is saved behind a failure is of one step: its work as well, though steps were on their way.
TEST_F(RunAheadFailure, SavesTheWorkOfTheStepsThatItSaves) {
  const auto train_to = [&](const std::string& name, int64_t steps, const auto& before_step) {
    train(tiny_config(dir_, {"run.name=" + name, fmt::format("train.steps={}", steps), "train.log_every=20",
                             fmt::format("run.device={}", NMOE_TEST_DEVICE)}),
          {.version = "0.0.0", .commit = "abc", .before_step = before_step});
    return CheckpointReader::open(checkpoints(name)).info();
  };
  const auto fail = [](Engine&, int64_t step) {
    if (step == 9) throw runtime_error("it fails", "none");
  };
  EXPECT_EQ(error_of([&] { train_to("fails", 20, fail); }).what(), std::string("it fails"));
  const CheckpointInfo failed = CheckpointReader::open(checkpoints("fails")).info(),
                       straight = train_to("straight", 8, [](Engine&, int64_t) {});
  EXPECT_EQ(failed.step, 8);
  EXPECT_EQ(failed.tokens, straight.tokens);
  EXPECT_EQ(failed.flops, straight.flops);
}

}  // namespace
}  // namespace nmoe::test
