// Random weights of models that only generate, which have no masters, are those that training draws. Needs a GPU.
#include <gtest/gtest.h>

#include "config/load.h"
#include "model/placed_weights.h"
#include "support/tiny_run.h"

namespace nmoe::test {
namespace {

TEST(RandomWeights, AreTheRoundedMastersThatTrainingDraws) {
  // An embedding that is drawn in several parts.
  const ModelConfig model =
      parse_config(kTinyToml, "tiny.toml", std::vector<std::string>{"model.vocab_size=280001"}).model;
  const auto bits = [&](bool has_gradients) {
    WeightsPlace place;
    place.device = {.kind = "cuda", .compute_dtype = DType::kBF16};
    place.has_gradients = has_gradients;
    PlacedWeights weights(model, place, [](WeightSet&, Storage&) {});
    weights.initialise(/*seed=*/11, model.init.truncation);
    std::vector<std::vector<std::byte>> all;
    for (const Weight& weight : weights.weights().all()) {
      EXPECT_EQ(weight.low.defined(), has_gradients && !weight.spec.is_stat) << weight.spec.name;
      std::vector<std::byte>& of_weight = all.emplace_back(static_cast<size_t>(weight.value.num_bytes()));
      weights.device().download(of_weight.data(), weight.value);
    }
    return all;
  };
  const auto alone = bits(false), trained = bits(true);
  ASSERT_EQ(alone.size(), trained.size());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(alone[i] == trained[i]) << "weight " << i;
}

}  // namespace
}  // namespace nmoe::test
