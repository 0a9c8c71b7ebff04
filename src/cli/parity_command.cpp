#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "hf/parity.h"

namespace nmoe::cli {
namespace {

Precision precision_of(std::string_view name) {
  if (name == "bf16") return Precision::kBf16;
  if (name == "fp8") return Precision::kFp8;
  if (name == "mxfp8") return Precision::kMxFp8;
  return name == "nvfp4" ? Precision::kNvFp4 : Precision::kDevice;
}

std::string within(const std::optional<double>& tolerance) {
  return tolerance ? fmt::format(", tolerance {:g}", *tolerance) : "";
}

std::string percents(const RelativeErrors& errors) {
  return fmt::format("{:.1f} % of logits, {:.1f} % of gradients in the median", 100.0 * errors.logits,
                     100.0 * errors.gradients);
}

void print_low_precision(const ParityReport& report, std::string_view name) {
  const LowPrecisionReport& low = *report.low;
  print("{} costs {:.1f} % of a product; by first order, {}\n", name,
        100.0 * rounding_error_of_product(precision_of(name)), percents(low.expected));
  if (low.choices > 0) {
    print("{} of {} choices of experts are others than in fp32: off by {}\n", low.other_choices, low.choices,
          percents(report.relative));
  }
  print("{}off by {}: {}\n", low.choices > 0 ? "with fp32's routers' logits " : "", percents(low.found),
        low.as_expected() ? "as expected" : "more than twice what is expected");
}

}  // namespace

void parity_command(const ParityArguments& given) {
  const Precision precision = precision_of(given.precision);
  ParityArguments arguments = given;
  arguments.options.precision = precision;
  if (precision == Precision::kDevice) {
    arguments.loss_tolerance = given.loss_tolerance.value_or(1e-5);
    arguments.logit_tolerance = given.logit_tolerance.value_or(1e-4);
    arguments.gradient_tolerance = given.gradient_tolerance.value_or(1e-4);
  }
  const ParityReport report = compare_with_reference(arguments.options);
  const LogitError& logits = report.logits;
  print("loss       {:.7f}, expected {:.7f}: difference {:.2e}{}\n", report.loss, report.expected_loss,
        report.loss_error(), within(arguments.loss_tolerance));
  print("logits     largest difference {:.2e} (sequence {}, position {}, token {}){}; relative {:.2e}\n",
        logits.difference, logits.sequence, logits.position, logits.token, within(arguments.logit_tolerance),
        report.relative.logits);
  print("gradients  relative errors{}: {:.2e} of all; of each parameter, the tensor that is furthest off\n",
        within(arguments.gradient_tolerance), report.all_gradients);
  for (const GradientError& error : report.gradients) {
    const std::string relative = error.is_rounding ? "rounding" : fmt::format("{:.2e}", error.relative);
    print("  {}  {:<32} {}\n", relative, error.parameter, error.tensor);
  }
  if (report.low) print_low_precision(report, given.precision);

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
    if (precision == Precision::kDevice) print("within tolerance\n");
    return;
  }
  throw runtime_error(
      fmt::format("'{}' is not what '{}' expects: beyond tolerance are {}", arguments.options.model.string(),
                  arguments.options.expected.string(), fmt::join(beyond, ", ")),
      "make sure that the expectation was computed in float32 from these very weights");
}

}  // namespace nmoe::cli
