#include "mon/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "track/log_tail.h"
#include "track/tag.h"
#include "track/tags/exchange.h"
#include "track/tags/gpu.h"
#include "track/tags/losses.h"
#include "track/tags/router.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"

namespace nmoe::mon {
namespace {

const std::string kValidation(tags::kValidLoss.tag);

// The metrics of a list that a tag is of, with the parts of that tag; null where it is of none.
struct Found {
  const Metric* metric = nullptr;
  std::vector<std::string_view> parts = {};
};
Found find_in(std::span<const Metric* const> metrics, std::string_view tag) {
  for (const Metric* metric : metrics) {
    if (auto parts = parts_of(*metric, tag)) return {metric, std::move(*parts)};
  }
  return {};
}

constexpr std::array kWaits = {&tags::kExchangeWaitDispatchMs, &tags::kExchangeWaitCombineMs,
                               &tags::kExchangeWaitCombineBackwardMs, &tags::kExchangeWaitDispatchBackwardMs};

}  // namespace

double RunData::RouterLayer::mean() const {
  return std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(std::max<size_t>(1, load.size()));
}
double RunData::RouterLayer::max() const { return load.empty() ? 0.0 : std::ranges::max(load); }
int64_t RunData::RouterLayer::dead() const { return std::ranges::count(load, 0.0f); }
double RunData::RouterLayer::cv() const {
  const double middle = mean();
  double squares = 0.0;
  for (const float rows : load) squares += (rows - middle) * (rows - middle);
  return middle > 0.0 ? 100.0 * std::sqrt(squares / static_cast<double>(load.size())) / middle : 0.0;
}

std::optional<double> RunData::Gpu::value(const Metric& metric) const {
  const auto found = values.find(&metric);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

RunData::RunData(fs::path run_dir, RunRow run, const std::string& config_json)
    : run_dir_(std::move(run_dir)), run_(std::move(run)) {
  const auto config = try_parse_json<nlohmann::json>(config_json);
  if (config.is_object() && config.contains("train.steps") && config["train.steps"].is_number_integer()) {
    total_steps_ = config["train.steps"].get<int64_t>();
  }
  read_log();
  read_new_alerts();
}

bool RunData::load_next() {
  try {
    problem_.clear();
    const bool loaded = load_piece();
    if (has_loaded_ && !loaded) forget_database_code();
    has_loaded_ = loaded;
    return loaded;
  } catch (const std::exception& error) {
    problem_ = error.what();
    return false;
  }
}

bool RunData::load_piece() {
  if (readers_.empty()) {
    if (!has_metrics(metrics(0))) return false;
    readers_.push_back(std::make_unique<MetricsReader>(metrics(0)));
    read_values();
    return true;
  }
  if (!shown_is_loaded_) {
    readers_[0]->load(std::vector<std::string>{shown_, kValidation});
    shown_is_loaded_ = true;
    return true;
  }
  if (!routers_are_loaded_) {
    std::vector<std::string> tags;
    for (const MetricsView::Last& last : values_) {
      if (last.is_array && parts_of(tags::kRouterLoad, last.tag)) tags.push_back(last.tag);
    }
    readers_[0]->load_last(tags);
    routers_are_loaded_ = true;
    read_values();
    return true;
  }
  const fs::path next = metrics(std::ssize(readers_));
  if (!has_metrics(next)) return false;
  readers_.push_back(std::make_unique<MetricsReader>(next));
  read_values();
  return true;
}

bool RunData::poll() {
  bool changed = read_log();
  changed = read_new_alerts() || changed;
  try {
    for (const auto& reader : readers_) {
      const MetricsReader::Change change = reader->poll();
      changed = changed || change.values;
      if (change.reloaded) routers_are_loaded_ = false;  // the last rows are to be read again
    }
    if (changed && !readers_.empty()) read_values();
    // Tags that were recorded for the first time.
    for (const std::string& tag : {shown_, kValidation}) {
      if (!readers_.empty() && readers_[0]->has(tag) && readers_[0]->series(tag).empty()) shown_is_loaded_ = false;
    }
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
  return changed;
}

void RunData::show(const std::string& tag) {
  shown_ = tag;
  shown_is_loaded_ = false;
}

const Series& RunData::series() const {
  static const Series kNone;
  return readers_.empty() ? kNone : readers_[0]->series(shown_);
}

const Series& RunData::validation() const {
  static const Series kNone;
  return readers_.empty() || shown_ != tags::kLoss.tag ? kNone : readers_[0]->series(kValidation);
}

std::vector<std::string> RunData::scalar_tags() const {
  std::vector<std::string> tags;
  for (const MetricsView::Last& last : values_) {
    if (!last.is_array) tags.push_back(last.tag);
  }
  return tags;
}

std::optional<double> RunData::value(std::string_view tag) const {
  const auto found = std::ranges::lower_bound(values_, tag, {}, &MetricsView::Last::tag);
  if (found == values_.end() || found->tag != tag) return std::nullopt;
  return found->value;
}

void RunData::read_values() {
  values_ = readers_[0]->tags();
  read_routers();
  for (size_t rank = 0; rank < readers_.size(); ++rank) {
    read_gpus(static_cast<int64_t>(rank), rank == 0 ? values_ : readers_[rank]->tags());
  }
  read_ranks();
}

void RunData::read_routers() {
  routers_.clear();
  for (const MetricsView::Last& last : values_) {
    const auto layer = number_of(tags::kRouterLoad, last.tag);
    if (!layer) continue;
    const std::vector<float>& row = readers_[0]->last_row(last.tag);
    if (!row.empty()) routers_.push_back({*layer, row});
  }
  std::ranges::sort(routers_, {}, &RouterLayer::layer);
}

void RunData::read_gpus(int64_t rank, const std::vector<MetricsView::Last>& tags) {
  for (const MetricsView::Last& last : tags) {
    const auto [metric, parts] = find_in(tags::kGpuMetrics, last.tag);
    if (metric == nullptr) continue;
    const std::string number(parts.front());
    auto gpu = std::ranges::find_if(gpus_, [&](const Gpu& g) { return g.rank == rank && g.number == number; });
    if (gpu == gpus_.end()) gpu = gpus_.insert(gpus_.end(), {.rank = rank, .number = number});
    const auto before = gpu->values.find(metric);
    // Counters become rates over the time between two samples.
    const double seconds = 1e-3 * static_cast<double>(last.ts_ms - gpu->last_ms);
    if (before != gpu->values.end() && seconds > 0.0 && last.value >= before->second) {
      const double rate = (last.value - before->second) / seconds;
      if (metric == &tags::kGpuNvlinkSentGib) gpu->sent_gib_per_s = rate;
      if (metric == &tags::kGpuNvlinkReceivedGib) gpu->received_gib_per_s = rate;
    }
    gpu->values[metric] = last.value;
  }
  for (Gpu& gpu : gpus_) {
    if (gpu.rank != rank) continue;
    const std::string tag = tag_of(*gpu.values.begin()->first, {gpu.number});
    const auto found = std::ranges::lower_bound(tags, tag, {}, &MetricsView::Last::tag);
    if (found != tags.end() && found->tag == tag) gpu.last_ms = found->ts_ms;
  }
}

void RunData::read_ranks() {
  ranks_.clear();
  for (size_t rank = 0; rank < readers_.size(); ++rank) {
    Rank& row = ranks_.emplace_back(Rank{.rank = static_cast<int64_t>(rank)});
    for (const MetricsView::Last& last : rank == 0 ? values_ : readers_[rank]->tags()) {
      if (find_in(tags::kGpuMetrics, last.tag).metric == nullptr) row.step = std::max(row.step, last.step);
      row.last_ms = std::max(row.last_ms, last.ts_ms);
      if (last.tag == tags::kLoaderWaitMs.tag) row.loader_wait_ms = last.value;
    }
  }
  last_ms_ = ranks_.front().last_ms;
  // What rank 0 says of all.
  for (const MetricsView::Last& last : values_) {
    const auto [metric, parts] = find_in(tags::kExchangeMetrics, last.tag);
    if (metric == nullptr || parts.size() < 2) continue;
    const auto rank = static_cast<size_t>(std::strtoul(std::string(parts[1]).c_str(), nullptr, 10));
    if (rank >= ranks_.size()) continue;
    Rank& row = ranks_[rank];
    const auto add = [&](std::optional<double>& sum) { sum = sum.value_or(0.0) + last.value; };
    if (metric == &tags::kExchangeSentBytes) add(row.sent_bytes);
    if (metric == &tags::kExchangeTransferMs) add(row.transfer_ms);
    if (std::ranges::find(kWaits, metric) != kWaits.end()) add(row.wait_ms);
  }
}

bool RunData::read_new_alerts() {
  const fs::path path = alerts_path(metrics(0));
  std::error_code missing;
  const uintmax_t bytes = fs::file_size(path, missing);
  if (missing || bytes == alert_bytes_) return false;
  alert_bytes_ = bytes;
  alerts_ = read_alerts(path);
  return true;
}

// Whether there is more than before.
bool RunData::read_log() {
  const fs::path path = metrics(0).parent_path() / "train.log";
  std::error_code missing;
  const uintmax_t bytes = fs::file_size(path, missing);
  if (missing || bytes == log_bytes_) return false;
  const std::string text = log_tail(path);
  log_bytes_ = bytes;
  messages_.clear();
  for (size_t at = 0; at < text.size();) {  // all but a line that is still being written
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    messages_.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return true;
}

}  // namespace nmoe::mon
