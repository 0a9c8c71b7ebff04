// What `n mon` shows and how it answers keys, without a terminal: tests press keys and compare screens.
//
//   Monitor monitor(run_dir, run_id);
//   while (!monitor.done()) { monitor.tick(now_ms()); show(monitor.draw(w, h)); monitor.press(key); }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/files.h"
#include "mon/grid.h"
#include "mon/panels.h"
#include "mon/picker.h"
#include "mon/run_data.h"
#include "mon/terminal.h"
#include "track/runs.h"

namespace nmoe::mon {

class Monitor {
 public:
  // `run`: an id, its beginning, or a name (find_run()); "": the newest that is running, else the newest. Error (usage)
  // where there is none. Nothing is written anywhere.
  Monitor(fs::path run_dir, const std::string& run);

  // Reads what has come. Whether there is more to read at once, for which keys need not wait.
  bool tick(int64_t now_ms);
  void press(KeyPress press);
  bool done() const { return done_; }
  Grid draw(int width, int height);

 private:
  enum class Page { kOverview, kRouter, kGpus, kRanks, kMessages };
  enum class Overlay { kNone, kHelp, kRuns, kTags };

  void open(const RunRow& run);
  void list_runs();
  void list_tags();
  void press_overlay(KeyPress press);
  void press_key(Key key);
  void press_character(char32_t character);
  void show_runs();
  void show_tags();
  void zoom_in();  // to the last half of the steps that are shown
  void zoom_out();
  void turn_to(int page);
  void scroll(int by);
  void draw_title(Grid& grid) const;
  void draw_page(Grid& grid, Rect rect);
  void draw_overview(Grid& grid, Rect rect) const;
  void draw_help(Grid& grid, Rect rect) const;

  fs::path run_dir_;
  RunStore store_;
  std::unique_ptr<RunData> data_;
  Page page_ = Page::kOverview;
  Overlay overlay_ = Overlay::kNone;
  Picker runs_, tags_;
  CurveWindow window_;
  int scroll_ = 0;  // lines of the page
  bool paused_ = false;
  bool done_ = false;
  int64_t now_ms_ = 0;
  int64_t row_ms_ = 0;  // when the run's row was read
  std::string store_problem_;
};

}  // namespace nmoe::mon
