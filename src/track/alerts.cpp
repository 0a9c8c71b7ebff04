#include "track/alerts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/json.h"
#include "track/json_lines.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<AlertKind, std::string_view>, 6> kKinds = {{
    {AlertKind::kNonFinite, "non_finite"},
    {AlertKind::kSpike, "spike"},
    {AlertKind::kCollapse, "collapse"},
    {AlertKind::kDeadExpert, "dead_expert"},
    {AlertKind::kSlow, "slow"},
    {AlertKind::kSilent, "silent"},
}};

}  // namespace

std::string_view alert_kind_name(AlertKind kind) {
  return std::ranges::find(kKinds, kind, &decltype(kKinds)::value_type::first)->second;
}

fs::path alerts_path(const fs::path& database) { return database.parent_path() / "alerts.jsonl"; }

std::string alert_json(const Alert& alert) {
  const Json json = {{"ts_ms", alert.ts_ms}, {"kind", alert_kind_name(alert.kind)},
                     {"step", alert.step},   {"tag", alert.tag},
                     {"value", alert.value},  // null where it is not finite
                     {"text", alert.text}};
  return json_text(json);
}

void append_alert(const fs::path& path, const Alert& alert) { append_line(path, alert_json(alert)); }

std::vector<Alert> read_alerts(const fs::path& path) {
  constexpr size_t kMostBytes = size_t{128} << 10;
  std::vector<Alert> alerts;
  each_json_line(path, kMostBytes, [&](const Json& json) {
    const auto name = json.at("kind").get<std::string>();
    const auto* kind = std::ranges::find(kKinds, name, &decltype(kKinds)::value_type::second);
    if (kind == kKinds.end()) return;  // of a later version
    alerts.push_back({.kind = kind->first,
                      .step = integer_of<int64_t>(json.at("step")),
                      .ts_ms = integer_of<int64_t>(json.at("ts_ms")),
                      .tag = json.at("tag").get<std::string>(),
                      .value = json.at("value").is_null() ? std::numeric_limits<double>::quiet_NaN()
                                                          : json.at("value").get<double>(),
                      .text = json.at("text").get<std::string>()});
  });
  return alerts;
}

}  // namespace nmoe
