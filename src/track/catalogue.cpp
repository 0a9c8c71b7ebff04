#include "track/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "base/error.h"
#include "track/tag.h"
#include "track/tags/evaluation.h"
#include "track/tags/exchange.h"
#include "track/tags/gpu.h"
#include "track/tags/losses.h"
#include "track/tags/precision.h"
#include "track/tags/router.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"

namespace nmoe {
namespace {

using Metrics = std::span<const Metric* const>;

// A validation's metrics of one source, if there are several.
class OfSources {
 public:
  OfSources() {
    for (const Metric* of_all : tags::kValidMetrics) {
      const std::string& pattern = texts_.emplace_back(tag_of_source(*of_all, "SOURCE"));
      const std::string& meaning =
          texts_.emplace_back(fmt::format("as {}, for one source{}", of_all->tag,
                                          of_all == tags::kValidMetrics.front() ? ", if there are several" : ""));
      Metric& metric = metrics_.emplace_back(*of_all);
      metric.tag = pattern;
      metric.meaning = meaning;
    }
  }
  const std::deque<Metric>& metrics() const { return metrics_; }

 private:
  std::deque<std::string> texts_;  // do not move
  std::deque<Metric> metrics_;
};

// All, by group: a tag is the first's that it fits.
std::vector<const Metric*> join() {
  static const OfSources of_sources;
  std::vector<const Metric*> all;
  const auto add = [&](Metrics metrics) { all.insert(all.end(), metrics.begin(), metrics.end()); };
  add(tags::kLossMetrics);
  add(tags::kTrainMetrics);
  add(tags::kMtpMetrics);
  add(tags::kOptimizerMetrics);
  add(tags::kThroughputMetrics);
  add(tags::kCheckpointMetrics);
  add(tags::kPhaseMetrics);
  add(tags::kEfficiencyMetrics);
  add(tags::kMemoryMetrics);
  add(tags::kValidMetrics);
  for (const Metric& metric : of_sources.metrics()) all.push_back(&metric);
  add(tags::kEvalMetrics);
  add(tags::kRouterMetrics);
  add(tags::kRouterAggMetrics);
  add(tags::kPrecisionMetrics);
  add(tags::kExchangeMetrics);
  add(tags::kExchangeAggMetrics);
  add(tags::kGpuMetrics);
  add(tags::kParallelMetrics);
  return all;
}

std::string_view recorded_by(OverRanks over_ranks) {
  switch (over_ranks) {
    case OverRanks::kAll:
      return "all";
    case OverRanks::kMean:
      return "mean";
    case OverRanks::kMax:
      return "largest";
    case OverRanks::kFirst:
      return "rank 0";
    case OverRanks::kEach:
      return "each";
    case OverRanks::kHost:
      return "each host";
  }
  NMOE_CHECK(false, "no such way over ranks: {}", static_cast<int>(over_ranks));
}

}  // namespace

std::span<const Metric* const> tag_catalogue() {
  static const std::vector<const Metric*> all = join();
  return all;
}

const Metric* find_tag(std::string_view tag) {
  const auto all = tag_catalogue();
  const auto found =
      std::ranges::find_if(all, [&](const Metric* metric) { return parts_of(*metric, tag).has_value(); });
  return found == all.end() ? nullptr : *found;
}

std::string tag_reference() {
  std::string page = R"(# Metrics

The output of `n runs tags`: every tag that a run records. In tags, LL stands for a layer of the model (01 is the one with the
weights `layers.1`), RR for a rank, GG for a GPU of the host in nvidia-smi's numbering, SOURCE for a source of data, TASK and
SUITE for what is evaluated, and OPERAND for a part of a layer and an operand or output of its products (experts_inputs,
mixer_gradients, dense_weights). Tags that do not apply to a run (experts, exchanges, losses that it does not have, GPUs) are
absent. The column "ranks" says whose value it is: one for all of them together, their mean, the largest, rank 0's, or one of
each, which it records in its own file. Rank 0 also records what concerns all ranks, and the first rank of each process also the
GPUs of its host, as last measured before each logged step. [runs.md](runs.md) says where values are stored and how to read them.
)";
  std::string_view group;
  for (const Metric* metric : tag_catalogue()) {
    if (const std::string_view of = group_of(*metric); of != group) {
      group = of;
      page += fmt::format("\n## {}\n\n| tag | unit | ranks | meaning |\n| --- | --- | --- | --- |\n", group);
    }
    page += fmt::format("| `{}` | {} | {} | {}{} |\n", metric->tag, metric->unit, recorded_by(metric->over_ranks),
                        metric->is_array ? "array: " : "", metric->meaning);
  }
  return page;
}

}  // namespace nmoe
