#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "hf/parity.h"

namespace nmoe::cli {

void parity_command(const ParityArguments& arguments) {
  const ParityReport report = compare_with_reference(arguments.options);
  const LogitError& logits = report.logits;
  fmt::print("loss       {:.7f}, expected {:.7f}: difference {:.2e}, tolerance {:g}\n", report.loss,
             report.expected_loss, report.loss_error(), arguments.loss_tolerance);
  fmt::print("logits     largest difference {:.2e} (sequence {}, position {}, token {}), tolerance {:g}\n",
             logits.difference, logits.sequence, logits.position, logits.token, arguments.logit_tolerance);
  fmt::print("gradients  relative errors, tolerance {:g}; of each parameter, the tensor that is furthest off\n",
             arguments.gradient_tolerance);
  for (const GradientError& error : report.gradients) {
    fmt::print("  {:.2e}  {:<32} {}\n", error.relative, error.parameter, error.tensor);
  }

  // A NaN is within no tolerance.
  std::vector<std::string> beyond;
  if (!(report.loss_error() <= arguments.loss_tolerance)) beyond.emplace_back("the loss");
  if (!(logits.difference <= arguments.logit_tolerance)) beyond.emplace_back("logits");
  const auto bad_gradients = std::ranges::count_if(
      report.gradients, [&](const GradientError& error) { return !(error.relative <= arguments.gradient_tolerance); });
  if (bad_gradients > 0) {
    beyond.push_back(fmt::format("{} of {} gradients", bad_gradients, report.gradients.size()));
  }
  if (beyond.empty()) {
    fmt::print("within tolerance\n");
    return;
  }
  throw runtime_error(
      fmt::format("'{}' is not what '{}' expects: beyond tolerance are {}", arguments.options.model.string(),
                  arguments.options.expected.string(), fmt::join(beyond, ", ")),
      "make sure that the expectation was computed in float32 from these very weights");
}

}  // namespace nmoe::cli
