// The router on CUDA: scores and gradients against the CPU's, what is discrete and what is summed up against the
// definition applied to the device's own scores, so that no rounding of a score can move a choice. Needs a GPU.

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct RouterCase {
  RouterRule rule = {};
  RouterLoss loss = {};
  int64_t num_tokens = 12;
  int64_t num_experts = 8;
  double logit_scale = 1.5;
  double bias_scale = 0.2;
  double logit_mean = 0;
};

std::vector<RouterCase> router_cases() {
  std::vector<RouterCase> result;
  for (const ScoreFunction score : {ScoreFunction::kSigmoid, ScoreFunction::kSoftmax}) {
    for (const bool normalise : {false, true}) {
      result.push_back({.rule = {.score = score, .top_k = 3, .normalise = normalise, .scale = 2.5}});
      result.push_back(
          {.rule = {.score = score, .top_k = 2, .normalise = normalise}, .loss = {.balance = 0.7, .seq_len = 4}});
      result.push_back({.rule = {.score = score, .top_k = 2, .normalise = normalise}, .loss = {.z = 0.3}});
    }
    result.push_back({.rule = {.score = score, .top_k = 3, .num_groups = 4, .top_groups = 2, .scale = 1.5},
                      .loss = {.balance = 0.4, .z = 0.1, .seq_len = 5},
                      .num_tokens = 15,
                      .num_experts = 12});
    result.push_back({.rule = {.score = score, .top_k = 8, .num_groups = 8, .top_groups = 4, .scale = 2.5},
                      .loss = {.balance = 0.4, .z = 0.1, .seq_len = 600},
                      .num_tokens = 1200,
                      .num_experts = 256});  // several blocks count a sequence
    result.push_back({.rule = {.score = score, .top_k = 16},
                      .loss = {.balance = 0.4, .z = 0.1, .seq_len = 3},
                      .num_tokens = 6,
                      .num_experts = 4096});
    result.push_back({.rule = {.score = score, .top_k = 32}, .num_tokens = 40, .num_experts = 1024});  // the most
    result.push_back({.rule = {.score = score, .top_k = 2, .num_groups = 4096, .top_groups = 40},
                      .num_tokens = 3,
                      .num_experts = 4096});  // groups of one expert
    result.push_back({.rule = {.score = score, .top_k = 5},
                      .loss = {.balance = 0.4, .z = 0.1, .seq_len = 1},
                      .num_tokens = 1,
                      .num_experts = 5});  // one token, all experts
    result.push_back({.rule = {.score = score, .top_k = 1}, .num_tokens = 3, .num_experts = 1});
    // Numbers of their own for 64, 128 and 256 experts, all others at run time; rows that end within a round of lanes.
    for (const int64_t num_experts : {32, 33, 64, 100, 128, 200, 384, 500, 512, 640, 700, 1999, 2048, 4090}) {
      result.push_back({.rule = {.score = score, .top_k = 9}, .num_tokens = 21, .num_experts = num_experts});
    }
    // Many scores that are equal, several of them a lane's.
    result.push_back({.rule = {.score = score, .top_k = 32},
                      .num_tokens = 40,
                      .num_experts = 2048,
                      .logit_scale = 20,
                      .bias_scale = 0});
    // Scores that are equal: ties.
    result.push_back({.rule = {.score = score, .top_k = 6, .num_groups = 7, .top_groups = 3},
                      .loss = {.balance = 0.4, .seq_len = 5},
                      .num_tokens = 5,
                      .num_experts = 70,
                      .logit_scale = 0,
                      .bias_scale = 0});
    // Sigmoids that are smaller than what is added to their sum.
    result.push_back({.rule = {.score = score, .top_k = 8}, .num_experts = 256, .logit_scale = 0, .logit_mean = -47});
    // Scores that underflow.
    result.push_back({.rule = {.score = score, .top_k = 2}, .loss = {.z = 0.1}, .num_experts = 9, .logit_scale = 200});
    result.push_back(
        {.rule = {.score = score, .top_k = 2}, .loss = {.balance = 0.4, .z = 0.1, .seq_len = 4}, .num_tokens = 0});
  }
  return result;
}

// The top_k of s + bias by the contract, sums rounded to float as on the device.
std::vector<double> reference_choice(const RouterRule& rule, const std::vector<double>& scores, Tensor bias) {
  const size_t num_experts = scores.size(), group_size = num_experts / static_cast<size_t>(rule.num_groups);
  std::vector<float> ranks(num_experts);
  for (size_t i = 0; i < num_experts; ++i) ranks[i] = static_cast<float>(scores[i]) + bias.data<float>()[i];
  std::vector<std::pair<float, size_t>> groups;
  for (size_t group = 0; group < static_cast<size_t>(rule.num_groups); ++group) {
    const auto begin = ranks.begin() + static_cast<int64_t>(group * group_size);
    std::vector<float> members(begin, begin + static_cast<int64_t>(group_size));
    std::sort(members.rbegin(), members.rend());
    const bool two = rule.score == ScoreFunction::kSigmoid && group_size > 1;
    groups.emplace_back(two ? members[0] + members[1] : members[0], group);
  }
  const auto falling = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::stable_sort(groups.begin(), groups.end(), falling);
  std::vector<std::pair<float, size_t>> experts;
  for (size_t i = 0; i < num_experts; ++i) {
    for (size_t g = 0; g < static_cast<size_t>(rule.top_groups); ++g) {
      if (groups[g].second == i / group_size) experts.emplace_back(ranks[i], i);
    }
  }
  std::stable_sort(experts.begin(), experts.end(), falling);
  std::vector<double> chosen;
  for (size_t k = 0; k < static_cast<size_t>(rule.top_k); ++k) chosen.push_back(static_cast<double>(experts[k].second));
  return chosen;
}

// What follows from scores and choices, in double.
struct Reference {
  std::vector<double> top_idx, weights;
  double balance = 0, z = 0, entropy = 0;
};

Reference reference(const RouterCase& c, Tensor logits, Tensor scores, Tensor bias) {
  Reference r;
  const auto num_experts = static_cast<size_t>(c.num_experts);
  std::vector<double> selected(num_experts), share(num_experts);  // of the present sequence
  for (int64_t token = 0; token < c.num_tokens; ++token) {
    const std::vector<double> x = values(logits[token]), s = values(scores[token]);
    const double highest = *std::max_element(x.begin(), x.end());
    double exp_sum = 0;
    for (const double value : x) exp_sum += std::exp(value - highest);
    r.z += std::pow(highest + std::log(exp_sum), 2);
    const double sum = std::accumulate(s.begin(), s.end(), kTinySum);
    for (const double value : s) r.entropy -= value > 0 ? value / sum * std::log(value / sum) : 0;

    const std::vector<double> chosen = reference_choice(c.rule, s, bias);
    double chosen_sum = kTinySum;
    for (const double expert : chosen) chosen_sum += s[static_cast<size_t>(expert)];
    for (const double expert : chosen) {
      r.top_idx.push_back(expert);
      r.weights.push_back(s[static_cast<size_t>(expert)] * c.rule.scale / (c.rule.normalise ? chosen_sum : 1.0));
      ++selected[static_cast<size_t>(expert)];
    }
    for (size_t i = 0; i < num_experts; ++i) share[i] += s[i] / sum;
    if (c.loss.balance != 0 && (token + 1) % c.loss.seq_len == 0) {
      const auto seq_len = static_cast<double>(c.loss.seq_len);
      for (size_t i = 0; i < num_experts; ++i) {
        const double f = static_cast<double>(num_experts) / (static_cast<double>(c.rule.top_k) * seq_len) * selected[i];
        r.balance += f * share[i] / seq_len;
        selected[i] = share[i] = 0;
      }
    }
  }
  return r;
}

class CudaRouter : public CudaTest, public ::testing::WithParamInterface<size_t> {
 protected:
  CudaRouter() {
    const Shape experts{case_.num_tokens, case_.num_experts}, choices{case_.num_tokens, case_.rule.top_k};
    logits_ = pool_.normal(experts, case_.logit_scale, case_.logit_mean);
    bias_ = pool_.normal({case_.num_experts}, case_.bias_scale);
    device_ = {.rule = case_.rule,
               .loss = case_.loss,
               .logits = up(logits_),
               .bias = up(bias_),
               .scores = up(pool_.zeros(experts)),
               .top_idx = up(pool_.zeros(DType::kI32, choices)),
               .weights = up(pool_.zeros(choices)),
               .aux_loss = up(pool_.zeros(DType::kF64, {2})),
               .entropy = up(pool_.zeros(DType::kF64, {1}))};
  }
  void forward() { gpu().router_forward(device_); }

  RouterCase case_ = router_cases()[GetParam()];
  Tensor logits_, bias_;
  RouterForward device_;
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaRouter, ::testing::Range(size_t{0}, router_cases().size()));

TEST_P(CudaRouter, ForwardMatchesTheCpuAndTheDefinition) {
  forward();
  forward();  // losses add up, the rest is overwritten
  const Tensor scores = down(device_.scores);
  const Tensor expected = pool_.zeros(scores.shape());
  const Tensor ignored_idx = pool_.zeros(DType::kI32, device_.top_idx.shape()),
               ignored_weights = pool_.zeros(device_.weights.shape()), ignored_loss = pool_.zeros(DType::kF64, {2});
  cpu().router_forward({case_.rule, case_.loss, logits_, bias_, expected, ignored_idx, ignored_weights, ignored_loss});
  // exp to a few units in the last place of fp32, times the rounding of its argument where it is large (|x| 6e-8).
  const double score_tolerance = case_.logit_scale > 10 ? 2e-4 : 5e-6;
  EXPECT_TRUE(near(scores, expected, score_tolerance));

  const Reference r = reference(case_, logits_, scores, bias_);
  EXPECT_EQ(values(down(device_.top_idx)), r.top_idx);
  EXPECT_TRUE(near(down(device_.weights), r.weights, 2e-6));  // a sum of at most 32 scores in fp32, and a division
  // Terms are fp32 sums over E, up to 128 a lane; their sum is fp64.
  EXPECT_TRUE(near(down(device_.aux_loss), {2 * case_.loss.balance * r.balance, 2 * case_.loss.z * r.z}, 1e-5));
  EXPECT_TRUE(near(down(device_.entropy), {2 * r.entropy}, 1e-5));
}

// Few tokens have a kernel of their own, which sorts their copies by counting.
TEST_P(CudaRouter, RoutesAsThreeOperationsDo) {
  const int64_t T = case_.num_tokens, E = case_.num_experts, K = case_.rule.top_k;
  const auto plan = [&] {
    return MoePlan{.offsets = up(pool_.zeros(DType::kI32, {E + 1})),
                   .row_of = up(pool_.zeros(DType::kI32, {T, K})),
                   .token_of = up(pool_.zeros(DType::kI32, {T * K}))};
  };
  RouteTokens routed{.rule = case_.rule,
                     .logits = device_.logits,
                     .bias = device_.bias,
                     .scores = up(pool_.zeros({T, E})),
                     .top_idx = up(pool_.zeros(DType::kI32, {T, K})),
                     .weights = up(pool_.zeros({T, K})),
                     .plan = plan(),
                     .row_weight = up(pool_.zeros({T * K}))};
  run([&](Ops& ops) { ops.route_tokens(routed); });
  device_.loss = {};
  device_.entropy = {};
  forward();
  const MoePlan expected = plan();
  const Tensor row_weight = up(pool_.zeros({T * K}));
  gpu().build_moe_plan({.top_idx = device_.top_idx, .plan = expected, .counts = {}});
  gpu().moe_dispatch_weights({.weights = device_.weights, .plan = expected, .row_weight = row_weight});
  EXPECT_TRUE(same_bits(down(routed.scores), down(device_.scores)));
  EXPECT_TRUE(same_bits(down(routed.top_idx), down(device_.top_idx)));
  EXPECT_TRUE(same_bits(down(routed.weights), down(device_.weights)));
  EXPECT_TRUE(same_bits(down(routed.plan.offsets), down(expected.offsets)));
  EXPECT_TRUE(same_bits(down(routed.plan.row_of), down(expected.row_of)));
  EXPECT_TRUE(same_bits(down(routed.plan.token_of), down(expected.token_of)));
  EXPECT_TRUE(same_bits(down(routed.row_weight), down(row_weight)));
}

TEST_P(CudaRouter, BackwardMatchesTheCpu) {
  forward();
  const Tensor scores = down(device_.scores), top_idx = down(device_.top_idx), weights = down(device_.weights);
  const Tensor dweights = pool_.normal(weights.shape()), expected = pool_.zeros(scores.shape());
  cpu().router_backward({case_.rule, case_.loss, logits_, scores, top_idx, weights, dweights, expected});
  for (const DType act : {DType::kF32, DType::kBF16}) {
    const Tensor dlogits = up(pool_.full(scores.shape(), 9.0), act);  // must be overwritten
    gpu().router_backward({case_.rule, case_.loss, device_.logits, device_.scores, device_.top_idx, device_.weights,
                           up(dweights), dlogits});
    // fp32: differences of sums over E that cancel, seen relative to a thousandth of the largest gradient.
    // bf16: half a unit in the last of 8 bits besides, at most 2^-8 of the value.
    EXPECT_TRUE(near(down(dlogits), expected, act == DType::kBF16 ? 5e-3 : 1e-3)) << dtype_name(act);
  }
}

TEST_P(CudaRouter, CountingRunClaimsTheScratchOfARealOne) {
  RouterForward no_data = device_;
  for (Tensor* x : {&no_data.logits, &no_data.bias, &no_data.scores, &no_data.top_idx, &no_data.weights,
                    &no_data.aux_loss, &no_data.entropy}) {
    *x = without_data(*x);
  }
  const int64_t counted = counted_scratch([&](Ops& ops) { ops.router_forward(no_data); });
  EXPECT_EQ(gpu().scratch().high_water(), 0);
  gpu().router_forward(device_);
  EXPECT_EQ(counted, gpu().scratch().high_water());
}

class CudaRouterBias : public CudaTest {};

TEST_F(CudaRouterBias, MatchesTheCpu) {
  for (const int64_t num_experts : {1, 7, 256, 4096}) {
    const Tensor counts = pool_.random_ints({num_experts}, 1 << 20), bias = pool_.normal({num_experts});
    const Tensor scale = pool_.zeros(DType::kF64, {1}), device_bias = up(bias);
    gpu().router_bias_update({up(counts), device_bias, 1e-3, up(scale)});
    set(scale, 0, std::numeric_limits<double>::quiet_NaN());
    gpu().router_bias_update({up(counts), device_bias, 1e-3, up(scale)});  // changes nothing
    set(scale, 0, 0.0);
    cpu().router_bias_update({counts, bias, 1e-3, scale});
    EXPECT_TRUE(same_bits(down(device_bias), bias)) << num_experts << " experts";
  }
}

}  // namespace
}  // namespace nmoe::test
