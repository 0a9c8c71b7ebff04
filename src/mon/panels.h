// What a monitor shows of a run, part by part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mon/grid.h"
#include "mon/run_data.h"

namespace nmoe::mon {

// "5.0s ago"; "now" of less than a second.
std::string age_text(int64_t ms);

// A heading over the width of `rect`, in its first line.
void draw_heading(Grid& grid, Rect rect, std::string_view text);

// Three lines: losses, speed, what a step's time went to.
inline constexpr int kFiguresHeight = 3;
void draw_figures(Grid& grid, Rect rect, const RunData& data);

struct CurveWindow {
  int64_t last_steps = 0;  // how many; 0: all
  bool log_axis = false;
};
// With extremes, x where values are not finite, and validation's losses as diamonds.
void draw_curve(Grid& grid, Rect rect, const RunData& data, const CurveWindow& window);

// A line a layer from the `first`-th on: a character for each expert, or for neighbours together the one that is
// farthest off.
void draw_routers(Grid& grid, Rect rect, const RunData& data, int first);
// All layers in a line.
void draw_router_summary(Grid& grid, Rect rect, const RunData& data);

void draw_gpus(Grid& grid, Rect rect, const RunData& data, int first);
void draw_ranks(Grid& grid, Rect rect, const RunData& data, int first, int64_t now_ms);
// The last lines, but for `back` of them.
void draw_messages(Grid& grid, Rect rect, const RunData& data, int back);

}  // namespace nmoe::mon
