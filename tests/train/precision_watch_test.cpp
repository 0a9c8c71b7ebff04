#include "train/precision/precision_watch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "train/precision/precision_report.h"

namespace nmoe {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Two roles, of which the second stays sound.
PrecisionWatch make_watch(OperandFormat format = OperandFormat::kFp8) {
  return PrecisionWatch({{1, WeightPart::kExperts, format}, {2, WeightPart::kMixer, OperandFormat::kFp8}});
}

std::vector<PrecisionWatch::Change> observe(PrecisionWatch& watch, double snr_db,
                                            Measured measured = Measured::kWeights) {
  std::vector<RoleCheck> checks(2);
  for (size_t i = 0; i < checks.size(); ++i) checks[i].format = watch.roles()[i].format;
  checks[0].qualities[static_cast<size_t>(measured)].snr_db = snr_db;
  checks[1].qualities[0].snr_db = 31.5;
  return watch.observe(checks);
}

// In how many checks of these ratios the first role changes, by number from 1; 0: never.
int first_change(PrecisionWatch& watch, const std::vector<double>& ratios) {
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (!observe(watch, ratios[i]).empty()) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(PrecisionWatch, ThreeOfFourChecksBelowTheThresholdDecide) {
  const auto changes_at = [](std::vector<double> ratios, OperandFormat format = OperandFormat::kFp8) {
    PrecisionWatch watch = make_watch(format);
    return first_change(watch, ratios);
  };
  EXPECT_EQ(changes_at({27, 27, 27}), 3);
  EXPECT_EQ(changes_at({27, 31, 27, 27}), 4);
  EXPECT_EQ(changes_at({31, 31, 31, 31, 27, 27, 31, 27}), 8);
  EXPECT_EQ(changes_at({27, 27, 31, 31, 27, 27, 31, 31, 27}), 0);
  EXPECT_EQ(changes_at({28, 28, 28, 28, 28}), 0);  // at the threshold
  EXPECT_EQ(changes_at({kInfinite, kInfinite, kInfinite, kInfinite}), 0);
  EXPECT_EQ(changes_at({10, 10, 10, 10}, OperandFormat::kNvFp4), 0);
  EXPECT_EQ(changes_at({9, 9, 9}, OperandFormat::kNvFp4), 3);
}

TEST(PrecisionWatch, ReturnsWhenAllChecksOfAWindowAreWellAboveIt) {
  PrecisionWatch watch = make_watch();
  ASSERT_EQ(first_change(watch, {20, 20, 20}), 3);
  EXPECT_TRUE(watch.in_act(0));
  EXPECT_FALSE(watch.in_act(1));
  EXPECT_EQ(first_change(watch, {29, 29, 29, 29, 29, 29}), 0);  // above the threshold, but not by the margin
  EXPECT_EQ(first_change(watch, {31, 31, 31, 29, 31, 31, 31, 31}), 8);
  EXPECT_FALSE(watch.in_act(0));
  EXPECT_EQ(first_change(watch, {20, 20, 31, 20}), 4);  // and may leave again
}

TEST(PrecisionWatch, OutputsHaveAThresholdOfTheirOwn) {
  for (const Measured output : {Measured::kOutputs, Measured::kInputGradients}) {
    PrecisionWatch watch = make_watch(), nvfp4 = make_watch(OperandFormat::kNvFp4);
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(observe(watch, 25.5, output).empty());
      EXPECT_TRUE(observe(nvfp4, 12.5, output).empty());
    }
    observe(watch, 24.5, output);
    observe(watch, 24.5, output);
    const auto left = observe(watch, 24.5, output);
    ASSERT_EQ(left.size(), 1U);
    EXPECT_EQ(left[0].lowest, output);
    EXPECT_EQ(precision_message(left[0], PrecisionFallback::kAct),
              fmt::format("warning: layer 1: experts: rounded to fp8, {} keep 24.5 dB, below 25 in 3 of 4 checks; "
                          "computed without it from the next step on",
                          output == Measured::kOutputs ? "outputs" : "input gradients"));
  }
}

// What is nearest to its own threshold, not what is lowest.
TEST(PrecisionWatch, TheLeastMarginIsToldAndDecides) {
  RoleCheck check;
  check.format = OperandFormat::kFp8;
  check.qualities[static_cast<size_t>(Measured::kInputs)].snr_db = 29.0;
  check.qualities[static_cast<size_t>(Measured::kOutputs)].snr_db = 27.0;
  EXPECT_EQ(check.lowest(), Measured::kInputs);
  EXPECT_EQ(check.margin_db(Measured::kOutputs), 2.0);
}

TEST(PrecisionWatch, SaysWhatChangesAndWhy) {
  PrecisionWatch watch = make_watch();
  observe(watch, 3.25);
  observe(watch, 3.25);
  const auto left = observe(watch, 3.25);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(
      precision_message(left[0], PrecisionFallback::kAct),
      "warning: layer 1: experts: rounded to fp8, weights keep 3.2 dB, below 28 in 3 of 4 checks; computed without "
      "it from the next step on");
  EXPECT_EQ(precision_message(left[0], PrecisionFallback::kReport),
            "warning: layer 1: experts: rounded to fp8, weights keep 3.2 dB, below 28 in 3 of 4 checks; "
            "precision.fallback = \"act\" would compute them without it, as would precision.experts = \"device\"");
  for (int i = 0; i < 3; ++i) observe(watch, 31);
  EXPECT_EQ(precision_message(observe(watch, 31).at(0), PrecisionFallback::kAct),
            "layer 1: experts: weights bear fp8 again (31.0 dB); back to fp8");
}

TEST(PrecisionWatch, GoesOnFromItsState) {
  PrecisionWatch watch = make_watch();
  observe(watch, 20);
  observe(watch, 20);
  PrecisionWatch other = make_watch();
  ASSERT_TRUE(other.restore(watch.state()));
  EXPECT_EQ(observe(other, 20).size(), 1U);
  PrecisionWatch third = make_watch();
  ASSERT_TRUE(third.restore(other.state()));
  EXPECT_TRUE(third.in_act(0));
  PrecisionWatch of_another_model({{3, WeightPart::kExperts, OperandFormat::kFp8}});
  EXPECT_FALSE(of_another_model.restore(watch.state()));
  EXPECT_FALSE(of_another_model.restore({}));
}

// The lowest of a role's weights, whatever the others have.
TEST(PrecisionWatch, AnOperandIsAsGoodAsItsWorstWeight) {
  MeasuredQuality quality;
  EXPECT_EQ(quality.snr_db, kInfinite);
  quality.add({.values = 100, .underflows = 1, .saturated = 0, .rows = 10, .lost = 10 * 0.001 / kLostUnit});
  EXPECT_NEAR(quality.snr_db, 30.0, 1e-9);
  quality.add({.values = 10, .underflows = 5, .saturated = 1, .rows = 10, .lost = 10 * 0.1 / kLostUnit});
  quality.add({.values = 1e9, .underflows = 0, .saturated = 0, .rows = 1e7, .lost = 1});
  quality.add({});
  EXPECT_NEAR(quality.snr_db, 10.0, 1e-9);
  EXPECT_EQ(quality.underflow_share, 0.5);
  EXPECT_EQ(quality.saturated_share, 0.1);
}

}  // namespace
}  // namespace nmoe
