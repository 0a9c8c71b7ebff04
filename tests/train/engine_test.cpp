#include "train/step/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "support/errors.h"
#include "support/gradient_check.h"
#include "support/tensors.h"
#include "support/tiny_corpus.h"
#include "train/tiny_engine.h"

namespace nmoe {
namespace {

using namespace test;

constexpr int64_t kVocab = 50;

Config config_with(std::vector<std::string> overrides = {}) {
  overrides.push_back(fmt::format("model.vocab_size={}", kVocab));
  return tiny_config("/nowhere", overrides);
}

Tensor weight(Engine& engine, const std::string& name) {
  for (const Weight& weight : engine.model().weights().all()) {
    if (weight.spec.name == name) return weight.value;
  }
  NMOE_CHECK(false, "no parameter {}", name);
}

void expect_equal(const StoragePlan& used, const StoragePlan& planned) {
  for (const ArenaDescription& arena : arena_table()) EXPECT_EQ(used[arena.kind], planned[arena.kind]) << arena.name;
}

TEST(EngineStorage, StepsUseExactlyWhatWasMeasured) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"train.microbatch_seqs=8"},
      {"model.moe.top_k=6", "model.moe.score=softmax", "model.tied_head=true"},
      {"model.attention=gqa", "model.window=4", "model.attn_global_every=2"},
      {"model.activation=relu_squared", "optim.matrices.optimizer=adamw"},
      {"data.mask_documents=true"},
  };
  for (auto overrides : variants) {
    // A configuration of grouped-query attention has no use for the keys of the other kind.
    std::string toml(kTinyToml);
    if (!overrides.empty() && overrides[0] == "model.attention=gqa") {
      const size_t begin = toml.find("[model.mla]");
      toml.erase(begin, toml.find("[model.moe]") - begin);
    }
    overrides.push_back(fmt::format("model.vocab_size={}", kVocab));
    const Config config = parse_config(toml, "tiny.toml", overrides);
    SCOPED_TRACE(overrides[0]);

    for (const int num_threads : {1, 2}) {
      ReadyEngine ready(config, num_threads);
      for (int64_t step = 1; step <= 2; ++step) {
        ASSERT_TRUE(random_step(ready.engine, config, step).finite);
        const auto ids = random_ids(config.train.microbatch_seqs * config.data.seq_len, kVocab, 99);
        std::vector<float> losses(ids.size());
        ready.engine.evaluate(ids, ids, losses, documents_of(ids, config));
        ready.engine.state_ring().begin();
      }
      expect_equal(ready.memory->storage.used(), ready.plan);
      EXPECT_GT(ready.plan[ArenaKind::kParameters], 0);
      EXPECT_GT(ready.plan[ArenaKind::kActivations], 0);
      EXPECT_GT(ready.plan[ArenaKind::kScratch], 0);
      EXPECT_EQ(ready.plan.total(), ready.memory->storage.used().total());
    }
  }
}

// Steps of sequences of another length are to the bit those of an engine that knows no other, and what is evaluated in
// between is as without them.
TEST(EngineTest, StepsOfSeveralLengths) {
  for (const char* masks : {"data.mask_documents=false", "data.mask_documents=true"}) {
    const Config shorter = config_with({masks, "train.microbatch_seqs=2"});  // 32 tokens, the other's 64
    const Config longer = config_with({masks, "data.seq_len=64", "train.batch_seqs=2", "train.microbatch_seqs=1"});
    const std::vector<int64_t> lengths = {16, 64};
    const auto ids = random_ids(shorter.train.microbatch_seqs * shorter.data.seq_len, kVocab, 99);
    const auto losses = [&](Engine& engine) {
      std::vector<float> values(ids.size());
      engine.evaluate(ids, ids, values, documents_of(ids, shorter));
      return values;
    };
    ReadyEngine both(shorter, 1, single_rank(), lengths), alone(longer), base(shorter);
    both.engine.use_seq_len(64);
    ASSERT_EQ(both.engine.num_microbatches(), 2);
    for (int64_t step = 1; step <= 3; ++step) {
      EXPECT_EQ(random_step(both.engine, longer, step).loss(kNextToken),
                random_step(alone.engine, longer, step).loss(kNextToken));
    }
    EXPECT_EQ(snapshot(both.engine), snapshot(alone.engine));
    const auto go_on = [&] { restore_from(base.engine, snapshot(both.engine)); };  // base as both is
    go_on();
    EXPECT_EQ(losses(both.engine), losses(base.engine));
    // Two of each, so that both are recorded, with the other behind.
    for (int64_t step = 4; step <= 9; ++step) {
      both.engine.use_seq_len(step % 4 < 2 ? 16 : 64);
      if (step % 4 < 2) go_on();
      const double loss = random_step(both.engine, step % 4 < 2 ? shorter : longer, step).loss(kNextToken);
      if (step % 4 < 2) {
        EXPECT_EQ(loss, random_step(base.engine, shorter, step).loss(kNextToken)) << step;
      }
    }
    EXPECT_THROW(both.engine.use_seq_len(32), CheckFailure);
    both.engine.state_ring().begin();
    expect_equal(both.memory->storage.used(), both.plan);
    EXPECT_GT(both.plan[ArenaKind::kActivations], base.plan[ArenaKind::kActivations]);
  }
}

// A step's loss is the mean over the targets that have one, and the gradient is that mean's, however they are spread
// over microbatches.
TEST(EngineTest, TargetsWithoutLossDoNotCount) {
  const Config config = config_with({"train.microbatch_seqs=4", "model.moe.balance_loss=0"});
  const int64_t tokens = config.train.batch_seqs * config.data.seq_len;
  const auto inputs = test::random_ids(tokens, config.model.vocab_size, 1);
  auto targets = test::random_ids(tokens, config.model.vocab_size, 2);
  int64_t num_targets = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (i % 5 < 3 || i < targets.size() / 2) {
      targets[i] = -1;
    } else {
      ++num_targets;
    }
  }
  ReadyEngine ready(config);
  std::vector<float> losses(targets.size());
  const size_t size = targets.size() / 2;
  double sum = 0;
  for (const size_t first : {size_t{0}, size}) {
    ready.engine.evaluate(std::span(inputs).subspan(first, size), std::span(targets).subspan(first, size),
                          std::span(losses).subspan(first, size));
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_TRUE(targets[i] >= 0 || losses[i] == 0.0f);
    sum += static_cast<double>(losses[i]);
  }
  for (const size_t i : {0, 1}) {
    ready.engine.load(static_cast<int64_t>(i), microbatch_of(std::span(inputs).subspan(i * size, size),
                                                             std::span(targets).subspan(i * size, size), {}));
  }
  ready.engine.step({.steps = 1, .tokens = tokens}, num_targets);
  const StepResult result = ready.engine.result();
  EXPECT_LE(std::abs(result.loss(kNextToken) - sum / static_cast<double>(num_targets)), 1e-5);
}

// The same eight sequences in one, two and four microbatches. Only the order of sums over tokens
// differs, so gradients agree to fp32 rounding of sums over 128 tokens.
TEST(EngineTest, MicrobatchesAddUpToTheBatch) {
  const Config whole = config_with({"train.microbatch_seqs=8"});
  ReadyEngine expected(whole);
  const StepResult expected_result = random_step(expected.engine, whole, 1);
  // Near ln V before any training, but not there: the model is not silent.
  EXPECT_NEAR(expected_result.loss(kNextToken), std::log(kVocab), 0.1);

  for (const int64_t microbatch : {4, 2}) {
    SCOPED_TRACE(microbatch);
    const Config cut = config_with({fmt::format("train.microbatch_seqs={}", microbatch)});
    ReadyEngine ready(cut);
    const StepResult result = random_step(ready.engine, cut, 1);
    EXPECT_LE(std::abs(result.loss(kNextToken) - expected_result.loss(kNextToken)),
              1e-6 * expected_result.loss(kNextToken));
    EXPECT_LE(std::abs(result.grad_norm - expected_result.grad_norm), 1e-5 * expected_result.grad_norm);
    const auto& weights = ready.engine.model().weights().all();
    auto other = expected.engine.model().weights().all().begin();
    for (const Weight& weight : weights) {
      ASSERT_EQ(weight.spec.name, other->spec.name);
      if (weight.grad.defined()) {
        EXPECT_TRUE(near(weight.grad, other->grad, 2e-3)) << weight.spec.name;
      }
      ++other;
    }
    const auto health = ready.engine.router_health(), expected_health = expected.engine.router_health();
    ASSERT_EQ(health.size(), 1u);
    EXPECT_EQ(health[0].counts, expected_health[0].counts);
    EXPECT_LE(std::abs(health[0].entropy - expected_health[0].entropy), 1e-6);
  }
}

TEST(EngineTest, TheGradientNormIsThatOfAllGradients) {
  const Config config = config_with();
  ReadyEngine ready(config);
  const StepResult result = random_step(ready.engine, config, 1);
  double sum = 0;
  for (const Weight& weight : ready.engine.model().weights().all()) {
    if (weight.grad.defined()) sum += dot(weight.grad, weight.grad);
  }
  EXPECT_LE(std::abs(result.grad_norm - std::sqrt(sum)), 1e-6 * result.grad_norm);
  EXPECT_GT(result.grad_norm, 0.0);
}

TEST(EngineTest, AStepThatIsNotFiniteChangesNothing) {
  const Config config = config_with();
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ReadyEngine ready(config);
    ASSERT_TRUE(random_step(ready.engine, config, 1).finite);
    EXPECT_EQ(ready.engine.find_non_finite().name, "");

    set(weight(ready.engine, "final_norm"), 3, static_cast<double>(poison));
    const auto before = snapshot(ready.engine);
    const StepResult result = random_step(ready.engine, config, 2);
    EXPECT_FALSE(result.finite);
    EXPECT_EQ(differences(snapshot(ready.engine), before), std::vector<std::string>{});
    EXPECT_EQ(ready.engine.find_non_finite().name, "weight final_norm (1 of 16 values are not finite)");
  }
}

// Every weight is finite, and so are the layers before the one whose products overflow.
TEST(EngineTest, FindsTheFirstLayerThatOverflows) {
  const Config config = config_with();
  ReadyEngine ready(config);
  ready.ops().fill({weight(ready.engine, "layers.1.moe.experts_in"), 3e38});
  EXPECT_FALSE(random_step(ready.engine, config, 1).finite);
  EXPECT_TRUE(contains(ready.engine.find_non_finite().name, "layers.1.moe.expert_hidden"));
}

TEST(EngineTest, StagedTensorsKeepWhileTrainingGoesOn) {
  const Config config = config_with();
  ReadyEngine ready(config);
  random_step(ready.engine, config, 1);
  const auto before = snapshot(ready.engine);
  ready.engine.state_ring().begin();
  random_step(ready.engine, config, 2);
  EXPECT_EQ(differences(test::saved_bytes(ready.engine), before), std::vector<std::string>{});
  // A step moves every weight and every moment, but may leave a balanced expert's bias.
  const size_t moved = differences(snapshot(ready.engine), before).size();
  EXPECT_GE(moved, before.size() - 1);
}

// What was saved comes back, whatever happened since.
TEST(EngineTest, RestoresWhatWasSaved) {
  const Config config = config_with();
  ReadyEngine ready(config);
  random_step(ready.engine, config, 1);
  const auto before = snapshot(ready.engine);
  random_step(ready.engine, config, 2);
  test::restore_from(ready.engine, before);
  EXPECT_EQ(differences(snapshot(ready.engine), before), std::vector<std::string>{});
}

TEST(EngineTest, PhasesMakeTheSameStep) {
  const Config config = config_with();
  ReadyEngine whole(config), parts(config);
  random_step(whole.engine, config, 1);
  random_step(parts.engine, config, 1);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 2; step <= 3; ++step) {
    for (Engine* engine : {&whole.engine, &parts.engine}) {
      const Progress progress = load_random(*engine, config, step);
      engine->step(progress, progress.tokens / step, /*in_detail=*/false, engine == &parts.engine);
    }
  }
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const std::vector<PhaseTime> phases = parts.engine.take_result().phases;
  EXPECT_TRUE(parts.engine.take_result().phases.empty()) << "of a step behind one whose result was not taken";
  double sum = 0.0;
  for (const PhaseTime& time : phases) {
    EXPECT_GE(time.ms, 0.0) << step_phase_name(time.phase);
    sum += time.ms;
  }
  EXPECT_LT(sum, ms);
  EXPECT_GT(sum, 0.0);
  for (const StepPhase phase : step_phases()) {
    const bool by_layer = step_phase_name(phase).ends_with("ward");
    EXPECT_EQ(std::ranges::count(phases, phase, &PhaseTime::phase), by_layer ? 2 : 1) << step_phase_name(phase);
    for (const PhaseTime& time : phases) {
      EXPECT_TRUE(time.phase != phase || (time.layer != kNoLayer) == by_layer) << step_phase_name(phase);
    }
  }
  EXPECT_EQ(differences(snapshot(parts.engine), snapshot(whole.engine)), std::vector<std::string>{});
}

TEST(EngineTest, RecomputationChangesNoBit) {
  const Config config = config_with();
  ReadyEngine keeps_all(config);
  for (int64_t step = 1; step <= 3; ++step) random_step(keeps_all.engine, config, step);
  for (const std::string level : {"norms", "experts", "blocks"}) {
    const Config again = config_with({"train.recompute=" + level});
    EXPECT_EQ(config_fingerprint(again), config_fingerprint(config));
    ReadyEngine ready(again);
    for (int64_t step = 1; step <= 3; ++step) random_step(ready.engine, again, step);
    EXPECT_EQ(differences(snapshot(ready.engine), snapshot(keeps_all.engine)), std::vector<std::string>{}) << level;
    expect_equal(ready.memory->storage.used(), ready.plan);
  }
}

// Levels of the layers one by one: no bit changes, and the plan is exact.
TEST(EngineTest, LayersRecomputeWhatEachOneIsTold) {
  const Config config = config_with({"model.num_layers=6"});
  ReadyEngine keeps_all(config);
  random_step(keeps_all.engine, config, 1);
  for (const std::string levels : {"2 x blocks, 4 x none", "none, 2 x experts, norms, 2 x blocks", "host",
                                   "norms, 5 x host", "2 x host, norms, blocks, 2 x host"}) {
    SCOPED_TRACE(levels);
    const Config again = config_with({"model.num_layers=6", "train.recompute=" + levels});
    ReadyEngine ready(again);
    random_step(ready.engine, again, 1);
    EXPECT_EQ(differences(snapshot(ready.engine), snapshot(keeps_all.engine)), std::vector<std::string>{});
    expect_equal(ready.memory->storage.used(), ready.plan);
  }
}

TEST(EngineTest, RouterHealthCountsEveryTokensChoices) {
  const Config config = config_with();
  ReadyEngine ready(config);
  random_step(ready.engine, config, 1);
  const auto layers = ready.engine.router_health();
  ASSERT_EQ(layers.size(), 1u);  // the first layer is dense
  const RouterHealth& health = layers[0];
  const int64_t tokens = config.train.batch_seqs * config.data.seq_len;
  EXPECT_EQ(health.counts.size(), 6u);
  EXPECT_EQ(std::accumulate(health.counts.begin(), health.counts.end(), 0), tokens * 2);
  // Scores are nearly equal at the start: their entropy is nearly that of six equal ones.
  EXPECT_LE(std::abs(health.entropy - std::log(6.0)), 1e-3);
  // The first update moves each bias by the rate at most, up or down.
  EXPECT_LE(std::abs(health.bias_range() - 2 * config.model.moe.bias_rate), 1e-6);
}

TEST(EngineTest, EvaluatesAnyNumberOfSequencesAndSkipsWhatHasNoTarget) {
  const Config config = config_with();
  ReadyEngine ready(config);
  const int64_t S = config.data.seq_len;
  const auto inputs = random_ids(3 * S, kVocab, 1);
  auto targets = random_ids(3 * S, kVocab, 2);
  targets[5] = -1;
  std::vector<float> losses(inputs.size(), -1.0f), alone(static_cast<size_t>(S));
  ready.engine.evaluate(inputs, targets, losses);
  EXPECT_EQ(losses[5], 0.0f);
  EXPECT_GT(losses[4], 0.0f);
  for (size_t seq = 0; seq < 3; ++seq) {
    const auto size = static_cast<size_t>(S), first = seq * size;
    ready.engine.evaluate(std::span(inputs).subspan(first, size), std::span(targets).subspan(first, size), alone);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_LE(std::abs(alone[i] - losses[first + i]), 1e-5f) << seq << ' ' << i;
    }
  }
}

// The target that costs least is the prediction, for any number of sequences.
TEST(EngineTest, PredictsTheLikeliestTokens) {
  const Config config = config_with();
  ReadyEngine ready(config);
  const size_t tokens = static_cast<size_t>(2 * config.data.seq_len);
  const auto inputs = random_ids(static_cast<int64_t>(tokens), kVocab, 1);
  std::vector<int32_t> predictions(tokens, -1), best(tokens, -1);
  std::vector<float> losses(tokens), lowest(tokens, INFINITY);
  for (int32_t id = 0; id < kVocab; ++id) {
    ready.engine.evaluate(inputs, std::vector<int32_t>(tokens, id), losses);
    for (size_t i = 0; i < tokens; ++i) {
      if (losses[i] < lowest[i]) {
        lowest[i] = losses[i];
        best[i] = id;
      }
    }
  }
  ready.engine.evaluate(inputs, std::vector<int32_t>(tokens, -1), losses, {}, predictions);
  EXPECT_EQ(predictions, best);
  EXPECT_GT(std::set(best.begin(), best.end()).size(), 1u);
}

// Two sequences in which a document ends, and the tail of each as a sequence of its own.
TEST(EngineTest, DocumentsAreEvaluatedAsIfAlone) {
  const Config config = config_with({"data.mask_documents=true"});
  const Config short_config = config_with({"data.mask_documents=true", "data.seq_len=6"});
  ReadyEngine ready(config), short_ready(short_config);
  const size_t S = static_cast<size_t>(config.data.seq_len), tail = 6;
  auto inputs = random_ids(static_cast<int64_t>(2 * S), kVocab - 1, 1);
  for (int32_t& id : inputs) ++id;  // no 0 but the ends
  const auto targets = random_ids(static_cast<int64_t>(2 * S), kVocab, 2);
  std::vector<float> losses(2 * S), alone(tail);
  for (const size_t seq : {size_t{0}, size_t{1}}) inputs[(seq + 1) * S - tail - 1] = 0;
  ready.engine.evaluate(inputs, targets, losses, documents_of(inputs, config));
  for (const size_t seq : {size_t{0}, size_t{1}}) {
    const size_t begin = (seq + 1) * S - tail;
    const auto tail_inputs = std::span(inputs).subspan(begin, tail);
    short_ready.engine.evaluate(tail_inputs, std::span(targets).subspan(begin, tail), alone,
                                documents_of(tail_inputs, short_config));
    for (size_t i = 0; i < tail; ++i) EXPECT_LE(std::abs(alone[i] - losses[begin + i]), 1e-5f) << seq << ' ' << i;
  }
  // It is the mask that made them equal.
  ReadyEngine unmasked(config_with());
  std::vector<float> unmasked_losses(2 * S);
  unmasked.engine.evaluate(inputs, targets, unmasked_losses);
  EXPECT_GT(std::abs(unmasked_losses[S - 1] - losses[S - 1]), 1e-4f);
}

TEST(EngineTest, RefusesAMicrobatchWithoutTheDocumentsItMasks) {
  ReadyEngine masked(config_with({"data.mask_documents=true"})), plain(config_with());
  const Config config = config_with({"data.mask_documents=true"});
  const auto ids = random_ids(config.data.seq_len, kVocab, 1);
  std::vector<float> losses(ids.size());
  EXPECT_THROW(masked.engine.evaluate(ids, ids, losses), CheckFailure);
  EXPECT_THROW(plain.engine.evaluate(ids, ids, losses, documents_of(ids, config)), CheckFailure);
}

}  // namespace
}  // namespace nmoe
