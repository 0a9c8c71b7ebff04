#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "model/small_models.h"
#include "model/weight_set.h"
#include "ops/newton_schulz.h"
#include "support/lanes_in_order.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {
namespace {

class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() : ops_(cpu_device(DType::kF64)) {
    for (Arena* arena : {&values_, &grads_, &state_, &optimizer_state_, &host_state_, &room_})
      arena->reserve(ops_.device().memory(), 1 << 20);
    weights_.allocate(*ops_, values_, grads_);
    weights_.initialise(*ops_, 1, base_model().init.truncation);
    config_.matrices = {.optimizer = OptimizerKind::kMuon, .lr = 0.02, .weight_decay = 0.1};
    config_.experts = {.optimizer = OptimizerKind::kMuon, .lr = 0.01, .weight_decay = 0.1};
    config_.router = {.optimizer = OptimizerKind::kAdamW, .lr = 0.003, .weight_decay = 0.0};
    config_.rest = {.optimizer = OptimizerKind::kAdamW, .lr = 0.004, .weight_decay = 0.1};
    rates_ = Optimizer::allocate_rates(config_, describe_model(base_model()).weights, state_);
    set(grad_scale_, 0, 1.0);
  }

  std::map<std::string, std::vector<double>> weights() {
    std::map<std::string, std::vector<double>> result;
    for (const Weight& weight : weights_.all()) result[weight.spec.name] = values(weight.value);
    return result;
  }

  ReadyDevice ops_;
  Arena values_{"values"}, grads_{"grads"}, state_{"state"}, optimizer_state_{"optimizer"}, host_state_{"host state"},
      room_{"room"};
  StateMemory memory_{optimizer_state_, host_state_};
  Tensor rates_;
  WeightSet weights_{describe_model(base_model()).weights};
  OptimConfig config_;
  TensorPool pool_;
  Tensor rounding_key_ = pool_.zeros(DType::kI64, {1});
  Tensor grad_scale_ = pool_.zeros(DType::kF64, {1});
};

// With zero gradients nothing moves but what decays, and that by exactly lr * weight_decay * w.
TEST_F(OptimizerTest, OnlyMatricesExpertsAndHeadDecay) {
  Optimizer optimizer(config_, weights_, *ops_, memory_, rates_, rounding_key_);
  const auto before = weights();
  for (const Weight& weight : weights_.all()) {
    if (weight.grad.defined()) ops_->fill({weight.grad, 0.0});
  }
  optimizer.write_rates({.steps = 1, .tokens = 1}, 1, rates_);
  optimizer.step(grad_scale_, room_);
  for (const auto& [name, after] : weights()) {
    double rate = 0;
    if (name == "head") rate = config_.rest.lr;
    if (name.find("attention.") != std::string::npos || name.find("mlp.") != std::string::npos ||
        name.find("shared.") != std::string::npos) {
      rate = config_.matrices.lr;
    }
    if (name.find("experts_") != std::string::npos) rate = config_.experts.lr;
    if (name.find("kv_norm") != std::string::npos) rate = 0;
    std::vector<double> expected = before.at(name);
    for (double& value : expected) value -= rate * 0.1 * value;
    EXPECT_TRUE(near(after, expected, 1e-12)) << name;
  }
}

TEST_F(OptimizerTest, StateCoversEveryTrainedParameterOnce) {
  Optimizer optimizer(config_, weights_, *ops_, memory_, rates_, rounding_key_);
  std::map<std::string, int64_t> elements;
  for (const NamedTensor& state : optimizer.state()) {
    EXPECT_TRUE(elements.emplace(state.name, state.tensor.num_elements()).second) << state.name;
  }
  for (const Weight& weight : weights_.all()) {
    const bool muon = weight.spec.group == WeightGroup::kMatrices || weight.spec.group == WeightGroup::kExperts;
    const bool trained = weight.spec.group != WeightGroup::kBuffer;
    EXPECT_EQ(elements.count("muon.momentum." + weight.spec.name), muon ? 1U : 0U) << weight.spec.name;
    EXPECT_EQ(elements.count("adamw.m." + weight.spec.name), trained && !muon ? 1U : 0U) << weight.spec.name;
    EXPECT_EQ(elements.count("adamw.v." + weight.spec.name), trained && !muon ? 1U : 0U) << weight.spec.name;
  }
}

// Of either optimizer alone. A first moment is then 0.1 of the gradient, a momentum all of it: 0.26 is no BF16 number.
TEST_F(OptimizerTest, MomentsInBf16AreThoseOfTheOptimizerThatSaysSo) {
  for (const bool muon : {false, true}) {
    config_.adamw.state = muon ? MomentFormat::kFp32 : MomentFormat::kBf16;
    config_.muon.state = muon ? MomentFormat::kBf16 : MomentFormat::kFp32;
    optimizer_state_.rewind(0);
    Optimizer optimizer(config_, weights_, *ops_, memory_, rates_, rounding_key_);
    int64_t rounded = 0;
    for (const NamedTensor& state : optimizer.state()) {
      const bool is_rounded = state.name.starts_with(muon ? "muon." : "adamw.");
      EXPECT_EQ(state.tensor.dtype(), is_rounded ? DType::kBF16 : ops_->stat_dtype()) << state.name;
      rounded += is_rounded ? 1 : 0;
    }
    EXPECT_GT(rounded, 0);
    for (const Weight& weight : weights_.all()) {
      if (weight.grad.defined()) ops_->fill({weight.grad, 0.26});
    }
    optimizer.write_rates({.steps = 1, .tokens = 1}, 1, rates_);
    optimizer.step(grad_scale_, room_);
    for (const NamedTensor& state : optimizer.state()) {
      if (!state.name.starts_with(muon ? "muon.momentum." : "adamw.m.")) continue;
      const double expected = muon ? 0.26 : 0.026;
      double sum = 0.0;
      const auto* const bits = static_cast<const uint16_t*>(state.tensor.raw());
      const int64_t size = state.tensor.num_elements();
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_NEAR(bf16_to_float(bits[i]), expected, expected * 0x1p-7) << state.name;
        sum += bf16_to_float(bits[i]);
      }
      // Rounded at random: each is off by less than half of what neighbours are apart in the root mean square.
      EXPECT_NEAR(sum / static_cast<double>(size), expected,
                  expected * 0x1p-8 * 4 / std::sqrt(static_cast<double>(size)))
          << state.name;
    }
  }
}

// The first step from zero momentum, of every weight that Muon trains: gate and up are two matrices of the
// architecture, stacked in one weight, and each is orthogonalised and scaled by itself, in dense, shared and routed
// experts. A weight of any other kind is one matrix.
TEST_F(OptimizerTest, MuonTakesGateAndUpForTwoMatrices) {
  Optimizer optimizer(config_, weights_, *ops_, memory_, rates_, rounding_key_);
  for (Weight& weight : weights_.all()) {
    if (!weight.grad.defined()) continue;
    const Tensor random = pool_.normal(weight.shard.shape);
    for (int64_t i = 0; i < random.num_elements(); ++i) set(weight.grad, i, get(random, i));
  }
  const auto before = weights();
  optimizer.write_rates({.steps = 1, .tokens = 1}, 1, rates_);
  optimizer.step(grad_scale_, room_);
  int gated = 0;
  for (const Weight& weight : weights_.all()) {
    const WeightGroup group = weight.spec.group;
    if (group != WeightGroup::kMatrices && group != WeightGroup::kExperts) continue;
    const std::string& name = weight.spec.name;
    SCOPED_TRACE(name);
    const bool halves = name.ends_with("mlp.in") || name.ends_with("shared.in") || name.ends_with("experts_in");
    gated += halves ? 1 : 0;
    const int64_t rows = weight.shard.shape[-2] / (halves ? 2 : 1), cols = weight.shard.shape[-1];
    const int64_t count = weight.shard.shape.num_elements() / (rows * cols);
    const double lr = group == WeightGroup::kExperts ? config_.experts.lr : config_.matrices.lr;
    const double step = lr * 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    std::vector<double> expected;
    for (int64_t i = 0; i < count; ++i) {
      Matrix direction = matrix_of(weight.grad.reshape({count, rows, cols})[i]);
      for (auto& row : direction) {
        for (double& value : row) value *= 1 + config_.muon.momentum;
      }
      for (const auto& row : newton_schulz(direction, static_cast<int>(config_.muon.iterations))) {
        for (const double value : row) {
          expected.push_back((1 - lr * 0.1) * before.at(name)[expected.size()] - step * value);
        }
      }
    }
    EXPECT_TRUE(near(weight.value, expected, 1e-9));
  }
  EXPECT_EQ(gated, 3);
  for (const OptimizerState& state : optimizer.state())
    EXPECT_EQ(state.tensor.shape(), state.weight->shard.shape) << state.name;
}

// Of state in either place, what lives on the device is updated while blocks of the other are on their way: as much of
// it as of those, but for a weight of either.
TEST_F(OptimizerTest, StateOnTheDeviceIsUpdatedBetweenBlocksOfTheHosts) {
  LanesInOrder device(ops_.device());
  for (const Lane lane : {Lane::kCopy, Lane::kCommunication}) device.scratch(lane).reserve(device.memory(), 0);
  config_.offload = Offload::kFit;
  config_.state_on_device = 10 << 10;  // bytes, about half
  Optimizer optimizer(config_, weights_, device.ops(), memory_, rates_, rounding_key_);
  optimizer.write_rates({.steps = 1, .tokens = 1}, 1, rates_);
  optimizer.step(grad_scale_, room_);
  EXPECT_TRUE(device.all_joined());
  EXPECT_EQ(device.num_unordered(), 0);
  std::map<int64_t, const OptimizerState*> in_order;  // by their last use, of the host's on the way back
  std::array<double, 2> all{}, largest{}, done{};     // elements: on the device, in the host's memory
  const auto size = [](const OptimizerState& state) { return static_cast<double>(state.tensor.num_elements()); };
  for (const OptimizerState& state : optimizer.state()) {
    if (state.name.starts_with("adamw.v.")) continue;
    in_order.emplace(device.last_use(state.tensor), &state);
    all[state.in_host ? 1 : 0] += size(state);
    largest[state.in_host ? 1 : 0] = std::max(largest[state.in_host ? 1 : 0], size(state));
  }
  const double apart = largest[0] / all[0] + largest[1] / all[1];
  ASSERT_LT(apart, 0.9);
  for (const auto& [use, state] : in_order) {
    done[state->in_host ? 1 : 0] += size(*state);
    EXPECT_LE(std::abs(done[0] / all[0] - done[1] / all[1]), apart) << state->name;
  }
}

}  // namespace
}  // namespace nmoe::test
