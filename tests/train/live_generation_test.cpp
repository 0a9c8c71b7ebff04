// Generation from a live trainer's weights, between two of its steps: in the same process, without a copy, in memory
// that steps use, too; and no bit of the run is another. Built for each device, NMOE_TEST_DEVICE.
#include "train/step/live_generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "infer/transcript.h"
#include "infer/whole_logits.h"
#include "train/tiny_engine.h"

namespace nmoe::test {
namespace {

constexpr int64_t kTokens = 10;
constexpr LiveGenerationNeeds kNeeds = {.capacity = 24};

constexpr std::string_view kDevice = NMOE_TEST_DEVICE;
constexpr bool kOnCpu = kDevice == "cpu";

Config live_config(const std::string& precision, std::string_view device = kDevice) {
  return config_on(device, precision, {"optim.schedule.warmup=1", "optim.rest.lr=0.3"});
}

// Two requests beside each other, the likeliest tokens of both.
std::vector<Transcript> write(const Config& config, Engine& trained, const std::vector<std::vector<int32_t>>& prompts) {
  LiveGeneration generation(config, trained, byte_tokenizer(), kNeeds);
  std::vector<Transcript> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request;
    request.prompt = prompts[i];
    request.max_tokens = kTokens;
    request.sampling = {.temperature = 0.0};
    request.ignore_eos = true;
    request.logprobs = true;
    generation.engine().submit(request, texts[i].listener());
  }
  run_all(generation.engine());
  return texts;
}

// What was written pass by pass, from recordings where the device has them, is read at once with the same bits.
void expect_read_alike(const Config& config, Engine& trained, const std::vector<int32_t>& prompt,
                       const Transcript& text) {
  LiveGeneration generation(config, trained, byte_tokenizer(), kNeeds);
  GenerationRequest request;
  request.prompt = prompt;
  request.prompt.insert(request.prompt.end(), text.ids.begin(), text.ids.end());
  request.max_tokens = 0;
  request.prompt_logprobs = true;
  const Transcript read = generate(generation.engine(), request);
  ASSERT_EQ(read.prompt.size(), request.prompt.size());
  for (size_t i = 0; i < text.ids.size(); ++i) {
    EXPECT_EQ(read.prompt[prompt.size() + i].logprob, text.tokens[i].logprob) << "token " << i;
  }
}

// part: of a GPU that need not be present.
StoragePlan plan_with_generation(const Config& config, const std::optional<GpuPart>& part = {}) {
  DeviceOptions options = device_options(config.run);
  options.part = part;
  const StoragePlan between = plan_storage(options, [&](Storage& storage) {
    Engine engine(config, {storage.device(), single_rank()}, storage);
    const LiveGeneration generation(config, engine, nullptr, kNeeds);
  });
  return plan_engine_storage(config, /*in_domain=*/0, part).max(between);
}

class LiveTrainer {
 public:
  explicit LiveTrainer(const Config& config, const StoragePlan& plan)
      : memory(RankMemory::make(device_options(config.run), plan, single_rank())),
        engine(config, {*memory->device, single_rank()}, memory->storage) {
    engine.initialise();
  }
  std::shared_ptr<RankMemory> memory;
  Engine engine;
};

class LiveGenerationTest : public testing::TestWithParam<std::string> {};

TEST_P(LiveGenerationTest, TenTokensBetweenTwoStepsChangeNoBitOfTheRun) {
  const Config config = live_config(GetParam());
  LiveTrainer plain(config, plan_engine_storage(config)), generates(config, plan_with_generation(config));
  const std::vector<std::vector<int32_t>> prompts = {{'t', 'h', 'e'}, {'a'}};
  std::vector<std::vector<int32_t>> texts;
  for (int64_t step = 1; step <= 4; ++step) {
    const StepResult expected = random_step(plain.engine, config, step);
    const StepResult got = random_step(generates.engine, config, step);
    EXPECT_EQ(got.loss(kNextToken), expected.loss(kNextToken)) << "step " << step;
    EXPECT_EQ(got.grad_norm, expected.grad_norm) << "step " << step;
    const std::vector<Transcript> written = write(config, generates.engine, prompts);
    for (size_t i = 0; i < prompts.size(); ++i) {
      texts.push_back(written[i].ids);
      expect_read_alike(config, generates.engine, prompts[i], written[i]);
    }
  }
  EXPECT_TRUE(differences(snapshot(generates.engine), snapshot(plain.engine)).empty());

  // They are this model's: the likeliest of the weights as they are now, which are not those of the first step.
  EXPECT_NE(std::pair(texts[0], texts[1]), std::pair(texts[6], texts[7]));
  if (!kOnCpu) return;  // values of another device
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> ids = prompts[i];
    ids.insert(ids.end(), texts[6 + i].begin(), texts[6 + i].end());
    const auto rows = whole_logits(config, ids, [&](WeightSet& weights, Ops& ops) {
      for (Weight& weight : weights.all()) {
        ops.copy(
            {.source = generates.engine.model().weights().at(weight.spec.name).value, .destination = weight.value});
      }
    });
    ASSERT_EQ(std::ssize(texts[6 + i]), kTokens);
    for (size_t at = prompts[i].size(); at < ids.size(); ++at) {
      const std::vector<float>& logits = rows[at - 1];
      EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), ids[at]) << "token " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, LiveGenerationTest, testing::Values("fp32", kOnCpu ? "mxfp8" : "bf16", "fp8"),
                         [](const auto& info) { return info.param; });

// Of two that never work at the same time, the larger counts; of two that live at once, both do.
TEST(LiveGenerationPlan, IsTheLargerOfWhatStepsAndGenerationNeed) {
  const Config config = live_config("fp32");
  const StoragePlan steps = plan_engine_storage(config), both = plan_with_generation(config);
  const auto of = [&](int num_runners, bool at_once) {
    return plan_storage(device_options(config.run), [&](Storage& storage) {
      Engine engine(config, {storage.device(), single_rank()}, storage);
      std::vector<std::unique_ptr<LiveGeneration>> alive;
      for (int i = 0; i < num_runners; ++i) {
        alive.push_back(std::make_unique<LiveGeneration>(config, engine, nullptr, kNeeds));
        if (!at_once) alive.clear();
      }
      while (!alive.empty()) alive.pop_back();  // the last one's memory is on top
    })[ArenaKind::kActivations];
  };
  EXPECT_EQ(both[ArenaKind::kActivations], std::max(steps[ArenaKind::kActivations], of(1, true)));
  EXPECT_EQ(both[ArenaKind::kCache], 0);
  for (const ArenaKind kind : {ArenaKind::kParameters, ArenaKind::kGradients, ArenaKind::kOptimizer,
                               ArenaKind::kStepState, ArenaKind::kExchange}) {
    EXPECT_EQ(both[kind], steps[kind]);
  }
  EXPECT_EQ(of(2, false), of(1, true));
  EXPECT_GT(of(2, true), of(1, true));
  EXPECT_LT(of(2, true), 2 * of(1, true));  // they share what a pass needs
}

// A run's plan has it: of prompts as long as they may be, or of tasks whose answers are written.
TEST(LiveGenerationPlan, IsPartOfTheRuns) {
  Config config = live_config("fp32");
  EXPECT_FALSE(live_generation_needs(config));
  EXPECT_EQ(live_generation_host_bytes(config), 0);
  const StoragePlan steps = plan_engine_storage(config);
  config.train.sample_prompts = {"a", "the old cat"};
  config.train.sample_tokens = 200;
  EXPECT_EQ(live_generation_needs(config).capacity, config.data.seq_len - 1);
  config.data.seq_len = 4096;
  EXPECT_EQ(live_generation_needs(config).capacity, kMostBeginIds + 11 + 199);
  config.data.seq_len = 16;
  const StoragePlan samples = plan_engine_storage(config);
  const StoragePlan between = plan_storage(device_options(config.run), [&](Storage& storage) {
    Engine engine(config, {storage.device(), single_rank()}, storage);
    const LiveGeneration generation(config, engine, nullptr, live_generation_needs(config));
  });
  EXPECT_EQ(samples[ArenaKind::kActivations],
            std::max(steps[ArenaKind::kActivations], between[ArenaKind::kActivations]));
  EXPECT_EQ(live_generation_host_bytes(config), CachedModel::kMaxLogits * config.model.vocab_size * 4);
  config.train.sample_prompts.clear();
  config.eval.every = 5;
  config.eval.tasks = "core";
  EXPECT_FALSE(live_generation_needs(config));
  config.eval.tasks = "core,gsm8k";
  EXPECT_EQ(live_generation_needs(config).capacity, config.data.seq_len - 1);
}

// Plans make every operation's check: in each format of weights, a GPU takes what generation asks of it.
TEST(LiveGenerationPlan, IsMadeForAGpuInEveryPrecision) {
  const GpuPart hopper{.name = "Hopper", .memory_bytes = int64_t{64} << 30, .compute_major = 9};
  for (const char* precision : {"bf16", "fp8", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(precision);
    const Config config = live_config(precision, "cuda");
    EXPECT_GT(plan_with_generation(config, hopper)[ArenaKind::kActivations], 0);
  }
}

}  // namespace
}  // namespace nmoe::test
