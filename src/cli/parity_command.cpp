#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "hf/parity.h"

namespace nmoe::cli {
namespace {

Precision precision_of(std::string_view name) {
  if (name == "fp8") return Precision::kFp8;
  if (name == "mxfp8") return Precision::kMxFp8;
  return name == "nvfp4" ? Precision::kNvFp4 : Precision::kDevice;
}

std::string within(const std::optional<double>& tolerance) {
  return tolerance ? fmt::format(", tolerance {:g}", *tolerance) : "";
}

void print_expectation(const ParityReport& report, Precision precision, std::string_view name) {
  // So much more was seen at most in small models with random routers, which may choose other experts then: choices are
  // not compared.
  constexpr double kRouters = 3.0;
  const int64_t forward = report.num_products, both = 2 * forward;
  const double logits = expected_rounding_error(precision, forward),
               gradients = expected_rounding_error(precision, both), gradient = report.median_gradient();
  const double over = std::max(report.logits_relative / logits, gradient / gradients);
  fmt::print(
      "{} is expected to cost {:.1f} % of a product, {:.1f} % of logits, behind {} of them, and {:.1f} % of gradients; "
      "logits are off by {:.1f} %, gradients, in the median, by {:.1f} %: {}\n",
      name, 100.0 * expected_rounding_error(precision, 1), 100.0 * logits, forward, 100.0 * gradients,
      100.0 * report.logits_relative, 100.0 * gradient,
      over <= 1.0        ? "as expected"
      : over <= kRouters ? "as expected if routers chose other experts, too, which is not looked at"
                         : "more than that explains");
}

}  // namespace

void parity_command(const ParityArguments& given) {
  const Precision precision = precision_of(given.precision);
  ParityArguments arguments = given;
  arguments.options.precision = precision;
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
  if (is_low(precision)) print_expectation(report, precision, given.precision);

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
