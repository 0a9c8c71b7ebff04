// Mistakes that published implementations of mixtures of experts made, each with what it would have computed: a test
// that cannot tell the two apart says nothing. What tensors mean: ops/contracts/router.h and moe.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/tensors.h"

namespace nmoe::test {
namespace {

std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> result;
  for (const double x : logits) result.push_back(std::exp(x));
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& x : result) x /= sum;
  return result;
}

// A router's forward on the CPU in fp64.
struct Routed {
  Routed(const RouterRule& rule, const RouterLoss& loss, int64_t num_tokens, const std::vector<double>& of_logits,
         const std::vector<double>& of_bias = {})
      : num_experts(std::ssize(of_logits) / num_tokens), ops(cpu_device()) {
    const Tensor logits = pool.of({num_tokens, num_experts}, of_logits);
    const Tensor bias = of_bias.empty() ? pool.zeros({num_experts}) : pool.of({num_experts}, of_bias);
    const Tensor scores = pool.zeros({num_tokens, num_experts}), entropy = pool.zeros(DType::kF64, {1});
    top_idx = pool.zeros(DType::kI32, {num_tokens, rule.top_k});
    weights = pool.zeros({num_tokens, rule.top_k});
    aux_loss = pool.zeros(DType::kF64, {2});
    ops->router_forward({rule, loss, logits, bias, scores, top_idx, weights, aux_loss, entropy});
  }
  int64_t num_experts;
  TensorPool pool;
  ReadyDevice ops;
  Tensor top_idx, weights, aux_loss;
};

constexpr double kFar = 0.05;  // apart enough to be another result

// OLMoE, Qwen2-MoE: softmax of all, then the choice; weights do not sum to 1. The other order, which is Mixtral's and
// gpt-oss's, is `normalise`.
TEST(PublishedTraps, SoftmaxComesBeforeTheChoice) {
  const std::vector<double> logits = {0.3, 2.0, -0.5, 1.2, 0.9}, all = softmax(logits), chosen = softmax({2.0, 1.2});
  const Routed before({.score = ScoreFunction::kSoftmax, .top_k = 2, .normalise = false}, {}, 1, logits);
  EXPECT_TRUE(near(before.weights, {all[1], all[3]}, 1e-13));
  const Routed behind({.score = ScoreFunction::kSoftmax, .top_k = 2, .normalise = true}, {}, 1, logits);
  EXPECT_TRUE(near(behind.weights, chosen, 1e-13));
  EXPECT_GT(std::abs(all[1] - chosen[0]), kFar);
}

// ERNIE, and all types whose routers have a selection bias: it is added to scores, not to logits, where it would choose
// others and change the weights.
TEST(PublishedTraps, ASelectionBiasIsAddedToScores) {
  const std::vector<double> logits = {2.0, 1.0, 0.0}, bias = {0.0, 0.0, 0.6};
  const auto largest = [](const std::vector<double>& ranks) {
    return static_cast<double>(std::ranges::max_element(ranks) - ranks.begin());
  };
  std::vector<double> ranks = softmax(logits), wrong = logits;
  for (size_t i = 0; i < 3; ++i) ranks[i] += bias[i], wrong[i] += bias[i];
  const Routed run({.score = ScoreFunction::kSoftmax, .top_k = 1, .normalise = false}, {}, 1, logits, bias);
  EXPECT_EQ(get(run.top_idx, 0), largest(ranks));
  EXPECT_NE(largest(ranks), largest(wrong));
  EXPECT_TRUE(near(run.weights, {softmax(logits)[2]}, 1e-13));  // nor is it in the weight
}

// transformers issue 45120: the balance loss took the softmax of what was a softmax already. That is flat whatever the
// router does, and the loss of a router that sends everything to one expert hardly more than that of an even one.
TEST(PublishedTraps, TheBalanceLossIsOfOneSoftmax) {
  constexpr int64_t kTokens = 4, kExperts = 4;
  std::vector<double> logits;
  for (int64_t token = 0; token < kTokens; ++token) logits.insert(logits.end(), {6.0, 0.0, 0.5, -1.0});
  const std::vector<double> once = softmax({6.0, 0.0, 0.5, -1.0}), twice = softmax(once);
  const Routed run({.score = ScoreFunction::kSoftmax, .top_k = 1}, {.balance = 1.0, .seq_len = kTokens}, kTokens,
                   logits);
  // All go to expert 0: f_0 = E, the others' are 0.
  EXPECT_TRUE(near(run.aux_loss, {kExperts * once[0], 0.0}, 1e-13));
  EXPECT_GT(kExperts * once[0], 3.9);
  EXPECT_LT(kExperts * twice[0], 2.0);
}

// torch's top-k with sorted=False gives any order, and sums over a token's experts with it. Here choices fall by score
// plus bias, ties to the lower index, each with the weight of its own expert, and rows are summed in that order.
TEST(PublishedTraps, ChoicesAreSortedAndSummedInTheirOrder) {
  const std::vector<double> logits = {0.1, 1.5, 0.1, 0.7, 1.5, -2.0};
  const Routed run({.score = ScoreFunction::kSoftmax, .top_k = 5, .normalise = false}, {}, 1, logits);
  EXPECT_EQ(values(run.top_idx), (std::vector<double>{1, 4, 3, 0, 2}));
  const std::vector<double> all = softmax(logits);
  EXPECT_TRUE(near(run.weights, {all[1], all[4], all[3], all[0], all[2]}, 1e-13));

  // In fp32, 1 + 2^-24 + 2^-24 is 1 from the left, and more the other way round.
  TensorPool pool(DType::kF32);
  const ReadyDevice ops = cpu_device(DType::kF32);
  const double tiny = std::ldexp(1.0, -24);
  const auto combined = [&](const std::vector<double>& row_of) {
    MoePlan plan;
    plan.offsets = pool.ints({4}, {0, 1, 2, 3});
    plan.row_of = pool.ints({1, 3}, row_of);
    const Tensor y = pool.zeros({1, 1});
    ops->moe_combine({pool.of({3, 1}, {tiny, 1.0, tiny}), plan, y, /*accumulate=*/false});
    return get(y, 0);
  };
  EXPECT_EQ(combined({1, 0, 2}), 1.0);
  EXPECT_EQ(combined({0, 2, 1}), 1.0 + 2 * tiny);
}

// transformers issue 48131: the balance loss made a one-hot [T, K, E], 48 GiB at 131,072 tokens. Here a router counts.
TEST(PublishedTraps, TheBalanceLossNeedsNoOneHot) {
  constexpr int64_t kTokens = 131072, kExperts = 128, kTopK = 8;
  const auto counting = make_device({.num_threads = 2});
  const Tensor per_expert(nullptr, DType::kF32, {kTokens, kExperts}), bias(nullptr, DType::kF32, {kExperts});
  const Tensor top_idx(nullptr, DType::kI32, {kTokens, kTopK}), weights(nullptr, DType::kF32, {kTokens, kTopK});
  const RouterRule rule = {.score = ScoreFunction::kSoftmax, .top_k = kTopK};
  const RouterLoss loss = {.balance = 0.1, .seq_len = kTokens};
  counting->ops().router_forward({rule, loss, per_expert, bias, per_expert, top_idx, weights,
                                  Tensor(nullptr, DType::kF64, {2}), Tensor(nullptr, DType::kF64, {1})});
  counting->ops().router_backward({rule, loss, per_expert, per_expert, top_idx, weights, weights, per_expert});
  const int64_t one_hot = kTokens * kTopK * kExperts * int64_t{sizeof(int64_t)};
  EXPECT_LT(counting->scratch(Lane::kCompute).high_water(), static_cast<size_t>(one_hot / 500));
}

}  // namespace
}  // namespace nmoe::test
