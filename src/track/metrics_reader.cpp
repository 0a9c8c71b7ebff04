#include "track/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace nmoe {
namespace {

// Up to where the database has the live file.
MetricsView::Position position_of(MetricsView* view) {
  return view != nullptr ? view->position().value_or(MetricsView::Position{}) : MetricsView::Position{};
}

// Nothing where there is no such file.
std::optional<fs::file_time_type> time_of(const fs::path& path) {
  std::error_code missing;
  const fs::file_time_type time = fs::last_write_time(path, missing);
  return missing ? std::nullopt : std::optional(time);
}

}  // namespace

bool has_metrics(const fs::path& database) { return fs::exists(database) || fs::exists(live_path(database)); }

fs::path metrics_path(const fs::path& run_dir, const std::string& run_id, int64_t rank) {
  if (!is_name_below(run_id) || run_id.find('/') != std::string::npos) {
    throw runtime_error(fmt::format("a run of {} has the id '{}', which is not a name of a folder",
                                    (run_dir / "experiments.db").string(), run_id),
                        "the database was damaged or altered: restore it");
  }
  return run_dir / "metrics" / run_id / fmt::format("rank_{}.duckdb", rank);
}

MetricsReader::MetricsReader(fs::path database) : path_(std::move(database)), tail_(live_path(path_)) {
  attach(has_database() ? std::make_unique<MetricsView>(path_).get() : nullptr);
}

// A run's first minute has none.
bool MetricsReader::has_database() const { return fs::exists(path_) || !fs::exists(live_path(path_)); }

// False when nothing is left.
bool MetricsReader::Entry::rewind(int64_t step) {
  series.rewind(step);
  arrays.rewind(step);
  last_row.clear();
  if (!series.empty()) {
    last.step = series.steps().back();
    last.value = series.values().back();
    last.ts_ms = series.times_ms().back();
  } else if (arrays.size() > 0) {
    last.step = arrays.steps().back();
    last.value = static_cast<double>(arrays.rows().back().size());
    last.ts_ms = arrays.times_ms().back();
    last_row = arrays.rows().back();
  }
  return !series.empty() || arrays.size() > 0;
}

// While the database is open nothing moves there from the live file: both are read as of one moment.
void MetricsReader::attach(MetricsView* view) {
  std::set<std::string> loaded;
  for (const auto& [tag, entry] : entries_) {
    if (entry.loaded) loaded.insert(tag);
  }
  entries_.clear();
  database_time_ = time_of(path_);
  const MetricsView::Position folded = position_of(view);
  int64_t kept = MetricsView::kNoLimit;  // steps of the database that the live file does not take back
  if (tail_.open(folded.id, folded.end)) {
    tail_.poll([&](MetricRecord record, uint64_t) {
      if (record.rewind) kept = std::min(kept, record.step);
      take(std::move(record), /*keep_all=*/true);
    });
  }
  if (view != nullptr) {
    for (MetricsView::Last& last : view->last(kept)) {
      const auto [at, is_new] = entries_.try_emplace(last.tag);
      if (is_new || at->second.last.step < last.step) at->second.last = std::move(last);
    }
  }
  Wanted wanted;
  for (auto& [tag, entry] : entries_) {
    entry.loaded = loaded.contains(tag);
    if (entry.loaded) {
      wanted.emplace(tag, &entry);
    } else {
      entry.series = {};
      entry.arrays = {};
    }
  }
  if (view != nullptr) load_from(*view, kept, wanted);
}

// `keep_all`: what has come of tags that are not loaded, too.
void MetricsReader::take(MetricRecord record, bool keep_all) {
  if (record.rewind) {
    for (auto at = entries_.begin(); at != entries_.end();) {
      at = at->second.rewind(record.step) || at->second.loaded ? std::next(at) : entries_.erase(at);
    }
  }
  const auto note = [&](const std::string& tag, bool is_array, double value) -> Entry& {
    Entry& entry = entries_[tag];
    if (entry.last.tag.empty() || entry.last.step <= record.step) {
      entry.last = {.tag = tag, .is_array = is_array, .step = record.step, .value = value, .ts_ms = record.ts_ms};
    }
    return entry;
  };
  for (const auto& [tag, value] : record.scalars) {
    Entry& entry = note(tag, /*is_array=*/false, value);
    if (entry.loaded || keep_all) entry.series.put(record.step, value, record.ts_ms);
  }
  for (auto& [tag, row] : record.arrays) {
    Entry& entry = note(tag, /*is_array=*/true, static_cast<double>(row.size()));
    if (entry.last.step == record.step) entry.last_row = row;
    if (entry.loaded || keep_all) entry.arrays.put(record.step, std::move(row), record.ts_ms);
  }
}

// Whether the last live file was read to its end.
bool MetricsReader::has_all(MetricsView& view) const {
  const auto folded = view.position();
  return folded && folded->id == tail_.id() && folded->end == tail_.position();
}

MetricsReader::Change MetricsReader::poll() {
  Change change;
  const bool followed = tail_.is_open();
  const LiveTail::State state = followed || tail_.can_try_again() ? tail_.poll([&](MetricRecord record, uint64_t) {
    change.values = true;
    change.reloaded = change.reloaded || record.rewind;
    take(std::move(record), /*keep_all=*/false);
  })
                                                                  : LiveTail::State::kEnded;
  const bool has_ended = state == LiveTail::State::kEnded;
  ended_ = ended_ || (followed && has_ended);
  // Nobody writes the file that was followed any more: then the database changes by what evaluations add.
  const bool was_added_to = !followed && has_ended && time_of(path_) != database_time_;
  outdated_ = outdated_ || change.reloaded || state == LiveTail::State::kLost || was_added_to;
  if (!outdated_ && !ended_) return change;
  std::unique_ptr<MetricsView> view;
  if (has_database()) {
    view = MetricsView::open_now(path_);
    if (view == nullptr) return change;
  }
  if (outdated_ || view == nullptr || !has_all(*view)) {
    attach(view.get());
    change = {.values = true, .reloaded = true};
  }
  outdated_ = ended_ = false;
  return change;
}

std::vector<MetricsView::Last> MetricsReader::tags() const {
  std::vector<MetricsView::Last> all;
  all.reserve(entries_.size());
  for (const auto& [tag, entry] : entries_) all.push_back(entry.last);
  return all;
}

void MetricsReader::load(std::span<const std::string> tags) {
  Wanted wanted;
  for (const std::string& tag : tags) {
    const auto found = entries_.find(tag);
    if (found != entries_.end() && !found->second.loaded) wanted.emplace(found->first, &found->second);
  }
  if (wanted.empty()) return;
  std::optional<MetricsView> view;
  if (fs::exists(path_)) view.emplace(path_);
  // What the database has not yet is read once more, and perhaps more than was passed on so far: then it comes again.
  const MetricsView::Position folded = position_of(view ? &*view : nullptr);
  int64_t kept = MetricsView::kNoLimit;
  LiveTail tail(live_path(path_));
  if (tail.open(folded.id, folded.end)) {
    tail.poll([&](const MetricRecord& record, uint64_t) {
      if (record.rewind) {
        kept = std::min(kept, record.step);
        for (const auto& [tag, entry] : wanted) entry->rewind(record.step);
      }
      for (const auto& [tag, value] : record.scalars) {
        const auto found = wanted.find(tag);
        if (found != wanted.end()) found->second->series.put(record.step, value, record.ts_ms);
      }
      for (const auto& [tag, row] : record.arrays) {
        const auto found = wanted.find(tag);
        if (found != wanted.end()) found->second->arrays.put(record.step, row, record.ts_ms);
      }
    });
  }
  for (const auto& [tag, entry] : wanted) entry->loaded = true;
  if (view) load_from(*view, kept, wanted);
}

void MetricsReader::Entry::put_before(std::vector<int64_t> steps, std::vector<double> values,
                                      std::vector<int64_t> times) {
  steps.insert(steps.end(), series.steps().begin(), series.steps().end());
  values.insert(values.end(), series.values().begin(), series.values().end());
  times.insert(times.end(), series.times_ms().begin(), series.times_ms().end());
  series.assign(std::move(steps), std::move(values), std::move(times));
}

void MetricsReader::Entry::put_before(std::vector<int64_t> steps, std::vector<std::vector<float>> rows,
                                      std::vector<int64_t> times) {
  steps.insert(steps.end(), arrays.steps().begin(), arrays.steps().end());
  rows.insert(rows.end(), arrays.rows().begin(), arrays.rows().end());
  times.insert(times.end(), arrays.times_ms().begin(), arrays.times_ms().end());
  arrays.assign(std::move(steps), std::move(rows), std::move(times));
}

// A query for each tag while they are few, and one of everything where they are many.
void MetricsReader::load_from(MetricsView& view, int64_t max_step, const Wanted& wanted) {
  constexpr size_t kFew = 32;
  struct Columns {
    std::vector<int64_t> steps;
    std::vector<double> values;
    std::vector<std::vector<float>> rows;
    std::vector<int64_t> times;
  };
  std::map<std::string_view, Columns> all;
  for (const auto& [tag, entry] : wanted) all[tag];
  const auto add = [](Columns& columns, auto& list, int64_t step, auto value, int64_t ts_ms) {
    columns.steps.push_back(step);
    list.push_back(std::move(value));
    columns.times.push_back(ts_ms);
  };
  if (wanted.size() > kFew) {
    const auto find = [&](const std::string& tag, bool is_array) -> Columns* {
      const auto found = wanted.find(tag);
      return found != wanted.end() && found->second->last.is_array == is_array ? &all.at(tag) : nullptr;
    };
    view.each(
        max_step,
        [&](const std::string& tag, int64_t step, double value, int64_t ts_ms) {
          if (Columns* columns = find(tag, false)) add(*columns, columns->values, step, value, ts_ms);
        },
        [&](const std::string& tag, int64_t step, std::vector<float> row, int64_t ts_ms) {
          if (Columns* columns = find(tag, true)) add(*columns, columns->rows, step, std::move(row), ts_ms);
        });
  }
  for (const auto& [tag, entry] : wanted) {
    Columns& columns = all.at(tag);
    if (wanted.size() <= kFew && entry->last.is_array) {
      view.arrays(std::string(tag), max_step, [&](int64_t step, std::vector<float> row, int64_t ts_ms) {
        add(columns, columns.rows, step, std::move(row), ts_ms);
      });
    } else if (wanted.size() <= kFew) {
      view.series(std::string(tag), max_step,
                  [&](int64_t step, double value, int64_t ts_ms) { add(columns, columns.values, step, value, ts_ms); });
    }
    if (entry->last.is_array) {
      entry->put_before(std::move(columns.steps), std::move(columns.rows), std::move(columns.times));
    } else {
      entry->put_before(std::move(columns.steps), std::move(columns.values), std::move(columns.times));
    }
  }
}

void MetricsReader::load_last(std::span<const std::string> tags) {
  std::optional<MetricsView> view;
  for (const std::string& tag : tags) {
    const auto found = entries_.find(tag);
    if (found == entries_.end() || !found->second.last.is_array || !found->second.last_row.empty()) continue;
    if (!view && !fs::exists(path_)) return;
    if (!view) view.emplace(path_);
    const int64_t step = found->second.last.step;
    view->arrays(
        tag, step, [&](int64_t, std::vector<float> row, int64_t) { found->second.last_row = std::move(row); }, step);
  }
}

const std::vector<float>& MetricsReader::last_row(const std::string& tag) const {
  static const std::vector<float> kNone;
  const auto found = entries_.find(tag);
  return found != entries_.end() ? found->second.last_row : kNone;
}

const Series& MetricsReader::series(const std::string& tag) const {
  static const Series kNone;
  const auto found = entries_.find(tag);
  return found != entries_.end() && found->second.loaded ? found->second.series : kNone;
}

const ArraySeries& MetricsReader::arrays(const std::string& tag) const {
  static const ArraySeries kNone;
  const auto found = entries_.find(tag);
  return found != entries_.end() && found->second.loaded ? found->second.arrays : kNone;
}

}  // namespace nmoe
