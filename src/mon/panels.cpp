#include "mon/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "track/braille_plot.h"
#include "track/catalogue.h"
#include "track/tags/exchange.h"
#include "track/tags/gpu.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"

namespace nmoe::mon {
namespace {

constexpr int64_t kSilentMs = 30'000;  // a rank of a running run that has recorded nothing for so long is marked

// Values with their names, one behind the other; those that do not fit are left out.
class Figures {
 public:
  Figures(Grid& grid, Rect rect, int line) : grid_(grid), end_(rect.x + rect.width), y_(rect.y + line), x_(rect.x) {}
  void add(std::string_view label, const std::string& value, Style style = Style::kPlain) {
    if (x_ + static_cast<int>(label.size() + 1 + value.size()) > end_) return;
    x_ = grid_.put(x_, y_, label, Style::kLabel) + 1;
    x_ = grid_.put(x_, y_, value, style) + 2;
  }
  void add_known(std::string_view label, const std::optional<double>& value, fmt::format_string<const double&> format) {
    if (!value) return;
    const bool good = std::isfinite(*value);
    add(label, good ? fmt::format(format, *value) : fmt::format("{}", *value), good ? Style::kPlain : Style::kBad);
  }

 private:
  Grid& grid_;
  int end_, y_, x_;
};

struct Mark {
  char32_t glyph;
  Style style;
};

// Of an expert's load over the mean of its layer.
Mark mark_of(double ratio) {
  if (ratio <= 0.0) return {U'×', Style::kBad};
  if (ratio < 0.5) return {U'·', Style::kCool};
  if (ratio < 0.8) return {U'░', Style::kCool};
  if (ratio < 1.25) return {U'▒', Style::kPlain};
  if (ratio < 2.0) return {U'▓', Style::kGood};
  if (ratio < 4.0) return {U'█', Style::kHot};
  return {U'!', Style::kBad};
}
constexpr std::string_view kMarks = "× none · <0.5 ░ <0.8 ▒ even ▓ >1.25 █ >2 ! >4 of mean";

// "[||||||      87 %]", `width` characters.
void draw_bar(Grid& grid, int x, int y, int width, double share, std::string_view text, Style style) {
  const int inside = width - 2;
  const int filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * inside));
  grid.set(x, y, U'[', Style::kDim);
  for (int i = 0; i < filled; ++i) grid.set(x + 1 + i, y, U'|', style);
  grid.put(x + 1 + std::max(0, inside - static_cast<int>(text.size())), y, text, Style::kPlain, inside);
  grid.set(x + 1 + inside, y, U']', Style::kDim);
}

// What NVML's bits say (track/tags/gpu.h).
std::string throttled_by(double reasons) {
  const auto bits = static_cast<uint64_t>(std::max(0.0, reasons));
  static constexpr std::array<std::pair<uint64_t, std::string_view>, 5> kNames = {
      {{4, "power limit"}, {8, "hardware"}, {32, "heat"}, {64, "heat"}, {128, "power brake"}}};
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) return std::string(name);
  }
  return "";
}

std::string count_or_dash(const std::optional<double>& value, fmt::format_string<const double&> format) {
  return value ? fmt::format(format, *value) : "-";
}

struct StepPart {
  std::string_view name;
  char32_t glyph;
  Style style;
  double share;
};

// What a step's time went to. Waits and transfers are within phases, nearly all of them in those of experts.
std::vector<StepPart> parts_of_step(const RunData& data, double step_ms) {
  const auto share = [&](const Metric& metric) {
    return std::clamp(data.value(metric).value_or(0.0) / step_ms, 0.0, 1.0);
  };
  const double loading = share(tags::kLoaderWaitMs), waiting = share(tags::kExchangesWaitMs);
  const double hidden = data.value(tags::kExchangesHiddenShare).value_or(0.0);
  const double sending = share(tags::kExchangesTransferMs) * (1.0 - hidden);
  std::vector<StepPart> parts;
  double rest = 1.0 - loading - waiting - sending;
  if (data.value(tags::kPhaseUpdate)) {
    const double experts = share(tags::kPhaseFeedForwardForward) + share(tags::kPhaseFeedForwardBackward);
    parts = {
        {"attention", U'█', Style::kGood, share(tags::kPhaseAttentionForward) + share(tags::kPhaseAttentionBackward)},
        {"feed-forward", U'▓', Style::kCurve, std::max(0.0, experts - waiting - sending)},
        {"head", U'▒', Style::kCool, share(tags::kPhaseEmbedding) + share(tags::kPhaseHeadAndLoss)},
        {"update", U'█', Style::kHot, share(tags::kPhaseBegin) + share(tags::kPhaseUpdate)}};
    for (const StepPart& part : parts) rest -= part.share;
    parts.push_back({"other", U'·', Style::kDim, std::max(0.0, rest)});
  } else {
    parts.push_back({"computing", U'█', Style::kGood, std::max(0.0, rest)});
  }
  parts.push_back({"data", U'▓', Style::kWarn, loading});
  parts.push_back({"waiting", U'▒', Style::kBad, waiting});
  parts.push_back({"sending", U'░', Style::kHot, sending});
  return parts;
}

// In one line, with the names of what there is room for, the largest first.
void draw_step_bar(Grid& grid, Rect rect, std::vector<StepPart> parts) {
  const int y = rect.y, width = std::clamp(rect.width / 6, 10, 60);
  int x = grid.put(rect.x, y, "step ", Style::kLabel);
  double done = 0.0;
  int column = 0;
  for (const StepPart& part : parts) {
    done += part.share;
    for (; column < std::min(width, static_cast<int>(std::lround(done * width))); ++column) {
      grid.set(x + column, y, part.glyph, part.style);
    }
  }
  x += width + 1;
  std::ranges::stable_sort(parts, std::ranges::greater(), &StepPart::share);
  for (const StepPart& part : parts) {
    const std::string text = fmt::format("{} {:.0f} %", part.name, 100.0 * part.share);
    if (part.share < 0.005 || x + 2 + static_cast<int>(text.size()) > rect.x + rect.width) break;
    grid.set(x, y, part.glyph, part.style);
    x = grid.put(x + 2, y, text) + 2;
  }
}

}  // namespace

std::string age_text(int64_t ms) {
  if (ms < 1000) return "now";
  return human_seconds(std::round(1e-3 * static_cast<double>(ms))) + " ago";
}

void draw_heading(Grid& grid, Rect rect, std::string_view text) {
  for (int x = rect.x; x < rect.x + rect.width; ++x) grid.set(x, rect.y, U'─', Style::kDim);
  grid.put(rect.x + 2, rect.y, fmt::format(" {} ", text), Style::kLabel, rect.width - 4);
}

void draw_figures(Grid& grid, Rect rect, const RunData& data) {
  Figures losses(grid, rect, 0);
  losses.add_known("loss", data.value(tags::kLoss), "{:.4f}");
  losses.add_known("bits/byte", data.value(tags::kBpb), "{:.4f}");
  losses.add_known("valid", data.value(tags::kValidLoss), "{:.4f}");
  losses.add_known("norm", data.value(tags::kGradNorm), "{:.3g}");
  losses.add_known("lr", data.value(tags::kLr), "{:.2e}");
  Figures speed(grid, rect, 1);
  const auto ms = data.value(tags::kMsPerStep);
  speed.add_known("ms/step", ms, "{:.1f}");
  if (const auto rate = data.value(tags::kTokensPerS)) speed.add("tokens/s", human_count(*rate));
  if (const auto mfu = data.value(tags::kMfu)) speed.add("MFU", fmt::format("{:.1f} %", 100.0 * *mfu));
  speed.add_known("TFLOP/s", data.value(tags::kTflops), "{:.4g}");
  if (const auto tokens = data.value(tags::kTokensSeen)) speed.add("tokens", human_count(*tokens));
  speed.add_known("GiB", data.value(tags::kResidentGib), "{:.2f}");
  if (!ms || !(*ms > 0.0)) return;

  draw_step_bar(grid, {rect.x, rect.y + 2, rect.width, 1}, parts_of_step(data, *ms));
}

void draw_curve(Grid& grid, Rect rect, const RunData& data, const CurveWindow& window) {
  constexpr int kAxis = 10;
  const Series& series = data.series();
  const Metric* metric = find_tag(data.shown());
  const std::string name =
      metric == nullptr || metric->unit.empty() ? data.shown() : fmt::format("{}, {}", data.shown(), metric->unit);
  const int columns = rect.width - kAxis, rows = rect.height - 2;
  if (series.empty() || columns < 8 || rows < 1) {
    draw_heading(grid, rect, name);
    grid.put(rect.x + kAxis, rect.y + 1, data.problem().empty() ? "nothing recorded yet" : data.problem(),
             data.problem().empty() ? Style::kDim : Style::kBad, rect.width - kAxis);
    return;
  }
  const int64_t end = series.steps().back() + 1;
  int64_t first = series.steps().front();
  if (window.last_steps > 0) first = std::max(first, end - window.last_steps);
  const BrailleCurve curve = braille_curve(series, first, end, columns, rows, window.log_axis);
  draw_heading(grid, rect,
               fmt::format("{}  {:.6g}  steps {} to {}{}", name, series.values().back(), first, end - 1,
                           curve.is_log ? "  log" : ""));
  for (int row = 0; row < rows; ++row) {
    const int y = rect.y + 1 + row;
    if (!curve.is_empty && (row % 4 == 0 || row == rows - 1)) {
      grid.put(rect.x, y, fmt::format("{:>{}.4g}", curve.value_at(row), kAxis - 2), Style::kDim);
    }
    grid.set(rect.x + kAxis - 1, y, U'│', Style::kDim);
    for (int column = 0; column < columns; ++column) {
      const BrailleCurve::Cell& cell =
          curve.cells[static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column)];
      if (cell.dots != 0) {
        grid.set(rect.x + kAxis + column, y, U'\x2800' + cell.dots, cell.has_line ? Style::kCurve : Style::kDim);
      }
    }
  }
  const Series& valid = data.validation();
  for (size_t i = valid.lower_bound(first); i < valid.size() && valid.steps()[i] < end; ++i) {
    const double value = valid.values()[i];
    if (curve.is_empty || !(value >= curve.low && value <= curve.high)) continue;
    grid.set(rect.x + kAxis + static_cast<int>(curve.column_of(valid.steps()[i])),
             rect.y + 1 + static_cast<int>(curve.row_of(value)), U'◆', Style::kWarn);
  }
  const int y = rect.y + 1 + rows;
  bool has_gaps = false;
  for (int column = 0; column < columns; ++column) {
    const bool gap = curve.not_finite[static_cast<size_t>(column)];
    grid.set(rect.x + kAxis + column, y, gap ? U'x' : U'─', gap ? Style::kBad : Style::kDim);
    has_gaps = has_gaps || gap;
  }
  if (has_gaps) grid.put(rect.x, y, "x not fin", Style::kBad, kAxis);
}

void draw_routers(Grid& grid, Rect rect, const RunData& data, int first) {
  constexpr int kLabel = 5, kRight = 24;
  const auto& layers = data.routers();
  if (layers.empty()) {
    draw_heading(grid, rect, "router");
    grid.put(rect.x + 2, rect.y + 1, "no layer of experts has recorded its loads", Style::kDim, rect.width - 2);
    return;
  }
  const int room = std::max(1, rect.width - kLabel - kRight);
  draw_heading(grid, rect, fmt::format("experts' loads  {}", kMarks));
  for (int line = 1; line < rect.height && first + line - 1 < static_cast<int>(layers.size()); ++line) {
    const RunData::RouterLayer& layer = layers[static_cast<size_t>(first + line - 1)];
    const int y = rect.y + line, experts = static_cast<int>(layer.load.size());
    const double mean = layer.mean();
    grid.put(rect.x, y, fmt::format("{:>4} ", layer.layer), Style::kLabel);
    const int shown = std::min(room, experts), wide = std::clamp(room / std::max(1, experts), 1, 3);
    for (int column = 0; column < shown; ++column) {
      double farthest = 1.0;
      for (int e = column * experts / shown; e < (column + 1) * experts / shown; ++e) {
        const double ratio = mean > 0.0 ? layer.load[static_cast<size_t>(e)] / mean : 0.0;
        if (ratio <= 0.0 || (farthest > 0.0 && std::abs(std::log(ratio)) > std::abs(std::log(farthest)))) {
          farthest = ratio;
        }
        if (farthest <= 0.0) break;
      }
      const auto [glyph, style] = mark_of(farthest);
      for (int i = 0; i < wide; ++i) grid.set(rect.x + kLabel + column * wide + i, y, glyph, style);
    }
    const double most = mean > 0.0 ? layer.max() / mean : 0.0;
    const int64_t dead = layer.dead();
    int x = rect.x + rect.width - kRight + 1;
    x = grid.put(x, y, fmt::format("{:>5.1f}x", most), most >= 4.0 ? Style::kBad : Style::kPlain);
    x = grid.put(x, y, fmt::format(" cv {:>3.0f} %", layer.cv()));
    if (dead > 0) grid.put(x, y, fmt::format(" {} dead", dead), Style::kBad);
  }
}

void draw_router_summary(Grid& grid, Rect rect, const RunData& data) {
  double most = 0.0;
  int64_t dead = 0, fullest = 0;
  for (const RunData::RouterLayer& layer : data.routers()) {
    dead += layer.dead();
    const double ratio = layer.mean() > 0.0 ? layer.max() / layer.mean() : 0.0;
    if (ratio > most) fullest = layer.layer;
    most = std::max(most, ratio);
  }
  Figures figures(grid, rect, 0);
  figures.add("router", fmt::format("{} layers", data.routers().size()));
  figures.add("fullest expert", fmt::format("{:.1f}x the mean in layer {}", most, fullest),
              most >= 4.0 ? Style::kBad : Style::kPlain);
  figures.add("dead experts", fmt::format("{}", dead), dead > 0 ? Style::kBad : Style::kPlain);
}

void draw_gpus(Grid& grid, Rect rect, const RunData& data, int first) {
  const auto& gpus = data.gpus();
  draw_heading(grid, rect, "GPUs: time with a kernel, memory");
  if (gpus.empty()) grid.put(rect.x + 2, rect.y + 1, "none recorded", Style::kDim, rect.width - 2);
  const int bar = std::clamp((rect.width - 52) / 2, 10, 20);
  for (int line = 1; line < rect.height && first + line - 1 < static_cast<int>(gpus.size()); ++line) {
    const RunData::Gpu& gpu = gpus[static_cast<size_t>(first + line - 1)];
    const int y = rect.y + line;
    int x = grid.put(rect.x, y, fmt::format("{:>3}/{} ", gpu.rank, gpu.number), Style::kLabel);
    const double use = gpu.value(tags::kGpuUtilization).value_or(0.0);
    draw_bar(grid, x, y, bar, use / 100.0, fmt::format("{:.0f} %", use), Style::kGood);
    const double used = gpu.value(tags::kGpuMemoryUsedGib).value_or(0.0),
                 total = gpu.value(tags::kGpuMemoryTotalGib).value_or(0.0);
    const double share = total > 0.0 ? used / total : 0.0;
    draw_bar(grid, x + bar, y, bar, share, fmt::format("{:.0f}/{:.0f} G", used, total),
             share > 0.97 ? Style::kWarn : Style::kCurve);
    Figures rest(grid, {x + 2 * bar, rect.y, rect.x + rect.width - x - 2 * bar, rect.height}, line);
    rest.add("", fmt::format("{}/{} W", count_or_dash(gpu.value(tags::kGpuPowerW), "{:.0f}"),
                             count_or_dash(gpu.value(tags::kGpuPowerLimitW), "{:.0f}")));
    rest.add("", fmt::format("{} C", count_or_dash(gpu.value(tags::kGpuTemperatureC), "{:.0f}")));
    rest.add("", fmt::format("{} MHz", count_or_dash(gpu.value(tags::kGpuClockSmMhz), "{:.0f}")));
    if (gpu.value(tags::kGpuEccUncorrected).value_or(0.0) > 0.0) rest.add("", "memory errors", Style::kBad);
    const std::string reason = throttled_by(gpu.value(tags::kGpuThrottleReasons).value_or(0.0));
    if (!reason.empty()) rest.add("", reason, reason == "power limit" ? Style::kWarn : Style::kBad);
    if (gpu.sent_gib_per_s) {
      rest.add("NVLink",
               fmt::format("{:.1f} out {:.1f} in GiB/s", *gpu.sent_gib_per_s, gpu.received_gib_per_s.value_or(0.0)));
    }
  }
}

void draw_ranks(Grid& grid, Rect rect, const RunData& data, int first, int64_t now_ms) {
  draw_heading(grid, rect, "ranks");
  grid.put(rect.x, rect.y + 1,
           fmt::format("{:>4}{:>12}{:>12}{:>11}{:>12}{:>14}{:>13}", "rank", "step", "recorded", "data ms", "waited ms",
                       "transfers ms", "sent"),
           Style::kLabel, rect.width);
  const auto& ranks = data.ranks();
  for (int line = 2; line < rect.height && first + line - 2 < static_cast<int>(ranks.size()); ++line) {
    const RunData::Rank& rank = ranks[static_cast<size_t>(first + line - 2)];
    const int64_t age = std::max<int64_t>(0, now_ms - rank.last_ms);
    const bool silent = data.run().status == RunStatus::kRunning && age > kSilentMs;
    const int y = rect.y + line;
    int x = grid.put(rect.x, y, fmt::format("{:>4}{:>12}", rank.rank, rank.step), Style::kPlain, rect.width);
    x = grid.put(x, y, fmt::format("{:>12}", age_text(age)), silent ? Style::kBad : Style::kPlain);
    grid.put(x, y,
             fmt::format("{:>11}{:>12}{:>14}{:>13}", count_or_dash(rank.loader_wait_ms, "{:.2f}"),
                         count_or_dash(rank.wait_ms, "{:.2f}"), count_or_dash(rank.transfer_ms, "{:.2f}"),
                         rank.sent_bytes ? human_bytes(static_cast<int64_t>(*rank.sent_bytes)) : "-"));
  }
}

void draw_messages(Grid& grid, Rect rect, const RunData& data, int back) {
  draw_heading(grid, rect, back > 0 ? fmt::format("messages, but for the last {}", back) : "messages");
  const auto& messages = data.messages();
  const int rows = rect.height - 1;
  const int end = std::max(0, static_cast<int>(messages.size()) - back), begin = std::max(0, end - rows);
  for (int i = begin; i < end; ++i) {
    std::string_view line = messages[static_cast<size_t>(i)];
    const int y = rect.y + 1 + i - begin;
    int x = rect.x;
    if (line.size() > 22 && line[19] == 'Z') {  // of its time, that of the day
      x = grid.put(x, y, line.substr(11, 8), Style::kDim) + 1;
      line.remove_prefix(22);
    }
    const bool bad = line.find("error") != std::string_view::npos ||
                     line.find("not finite") != std::string_view::npos || line.starts_with("alert:");
    const bool warns = line.starts_with("warning");
    grid.put(x, y, line, bad ? Style::kBad : warns ? Style::kWarn : Style::kPlain, rect.x + rect.width - x);
  }
}

}  // namespace nmoe::mon
