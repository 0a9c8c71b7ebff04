// n runs plot, export: what runs have recorded.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/runs_store.h"
#include "cli/standard_output.h"
#include "track/braille_plot.h"
#include "track/csv.h"
#include "track/metrics_reader.h"
#include "track/tensorboard.h"

namespace nmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPlotHeight = 20;  // lines

int64_t terminal_width() {
  struct winsize size {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A reader that has everything in memory.
class Recorded {
 public:
  explicit Recorded(const fs::path& database) : reader_(database), tags_(reader_.tags()) {
    std::vector<std::string> names;
    for (const MetricsView::Last& tag : tags_) names.push_back(tag.tag);
    reader_.load(names);
  }
  // `take_value` gets tag, step, time and value; `take_array` the same of arrays.
  template <class TakeValue, class TakeArray>
  void each(const TakeValue& take_value, const TakeArray& take_array) const {
    for (const MetricsView::Last& tag : tags_) {
      const Series& series = reader_.series(tag.tag);
      for (size_t i = 0; i < series.size(); ++i) {
        take_value(tag.tag, series.steps()[i], series.times_ms()[i], series.values()[i]);
      }
      const ArraySeries& arrays = reader_.arrays(tag.tag);
      for (size_t i = 0; i < arrays.size(); ++i) {
        take_array(tag.tag, arrays.steps()[i], arrays.times_ms()[i], arrays.rows()[i]);
      }
    }
  }

 private:
  MetricsReader reader_;
  std::vector<MetricsView::Last> tags_;
};

void export_csv(const Recorded& recorded, const fs::path& folder) {
  std::string scalars = "tag,step,ts_ms,value\r\n", arrays = "tag,step,ts_ms,index,value\r\n";
  recorded.each(
      [&](const std::string& tag, int64_t step, int64_t ts_ms, double value) {
        fmt::format_to(std::back_inserter(scalars), "{},{},{},{}\r\n", csv_field(tag), step, ts_ms, value);
      },
      [&](const std::string& tag, int64_t step, int64_t ts_ms, const std::vector<float>& values) {
        for (size_t i = 0; i < values.size(); ++i) {
          fmt::format_to(std::back_inserter(arrays), "{},{},{},{},{}\r\n", csv_field(tag), step, ts_ms, i, values[i]);
        }
      });
  write_file_atomically(folder / "scalars.csv", scalars);
  write_file_atomically(folder / "arrays.csv", arrays);
}

// {"tags": {TAG: {"step": [], "ts_ms": [], "value": []}}}; what is not finite is null.
void export_json(const Recorded& recorded, const fs::path& folder) {
  Json json = {{"tags", Json::object()}};
  const auto add = [&](const std::string& tag, int64_t step, int64_t ts_ms, const auto& value) {
    Json& columns = json["tags"][tag];
    columns["step"].push_back(step);
    columns["ts_ms"].push_back(ts_ms);
    columns["value"].push_back(value);
  };
  recorded.each(add, add);
  write_file_atomically(folder / "metrics.json", json_text(json) + "\n");
}

void export_tensorboard(const Recorded& recorded, const fs::path& folder) {
  std::string events;
  int64_t first_ms = 0;
  recorded.each(
      [&](const std::string& tag, int64_t step, int64_t ts_ms, double value) {
        if (events.empty()) {
          first_ms = ts_ms;
          events = tensorboard_head(1e-3 * static_cast<double>(ts_ms));
        }
        events += tensorboard_scalar(tag, step, value, 1e-3 * static_cast<double>(ts_ms));
      },
      [](const std::string&, int64_t, int64_t, const std::vector<float>&) {});
  write_file_atomically(folder / fmt::format("events.out.tfevents.{}.nmoe", first_ms / 1000), events);
}

}  // namespace

void runs_plot_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  for (const RunRow& run : named_runs(store, arguments)) {
    MetricsReader reader(metrics_path(arguments.dir, run.id));
    if (!reader.has(arguments.tag)) {
      std::vector<std::string> tags;
      for (const MetricsView::Last& tag : reader.tags()) tags.push_back(tag.tag);
      const std::string near = nearest(arguments.tag, tags);
      throw usage_error(fmt::format("run '{}' has recorded no '{}'", run.id, arguments.tag),
                        near.empty() ? fmt::format("n runs show {} lists what it has", run.id)
                                     : fmt::format("did you mean '{}'?", near));
    }
    reader.load(std::vector<std::string>{arguments.tag});
    print("{} {}: {}\n", run.id, run.name, arguments.tag);
    print("{}", braille_plot(reader.series(arguments.tag), terminal_width(), kPlotHeight));
  }
}

void runs_export_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  for (const RunRow& run : named_runs(store, arguments)) {
    const Recorded recorded(metrics_path(arguments.dir, run.id));
    const fs::path folder = fs::path(arguments.out) / run.id;
    make_directories(folder);
    if (arguments.format == "csv") {
      export_csv(recorded, folder);
    } else if (arguments.format == "json") {
      export_json(recorded, folder);
    } else {
      export_tensorboard(recorded, folder);
    }
    print("{}\n", folder.string());
  }
}

}  // namespace nmoe::cli
