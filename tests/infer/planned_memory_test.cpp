// The memory of generation is what its plan says, and its cache what arithmetic says.
#include <gtest/gtest.h>

#include "config/load.h"
#include "infer/load_model.h"
#include "model/placed_weights.h"
#include "model/runner.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

constexpr int64_t kSequences = 256, kContext = 1000;

struct Generating {
  Generating(const Config& config, WeightSet& weights, Storage& storage, const CachedModelOptions& options)
      : runner(config.model, weights, storage.device(), RunnerRoom::of(storage),
               generation_runner(options.capacity, config.generation.arithmetic)),
        cached(config, byte_tokenizer(), runner.model(), RunnerRoom::of(storage), options) {}

  ModelRunner runner;
  CachedModel cached;
};

// Rows of all sequences, some of them far into their pages.
void run_all_sequences(CachedModel& model) {
  std::vector<CacheRow> rows;
  std::vector<int32_t> wanted;
  for (int32_t slot = 0; slot < kSequences; ++slot) {
    for (int32_t i = 0; i < 2; ++i) rows.push_back({.token = slot % 200, .slot = slot, .position = i});
    wanted.push_back(static_cast<int32_t>(std::ssize(rows)) - 1);
  }
  EXPECT_EQ(std::ssize(model.run(rows, wanted, /*with_sums=*/false).logits), kSequences * model.vocab_size());
}

TEST(GenerationMemory, Of256SequencesIsThatOfThePlan) {
  const Config config = parse_config(test::kTinyToml, "tiny.toml", std::vector<std::string>{"model.vocab_size=257"});
  const int64_t width = config.model.mla.kv_lora_rank + config.model.mla.qk_rope_head_dim;
  for (const int64_t cache_positions : {int64_t{0}, int64_t{50'000}}) {
    const CachedModelOptions options{
        .num_slots = kSequences, .capacity = kContext, .cache_positions = cache_positions, .max_scores = 0};
    WeightsPlace place;
    place.device.num_threads = 2;
    PlacedWeights weights(config.model, place, [&](WeightSet& all, Storage& storage) {
      const Generating rehearsed(config, all, storage, options);
    });
    Generating generating(config, weights.weights(), weights.storage(), options);
    weights.initialise(1, config.model.init.truncation);
    run_all_sequences(generating.cached);

    // What a cache has to have; whole pages, their table and alignment are the rest.
    const int64_t positions = cache_positions == 0 ? kSequences * kContext : cache_positions;
    const auto needed = static_cast<double>(positions * config.model.num_layers * width * 4);
    const Arena& cache = weights.storage()[ArenaKind::kCache];
    const double rounded = cache_positions == 0 ? 1024.0 / 1000.0 : 1.0;
    EXPECT_NEAR(static_cast<double>(cache.capacity()) / (needed * rounded), 1.0, 0.01) << cache_positions;
    EXPECT_EQ(cache.high_water(), cache.capacity());
    const Arena& activations = weights.storage()[ArenaKind::kActivations];
    EXPECT_LE(activations.high_water(), activations.capacity());
    EXPECT_GE(static_cast<double>(activations.high_water()), 0.99 * static_cast<double>(activations.capacity()));
  }
}

}  // namespace
}  // namespace nmoe
