#include "mon/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "track/run_query.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"

namespace nmoe::mon {
namespace {

constexpr int64_t kRowMs = 2000;       // how often the run's row, and the list of runs while it is shown, are read
constexpr int64_t kAlertMs = 600'000;  // how long an alert stays in the title
constexpr std::array<std::string_view, 5> kPages = {"1 Overview", "2 Router", "3 GPUs", "4 Ranks", "5 Messages"};
constexpr std::string_view kRunColumns =
    "run                       name                status            step      loss     valid  started";

Style style_of(RunStatus status) {
  switch (status) {
    case RunStatus::kRunning:
      return Style::kGood;
    case RunStatus::kCompleted:
      return Style::kPlain;
    case RunStatus::kInterrupted:
      return Style::kWarn;
    default:
      return Style::kBad;
  }
}

std::string decimal(const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "-"; }

}  // namespace

Monitor::Monitor(fs::path run_dir, const std::string& run)
    : run_dir_(std::move(run_dir)),
      store_(runs_database(run_dir_), RunStore::Access::kRead),
      runs_("runs: Enter opens, / filters", std::string(kRunColumns)),
      tags_("curves: Enter draws, / filters", "tag") {
  const std::vector<RunRow> all = store_.list();
  if (!run.empty()) {
    open(find_run(all, run));
    return;
  }
  if (all.empty()) throw usage_error(fmt::format("'{}' has no runs", run_dir_.string()), "train something first");
  const auto running = std::ranges::find(all, RunStatus::kRunning, &RunRow::status);
  open(running == all.end() ? all.front() : *running);
}

void Monitor::open(const RunRow& run) {
  const std::string shown = data_ ? data_->shown() : std::string(tags::kLoss.tag);
  data_ = std::make_unique<RunData>(run_dir_, run, store_.config(run.id));
  data_->show(shown);
  scroll_ = 0;
}

bool Monitor::tick(int64_t now_ms) {
  now_ms_ = now_ms;
  if (paused_) return false;
  if (now_ms - row_ms_ >= kRowMs) {
    row_ms_ = now_ms;
    try {
      if (overlay_ == Overlay::kRuns) list_runs();
      if (auto row = store_.find(data_->run().id)) data_->set_run(std::move(*row));
      store_problem_.clear();
    } catch (const std::exception& error) {
      store_problem_ = error.what();
    }
  }
  if (data_->load_next()) return true;
  data_->poll();
  return false;
}

void Monitor::list_runs() {
  std::vector<Picker::Item> items;
  for (const RunRow& run : store_.list()) {
    items.push_back(
        {run.id,
         fmt::format("{:<25} {:<19} {:<15}{:>7}{:>10}{:>10}  {}", run.id, run.name, run_status_name(run.status),
                     run.step, decimal(run.smooth_loss), decimal(run.valid_loss), run.started_at),
         style_of(run.status)});
  }
  runs_.set_items(std::move(items));
}

void Monitor::list_tags() {
  std::vector<Picker::Item> items;
  for (std::string& tag : data_->scalar_tags()) {
    items.push_back({tag, fmt::format("{:<52}{:>14.6g}", tag, data_->value(tag).value_or(NAN))});
  }
  tags_.set_items(std::move(items));
  tags_.select(data_->shown());
}

void Monitor::turn_to(int page) {
  const int count = static_cast<int>(kPages.size());
  page_ = static_cast<Page>((page + count) % count);
  scroll_ = 0;
}

// The last messages are shown first, so there it goes the other way.
void Monitor::scroll(int by) { scroll_ = std::max(0, scroll_ + (page_ == Page::kMessages ? -by : by)); }

void Monitor::press_overlay(KeyPress press) {
  if (press.key == Key::kNone) return;
  if (overlay_ == Overlay::kHelp) {
    overlay_ = Overlay::kNone;
    return;
  }
  Picker& picker = overlay_ == Overlay::kRuns ? runs_ : tags_;
  const Picker::Result result = picker.press(press);
  if (result == Picker::Result::kOpen) return;
  if (result == Picker::Result::kChosen && overlay_ == Overlay::kTags) {
    data_->show(picker.selected());
    page_ = Page::kOverview;
  } else if (result == Picker::Result::kChosen) {
    try {
      if (const auto row = store_.find(picker.selected())) open(*row);
    } catch (const std::exception& error) {
      store_problem_ = error.what();
    }
  }
  overlay_ = Overlay::kNone;
}

void Monitor::press(KeyPress press) {
  if (press.key == Key::kGone) {
    done_ = true;
  } else if (overlay_ != Overlay::kNone) {
    press_overlay(press);
  } else if (press.key == Key::kCharacter) {
    press_character(press.character);
  } else {
    press_key(press.key);
  }
}

void Monitor::press_key(Key key) {
  switch (key) {
    case Key::kF1:
      overlay_ = Overlay::kHelp;
      return;
    case Key::kF2:
      return show_runs();
    case Key::kF6:
      return show_tags();
    case Key::kF10:
      done_ = true;
      return;
    case Key::kTab:
    case Key::kRight:
      return turn_to(static_cast<int>(page_) + 1);
    case Key::kBacktab:
    case Key::kLeft:
      return turn_to(static_cast<int>(page_) - 1);
    case Key::kUp:
      return scroll(-1);
    case Key::kDown:
      return scroll(1);
    case Key::kPageUp:
      return scroll(-10);
    case Key::kPageDown:
      return scroll(10);
    case Key::kHome:
      scroll_ = page_ == Page::kMessages ? static_cast<int>(data_->messages().size()) : 0;
      return;
    case Key::kEnd:
      scroll_ = page_ == Page::kMessages ? 0 : 1 << 20;
      return;
    default:
      return;
  }
}

void Monitor::press_character(char32_t character) {
  switch (character) {
    case U'q':
      done_ = true;
      return;
    case U'h':
    case U'?':
      overlay_ = Overlay::kHelp;
      return;
    case U'r':
      return show_runs();
    case U'c':
    case U'>':
      return show_tags();
    case U'l':
      window_.log_axis = !window_.log_axis;
      return;
    case U'+':
      return zoom_in();
    case U'-':
      return zoom_out();
    case U'0':
      window_.last_steps = 0;
      return;
    case U'Z':
    case U' ':
      paused_ = !paused_;
      return;
    default:
      if (character >= U'1' && character <= U'5') turn_to(static_cast<int>(character - U'1'));
      return;
  }
}

void Monitor::show_runs() {
  try {
    list_runs();
  } catch (const std::exception& error) {
    store_problem_ = error.what();
  }
  runs_.select(data_->run().id);
  overlay_ = Overlay::kRuns;
}

void Monitor::show_tags() {
  list_tags();
  overlay_ = Overlay::kTags;
}

void Monitor::zoom_in() {
  const Series& series = data_->series();
  const int64_t all = series.empty() ? 0 : series.steps().back() - series.steps().front() + 1;
  const int64_t now = window_.last_steps > 0 ? std::min(window_.last_steps, all) : all;
  window_.last_steps = std::max<int64_t>(2, now / 2);
}

void Monitor::zoom_out() {
  const Series& series = data_->series();
  if (series.empty() || window_.last_steps == 0) return;
  window_.last_steps *= 2;
  if (window_.last_steps > series.steps().back() - series.steps().front()) window_.last_steps = 0;
}

Grid Monitor::draw(int width, int height) {
  Grid grid(width, height);
  if (width < 40 || height < 10) {
    grid.put(0, 0, "too small: 40 x 10 at least", Style::kWarn);
    return grid;
  }
  draw_title(grid);
  const Rect inside{0, 2, width, height - 3};
  switch (overlay_) {
    case Overlay::kNone:
      draw_page(grid, inside);
      break;
    case Overlay::kHelp:
      draw_help(grid, inside);
      break;
    case Overlay::kRuns:
      runs_.draw(grid, inside);
      break;
    case Overlay::kTags:
      tags_.draw(grid, inside);
      break;
  }
  int x = 0;
  for (const auto& [key, what] : {std::pair{"F1", "Help "},
                                  {"F2", "Runs "},
                                  {"F6", "Curve "},
                                  {"Tab", "Page "},
                                  {"+-", "Zoom "},
                                  {"l", "Log "},
                                  {"Space", "Pause "},
                                  {"q", "Quit "}}) {
    x = grid.put(x, height - 1, key);
    x = grid.put(x, height - 1, what, Style::kBar);
  }
  return grid;
}

void Monitor::draw_title(Grid& grid) const {
  const RunRow& run = data_->run();
  grid.fill({0, 0, grid.width(), 1}, Style::kTitle);
  const double step =
      !data_->ranks().empty() ? static_cast<double>(data_->ranks().front().step) : static_cast<double>(run.step);
  std::string right = fmt::format("step {:.0f}", step);
  if (data_->total_steps() > 0) {
    const double total = static_cast<double>(data_->total_steps());
    right += fmt::format("/{:.0f}  {:.0f} %", total, 100.0 * step / total);
    const auto ms = data_->value(tags::kMsPerStep);
    if (run.status == RunStatus::kRunning && ms && step < total) {
      right += fmt::format("  ETA {}", human_seconds(1e-3 * *ms * (total - step)));
    }
  }
  right += ' ';
  const int place = std::max(0, grid.width() - static_cast<int>(right.size()));
  grid.put(1, 0, fmt::format("{}  {}  {}", run.name, run_status_name(run.status), run.id), Style::kTitle, place - 3);
  grid.put(place, 0, right, Style::kTitle);
  int x = 1;
  for (size_t i = 0; i < kPages.size(); ++i) {
    x = grid.put(x, 1, kPages[i],
                 overlay_ == Overlay::kNone && i == static_cast<size_t>(page_) ? Style::kSelected : Style::kDim) +
        2;
  }
  const std::string& problem = store_problem_.empty() ? data_->problem() : store_problem_;
  std::string note;
  Style style = Style::kBad;
  if (paused_) {
    note = "paused";
    style = Style::kWarn;
  } else if (!problem.empty()) {
    note = problem;
  } else if (!run.reason.empty()) {
    note = run.reason;
  } else if (!data_->alerts().empty() && now_ms_ - data_->alerts().back().ts_ms < kAlertMs) {
    const Alert& alert = data_->alerts().back();
    note = fmt::format("alert {}: {}", age_text(now_ms_ - alert.ts_ms), alert.text);
  } else if (run.status == RunStatus::kRunning && data_->last_ms() > 0) {
    note = "recorded " + age_text(now_ms_ - data_->last_ms());
    style = Style::kDim;
  }
  grid.put(x, 1, note, style);
}

void Monitor::draw_page(Grid& grid, Rect rect) {
  const auto clamp_to = [&](size_t lines, int shown) {
    scroll_ = std::clamp(scroll_, 0, std::max(0, static_cast<int>(lines) - shown));
  };
  switch (page_) {
    case Page::kOverview:
      return draw_overview(grid, rect);
    case Page::kRouter:
      clamp_to(data_->routers().size(), rect.height - 1);
      return draw_routers(grid, rect, *data_, scroll_);
    case Page::kGpus:
      clamp_to(data_->gpus().size(), rect.height - 1);
      return draw_gpus(grid, rect, *data_, scroll_);
    case Page::kRanks:
      clamp_to(data_->ranks().size(), rect.height - 2);
      return draw_ranks(grid, rect, *data_, scroll_, now_ms_);
    case Page::kMessages:
      clamp_to(data_->messages().size(), rect.height - 1);
      return draw_messages(grid, rect, *data_, scroll_);
  }
}

// From top to bottom, with what room is left to the curve.
void Monitor::draw_overview(Grid& grid, Rect rect) const {
  const bool large = rect.height >= 34;
  const int gpus = static_cast<int>(data_->gpus().size()), layers = static_cast<int>(data_->routers().size());
  const int gpu_lines = gpus == 0 ? 0 : 1 + std::min(gpus, large ? 8 : 2);
  const int router_lines = layers == 0 ? 0 : large ? 1 + std::min(layers, rect.height / 4) : 1;
  const int message_lines = 1 + (large ? 6 : 3);
  draw_figures(grid, rect, *data_);
  const int below = gpu_lines + router_lines + message_lines;
  const int curve_lines = std::max(0, rect.height - kFiguresHeight - below);
  int y = rect.y + kFiguresHeight;
  draw_curve(grid, {rect.x, y, rect.width, curve_lines}, *data_, window_);
  y += curve_lines;
  const auto part = [&](int lines) {
    const Rect place{rect.x, y, rect.width, lines};
    y += lines;
    return place;
  };
  if (router_lines == 1) draw_router_summary(grid, part(router_lines), *data_);
  if (router_lines > 1) draw_routers(grid, part(router_lines), *data_, 0);
  if (gpu_lines > 0) draw_gpus(grid, part(gpu_lines), *data_, 0);
  draw_messages(grid, part(message_lines), *data_, 0);
}

void Monitor::draw_help(Grid& grid, Rect rect) const {
  draw_heading(grid, rect, "help: any key goes back");
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kHelp = {{
      {"1 to 5, Tab, arrows", "pages"},
      {"F2, r", "another run"},
      {"F6, c, >", "another curve"},
      {"+  -  0", "half as many steps, twice as many, all"},
      {"l", "logarithmic axis"},
      {"Up Down PgUp PgDn Home End", "scroll"},
      {"Space, Z", "stand still"},
      {"F1, h, ?", "this"},
      {"F10, q, Ctrl-C", "quit"},
      {"", ""},
      {"in lists: / or F4", "filter; Esc shows all again, or closes"},
      {"          Enter", "choose"},
  }};
  int y = rect.y + 2;
  for (const auto& [keys, what] : kHelp) {
    grid.put(rect.x + 2, y, keys, Style::kLabel);
    grid.put(rect.x + 32, y, what);
    ++y;
  }
  for (const std::string_view line : {"Curves are bright where they are at the end of a column's steps, dim from",
                                      "their least to their greatest value. x on the axis: not finite; diamonds:",
                                      "validation. docs/mon.md has the rest."}) {
    grid.put(rect.x + 2, ++y, line, Style::kDim);
  }
}

}  // namespace nmoe::mon
