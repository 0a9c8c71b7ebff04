// What a sweep's file means: expressions, points, rungs.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "config/load.h"
#include "research/sweep/expression.h"
#include "research/sweep/halving.h"
#include "research/sweep/sweep_file.h"
#include "research/sweep/sweep_points.h"
#include "research/sweep/sweep_state.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_run.h"

namespace nmoe::test {
namespace {

double value(std::string_view text) {
  return evaluate(text, [](std::string_view key) { return key == "model.dim" ? 64.0 : 3.0; });
}

TEST(Expression, HasTheUsualOrder) {
  EXPECT_EQ(value("1 + 2 * 3"), 7.0);
  EXPECT_EQ(value("(1+2)*3"), 9.0);
  EXPECT_EQ(value("8 / 4 / 2"), 1.0);
  EXPECT_EQ(value("8 - 4 - 2"), 2.0);
  EXPECT_EQ(value("2 ^ 3 ^ 2"), 512.0);
  EXPECT_EQ(value("-2 ^ 2"), -4.0);
  EXPECT_EQ(value("2 ^ -1"), 0.5);
  EXPECT_EQ(value("model.dim / 4 + other"), 19.0);
  EXPECT_EQ(value("min(model.dim, 10) + max(1, 2)"), 12.0);
  EXPECT_EQ(value("round(2.6) + floor(2.6) + ceil(2.2) + log2(8) + sqrt(16)"), 15.0);
  EXPECT_EQ(value("1e-3 * 2.5E2"), 0.25);
}

TEST(Expression, RefusesTheRestByName) {
  const auto fault = [](std::string_view text) { return std::string(error_of([&] { value(text); }).what()); };
  EXPECT_TRUE(contains(fault("1 +"), "column 4: it ends where a value should be"));
  EXPECT_TRUE(contains(fault("1 % 2"), "column 3: '%' is not expected"));
  EXPECT_TRUE(contains(fault("tanh(2)"), "column 1: there is no function 'tanh'"));
  EXPECT_TRUE(contains(fault("min(2)"), "min takes 2 values, not 1"));
  EXPECT_TRUE(contains(fault("(1"), "there is no ')'"));
  EXPECT_TRUE(contains(fault("1 / 0"), "is inf"));
  EXPECT_TRUE(contains(fault(std::string(200, '-') + "1"), "nested too deep"));
}

SweepFile file_of(std::string_view rest, std::string_view sweep = "") {
  return parse_sweep(fmt::format("[sweep]\nbase = \"tiny.toml\"\n{}\n{}", sweep, rest), "some/rates.toml");
}
std::vector<std::string> points_of(const SweepFile& file) {
  std::vector<std::string> points;
  for (const SweepPoint& point : sweep_points(file, parse_config(kTinyToml, "tiny.toml"))) {
    points.emplace_back();
    for (const auto& [key, of_key] : point) points.back() += fmt::format("{}={} ", key, to_toml(of_key));
  }
  return points;
}
using Texts = std::vector<std::string>;

TEST(SweepPoints, AreEveryCombinationTheLastFastest) {
  const SweepFile file = file_of(R"(
[sweep.keys]
train.batch_seqs = [8, 16]
optim.rest.lr = { from = 1, to = 4, factor = 2 }
[train]
log_every = 5
)");
  EXPECT_EQ(points_of(file),
            (Texts{"train.batch_seqs=8 optim.rest.lr=1.0 ", "train.batch_seqs=8 optim.rest.lr=2.0 ",
                   "train.batch_seqs=8 optim.rest.lr=4.0 ", "train.batch_seqs=16 optim.rest.lr=1.0 ",
                   "train.batch_seqs=16 optim.rest.lr=2.0 ", "train.batch_seqs=16 optim.rest.lr=4.0 "}));
  EXPECT_EQ(file.overrides, Texts{"train.log_every=5"});
  EXPECT_EQ(file.name, "rates");
  EXPECT_EQ(file.base, "some/tiny.toml");
}

TEST(SweepPoints, RangesHaveTheirEnds) {
  EXPECT_EQ(points_of(file_of("[sweep.keys]\noptim.rest.lr = { from = 0.01, to = 1, num = 3, scale = \"log\" }")),
            (Texts{"optim.rest.lr=0.01 ", "optim.rest.lr=0.1 ", "optim.rest.lr=1.0 "}));
  EXPECT_EQ(points_of(file_of("[sweep.keys]\n\"optim.rest.lr\" = { from = 0, to = 0.5, num = 3 }")),
            (Texts{"optim.rest.lr=0.0 ", "optim.rest.lr=0.25 ", "optim.rest.lr=0.5 "}));
  EXPECT_EQ(points_of(file_of("[sweep.keys]\ntrain.batch_seqs = { from = 8, to = 24, step = 8 }")),
            (Texts{"train.batch_seqs=8 ", "train.batch_seqs=16 ", "train.batch_seqs=24 "}));
}

TEST(SweepPoints, TiedKeysAndExpressions) {
  EXPECT_EQ(points_of(file_of(R"(
[sweep.keys]
optim.rest.lr = "= optim.router.lr * 2"
optim.router.lr = "= 1 / model.dim"
model.dense_dim = "= 2 * model.dim"
[[sweep.together]]
model.dim = [16, 32]
model.num_heads = [2, 4]
)")),
            (Texts{"model.dim=16 model.num_heads=2 optim.rest.lr=0.125 optim.router.lr=0.0625 model.dense_dim=32 ",
                   "model.dim=32 model.num_heads=4 optim.rest.lr=0.0625 optim.router.lr=0.03125 model.dense_dim=64 "}));
}

// Halton's sequence fills evenly: of 64 draws, every eighth of either axis gets eight or, for base 3, nearly as many.
TEST(SweepPoints, DrawsFillEvenlyAndFollowTheirSeed) {
  const char* const keys = R"(
[sweep.keys]
optim.rest.lr = { from = 1e-4, to = 1e-2, draw = "log" }
optim.router.lr = { from = 0, to = 1, draw = "linear" }
)";
  const Config base = parse_config(kTinyToml, "tiny.toml");
  const auto draw = [&](int seed) {
    return sweep_points(file_of(keys, fmt::format("draws = 64\ndraw_seed = {}", seed)), base);
  };
  const std::vector<SweepPoint> points = draw(3);
  ASSERT_EQ(points.size(), 64u);
  std::map<int, int> first, second;
  for (const SweepPoint& point : points) {
    const double lr = std::get<double>(point[0].second);
    EXPECT_TRUE(lr >= 1e-4 && lr <= 1e-2) << lr;
    ++first[static_cast<int>(4.0 * std::log10(lr / 1e-4))];
    ++second[static_cast<int>(8.0 * std::get<double>(point[1].second))];
  }
  for (const auto& [eighth, count] : first) EXPECT_NEAR(count, 8, 1) << eighth;
  for (const auto& [eighth, count] : second) EXPECT_NEAR(count, 8, 3) << eighth;
  EXPECT_EQ(draw(3), points);
  EXPECT_NE(draw(4), points);
}

TEST(SweepFile, FaultsHavePlaceAndRemedy) {
  const auto expect = [](std::string_view rest, std::string_view sweep, const char* what, const char* remedy) {
    const Error error = error_of([&] { points_of(file_of(rest, sweep)); });
    EXPECT_TRUE(contains(error.what(), what));
    EXPECT_TRUE(contains(error.remedy(), remedy));
    EXPECT_EQ(error.exit_code(), 2);
  };
  expect("", "sedes = 2", "some/rates.toml:3: sweep has no key 'sedes'", "did you mean 'seeds'?");
  expect("[sweep.keys]\noptim.rest.lrr = [1]", "", "rates.toml:5: unknown key optim.rest.lrr", "optim.rest.lr");
  expect("[sweep.keys]\nrun.seed = [1]", "", "rates.toml:5: run.seed cannot be swept", "sweep.seeds");
  expect("[sweep.keys]\noptim.rest.lr = 1", "", "neither a list, a range", "belongs into the tables");
  expect("[sweep.keys]\noptim.rest.lr = { from = 1, to = 2 }", "", "needs one of num, step, factor", "leave one");
  expect("[sweep.keys]\noptim.rest.lr = { from = 0, to = 2, factor = 2 }", "", "goes from 0 to 2", "above 0");
  expect("[sweep.keys]\noptim.rest.lr = { from = 0, to = 2, draw = \"linear\" }", "", "sweep.draws is not set", "set");
  expect("[sweep.keys]\noptim.rest.lr = [1]", "draws = 3", "no key is drawn", "remove it");
  expect("[sweep.keys]\noptim.rest.lr = \"= optim.router.lr\"\noptim.router.lr = \"= optim.rest.lr\"", "",
         "follows from itself", "break the circle");
  expect("[sweep.keys]\nmodel.dim = \"= 1 / 3\"", "", "must be a whole number", "round");
  expect("[sweep.keys]\nmodel.dim = \"= optim.rst.lr\"", "", "unknown key optim.rst.lr", "optim.rest.lr");
  expect("[sweep.keys]\nmodel.dim = \"= data.path\"", "", "data.path is no number", "have numbers");
  expect("[sweep.keys]\nmodel.dim = [16, 16]", "", "two points of the sweep are the same: model.dim = 16", "twice");
  expect("[[sweep.together]]\nmodel.dim = [16, 32]\nmodel.num_heads = [2]", "", "model.num_heads has 1 values", "many");
  expect("[sweep.keys]\nmodel.dim = [16]\n[model]\ndim = 16", "", "both swept and set", "remove one");
  expect("[run]\nname = \"a\"", "", "run.name is set by the sweep", "sweep.run_name");
  expect("[sweep.halving]\nat = [0.5, 0.25]", "", "does not rise", "sort");
  expect("", "direction = \"least\"", "\"min\" or \"max\"", "correct");
}

TEST(Halving, TheBestGoOn) {
  // Curves a / (step + b): at step 10 the order is by a and b, at the end by a alone; the rung sees step 10.
  std::vector<RungResult> results;
  for (int64_t point = 1; point <= 8; ++point) {
    for (const double noise : {-0.01, 0.01}) results.push_back({point, 1.0 + 0.1 * static_cast<double>(point) + noise});
  }
  using Points = std::vector<int64_t>;
  EXPECT_EQ(surviving_points(results, 0.5, GoalDirection::kLeast), (Points{1, 2, 3, 4}));
  EXPECT_EQ(surviving_points(results, 0.5, GoalDirection::kLargest), (Points{5, 6, 7, 8}));
  EXPECT_EQ(surviving_points(results, 0.3, GoalDirection::kLeast), (Points{1, 2, 3}));
  results[0].goal.reset();  // one run of point 1 diverged
  results[3].goal = NAN;    // and one of point 2
  EXPECT_EQ(surviving_points(results, 0.5, GoalDirection::kLeast), (Points{3, 4, 5}));
  EXPECT_EQ(surviving_points({{1, 2.0}, {2, 2.0}}, 0.5, GoalDirection::kLeast), (Points{1}));
  EXPECT_EQ(surviving_points({{1, std::nullopt}}, 0.5, GoalDirection::kLeast), Points{});
}

class SweepStateTest : public TempDirTest {};

TEST_F(SweepStateTest, IsReadAsItWasWritten) {
  SweepState state{.name = "a", .file = "a.toml", .goal = "valid/loss", .seconds = 2.5, .rungs_decided = 1};
  state.runs.push_back({.name = "a-01-s1", .point = 1, .seed = 1, .values = "x=1", .fingerprint = "f", .steps = 9});
  state.runs.push_back(
      {.name = "a-02-s1", .state = SweepRunState::kDiverged, .crashes = 2, .goal = 0.1, .reason = "r"});
  write_sweep_state(dir_, state);
  const SweepState read = *read_sweep_state(dir_);
  EXPECT_EQ(read.rungs_decided, 1);
  EXPECT_EQ(read.runs[0].steps, 9);
  EXPECT_FALSE(read.runs[0].goal.has_value());
  EXPECT_EQ(read.runs[1].state, SweepRunState::kDiverged);
  EXPECT_EQ(read.runs[1].goal, 0.1);
  write_file_atomically(sweep_state_path(dir_), "{\"version\": 1}");
  EXPECT_TRUE(contains(error_of([&] { read_sweep_state(dir_); }).what(), "is no sweep's state"));
}

}  // namespace
}  // namespace nmoe::test
