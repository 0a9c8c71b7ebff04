// Weights that are only run take no more memory than their values.
#include "model/placed_weights.h"

#include <gtest/gtest.h>

#include "model/runner.h"
#include "model/small_models.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// As on a GPU, in BF16: of each arena what weights with and without the rest of their masters take.
StoragePlan planned(Masters masters) {
  const DeviceOptions where{
      .kind = "cuda", .compute_dtype = DType::kBF16, .part = parse_gpu_part("h100-80g", "a plan")};
  return plan_storage(where, [&](Storage& storage) {
    WeightSet weights(describe_model(base_model()).weights);
    weights.allocate(storage.device().ops(), storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], masters);
    for (const Weight& weight : weights.all()) {
      EXPECT_EQ(weight.low.defined(), masters == Masters::kWhole && !weight.spec.is_stat) << weight.spec.name;
    }
  });
}

TEST(PlacedWeights, TheRestOfMastersIsOnlyThereForTraining) {
  int64_t values = 0, num_weights = 0;
  for (const WeightSpec& weight : describe_model(base_model()).weights) {
    values += weight.shape.num_elements() * (weight.is_stat ? 4 : 2);
    ++num_weights;
  }
  const int64_t alone = planned(Masters::kWithoutRest)[ArenaKind::kParameters];
  EXPECT_GE(alone, values);
  EXPECT_LE(alone, values + (num_weights + 4) * Arena::kAlignment);  // each begins on one
  EXPECT_GT(planned(Masters::kWhole)[ArenaKind::kParameters], alone);
}

// Two runners of the same weights, in either arithmetic: the same values up to rounding, and neither disturbs the
// other.
TEST(PlacedWeights, AreRunByTwoRunnersInArithmeticsOfTheirOwn) {
  const ModelConfig config = base_model();
  constexpr int64_t kLen = 6;
  const auto options = [](Arithmetic arithmetic) {
    return RunnerOptions{.max_positions = kLen, .arithmetic = arithmetic};
  };
  struct Run {
    Run(const ModelConfig& config, WeightSet& weights, Storage& storage, const RunnerOptions& options)
        : runner(config, weights, storage.device(), RunnerRoom::of(storage), options),
          batch(runner.make_batch({.num_seqs = 1, .seq_len = kLen})),
          logits(storage[ArenaKind::kStepState].allocate(DType::kF32, {kLen, config.vocab_size})) {
      if (runner.ops().counting()) run();
    }
    void run() { runner.model().logits(batch, runner.activations(), logits); }
    std::vector<double> result() {
      const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9}, positions = {0, 1, 2, 3, 4, 5};
      runner.device().upload(batch.tokens, tokens.data());
      runner.device().upload(batch.positions, positions.data());
      run();
      return values(logits);
    }
    ModelRunner runner;
    Batch batch;
    Tensor logits;
  };
  WeightsPlace place;
  place.device.num_threads = 2;
  PlacedWeights placed(config, place, [&](WeightSet& weights, Storage& storage) {
    Run fastest(config, weights, storage, options(Arithmetic::kFastest));
    Run invariant(config, weights, storage, options(Arithmetic::kBatchInvariant));
  });
  placed.initialise(7, config.init.truncation);
  Run fastest(config, placed.weights(), placed.storage(), options(Arithmetic::kFastest));
  Run invariant(config, placed.weights(), placed.storage(), options(Arithmetic::kBatchInvariant));
  const std::vector<double> first = fastest.result(), other = invariant.result();
  EXPECT_TRUE(near(other, first, 1e-3));
  EXPECT_EQ(fastest.result(), first);
  EXPECT_EQ(invariant.result(), other);
}

}  // namespace
}  // namespace nmoe::test
