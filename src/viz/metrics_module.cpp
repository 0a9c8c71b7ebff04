#include "viz/metrics_module.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>

#include "track/tag.h"
#include "track/tags/exchange.h"
#include "track/tags/gpu.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"

namespace nmoe {
namespace {

constexpr std::array kFirst = {&tags::kLoss, &tags::kValidLoss,  &tags::kGradNorm,
                               &tags::kLr,   &tags::kTokensPerS, &tags::kMfu};
constexpr std::array kTime = {&tags::kMsPerStep,          &tags::kLoaderWaitMs,        &tags::kExchangesWaitMs,
                              &tags::kExchangesWaitMaxMs, &tags::kExchangesTransferMs, &tags::kExchangesHiddenShare};

// Tags have no character that a string of JavaScript would escape.
std::string list(std::string_view name, std::span<const Metric* const> metrics) {
  std::string text;
  for (const Metric* metric : metrics) text += fmt::format("{}'{}'", text.empty() ? "" : ", ", metric->tag);
  return fmt::format("export const {} = [{}];\n", name, text);
}

// An expression for the tags of whatever is recorded beside that metric: its number, then the name of the metric.
std::string expression(std::string_view name, const Metric& metric) {
  std::string text;
  for (size_t at = 0; at < metric.tag.size() - name_of(metric).size(); ++at) {
    if (metric.tag.substr(at).starts_with("GG")) {
      text += "(\\d+)";
      ++at;
    } else {
      text += metric.tag[at] == '/' ? "\\/" : std::string(1, metric.tag[at]);
    }
  }
  return fmt::format("export const {} = /^{}(.+)$/;\n", name, text);
}

}  // namespace

std::string metrics_module() {
  return list("kFirstTags", kFirst) + list("kTimeTags", kTime) + list("kPhaseTags", tags::kPhaseMetrics) +
         expression("kGpuTag", tags::kGpuUtilization);
}

}  // namespace nmoe
