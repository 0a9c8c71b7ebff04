// The SSD scan against the recurrence, a token at a time in double precision.
#include <cmath>

#include "ops/recurrent_problem.h"

namespace nmoe::test {
namespace {

struct Sizes {
  int64_t seqs = 1, tokens = 8, heads = 2, head_dim = 3, groups = 1, state = 4, chunk = 4;
  int64_t rows() const { return seqs * tokens; }
};

// Inputs of a scan and room for everything that it writes. Rows of x, b, c and dt lie apart, as in a layer.
struct Scan : RecurrentProblem<SsdInputs> {
  Scan(DType real, const Sizes& sizes, int num_threads = 2)
      : RecurrentProblem(real, sizes.seqs, sizes.tokens, {sizes.seqs, sizes.heads, sizes.head_dim, sizes.state},
                         num_threads),
        s(sizes) {
    in.chunk = s.chunk;
    in.x = pool.apart(pool.normal({s.rows(), s.heads, s.head_dim}), 3);
    in.b = pool.apart(pool.normal({s.rows(), s.groups, s.state}), 1);
    in.c = pool.apart(pool.normal({s.rows(), s.groups, s.state}), 2);
    in.dt = pool.apart(pool.normal({s.rows(), s.heads}), 1);
    in.dt_bias = pool.normal({s.heads}, 0.5, -2.0);
    in.a_log = pool.normal({s.heads}, 0.5, 0.5);
    in.d = pool.normal({s.heads});
    y = pool.full({s.rows(), s.heads, s.head_dim}, 7.0);
    dy = pool.normal({s.rows(), s.heads, s.head_dim});
    dx = pool.apart(pool.full({s.rows(), s.heads, s.head_dim}, 7.0), 2);
    db = pool.apart(pool.full({s.rows(), s.groups, s.state}, 7.0), 1);
    dc = pool.apart(pool.full({s.rows(), s.groups, s.state}, 7.0), 1);
    ddt = pool.apart(pool.full({s.rows(), s.heads}, 7.0), 1);
    for (Tensor* gradient : {&ddt_bias, &da_log, &dd}) *gradient = pool.zeros({s.heads});
  }
  void forward() const { ops->ssd_forward({in, y, final_state}); }
  void backward() const {
    for (const Tensor& gradient : {ddt_bias, da_log, dd}) ops->fill({gradient, 0.0});
    ops->ssd_backward({.in = in,
                       .dy = dy,
                       .dfinal_state = dfinal_state,
                       .dx = dx,
                       .db = db,
                       .dc = dc,
                       .ddt = ddt,
                       .ddt_bias = ddt_bias,
                       .da_log = da_log,
                       .dd = dd,
                       .dinitial_state = dinitial_state});
  }
  double loss() const {
    forward();
    return loss_of_results();
  }

  Sizes s;
  Tensor dx, db, dc, ddt, ddt_bias, da_log, dd;
};

// The definition: y, then the last states.
std::vector<double> recurrence(const Scan& scan) {
  const Sizes& s = scan.s;
  const SsdInputs& in = scan.in;
  std::vector<double> y(static_cast<size_t>(s.rows() * s.heads * s.head_dim)), last;
  for (int64_t seq = 0; seq < s.seqs; ++seq) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t group = h / (s.heads / s.groups), size = s.head_dim * s.state;
      std::vector<double> state(static_cast<size_t>(size));
      for (int64_t t = seq * s.tokens; t < (seq + 1) * s.tokens; ++t) {
        if (scan.begins_document(t)) {
          for (int64_t i = 0; i < size; ++i) {
            const bool goes_on = t == seq * s.tokens && in.initial_state.defined();
            state[static_cast<size_t>(i)] = goes_on ? get(in.initial_state, (seq * s.heads + h) * size + i) : 0;
          }
        }
        const double biased = get(in.dt, t * s.heads + h) + get(in.dt_bias, h);
        const double step = biased > 20 ? biased : std::log1p(std::exp(biased));
        const double decay = std::exp(-step * std::exp(get(in.a_log, h)));
        for (int64_t p = 0; p < s.head_dim; ++p) {
          const int64_t at = (t * s.heads + h) * s.head_dim + p;
          double sum = get(in.d, h) * get(in.x, at);
          for (int64_t n = 0; n < s.state; ++n) {
            double& value = state[static_cast<size_t>(p * s.state + n)];
            value = decay * value + step * get(in.x, at) * get(in.b, (t * s.groups + group) * s.state + n);
            sum += value * get(in.c, (t * s.groups + group) * s.state + n);
          }
          y[static_cast<size_t>(at)] = sum;
        }
      }
      last.insert(last.end(), state.begin(), state.end());
    }
  }
  if (scan.final_state.defined()) y.insert(y.end(), last.begin(), last.end());
  return y;
}

TEST(Ssd, MatchesTheRecurrence) {
  for (const int64_t tokens : {1, 127, 128, 129, 1000}) {
    const Sizes sizes{.tokens = tokens, .heads = 4, .head_dim = 5, .groups = 2, .state = 6, .chunk = 128};
    const Scan exact(DType::kF64, sizes);
    exact.forward();
    EXPECT_TRUE(near(exact.results(), recurrence(exact), 1e-11)) << tokens;
    const Scan single(DType::kF32, sizes);
    single.forward();
    EXPECT_TRUE(near(single.results(), recurrence(single), 2e-3)) << tokens;  // of a thousandth of the largest
  }
}

TEST(Ssd, MatchesTheRecurrenceWithDocumentsAndStatesElsewhere) {
  for (const int64_t chunk : {1, 3, 8, 64}) {
    Scan scan(DType::kF64, {.seqs = 2, .tokens = 23, .heads = 4, .groups = 2, .chunk = chunk});
    scan.documents({0, 0, 5, 6, 17, 23, 37, 37, 46, 46});
    scan.continue_elsewhere();
    scan.forward();
    EXPECT_TRUE(near(scan.results(), recurrence(scan), 1e-12)) << chunk;
  }
}

void expect_gradients(const Scan& scan) {
  const auto loss = [&] { return scan.loss(); };
  scan.backward();
  EXPECT_TRUE(gradient_matches(loss, scan.in.x, scan.dx));
  EXPECT_TRUE(gradient_matches(loss, scan.in.b, scan.db));
  EXPECT_TRUE(gradient_matches(loss, scan.in.c, scan.dc));
  EXPECT_TRUE(gradient_matches(loss, scan.in.dt, scan.ddt));
  EXPECT_TRUE(gradient_matches(loss, scan.in.dt_bias, scan.ddt_bias));
  EXPECT_TRUE(gradient_matches(loss, scan.in.a_log, scan.da_log));
  EXPECT_TRUE(gradient_matches(loss, scan.in.d, scan.dd));
  if (scan.in.initial_state.defined()) {
    EXPECT_TRUE(gradient_matches(loss, scan.in.initial_state, scan.dinitial_state));
  }
}

TEST(Ssd, BackwardMatchesFiniteDifferences) {
  for (const int64_t chunk : {1, 4, 16}) {
    SCOPED_TRACE(chunk);
    expect_gradients(Scan(DType::kF64, {.tokens = 11, .heads = 4, .groups = 2, .chunk = chunk}));
  }
}

TEST(Ssd, BackwardMatchesFiniteDifferencesWithDocumentsAndStatesElsewhere) {
  Scan scan(DType::kF64, {.seqs = 2, .tokens = 13, .heads = 2, .groups = 1, .chunk = 4});
  scan.documents({0, 6, 13, 13, 18, 26});
  scan.continue_elsewhere();
  expect_gradients(scan);
}

// Where softplus is linear, and where decays and steps vanish.
TEST(Ssd, ExtremeSteps) {
  Scan scan(DType::kF64, {.tokens = 9});
  set(scan.in.dt, 2, 30.0);
  set(scan.in.dt, 7, -40.0);
  set(scan.in.dt, 10, 900.0);
  scan.forward();
  EXPECT_TRUE(near(scan.results(), recurrence(scan), 1e-12));
  scan.backward();
  for (const double value : values(scan.ddt)) EXPECT_TRUE(std::isfinite(value));
}

TEST(Ssd, SinglePrecisionGradientsAgreeWithDouble) {
  const Sizes sizes{.tokens = 300, .heads = 4, .head_dim = 16, .groups = 2, .state = 8, .chunk = 64};
  const Scan single(DType::kF32, sizes), exact(DType::kF64, sizes);
  for (const Scan* scan : {&single, &exact}) {
    scan->forward();
    scan->backward();
  }
  EXPECT_TRUE(near(single.dx, exact.dx, 2e-3));
  EXPECT_TRUE(near(single.db, exact.db, 2e-3));
  EXPECT_TRUE(near(single.dc, exact.dc, 2e-3));
  EXPECT_TRUE(near(single.ddt, exact.ddt, 5e-3));
  EXPECT_TRUE(near(single.da_log, exact.da_log, 1e-3));
}

TEST(Ssd, BitsDoNotDependOnThreads) {
  const Sizes sizes{.seqs = 2, .tokens = 150, .heads = 6, .head_dim = 5, .groups = 2, .state = 7, .chunk = 32};
  std::vector<std::unique_ptr<Scan>> scans;
  for (const int threads : {1, 3}) {
    scans.push_back(std::make_unique<Scan>(DType::kF32, sizes, threads));
    scans.back()->documents({0, 45, 150, 300});
    scans.back()->forward();
    scans.back()->backward();
  }
  const Scan &one = *scans[0], &three = *scans[1];
  EXPECT_TRUE(same_bits(one.y, three.y));
  for (const auto& [a, b] : {std::pair(one.dx, three.dx),
                             {one.db, three.db},
                             {one.dc, three.dc},
                             {one.ddt, three.ddt},
                             {one.ddt_bias, three.ddt_bias},
                             {one.da_log, three.da_log},
                             {one.dd, three.dd}}) {
    EXPECT_EQ(values(a), values(b));
  }
}

// Whatever one document holds, and wherever the other lies: not a bit of it is in the other.
TEST(Ssd, DocumentsDoNotTouch) {
  const Sizes packed{.tokens = 40, .heads = 4, .groups = 2, .chunk = 8},
      alone{.tokens = 27, .heads = 4, .groups = 2, .chunk = 8};
  const auto run = [&](double poison) {
    auto scan = std::make_unique<Scan>(DType::kF32, packed);
    scan->documents({0, 13, 40});
    for (const Tensor& rows : {scan->in.x, scan->in.b, scan->in.c, scan->in.dt, scan->dy}) {
      for (int64_t i = 0; i < 13 * rows.shape().row_elements(); ++i) set(rows, i, poison);
    }
    scan->forward();
    scan->backward();
    return scan;
  };
  const auto quiet = run(0.25), loud = run(std::nan(""));
  Scan by_itself(DType::kF32, alone);
  const auto second = [](Tensor rows) { return values(rows.rows(13, 40)); };
  for (const auto& [to, from] : {std::pair(by_itself.in.x, quiet->in.x),
                                 {by_itself.in.b, quiet->in.b},
                                 {by_itself.in.c, quiet->in.c},
                                 {by_itself.in.dt, quiet->in.dt},
                                 {by_itself.dy, quiet->dy}}) {
    const std::vector<double> rows = second(from);
    for (size_t i = 0; i < rows.size(); ++i) set(to, static_cast<int64_t>(i), rows[i]);
  }
  by_itself.in.dt_bias = quiet->in.dt_bias;
  by_itself.in.a_log = quiet->in.a_log;
  by_itself.in.d = quiet->in.d;
  by_itself.forward();
  by_itself.backward();
  for (Tensor Scan::*const member :
       std::initializer_list<Tensor Scan::*>{&Scan::y, &Scan::dx, &Scan::db, &Scan::dc, &Scan::ddt}) {
    EXPECT_EQ(second((*quiet).*member), second((*loud).*member));
    EXPECT_EQ(second((*quiet).*member), values(by_itself.*member));
  }
}

// Both halves of a sequence cut at a chunk's end have the bits of the whole.
TEST(Ssd, ASequenceGoesOnElsewhere) {
  const Sizes half{.tokens = 16, .heads = 2, .chunk = 8}, all{.tokens = 32, .heads = 2, .chunk = 8};
  Scan whole(DType::kF32, all), first(DType::kF32, half), second(DType::kF32, half);
  for (Scan* scan : {&first, &second}) {
    const int64_t from = scan == &first ? 0 : 16;
    scan->continue_elsewhere();
    scan->in.x = whole.in.x.rows(from, from + 16);
    scan->in.b = whole.in.b.rows(from, from + 16);
    scan->in.c = whole.in.c.rows(from, from + 16);
    scan->in.dt = whole.in.dt.rows(from, from + 16);
    scan->in.dt_bias = whole.in.dt_bias;
    scan->in.a_log = whole.in.a_log;
    scan->in.d = whole.in.d;
    scan->dy = whole.dy.rows(from, from + 16);
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
  for (Tensor Scan::*const member :
       std::initializer_list<Tensor Scan::*>{&Scan::y, &Scan::dx, &Scan::db, &Scan::dc, &Scan::ddt}) {
    EXPECT_EQ(values((whole.*member).rows(0, 16)), values(first.*member));
    EXPECT_EQ(values((whole.*member).rows(16, 32)), values(second.*member));
  }
}

// Generation in passes of any number of rows of two slots, whose memory held something else before.
TEST(Ssd, CachedRowsHaveTheBitsOfForward) {
  const Sizes sizes{.tokens = 45, .heads = 6, .head_dim = 20, .groups = 2, .state = 24, .chunk = 16};
  Scan scan(DType::kF32, sizes), other(DType::kF32, sizes);
  scan.forward();
  for (int64_t i = 0; i < other.in.x.num_elements(); ++i) set(other.in.x, i, get(scan.in.x, i) + 1);
  other.forward();
  TensorPool& pool = scan.pool;
  const Tensor states = pool.full({3, sizes.heads, sizes.head_dim, sizes.state}, std::nan(""));
  const Tensor open_x = pool.full({3, sizes.chunk, sizes.heads * sizes.head_dim}, std::nan(""));
  const Tensor open_b = pool.full({3, sizes.chunk, sizes.groups * sizes.state}, std::nan(""));
  const Tensor open_step = pool.full({3, sizes.chunk, sizes.heads}, std::nan(""));
  int64_t done = 0;
  for (const int64_t count : {1, 3, 30, 1, 1, 9}) {
    // Rows of slot 2, of slot 0 and of none, by turns.
    std::vector<double> slots, positions;
    const int64_t T = 3 * count;
    const auto rows = [&](Tensor a, Tensor b) {
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
    const Tensor y = pool.full({T, sizes.heads, sizes.head_dim}, 7.0);
    scan.ops->cached_ssd({.x = rows(scan.in.x, other.in.x),
                          .b = rows(scan.in.b, other.in.b),
                          .c = rows(scan.in.c, other.in.c),
                          .dt = rows(scan.in.dt, other.in.dt),
                          .dt_bias = scan.in.dt_bias,
                          .a_log = scan.in.a_log,
                          .d = scan.in.d,
                          .slots = pool.ints({T}, slots),
                          .positions = pool.ints({T}, positions),
                          .states = states,
                          .open_x = open_x,
                          .open_b = open_b,
                          .open_step = open_step,
                          .y = y});
    for (int64_t t = 0; t < count; ++t, ++done) {
      EXPECT_TRUE(same_bits(y[3 * t], scan.y[done])) << done;
      EXPECT_TRUE(same_bits(y[3 * t + 1], other.y[done])) << done;
      EXPECT_EQ(get(y[3 * t + 2], 0), 0.0);
    }
  }
}

TEST(Ssd, CountingRunClaimsTheScratchOfARealOne) {
  const Scan run(DType::kF32, {.seqs = 2, .tokens = 20});
  run.forward();
  run.backward();
  const auto counting = make_device({.num_threads = 2});
  SsdBackward args{.in = run.in,
                   .dy = without_data(run.dy),
                   .dx = run.dx,
                   .db = run.db,
                   .dc = run.dc,
                   .ddt = run.ddt,
                   .ddt_bias = run.ddt_bias,
                   .da_log = run.da_log,
                   .dd = run.dd};
  counting->ops().ssd_forward({run.in, without_data(run.y)});
  counting->ops().ssd_backward(args);
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), run.ops->scratch().high_water());
}

}  // namespace
}  // namespace nmoe::test
