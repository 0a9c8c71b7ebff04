#include "train/report/alert_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "track/tag.h"
#include "track/tags/losses.h"
#include "track/tags/router.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"
#include "train/report/router_report.h"

namespace nmoe {
namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Groups of metrics that are to be finite: what a run computes, not how fast and on what.
constexpr std::array kComputed = {group_of(tags::kLoss), group_of(tags::kValidLoss), group_of(tags::kRouterCv),
                                  group_of(tags::kRoutersMeanCv)};

std::string layer_name(int64_t layer) { return fmt::format("layer {}", layer); }

}  // namespace

void RecentValues::add(double value) { values_[count_++ % kMost] = value; }

double RecentValues::median() const {
  return median_of({values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, kMost))});
}

double RecentValues::deviation() const {
  std::vector<double> distances(values_.begin(),
                                values_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, kMost)));
  const double middle = median();
  for (double& value : distances) value = std::abs(value - middle);
  return 1.4826 * median_of(std::move(distances));
}

bool AlertWatch::begins(AlertKind kind, const std::string& tag, bool holds) {
  if (!holds) {
    if (!holding_.empty()) holding_.erase({kind, tag});
    return false;
  }
  return holding_.emplace(kind, tag).second;
}

void AlertWatch::tell(AlertKind kind, const MetricRecord& record, const std::string& tag, double value,
                      const std::string& what) {
  found_.push_back({.kind = kind,
                    .step = record.step,
                    .ts_ms = record.ts_ms,
                    .tag = tag,
                    .value = value,
                    .text = fmt::format("step {}: {}", record.step, what)});
}

std::vector<Alert> AlertWatch::take(const MetricRecord& record) {
  find_non_finite(record);
  find_spike(record);
  find_slow(record);
  find_collapse(record);
  find_dead(record);
  return std::exchange(found_, {});
}

void AlertWatch::find_non_finite(const MetricRecord& record) {
  const std::pair<std::string, double>* first = nullptr;
  int64_t others = 0;
  for (const auto& scalar : record.scalars) {
    if (std::ranges::find(kComputed, group_of(scalar.first)) == kComputed.end()) continue;
    if (!begins(AlertKind::kNonFinite, scalar.first, !std::isfinite(scalar.second))) continue;
    first == nullptr ? void(first = &scalar) : void(++others);
  }
  if (first == nullptr) return;
  tell(AlertKind::kNonFinite, record, first->first, first->second,
       // A NaN's sign says nothing.
       fmt::format("{} is {}{}", first->first, std::isnan(first->second) ? std::abs(first->second) : first->second,
                   others > 0 ? fmt::format("; so are {} more values", others) : ""));
}

void AlertWatch::find_spike(const MetricRecord& record) {
  const auto look = [&](const std::string& tag, RecentValues& recent, auto limit) {
    const double* value = record.find(tag);
    if (value == nullptr || !std::isfinite(*value)) return;
    const bool high = recent.has_enough() && *value > limit(recent);
    if (begins(AlertKind::kSpike, tag, high)) {
      tell(AlertKind::kSpike, record, tag, *value,
           fmt::format("{} is {:.4g}, usual is {:.4g}", tag, *value, recent.median()));
    }
    recent.add(*value);
  };
  look(std::string(tags::kLoss.tag), losses_, [](const RecentValues& recent) {
    const double usual = recent.median();
    return usual + std::max(kSpikeDeviations * recent.deviation(), kSpikeShare * std::abs(usual));
  });
  look(std::string(tags::kGradNorm.tag), norms_, [](const RecentValues& recent) {
    return std::max(kSpikeNorm * recent.median(), recent.median() + kSpikeDeviations * recent.deviation());
  });
}

void AlertWatch::find_slow(const MetricRecord& record) {
  const std::string tag(tags::kMsPerStep.tag);
  const double* ms = record.find(tag);
  if (ms == nullptr || !std::isfinite(*ms)) return;
  num_slow_ = times_.has_enough() && *ms > kSlow * times_.median() ? num_slow_ + 1 : 0;
  if (begins(AlertKind::kSlow, tag, num_slow_ >= kTurns)) {
    tell(AlertKind::kSlow, record, tag, *ms,
         fmt::format("a step takes {}, usual is {}", human_seconds(1e-3 * *ms), human_seconds(1e-3 * times_.median())));
  }
  times_.add(*ms);
}

void AlertWatch::find_collapse(const MetricRecord& record) {
  std::vector<std::string> layers;
  std::string first;
  int64_t num_active = 0;
  for (const auto& [tag, loads] : record.arrays) {
    const std::optional<int64_t> layer = number_of(tags::kRouterLoad, tag);
    if (!layer) continue;
    const int64_t active = std::ranges::count_if(loads, [](float rows) { return rows > 0.0f; });
    const std::string cv_tag = tag_of(tags::kRouterCv, {*layer});
    const double* cv = active <= top_k_ + 1 ? record.find(cv_tag) : nullptr;
    const bool collapsed = cv != nullptr && is_collapsed(active, *cv, std::ssize(loads), top_k_);
    if (!begins(AlertKind::kCollapse, cv_tag, collapsed)) continue;
    if (first.empty()) {
      first = cv_tag;
      num_active = active;
    }
    layers.push_back(layer_name(*layer));
  }
  if (layers.empty()) return;
  tell(AlertKind::kCollapse, record, first, *record.find(first),
       fmt::format("the router of {} has collapsed: {} experts get every token{}", layers.front(), num_active,
                   layers.size() > 1 ? fmt::format("; so have those of {} more layers", layers.size() - 1) : ""));
}

void AlertWatch::find_dead(const MetricRecord& record) {
  constexpr size_t kNamed = 8;
  std::string named, first;
  size_t count = 0;
  for (const auto& [tag, loads] : record.arrays) {
    const std::optional<int64_t> layer = number_of(tags::kRouterLoad, tag);
    if (!layer) continue;
    Experts& experts = experts_[tag];
    experts.without.resize(loads.size());
    experts.told.resize(loads.size());
    const double rows =
        std::reduce(loads.begin(), loads.end(), 0.0) / static_cast<double>(std::max<size_t>(1, loads.size()));
    const bool says = rows >= kLeastRows && record.step >= kFirstStep;
    bool is_first = true;  // of this layer
    for (size_t e = 0; e < loads.size(); ++e) {
      experts.without[e] = loads[e] == 0.0f && says ? experts.without[e] + 1 : 0;
      if (experts.without[e] == 0) experts.told[e] = false;
      if (experts.without[e] < kTurns || experts.told[e]) continue;
      experts.told[e] = true;
      if (first.empty()) first = tag;
      if (count++ >= kNamed) continue;
      if (is_first) named += fmt::format("{}{}:", named.empty() ? "" : "; ", layer_name(*layer));
      named += fmt::format("{} {}", is_first ? "" : ",", e);
      is_first = false;
    }
  }
  if (count == 0) return;
  tell(AlertKind::kDeadExpert, record, first, static_cast<double>(count),
       fmt::format("{} no token ({}{})", count == 1 ? "1 expert gets" : fmt::format("{} experts get", count), named,
                   count > kNamed ? ", ..." : ""));
}

void SilenceWatch::logged(int64_t rank, int64_t step, int64_t now_ms) {
  constexpr size_t kMostIntervals = 8;
  Of& of = ranks_[static_cast<size_t>(rank)];
  if (rank == 0) {
    if (waits_) {
      intervals_.push_back(now_ms - of.last_ms);
      if (intervals_.size() > kMostIntervals) intervals_.erase(intervals_.begin());
    } else {
      for (Of& other : ranks_) other.last_ms = now_ms;
    }
    waits_ = true;
  }
  of = {.step = step, .last_ms = now_ms};
  told_ = false;
}

std::optional<Alert> SilenceWatch::look(int64_t now_ms) {
  if (!waits_ || intervals_.size() < 2) return std::nullopt;
  std::vector<int64_t> sorted = intervals_;
  std::ranges::sort(sorted);
  const int64_t usual_ms = sorted[sorted.size() / 2];
  const int64_t limit = std::max(kLeastMs, static_cast<int64_t>(kIntervals * static_cast<double>(usual_ms)));
  const auto seconds = [](int64_t ms) { return human_seconds(1e-3 * static_cast<double>(ms)); };
  const int64_t front = std::ranges::max(ranks_, {}, &Of::step).step;
  const int64_t last_ms = std::ranges::max(ranks_, {}, &Of::last_ms).last_ms;
  // Of a rank that has logged nothing at all nobody knows whether it can.
  const auto is_behind = [&](const Of& of) { return of.step >= 0 && of.step < front; };
  const auto alert = [&](int64_t step, int64_t silent_ms, std::string text) {
    return Alert{.kind = AlertKind::kSilent,
                 .step = step,
                 .ts_ms = now_ms,
                 .value = 1e-3 * static_cast<double>(silent_ms),
                 .text = std::move(text)};
  };
  if (now_ms - last_ms > limit) {
    if (std::exchange(told_, true)) return std::nullopt;
    std::string text =
        fmt::format("no step was logged for {}, one came every {}", seconds(now_ms - last_ms), seconds(usual_ms));
    const auto behind = std::ranges::find_if(ranks_, is_behind);
    if (behind != ranks_.end()) {
      text += fmt::format("; rank {} is at step {}, others at {}", behind - ranks_.begin(), behind->step, front);
    }
    return alert(front, now_ms - last_ms, std::move(text));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Of& of = ranks_[rank];
    if (!is_behind(of) || now_ms - of.last_ms <= limit || std::exchange(of.told, true)) continue;
    return alert(of.step, now_ms - of.last_ms,
                 fmt::format("rank {} has logged no step for {}: it is at step {}, others at {}", rank,
                             seconds(now_ms - of.last_ms), of.step, front));
  }
  return std::nullopt;
}

}  // namespace nmoe
