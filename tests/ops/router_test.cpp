#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

struct RouterCase {
  RouterRule rule = {};
  RouterLoss loss = {};
  int64_t num_tokens = 12;
  int64_t num_experts = 8;
  double logit_scale = 1.5;
  double bias_scale = 0.2;
};

// Every tensor of a router, after a forward and a backward.
struct RouterRun {
  // Without `logit_values`, the logits are random.
  RouterRun(DType real, int num_threads, const RouterCase& c, const std::vector<double>& logit_values = {})
      : setup(c), pool(real), ops(cpu_device(real, num_threads)) {
    const int64_t num_tokens = c.num_tokens, num_experts = c.num_experts, top_k = c.rule.top_k;
    logits = logit_values.empty() ? pool.normal({num_tokens, num_experts}, c.logit_scale)
                                  : pool.of({num_tokens, num_experts}, logit_values);
    bias = pool.normal({num_experts}, setup.bias_scale);
    dweights = pool.normal({num_tokens, top_k});
    scores = pool.zeros({num_tokens, num_experts});
    top_idx = pool.zeros(DType::kI32, {num_tokens, top_k});
    weights = pool.zeros({num_tokens, top_k});
    dlogits = pool.full({num_tokens, num_experts}, 9.0);  // must be overwritten
    aux_loss = pool.zeros(DType::kF64, {2});
    entropy = pool.zeros(DType::kF64, {1});
    forward();
    ops->router_backward({setup.rule, setup.loss, logits, scores, top_idx, weights, dweights, dlogits});
  }

  void forward() const {
    ops->router_forward({setup.rule, setup.loss, logits, bias, scores, top_idx, weights, aux_loss, entropy});
  }

  // The scalar whose gradient dlogits claims to be.
  double loss() const {
    ops->fill({aux_loss, 0});
    forward();
    return dot(weights, dweights) + get(aux_loss, 0) + get(aux_loss, 1);
  }

  RouterCase setup;
  TensorPool pool;
  ReadyDevice ops;
  Tensor logits, bias, dweights, scores, top_idx, weights, dlogits, aux_loss, entropy;
};

// Setups that between them use every branch of the rule and both losses.
std::vector<RouterCase> setups() {
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
    result.push_back({.rule = {.score = score, .top_k = 2, .num_groups = 5, .top_groups = 2}, .num_experts = 5});
    result.push_back({.rule = {.score = score, .top_k = 5},
                      .loss = {.balance = 0.4, .z = 0.1, .seq_len = 1},
                      .num_tokens = 1,
                      .num_experts = 5});  // one token, all experts
    result.push_back({.rule = {.score = score, .top_k = 1}, .num_tokens = 3, .num_experts = 1});
  }
  return result;
}

class RouterTest : public ::testing::TestWithParam<size_t> {
 protected:
  RouterCase setup_ = setups()[GetParam()];
};

INSTANTIATE_TEST_SUITE_P(Setups, RouterTest, ::testing::Range(size_t{0}, setups().size()));

// One token's route by full sorts and the formulas as printed, in double.
struct Reference {
  std::vector<double> scores, weights;
  std::vector<double> top_idx;
  double log_sum_exp = 0, score_sum = 0, entropy = 0;
};

std::vector<size_t> sorted_by_falling(const std::vector<double>& ranks) {
  std::vector<size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranks[a] > ranks[b]; });
  return order;
}

Reference reference_route(const RouterRule& rule, const std::vector<double>& logits, const std::vector<double>& bias) {
  Reference r;
  const size_t num_experts = logits.size();
  double exp_sum = 0;
  for (const double x : logits) exp_sum += std::exp(x);
  r.log_sum_exp = std::log(exp_sum);
  for (const double x : logits) {
    r.scores.push_back(rule.score == ScoreFunction::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x) / exp_sum);
  }
  r.score_sum = std::accumulate(r.scores.begin(), r.scores.end(), 0.0);
  for (const double s : r.scores) r.entropy -= s / r.score_sum * std::log(s / r.score_sum);

  const size_t group_size = num_experts / static_cast<size_t>(rule.num_groups);
  std::vector<double> ranks, group_ranks;
  for (size_t i = 0; i < num_experts; ++i) ranks.push_back(r.scores[i] + bias[i]);
  for (size_t group = 0; group < static_cast<size_t>(rule.num_groups); ++group) {
    std::vector<double> members(ranks.begin() + static_cast<int64_t>(group * group_size),
                                ranks.begin() + static_cast<int64_t>((group + 1) * group_size));
    std::sort(members.rbegin(), members.rend());
    const bool two = rule.score == ScoreFunction::kSigmoid && group_size > 1;
    group_ranks.push_back(two ? members[0] + members[1] : members[0]);
  }
  const auto groups = sorted_by_falling(group_ranks);
  const std::set<size_t> chosen(groups.begin(), groups.begin() + rule.top_groups);

  double weight_sum = 0;
  for (const size_t expert : sorted_by_falling(ranks)) {
    if (!chosen.contains(expert / group_size) || static_cast<int64_t>(r.top_idx.size()) == rule.top_k) continue;
    r.top_idx.push_back(static_cast<double>(expert));
    r.weights.push_back(r.scores[expert]);
    weight_sum += r.scores[expert];
  }
  for (double& weight : r.weights) weight *= rule.scale / (rule.normalise ? weight_sum : 1.0);
  return r;
}

TEST_P(RouterTest, ForwardMatchesTheDefinition) {
  const RouterRun run(DType::kF64, 2, setup_);
  const RouterRule& rule = setup_.rule;
  const auto num_experts = static_cast<size_t>(setup_.num_experts);
  std::vector<double> scores, top_idx, weights;
  double balance = 0, z = 0, entropy = 0;
  // Of the present sequence.
  std::vector<double> selected(num_experts), share(num_experts);
  for (int64_t token = 0; token < setup_.num_tokens; ++token) {
    const Reference r = reference_route(rule, values(run.logits[token]), values(run.bias));
    scores.insert(scores.end(), r.scores.begin(), r.scores.end());
    top_idx.insert(top_idx.end(), r.top_idx.begin(), r.top_idx.end());
    weights.insert(weights.end(), r.weights.begin(), r.weights.end());
    z += r.log_sum_exp * r.log_sum_exp;
    entropy += r.entropy;
    for (const double expert : r.top_idx) ++selected[static_cast<size_t>(expert)];
    for (size_t i = 0; i < num_experts; ++i) share[i] += r.scores[i] / r.score_sum;
    if (setup_.loss.balance != 0 && (token + 1) % setup_.loss.seq_len == 0) {
      const auto seq_len = static_cast<double>(setup_.loss.seq_len);
      for (size_t i = 0; i < num_experts; ++i) {
        const double f = static_cast<double>(num_experts) / (static_cast<double>(rule.top_k) * seq_len) * selected[i];
        balance += f * share[i] / seq_len;
        selected[i] = share[i] = 0;
      }
    }
  }
  EXPECT_TRUE(near(run.scores, scores, 1e-13));
  EXPECT_EQ(values(run.top_idx), top_idx);
  EXPECT_TRUE(near(run.weights, weights, 1e-13));
  EXPECT_TRUE(near(run.aux_loss, {setup_.loss.balance * balance, setup_.loss.z * z}, 1e-12));
  EXPECT_TRUE(near(run.entropy, {entropy}, 1e-12));
}

TEST_P(RouterTest, BackwardMatchesFiniteDifferences) {
  const RouterRun run(DType::kF64, 2, setup_);
  const std::vector<double> selection = values(run.top_idx);
  EXPECT_TRUE(gradient_matches([&] { return run.loss(); }, run.logits, run.dlogits));
  run.forward();
  ASSERT_EQ(values(run.top_idx), selection);
}

TEST_P(RouterTest, FloatAgreesWithDouble) {
  const RouterRun single(DType::kF32, 2, setup_), exact(DType::kF64, 2, setup_);
  ASSERT_EQ(values(single.top_idx), values(exact.top_idx));
  EXPECT_TRUE(near(single.scores, exact.scores, 1e-6));
  EXPECT_TRUE(near(single.weights, exact.weights, 1e-6));
  EXPECT_TRUE(near(single.aux_loss, exact.aux_loss, 1e-6));
  EXPECT_TRUE(near(single.entropy, exact.entropy, 1e-6));
  EXPECT_TRUE(near(single.dlogits, exact.dlogits,
                   1e-3));  // sums that cancel, to a thousandth of the largest
}

// Logits of few different values, so that ties abound.
TEST(Router, SelectsAmongManyExpertsLikeAStableSort) {
  for (const auto& [top_k, top_groups] : {std::pair{8, 4}, std::pair{8, 8}, std::pair{1024, 8}}) {
    const RouterCase setup{.rule = {.top_k = top_k, .num_groups = 8, .top_groups = top_groups},
                           .num_tokens = 20,
                           .num_experts = 1024,
                           .bias_scale = 0};
    TensorPool pool;
    const RouterRun run(DType::kF64, 2, setup, values(pool.random_ints({20, 1024}, 5)));
    for (int64_t token = 0; token < setup.num_tokens; ++token) {
      const Reference r = reference_route(setup.rule, values(run.logits[token]), values(run.bias));
      ASSERT_EQ(values(run.top_idx[token]), r.top_idx) << "token " << token << ", top " << top_k;
    }
  }
}

TEST(Router, BitsDoNotDependOnThreads) {
  const RouterCase setup{
      .rule = {.top_k = 4}, .loss = {.balance = 0.4, .z = 0.1, .seq_len = 100}, .num_tokens = 700, .num_experts = 33};
  const RouterRun one(DType::kF32, 1, setup), three(DType::kF32, 3, setup);
  EXPECT_TRUE(same_bits(one.top_idx, three.top_idx));
  EXPECT_TRUE(same_bits(one.weights, three.weights));
  EXPECT_TRUE(same_bits(one.aux_loss, three.aux_loss));
  EXPECT_TRUE(same_bits(one.entropy, three.entropy));
  EXPECT_TRUE(same_bits(one.dlogits, three.dlogits));
}

TEST(Router, GivesTiesToTheLowerIndex) {
  for (const ScoreFunction score : {ScoreFunction::kSigmoid, ScoreFunction::kSoftmax}) {
    const RouterCase setup{.rule = {.score = score, .top_k = 3}, .num_tokens = 1, .num_experts = 6, .bias_scale = 0};
    const RouterRun equal(DType::kF32, 1, setup, std::vector<double>(6, 0.0));
    EXPECT_EQ(values(equal.top_idx), (std::vector<double>{0, 1, 2}));
    const RouterRun pairs(DType::kF32, 1, setup, {0, 1, 0, 1, 2, 0});
    EXPECT_EQ(values(pairs.top_idx), (std::vector<double>{4, 1, 3}));

    RouterCase grouped = setup;
    grouped.rule = {.score = score, .top_k = 3, .num_groups = 3, .top_groups = 2};
    const RouterRun groups(DType::kF32, 1, grouped, {0, 1, 1, 1, 1, 1});
    // By two best: groups 1 and 2. By best alone: a tie of all three, which groups 0 and 1 win.
    const auto expected =
        score == ScoreFunction::kSigmoid ? std::vector<double>{2, 3, 4} : std::vector<double>{1, 2, 3};
    EXPECT_EQ(values(groups.top_idx), expected);
  }
}

TEST(Router, BiasMovesTheSelectionAndNotTheWeights) {
  const RouterCase setup{.rule = {.top_k = 1, .normalise = false}, .num_tokens = 1, .num_experts = 3};
  const RouterRun run(DType::kF64, 1, setup, {1, 0, -1});
  for (int64_t i = 0; i < 3; ++i) set(run.bias, i, i == 2 ? 0.9 : 0);
  run.forward();
  EXPECT_EQ(get(run.top_idx, 0), 2);
  EXPECT_TRUE(near(run.weights, {1 / (1 + std::exp(1.0))}, 1e-14));
}

// Mixtral's softmax behind the choice (arXiv 2401.04088, equation 2) is the chosen experts' share of the softmax of
// all; OLMoE and Qwen2-MoE leave out the division.
TEST(Router, NormalisedSoftmaxIsThatOfTheChosenLogits) {
  for (const bool normalise : {true, false}) {
    RouterCase setup{.rule = {.score = ScoreFunction::kSoftmax, .top_k = 3, .normalise = normalise}, .bias_scale = 0.0};
    const RouterRun run(DType::kF64, 1, setup);
    std::vector<double> expected;
    for (int64_t token = 0; token < setup.num_tokens; ++token) {
      std::vector<double> logits, chosen;
      for (int64_t e = 0; e < setup.num_experts; ++e) logits.push_back(get(run.logits, token * setup.num_experts + e));
      chosen = logits;
      std::ranges::sort(chosen, std::ranges::greater());  // top-k in falling order
      chosen.resize(3);
      double sum = 0.0;
      for (const double logit : normalise ? chosen : logits) sum += std::exp(logit);
      for (const double logit : chosen) expected.push_back(std::exp(logit) / sum);
    }
    EXPECT_TRUE(near(run.weights, expected, 1e-14)) << normalise;
  }
}

TEST(Router, StaysFiniteForHugeLogits) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    for (const ScoreFunction score : {ScoreFunction::kSigmoid, ScoreFunction::kSoftmax}) {
      const RouterCase setup{.rule = {.score = score, .top_k = 2},
                             .loss = {.balance = 1, .z = 1e-3, .seq_len = 5},
                             .num_tokens = 5,
                             .num_experts = 4};
      const RouterRun run(real, 2, setup, {80, 80,  80,  80,  -80, -80,  -80,  -80,  80,   -80,
                                           80, -80, 1e4, 1e4, 0,   -1e4, -1e4, -1e4, -1e4, -1e4});
      for (const Tensor x : {run.scores, run.weights, run.aux_loss, run.entropy, run.dlogits}) {
        for (const double value : values(x)) EXPECT_TRUE(std::isfinite(value)) << dtype_name(real);
      }
    }
  }
}

// Even NaN must not send a token to an expert that does not exist.
TEST(Router, SelectsValidExpertsForNanLogits) {
  const RouterCase setup{.rule = {.top_k = 3, .num_groups = 2, .top_groups = 2}, .num_tokens = 2, .num_experts = 8};
  const RouterRun run(DType::kF32, 1, setup, std::vector<double>(16, std::nan("")));
  for (int64_t token = 0; token < 2; ++token) {
    const auto chosen = values(run.top_idx[token]);
    EXPECT_EQ(std::set<double>(chosen.begin(), chosen.end()).size(), 3U);
    for (const double expert : chosen) EXPECT_TRUE(expert >= 0 && expert < 8);
  }
}

TEST(Router, BalanceLossOfEvenLoadsIsItsCoefficient) {
  // Each of four tokens prefers an expert of its own: f_i = 1, and sum_i P_i = 1.
  const RouterCase setup{.rule = {.top_k = 1},
                         .loss = {.balance = 0.25, .seq_len = 4},
                         .num_tokens = 4,
                         .num_experts = 4,
                         .bias_scale = 0};
  const RouterRun run(DType::kF64, 1, setup, {3, 0, 0, 0, 0, 3, 0, 0, 0, 0, 3, 0, 0, 0, 0, 3});
  EXPECT_TRUE(near(run.aux_loss, {0.25, 0}, 1e-14));
}

TEST(Router, EntropyOfEqualScoresIsTheLogarithmOfTheirNumber) {
  const RouterCase setup{.rule = {.top_k = 1}, .num_tokens = 3, .num_experts = 16};
  const RouterRun run(DType::kF64, 1, setup, std::vector<double>(48, 0.0));
  EXPECT_NEAR(get(run.entropy, 0), 3 * std::log(16.0), 1e-13);
}

// Sigmoids that are smaller than what is added to their sum.
TEST(Router, EntropyOfTinyScoresIsThatOfTheirShares) {
  const RouterCase setup{.rule = {.top_k = 1}, .num_tokens = 3, .num_experts = 16};
  const double score = 1 / (1 + std::exp(47.0)), share = score / (16 * score + kTinySum);
  for (const DType real : {DType::kF32, DType::kF64}) {
    const RouterRun run(real, 1, setup, std::vector<double>(48, -47.0));
    EXPECT_TRUE(near(run.entropy, {-3 * 16 * share * std::log(share)}, real == DType::kF32 ? 1e-5 : 1e-12));
  }
}

TEST(Router, BalanceNeedsWholeSequences) {
  const RouterCase setup{.rule = {.top_k = 1}, .loss = {.balance = 0.25, .seq_len = 5}, .num_tokens = 12};
  EXPECT_THROW(RouterRun(DType::kF64, 1, setup), CheckFailure);
}

TEST(Router, CountingRunClaimsTheScratchOfARealOne) {
  const RouterCase setup{
      .rule = {.top_k = 4}, .loss = {.balance = 0.4, .z = 0.1, .seq_len = 50}, .num_tokens = 500, .num_experts = 33};
  const RouterRun run(DType::kF32, 2, setup);
  const auto counting = make_device({.num_threads = 2});
  const Tensor logits = without_data(run.logits), top_idx = without_data(run.top_idx);
  const Tensor weights = without_data(run.weights);
  counting->ops().router_forward({setup.rule, setup.loss, logits, without_data(run.bias), logits, top_idx, weights,
                                  without_data(run.aux_loss), without_data(run.entropy)});
  counting->ops().router_backward({setup.rule, setup.loss, logits, logits, top_idx, weights, weights, logits});
  EXPECT_GT(counting->scratch(Lane::kCompute).high_water(), 0);
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), run.ops->scratch().high_water());
}

// Three tokens of scores that are easily told apart, two experts each.
TEST(RouteTokensTest, SortsCopiesByExpert) {
  TensorPool pool(DType::kF64);
  const RouteTokens args{.rule = {.top_k = 2, .normalise = false},
                         .logits = pool.of({3, 4}, {0, 3, 1, -1, 2, -1, 0, 5, 4, 1, -2, 0}),
                         .bias = pool.of({4}, {0, 0, 0, 0}),
                         .scores = pool.zeros({3, 4}),
                         .top_idx = pool.zeros(DType::kI32, {3, 2}),
                         .weights = pool.zeros({3, 2}),
                         .plan = {.offsets = pool.zeros(DType::kI32, {5}),
                                  .row_of = pool.zeros(DType::kI32, {3, 2}),
                                  .token_of = pool.zeros(DType::kI32, {6})},
                         .row_weight = pool.zeros({6})};
  cpu_device(DType::kF64)->route_tokens(args);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_EQ(values(args.top_idx), (std::vector<double>{1, 2, 3, 0, 0, 1}));
  EXPECT_EQ(values(args.plan.offsets), (std::vector<double>{0, 2, 4, 5, 6}));
  EXPECT_EQ(values(args.plan.row_of), (std::vector<double>{2, 4, 5, 0, 1, 3}));
  EXPECT_EQ(values(args.plan.token_of), (std::vector<double>{1, 2, 0, 2, 0, 1}));
  EXPECT_TRUE(near(args.row_weight, {sigmoid(2), sigmoid(4), sigmoid(3), sigmoid(1), sigmoid(1), sigmoid(5)}, 1e-12));
}

TEST(RouterBias, MovesAgainstTheLoadError) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor bias = pool.of({4}, {1, 1, 1, 1});
  ops->router_bias_update({pool.ints({4}, {10, 0, 5, 5}), bias, 0.25, pool.full({1}, 1.0)});
  EXPECT_TRUE(near(bias, {0.75, 1.25, 1, 1}, 0));
  // A mean that is no integer: 7 / 3 lies between 2 and 3.
  const Tensor odd = pool.zeros({3});
  ops->router_bias_update({pool.ints({3}, {2, 2, 3}), odd, 0.5, pool.full({1}, 1.0)});
  EXPECT_TRUE(near(odd, {0.5, 0.5, -0.5}, 0));
  ops->router_bias_update({pool.ints({3}, {2, 2, 3}), odd, 0.5, pool.full({1}, NAN)});
  EXPECT_TRUE(near(odd, {0.5, 0.5, -0.5}, 0)) << "a step that is not finite";
}

TEST(RouterBias, DoesNotOverflowForHugeCounts) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor counts = pool.zeros(DType::kI32, {4096}), bias = pool.zeros({4096});
  ops->fill({counts, 2'000'000'000});
  set(counts, 7, 2'000'000'001);
  ops->router_bias_update({counts, bias, 1.0, pool.full({1}, 1.0)});
  EXPECT_EQ(get(bias, 7), -1);
  EXPECT_EQ(get(bias, 8), 1);
}

}  // namespace
}  // namespace nmoe::test
