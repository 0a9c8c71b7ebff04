// The gated delta rule against its definition, in double precision.
#include <cmath>

#include "ops/recurrent_problem.h"

namespace nmoe::test {
namespace {

struct RuleSizes {
  int64_t seqs = 1, tokens = 8, groups = 1, key_dim = 3, heads = 2, value_dim = 4;
  int64_t rows() const { return seqs * tokens; }
};

// Inputs of a delta rule and room for everything that it writes. Rows lie apart, as in a layer.
struct Rule : RecurrentProblem<DeltaRuleInputs> {
  Rule(DType real, const RuleSizes& sizes, int num_threads = 2)
      : RecurrentProblem(real, sizes.seqs, sizes.tokens, {sizes.seqs, sizes.heads, sizes.key_dim, sizes.value_dim},
                         num_threads),
        s(sizes) {
    const Shape keys{s.rows(), s.groups, s.key_dim}, values{s.rows(), s.heads, s.value_dim}, gates{s.rows(), s.heads};
    in.q = pool.apart(pool.normal(keys), 3);
    in.k = pool.apart(pool.normal(keys), 1);
    in.v = pool.apart(pool.normal(values), 2);
    in.b = pool.apart(pool.normal(gates), 1);
    in.a = pool.apart(pool.normal(gates), 2);
    in.dt_bias = pool.normal({s.heads}, 0.5, -1.0);
    in.a_log = pool.normal({s.heads}, 0.5, -0.5);
    y = pool.full(values, 7.0);
    dy = pool.normal(values);
    dq = pool.apart(pool.full(keys, 7.0), 2);
    dk = pool.apart(pool.full(keys, 7.0), 1);
    dv = pool.apart(pool.full(values, 7.0), 1);
    db = pool.apart(pool.full(gates, 7.0), 1);
    da = pool.apart(pool.full(gates, 7.0), 3);
    for (Tensor* gradient : {&ddt_bias, &da_log}) *gradient = pool.zeros({s.heads});
  }
  void forward() const { ops->delta_rule_forward({in, y, final_state}); }
  void backward() const {
    for (const Tensor& gradient : {ddt_bias, da_log}) ops->fill({gradient, 0.0});
    ops->delta_rule_backward({.in = in,
                              .dy = dy,
                              .dfinal_state = dfinal_state,
                              .dq = dq,
                              .dk = dk,
                              .dv = dv,
                              .db = db,
                              .da = da,
                              .ddt_bias = ddt_bias,
                              .da_log = da_log,
                              .dinitial_state = dinitial_state});
  }
  double loss() const {
    forward();
    return loss_of_results();
  }

  RuleSizes s;
  Tensor dq, dk, dv, db, da, ddt_bias, da_log;
};

// A row of q or k, normed.
std::vector<double> normed(const Tensor& x, int64_t t, int64_t group, double scale) {
  const int64_t size = x.dim(2);
  std::vector<double> row;
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) row.push_back(get(x, (t * x.dim(1) + group) * size + i));
  for (const double each : row) squares += each * each;
  for (double& each : row) each *= scale / std::sqrt(squares + 1e-6);
  return row;
}

// The definition, with matrices written out: y, then the last states. The transition of a token is the product of the
// decay and I - beta k k^T, to which beta k v^T is added.
std::vector<double> definition(const Rule& rule) {
  const RuleSizes& s = rule.s;
  const DeltaRuleInputs& in = rule.in;
  const int64_t K = s.key_dim, V = s.value_dim;
  std::vector<double> y(static_cast<size_t>(s.rows() * s.heads * V)), last;
  for (int64_t seq = 0; seq < s.seqs; ++seq) {
    for (int64_t h = 0; h < s.heads; ++h) {
      std::vector<double> state(static_cast<size_t>(K * V));
      for (int64_t t = seq * s.tokens; t < (seq + 1) * s.tokens; ++t) {
        if (rule.begins_document(t)) {
          const bool goes_on = t == seq * s.tokens && in.initial_state.defined();
          for (int64_t i = 0; i < K * V; ++i) {
            state[static_cast<size_t>(i)] = goes_on ? get(in.initial_state, (seq * s.heads + h) * K * V + i) : 0;
          }
        }
        const int64_t group = h / (s.heads / s.groups);
        const std::vector<double> q = normed(in.q, t, group, 1 / std::sqrt(static_cast<double>(K))),
                                  k = normed(in.k, t, group, 1);
        const double biased = get(in.a, t * s.heads + h) + get(in.dt_bias, h);
        const double step = biased > 20 ? biased : std::log1p(std::exp(biased));
        const double decay = std::exp(-step * std::exp(get(in.a_log, h)));
        const double beta = 1 / (1 + std::exp(-get(in.b, t * s.heads + h)));
        std::vector<double> next(state.size());
        for (int64_t i = 0; i < K; ++i) {
          for (int64_t j = 0; j < V; ++j) {
            double sum = 0;
            for (int64_t l = 0; l < K; ++l) {
              const double transition =
                  (i == l ? 1.0 : 0.0) - beta * k[static_cast<size_t>(i)] * k[static_cast<size_t>(l)];
              sum += decay * transition * state[static_cast<size_t>(l * V + j)];
            }
            const int64_t at = (t * s.heads + h) * V + j;
            sum += beta * k[static_cast<size_t>(i)] * get(in.v, at);
            next[static_cast<size_t>(i * V + j)] = sum;
            y[static_cast<size_t>(at)] += q[static_cast<size_t>(i)] * sum;
          }
        }
        state = next;
      }
      last.insert(last.end(), state.begin(), state.end());
    }
  }
  if (rule.final_state.defined()) y.insert(y.end(), last.begin(), last.end());
  return y;
}

TEST(DeltaRule, MatchesTheDefinition) {
  for (const int64_t tokens : {1, 63, 64, 65, 300}) {
    const RuleSizes sizes{.tokens = tokens, .groups = 2, .key_dim = 5, .heads = 4, .value_dim = 6};
    const Rule exact(DType::kF64, sizes);
    exact.forward();
    EXPECT_TRUE(near(exact.results(), definition(exact), 1e-12)) << tokens;
    const Rule single(DType::kF32, sizes);
    single.forward();
    EXPECT_TRUE(near(single.results(), definition(single), 1e-3)) << tokens;  // of a thousandth of the largest
  }
}

// A layer of Qwen3-Next: 16 heads of keys, 32 of values.
TEST(DeltaRule, MatchesTheDefinitionAtPublishedSizes) {
  const Rule single(DType::kF32, {.tokens = 5, .groups = 16, .key_dim = 128, .heads = 32, .value_dim = 128});
  single.forward();
  EXPECT_TRUE(near(single.results(), definition(single), 1e-3));
}

TEST(DeltaRule, MatchesTheDefinitionWithDocumentsAndStatesElsewhere) {
  Rule rule(DType::kF64, {.seqs = 2, .tokens = 90, .groups = 2, .heads = 4});
  rule.documents({0, 0, 5, 6, 70, 90, 100, 100, 164, 180, 180});
  rule.continue_elsewhere();
  rule.forward();
  EXPECT_TRUE(near(rule.results(), definition(rule), 1e-12));
}

void expect_gradients(const Rule& rule) {
  const auto loss = [&] { return rule.loss(); };
  rule.backward();
  EXPECT_TRUE(gradient_matches(loss, rule.in.q, rule.dq));
  EXPECT_TRUE(gradient_matches(loss, rule.in.k, rule.dk));
  EXPECT_TRUE(gradient_matches(loss, rule.in.v, rule.dv));
  EXPECT_TRUE(gradient_matches(loss, rule.in.b, rule.db));
  EXPECT_TRUE(gradient_matches(loss, rule.in.a, rule.da));
  EXPECT_TRUE(gradient_matches(loss, rule.in.dt_bias, rule.ddt_bias));
  EXPECT_TRUE(gradient_matches(loss, rule.in.a_log, rule.da_log));
  if (rule.in.initial_state.defined()) {
    EXPECT_TRUE(gradient_matches(loss, rule.in.initial_state, rule.dinitial_state));
  }
}

TEST(DeltaRule, BackwardMatchesFiniteDifferences) {
  expect_gradients(Rule(DType::kF64, {.tokens = 11, .groups = 2, .heads = 4}));
  expect_gradients(Rule(DType::kF64, {.tokens = 67, .key_dim = 2, .heads = 1, .value_dim = 2}));  // past a stretch
}

TEST(DeltaRule, BackwardMatchesFiniteDifferencesWithDocumentsAndStatesElsewhere) {
  Rule rule(DType::kF64, {.seqs = 2, .tokens = 13, .groups = 1, .heads = 2});
  rule.documents({0, 6, 13, 13, 18, 26});
  rule.continue_elsewhere();
  expect_gradients(rule);
  Rule long_one(DType::kF64, {.tokens = 70, .key_dim = 2, .heads = 1, .value_dim = 2});
  long_one.documents({0, 64, 66, 70});
  long_one.continue_elsewhere();
  expect_gradients(long_one);
}

// Where softplus is linear, where decays vanish, gates are open and shut, and keys are 0.
TEST(DeltaRule, Extremes) {
  Rule rule(DType::kF64, {.tokens = 9});
  set(rule.in.a, 2, 30.0);
  set(rule.in.a, 7, -40.0);
  set(rule.in.a, 10, 900.0);
  set(rule.in.b, 4, 800.0);
  set(rule.in.b, 5, -800.0);
  for (int64_t i = 0; i < rule.s.key_dim; ++i) set(rule.in.k, 3 * rule.s.key_dim + i, 0.0);
  rule.forward();
  EXPECT_TRUE(near(rule.results(), definition(rule), 1e-12));
  rule.backward();
  for (const Tensor& gradient : {rule.da, rule.db, rule.dk, rule.ddt_bias, rule.da_log}) {
    for (const double value : values(gradient)) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(DeltaRule, SinglePrecisionGradientsAgreeWithDouble) {
  const RuleSizes sizes{.tokens = 300, .groups = 2, .key_dim = 16, .heads = 4, .value_dim = 8};
  const Rule single(DType::kF32, sizes), exact(DType::kF64, sizes);
  for (const Rule* rule : {&single, &exact}) {
    rule->forward();
    rule->backward();
  }
  for (Tensor Rule::*const member : std::initializer_list<Tensor Rule::*>{&Rule::dq, &Rule::dk, &Rule::dv, &Rule::db,
                                                                          &Rule::da, &Rule::da_log, &Rule::ddt_bias}) {
    EXPECT_TRUE(near(single.*member, exact.*member, 2e-3));
  }
}

TEST(DeltaRule, BitsDoNotDependOnThreads) {
  const RuleSizes sizes{.seqs = 2, .tokens = 150, .groups = 3, .key_dim = 7, .heads = 6, .value_dim = 5};
  std::vector<std::unique_ptr<Rule>> rules;
  for (const int threads : {1, 3}) {
    rules.push_back(std::make_unique<Rule>(DType::kF32, sizes, threads));
    rules.back()->documents({0, 45, 150, 300});
    rules.back()->forward();
    rules.back()->backward();
  }
  for (Tensor Rule::*const member : std::initializer_list<Tensor Rule::*>{
           &Rule::y, &Rule::dq, &Rule::dk, &Rule::dv, &Rule::db, &Rule::da, &Rule::ddt_bias, &Rule::da_log}) {
    EXPECT_EQ(values((*rules[0]).*member), values((*rules[1]).*member));
  }
}

constexpr Tensor DeltaRuleInputs::*kRuleRows[] = {&DeltaRuleInputs::q, &DeltaRuleInputs::k, &DeltaRuleInputs::v,
                                                  &DeltaRuleInputs::b, &DeltaRuleInputs::a};

// Whatever one document holds, and wherever the other lies: not a bit of it is in the other.
TEST(DeltaRule, DocumentsDoNotTouch) {
  const RuleSizes packed{.tokens = 100, .groups = 2, .heads = 4}, alone{.tokens = 87, .groups = 2, .heads = 4};
  const auto run = [&](double poison) {
    auto rule = std::make_unique<Rule>(DType::kF32, packed);
    rule->documents({0, 13, 100});
    const auto spoil = [&](Tensor rows) {
      for (int64_t i = 0; i < 13 * rows.shape().row_elements(); ++i) set(rows, i, poison);
    };
    for (const auto& member : kRuleRows) spoil(rule->in.*member);
    spoil(rule->dy);
    rule->forward();
    rule->backward();
    return rule;
  };
  const auto quiet = run(0.25), loud = run(std::nan(""));
  Rule by_itself(DType::kF32, alone);
  const auto second = [](Tensor rows) { return values(rows.rows(13, 100)); };
  const auto put = [&](Tensor to, Tensor from) {
    const std::vector<double> rows = second(from);
    for (size_t i = 0; i < rows.size(); ++i) set(to, static_cast<int64_t>(i), rows[i]);
  };
  for (const auto& member : kRuleRows) put(by_itself.in.*member, quiet->in.*member);
  put(by_itself.dy, quiet->dy);
  by_itself.in.dt_bias = quiet->in.dt_bias;
  by_itself.in.a_log = quiet->in.a_log;
  by_itself.forward();
  by_itself.backward();
  for (Tensor Rule::*const member :
       std::initializer_list<Tensor Rule::*>{&Rule::y, &Rule::dq, &Rule::dk, &Rule::dv, &Rule::db, &Rule::da}) {
    EXPECT_EQ(second((*quiet).*member), second((*loud).*member));
    EXPECT_EQ(second((*quiet).*member), values(by_itself.*member));
  }
}

// Both parts of a sequence have the bits of the whole, wherever it is cut.
TEST(DeltaRule, ASequenceGoesOnElsewhere) {
  constexpr int64_t kCut = 21, kAll = 90;
  Rule whole(DType::kF32, {.tokens = kAll}), first(DType::kF32, {.tokens = kCut}),
      second(DType::kF32, {.tokens = kAll - kCut});
  for (Rule* rule : {&first, &second}) {
    const int64_t from = rule == &first ? 0 : kCut, end = rule == &first ? kCut : kAll;
    rule->continue_elsewhere();
    for (const auto& member : kRuleRows) rule->in.*member = (whole.in.*member).rows(from, end);
    rule->in.dt_bias = whole.in.dt_bias;
    rule->in.a_log = whole.in.a_log;
    rule->dy = whole.dy.rows(from, end);
  }
  whole.forward();
  whole.backward();
  first.in.initial_state = {};
  first.dinitial_state = {};
  first.forward();
  second.in.initial_state = first.final_state;
  second.dfinal_state = {};
  second.forward();
  second.backward();
  first.dfinal_state = second.dinitial_state;
  first.backward();
  for (Tensor Rule::*const member :
       std::initializer_list<Tensor Rule::*>{&Rule::y, &Rule::dq, &Rule::dk, &Rule::dv, &Rule::db, &Rule::da}) {
    EXPECT_EQ(values((whole.*member).rows(0, kCut)), values(first.*member));
    EXPECT_EQ(values((whole.*member).rows(kCut, kAll)), values(second.*member));
  }
}

// Generation in passes of any number of rows of two slots, whose memory held something else before.
TEST(DeltaRule, CachedRowsHaveTheBitsOfForward) {
  const RuleSizes sizes{.tokens = 45, .groups = 2, .key_dim = 20, .heads = 6, .value_dim = 24};
  Rule rule(DType::kF32, sizes), other(DType::kF32, sizes);
  rule.forward();
  for (int64_t i = 0; i < other.in.v.num_elements(); ++i) set(other.in.v, i, get(rule.in.v, i) + 1);
  other.forward();
  TensorPool& pool = rule.pool;
  const Tensor states = pool.full({3, sizes.heads, sizes.key_dim, sizes.value_dim}, std::nan(""));
  int64_t done = 0;
  for (const int64_t count : {1, 3, 30, 1, 1, 9}) {
    // Rows of slot 2, of slot 0 and of none, by turns.
    std::vector<double> slots, positions;
    const int64_t T = 3 * count;
    const auto rows = [&](const Tensor DeltaRuleInputs::*member) {
      const Tensor &a = rule.in.*member, &b = other.in.*member;
      const int64_t width = a.shape().row_elements();
      const Tensor all = pool.zeros(a.shape().rank() == 3 ? Shape{T, a.dim(1), a.dim(2)} : Shape{T, width});
      for (int64_t i = 0; i < T * width; ++i) {
        const int64_t t = i / width;
        set(all, i, get(t % 3 == 1 ? b : a, (done + t / 3) * width + i % width));
      }
      return all;
    };
    for (int64_t t = 0; t < T; ++t) {
      slots.push_back(t % 3 == 0 ? 2 : t % 3 == 1 ? 0 : -1);
      positions.push_back(static_cast<double>(done + t / 3));
    }
    const Tensor y = pool.full({T, sizes.heads, sizes.value_dim}, 7.0);
    rule.ops->cached_delta_rule({.q = rows(&DeltaRuleInputs::q),
                                 .k = rows(&DeltaRuleInputs::k),
                                 .v = rows(&DeltaRuleInputs::v),
                                 .b = rows(&DeltaRuleInputs::b),
                                 .a = rows(&DeltaRuleInputs::a),
                                 .dt_bias = rule.in.dt_bias,
                                 .a_log = rule.in.a_log,
                                 .slots = pool.ints({T}, slots),
                                 .positions = pool.ints({T}, positions),
                                 .states = states,
                                 .y = y});
    for (int64_t t = 0; t < count; ++t, ++done) {
      EXPECT_TRUE(same_bits(y[3 * t], rule.y[done])) << done;
      EXPECT_TRUE(same_bits(y[3 * t + 1], other.y[done])) << done;
      EXPECT_EQ(get(y[3 * t + 2], 0), 0.0);
    }
  }
}

TEST(DeltaRule, CountingRunClaimsTheScratchOfARealOne) {
  const Rule run(DType::kF32, {.seqs = 2, .tokens = 20});
  run.forward();
  run.backward();
  const auto counting = make_device({.num_threads = 2});
  counting->ops().delta_rule_forward({run.in, without_data(run.y)});
  counting->ops().delta_rule_backward({.in = run.in,
                                       .dy = without_data(run.dy),
                                       .dq = run.dq,
                                       .dk = run.dk,
                                       .dv = run.dv,
                                       .db = run.db,
                                       .da = run.da,
                                       .ddt_bias = run.ddt_bias,
                                       .da_log = run.da_log});
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), run.ops->scratch().high_water());
}

}  // namespace
}  // namespace nmoe::test
