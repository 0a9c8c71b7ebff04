#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "hf/parity.h"

namespace nmoe::cli {
namespace {

std::string_view name_of(Precision precision) {
  if (precision == Precision::kNvFp4) return "nvfp4";
  return precision == Precision::kMxFp8 ? "mxfp8" : "fp8";
}

std::string within(const std::optional<double>& tolerance) {
  return tolerance ? fmt::format(", tolerance {:g}", *tolerance) : "";
}

void print_expectation(const ParityReport& report, Precision precision) {
  const int64_t forward = report.num_products, both = 2 * forward;
  const double logits = expected_rounding_error(precision, forward),
               gradients = expected_rounding_error(precision, both);
  const double gradient = report.median_gradient();
  fmt::print(
      "{} costs some {:.1f} % of a product: of logits, behind {} of them, {:.1f} % are expected, of gradients {:.1f} "
      "%; "
      "here {:.1f} and, in the median, {:.1f} %: {}\n",
      name_of(precision), 100.0 * expected_rounding_error(precision, 1), forward, 100.0 * logits, 100.0 * gradients,
      100.0 * report.logits_relative, 100.0 * gradient,
      report.logits_relative <= logits && gradient <= gradients ? "as expected"
                                                                : "more than rounding explains by itself");
}

}  // namespace

void parity_command(const ParityArguments& given) {
  const Precision precision = given.options.precision;
  ParityArguments arguments = given;
  if (!is_low(precision)) {
    arguments.loss_tolerance = given.loss_tolerance.value_or(1e-5);
    arguments.logit_tolerance = given.logit_tolerance.value_or(1e-4);
    arguments.gradient_tolerance = given.gradient_tolerance.value_or(1e-4);
  }
  const ParityReport report = compare_with_reference(arguments.options);
  const LogitError& logits = report.logits;
  fmt::print("loss       {:.7f}, expected {:.7f}: difference {:.2e}{}\n", report.loss, report.expected_loss,
             report.loss_error(), within(arguments.loss_tolerance));
  fmt::print("logits     largest difference {:.2e} (sequence {}, position {}, token {}){}; relative {:.2e}\n",
             logits.difference, logits.sequence, logits.position, logits.token, within(arguments.logit_tolerance),
             report.logits_relative);
  fmt::print("gradients  relative errors{}; of each parameter, the tensor that is furthest off\n",
             within(arguments.gradient_tolerance));
  for (const GradientError& error : report.gradients) {
    fmt::print("  {:.2e}  {:<32} {}\n", error.relative, error.parameter, error.tensor);
  }
  if (is_low(precision)) print_expectation(report, precision);

  // A NaN is within no tolerance, nor is it what any precision explains.
  const auto exceeds = [](double error, const std::optional<double>& tolerance) {
    return tolerance ? !(error <= *tolerance) : std::isnan(error);
  };
  std::vector<std::string> beyond;
  if (exceeds(report.loss_error(), arguments.loss_tolerance)) beyond.emplace_back("the loss");
  if (exceeds(logits.difference, arguments.logit_tolerance)) beyond.emplace_back("logits");
  const auto bad_gradients = std::ranges::count_if(report.gradients, [&](const GradientError& error) {
    return exceeds(error.relative, arguments.gradient_tolerance);
  });
  if (bad_gradients > 0) {
    beyond.push_back(fmt::format("{} of {} gradients", bad_gradients, report.gradients.size()));
  }
  if (beyond.empty()) {
    if (!is_low(precision)) fmt::print("within tolerance\n");
    return;
  }
  throw runtime_error(
      fmt::format("'{}' is not what '{}' expects: beyond tolerance are {}", arguments.options.model.string(),
                  arguments.options.expected.string(), fmt::join(beyond, ", ")),
      "make sure that the expectation was computed in float32 from these very weights");
}

}  // namespace nmoe::cli
