#include "viz/viz_server.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/authentication.h"
#include "base/error.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/start_thread.h"
#include "serve/page.h"
#include "track/alerts.h"
#include "track/catalogue.h"
#include "track/config_differences.h"
#include "track/csv.h"
#include "track/log_tail.h"
#include "track/metrics.h"
#include "track/run_files.h"
#include "track/run_json.h"
#include "track/run_query.h"
#include "track/tags/training.h"
#include "viz/checkpoints.h"
#include "viz/layers.h"
#include "viz/metrics_module.h"
#include "viz/window.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr int kMaxStreams = 16;            // each has a worker of its own
constexpr int kWorkers = 6;                // for all else
constexpr auto kLook = milliseconds(150);  // how often runs are looked after
constexpr int64_t kLookAtListMs = 1000;
constexpr int64_t kLookForDeadMs = 5000;  // a process that is gone changes no file
constexpr auto kSignOfLife = std::chrono::seconds(15);
constexpr int64_t kMostRuns = 1000;  // in a reply
constexpr size_t kCsvPiece = 256 << 10;
constexpr size_t kMostSampleSets = 50;  // the last validations

// Axes by what a run records of its progress; training: in seconds, from the time of its steps.
constexpr std::pair<std::string_view, const Metric*> kProgressions[] = {
    {"tokens", &tags::kTokensSeen}, {"flops", &tags::kFlops}, {"training", &tags::kMsPerStep}};

HttpReply reply_of(int status, std::string type, std::string body) {
  return {.status = status,
          .type = std::move(type),
          .body = std::move(body),
          .headers = {{"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}},
          .note = {}};
}

// What runs are called and say may be no UTF-8.
HttpReply json_reply(const Json& json, int status = 200) {
  return reply_of(status, "application/json", json_text(json));
}

HttpReply error_reply(int status, const std::string& message) { return json_reply({{"error", message}}, status); }

std::string parameter(const HttpRequest& request, std::string_view name) {
  std::vector<std::string> values = request.parameters(name);
  return values.empty() ? "" : std::move(values.front());
}

template <class Number>
std::optional<Number> number_of(const HttpRequest& request, std::string_view name) {
  const std::string text = parameter(request, name);
  if (text.empty()) return std::nullopt;
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if constexpr (std::is_floating_point_v<Number>) {
    if (whole && std::isfinite(number)) return number;
  } else if (whole) {
    return number;
  }
  throw usage_error(fmt::format("{} is not a number", name), "leave it out, or give one");
}

bool contains_ignoring_case(const std::string& text, const std::string& lower_word) {
  return lower(text).find(lower_word) != std::string::npos;
}

int64_t started_ms(const RunRow& run) {
  std::tm time{};
  if (strptime(run.started_at.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return 0;
  return static_cast<int64_t>(timegm(&time)) * 1000;
}

std::vector<int64_t> ranks_in(const fs::path& folder) {
  std::vector<int64_t> ranks;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "rank_";
    int64_t rank = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, rank);
    const std::string_view extension(rest, static_cast<size_t>(end - rest));
    if (error == std::errc() && (extension == ".duckdb" || extension == ".live")) ranks.push_back(rank);
  }
  std::ranges::sort(ranks);
  const auto again = std::ranges::unique(ranks);
  ranks.erase(again.begin(), again.end());
  return ranks;
}

// Of these keys those that the configuration has; none of what is no configuration.
Json config_values(const std::string& config, const std::vector<std::string>& keys) {
  Json values = Json::object();
  try {
    const std::map<std::string, std::string> all = config_keys(config);
    for (const std::string& key : keys) {
      if (const auto found = all.find(key); found != all.end()) values[key] = found->second;
    }
  } catch (const JsonError&) {
  }
  return values;
}

// Changes whenever somebody writes to the database.
std::string state_of(const fs::path& database) {
  std::string state;
  for (const char* extension : {"", "-wal", "-journal"}) {
    struct stat status {};
    if (::stat((database.string() + extension).c_str(), &status) != 0) continue;
    state += fmt::format("{} {}.{} {};", status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size);
  }
  return state;
}

}  // namespace

VizServer::VizServer(VizOptions options)
    : options_(std::move(options)),
      hosts_(options_.host, options_.allowed_hosts),
      cache_(options_.run_dir, options_.cache_bytes),
      store_(runs_database(options_.run_dir), RunStore::Access::kRead),
      http_(*this, options_.host, options_.port, {.max_body = 1024, .max_connections = 256}, kMaxStreams + kWorkers) {
  NMOE_CHECK(!options_.token.empty(), "a server without a token");
  list_changed();
}

VizServer::~VizServer() {
  stopping_ = true;
  changes_.stop();
  http_.stop();
  if (watcher_.joinable()) watcher_.join();
}

void VizServer::start() {
  watcher_ = start_thread("to follow runs", [this] { watch(); });
  http_.start();
}

std::optional<HttpReply> VizServer::on_head(const HttpRequest& request) {
  if (const auto refused = hosts_.refusal(request)) return error_reply(refused->status, refused->message);
  if (request.method != "GET") return error_reply(405, "this server takes GET alone");
  if (!request.path.starts_with("/api/")) {
    std::string_view name = request.path;  // which is of a client, and may begin with anything
    if (name.starts_with("/")) name.remove_prefix(1);
    if (name == "metrics.js") return reply_of(200, "text/javascript", metrics_module());
    std::optional<HttpReply> file = page_file(name.empty() ? "viz.html" : name, request);
    return file ? std::move(file) : error_reply(404, "there is no such page");
  }
  if (!same_bytes(request.header("Authorization"), "Bearer " + options_.token)) {
    return error_reply(401, "the token is missing or wrong: open the link that n viz has printed");
  }
  return std::nullopt;
}

void VizServer::on_request(const HttpRequest& request, HttpAnswer& answer) {
  using Method = HttpReply (VizServer::*)(const HttpRequest&);
  constexpr std::pair<std::string_view, Method> kRoutes[] = {
      {"/api/runs", &VizServer::runs},
      {"/api/run", &VizServer::run},
      {"/api/compare", &VizServer::compare},
      {"/api/log", &VizServer::run_log},
      {"/api/series", &VizServer::series},
      {"/api/layers", &VizServer::layers},
      {"/api/checkpoints", &VizServer::checkpoints},
      {"/api/alerts", &VizServer::alerts},
      {"/api/samples", &VizServer::samples},
      {"/api/memory", &VizServer::memory},
  };
  if (request.path == "/api/events") return events(answer);
  const bool is_csv = request.path == "/api/csv";
  const auto* const route = std::ranges::find(kRoutes, request.path, &std::pair<std::string_view, Method>::first);
  if (!is_csv && route == std::end(kRoutes)) return answer.send(error_reply(404, "there is nothing of this name"));
  try {
    is_csv ? csv(request, answer) : answer.send((this->*route->second)(request));
  } catch (const Error& error) {
    const int status = error.kind() == ErrorKind::kUsage ? 400 : 500;
    answer.send(error_reply(status, fmt::format("{} ({})", error.what(), error.remedy())));
  }
}

HttpReply VizServer::refusal(int status, const std::string& message) { return error_reply(status, message); }

// A page says what is wrong itself.
void VizServer::log(const HttpLogEntry&) {}

std::shared_ptr<const VizServer::Runs> VizServer::list() {
  const std::lock_guard lock(list_mutex_);
  return list_;
}

std::string VizServer::config(const std::string& run) {
  const std::lock_guard lock(store_mutex_);
  return store_.config(run);
}

// Only what is in the list of runs becomes a part of a path.
RunRow VizServer::asked_run(const std::string& id) {
  const std::shared_ptr<const Runs> all = list();
  const auto found = std::ranges::find(*all, id, &RunRow::id);
  if (found == all->end()) {
    throw usage_error(fmt::format("there is no run '{}'", id), "it may have been removed");
  }
  return *found;
}

HttpReply VizServer::runs(const HttpRequest& request) {
  const std::vector<std::string> texts = request.parameters("filter");
  const std::vector<RunFilter> filters(texts.begin(), texts.end());
  const std::string words = lower(parameter(request, "q"));
  const std::shared_ptr<const Runs> all = list();
  Runs chosen;
  for (const RunRow& run : *all) {
    const bool has_words =
        words.empty() ||
        std::ranges::any_of(std::initializer_list<const std::string*>{&run.id, &run.name, &run.experiment, &run.note},
                            [&](const std::string* text) { return contains_ignoring_case(*text, words); });
    if (has_words && std::ranges::all_of(filters, [&](const RunFilter& filter) { return filter.matches(run); })) {
      chosen.push_back(run);
    }
  }
  if (const std::string by = parameter(request, "sort"); !by.empty()) sort_runs(chosen, by);
  const auto size = static_cast<int64_t>(chosen.size());
  const int64_t offset = std::clamp<int64_t>(number_of<int64_t>(request, "offset").value_or(0), 0, size);
  const int64_t limit = std::clamp<int64_t>(number_of<int64_t>(request, "limit").value_or(200), 0, kMostRuns);
  const std::vector<std::string> keys = request.parameters("key");
  Json rows = Json::array();
  for (int64_t i = offset; i < std::min(size, offset + limit); ++i) {
    const RunRow& run = chosen[static_cast<size_t>(i)];
    rows.push_back(run_json(run));
    if (!keys.empty()) rows.back()["config"] = config_values(config(run.id), keys);
  }
  return json_reply({{"all", all->size()}, {"total", size}, {"runs", std::move(rows)}});
}

HttpReply VizServer::run(const HttpRequest& request) {
  const RunRow run = asked_run(parameter(request, "run"));
  const std::vector<int64_t> ranks = ranks_in(metrics_path(options_.run_dir, run.id).parent_path());
  const int64_t rank = number_of<int64_t>(request, "rank").value_or(0);
  Json json = {{"run", run_json(run)},
               {"config", try_parse_json<Json>(config(run.id))},
               {"ranks", ranks},
               {"tags", Json::array()}};
  if (json["config"].is_discarded()) json["config"] = nullptr;
  if (!std::ranges::binary_search(ranks, rank)) return json_reply(json);  // it has recorded nothing
  cache_.look(run.id, rank, {}, [&](const MetricsReader& metrics, TrainingTime&) {
    for (const MetricsView::Last& last : metrics.tags()) {
      const Metric* metric = find_tag(last.tag);
      json["tags"].push_back({{"tag", last.tag},
                              {"array", last.is_array},
                              {"step", last.step},
                              {"value", last.value},
                              {"unit", metric == nullptr ? "" : metric->unit},
                              {"meaning", metric == nullptr ? "" : metric->meaning}});
    }
  });
  return json_reply(json);
}

HttpReply VizServer::compare(const HttpRequest& request) {
  const std::vector<std::string> ids = request.parameters("run");
  std::vector<std::string> configs;
  for (const std::string& id : ids) configs.push_back(config(id));
  Json json = {{"runs", ids}, {"differences", Json::array()}};
  for (const ConfigDifference& difference : config_differences(configs)) {
    json["differences"].push_back({{"key", difference.key}, {"values", difference.values}});
  }
  return json_reply(json);
}

HttpReply VizServer::run_log(const HttpRequest& request) {
  const fs::path folder = metrics_path(options_.run_dir, asked_run(parameter(request, "run")).id).parent_path();
  return reply_of(200, "text/plain; charset=utf-8", log_tail(folder / "train.log"));
}

HttpReply VizServer::checkpoints(const HttpRequest& request) {
  Json json = {{"checkpoints", Json::array()}};
  for (const CheckpointRow& row : checkpoints_of(options_.run_dir, asked_run(parameter(request, "run")))) {
    json["checkpoints"].push_back({{"step", row.step},
                                   {"fault", row.fault},
                                   {"tokens", row.tokens},
                                   {"bytes", row.bytes},
                                   {"weights_sha256", row.weights_sha256},
                                   {"created", row.created_at}});
  }
  return json_reply(json);
}

HttpReply VizServer::alerts(const HttpRequest& request) {
  Json json = {{"alerts", Json::array()}};
  for (const std::string& id : request.parameters("run")) {
    for (const Alert& alert : read_alerts(alerts_path(metrics_path(options_.run_dir, asked_run(id).id)))) {
      json["alerts"].push_back({{"run", id},
                                {"kind", alert_kind_name(alert.kind)},
                                {"step", alert.step},
                                {"ts_ms", alert.ts_ms},
                                {"tag", alert.tag},
                                {"text", alert.text}});
    }
  }
  return json_reply(json);
}

HttpReply VizServer::samples(const HttpRequest& request) {
  const RunRow run = asked_run(parameter(request, "run"));
  const std::vector<SampleSet> all = read_samples(samples_path(metrics_path(options_.run_dir, run.id)));
  Json json = {{"sets", Json::array()}};
  for (size_t i = all.size() - std::min(all.size(), kMostSampleSets); i < all.size(); ++i) {
    Json set = {{"step", all[i].step}, {"samples", Json::array()}};
    for (const SampleText& sample : all[i].samples) {
      set["samples"].push_back({{"prompt", sample.prompt}, {"text", sample.text}});
    }
    json["sets"].push_back(std::move(set));
  }
  return json_reply(json);
}

HttpReply VizServer::memory(const HttpRequest& request) {
  const RunRow run = asked_run(parameter(request, "run"));
  Json json = {{"regions", Json::array()}};
  for (const PlannedRegion& region : read_memory_plan(memory_plan_path(metrics_path(options_.run_dir, run.id)))) {
    json["regions"].push_back(
        {{"name", region.name}, {"bytes", region.bytes}, {"meaning", region.meaning}, {"on_device", region.on_device}});
  }
  return json_reply(json);
}

// Piece by piece: a long run's values are many.
void VizServer::csv(const HttpRequest& request, HttpAnswer& answer) {
  const std::vector<std::string> tags = request.parameters("tag");
  const int64_t rank = number_of<int64_t>(request, "rank").value_or(0);
  std::vector<std::string> ids;
  for (const std::string& id : request.parameters("run")) ids.push_back(asked_run(id).id);
  bool begun = false, there = true;
  std::string piece = "run,tag,step,ts_ms,value\r\n";
  const auto write = [&] {
    if (!std::exchange(begun, true)) there = answer.begin(reply_of(200, "text/csv; charset=utf-8", ""));
    there = there && answer.write(std::exchange(piece, ""));
  };
  const auto put = [&](const std::string& start, const Series& series) {
    for (size_t i = 0; there && i < series.size(); ++i) {
      fmt::format_to(std::back_inserter(piece), "{}{},{},{}\r\n", start, series.steps()[i], series.times_ms()[i],
                     series.values()[i]);
      if (piece.size() >= kCsvPiece) write();
    }
  };
  for (const std::string& id : ids) {
    if (!has_metrics(metrics_path(options_.run_dir, id, rank))) continue;
    cache_.look(id, rank, tags, [&](const MetricsReader& metrics, TrainingTime&) {
      for (const std::string& tag : tags) {
        put(fmt::format("{},{},", csv_field(id), csv_field(tag)), metrics.series(tag));
      }
    });
  }
  write();
  if (there) answer.end();
}

HttpReply VizServer::series(const HttpRequest& request) {
  const RunRow run = asked_run(parameter(request, "run"));
  const std::string tag = parameter(request, "tag"), x = parameter(request, "x");
  std::vector<std::string> tags = {tag};
  Axis axis = Axis::kStep;
  if (x == "time") axis = Axis::kTime;
  if (const auto* const by = std::ranges::find(kProgressions, x, &std::pair<std::string_view, const Metric*>::first);
      by != std::end(kProgressions)) {
    axis = Axis::kProgress;
    tags.emplace_back(by->second->tag);
  }
  if (axis == Axis::kStep && !x.empty() && x != "step") {
    throw usage_error(fmt::format("there is no axis '{}'", x), "step, tokens, flops, time and training are there");
  }
  const WindowRequest wanted = {.from = number_of<double>(request, "from"),
                                .to = number_of<double>(request, "to"),
                                .width = number_of<int64_t>(request, "width").value_or(800),
                                .log_x = parameter(request, "log") == "1"};
  const int64_t rank = number_of<int64_t>(request, "rank").value_or(0);
  std::string bytes;
  cache_.look(run.id, rank, tags, [&](const MetricsReader& metrics, TrainingTime& time) {
    const Series& values = metrics.series(tag);
    const Series& recorded = metrics.series(tags.back());
    const Series& progress = x == "training" ? time.of(recorded) : recorded;
    bytes = encode_window(cut_window(values, AxisOf(values, axis, progress, started_ms(run)), wanted));
  });
  return reply_of(200, "application/octet-stream", std::move(bytes));
}

HttpReply VizServer::layers(const HttpRequest& request) {
  const RunRow run = asked_run(parameter(request, "run"));
  const std::string of = parameter(request, "of");
  const int64_t at = number_of<int64_t>(request, "at").value_or(std::numeric_limits<int64_t>::max());
  std::vector<std::string> tags;
  cache_.look(run.id, 0, {}, [&](const MetricsReader& metrics, TrainingTime&) { tags = layer_tags(metrics, of); });
  std::string bytes;
  cache_.look(run.id, 0, tags,
              [&](const MetricsReader& metrics, TrainingTime&) { bytes = encode_layers(metrics, tags, at); });
  return reply_of(200, "application/octet-stream", std::move(bytes));
}

void VizServer::events(HttpAnswer& answer) {
  const struct Stream {
    explicit Stream(std::atomic<int>& the_count) : count(the_count), number(++count) {}
    ~Stream() { --count; }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    std::atomic<int>& count;
    int number;
  } stream(num_streams_);
  if (stream.number > kMaxStreams) return answer.send(error_reply(503, "too many browsers are open"));
  uint64_t seen = changes_.now();
  bool there = answer.begin(reply_of(200, "text/event-stream", "")) && answer.write(": here\n\n");
  auto said = std::chrono::steady_clock::now();
  while (there && !answer.client_left()) {
    const Changes::Seen news = changes_.wait(seen, milliseconds(1000));
    if (news.stopped) return answer.end();
    seen = news.until;
    const auto now = std::chrono::steady_clock::now();
    if (news.list || !news.runs.empty()) {
      const Json json = {{"list", news.list}, {"runs", news.runs}};
      there = answer.write("data: " + json_text(json) + "\n\n");
      said = now;
    } else if (now - said > kSignOfLife) {
      there = answer.write(":\n\n");
      said = now;
    }
  }
}

bool VizServer::list_changed() {
  const int64_t now = now_ms();
  const std::string state = state_of(options_.run_dir / "experiments.db");
  if (state == list_state_ && now - list_made_ms_ < kLookForDeadMs) return false;
  std::shared_ptr<const Runs> made;
  {
    const std::lock_guard lock(store_mutex_);
    made = std::make_shared<Runs>(store_.list());
  }
  const std::lock_guard lock(list_mutex_);
  const bool changed = list_ == nullptr || state != list_state_ ||
                       !std::ranges::equal(*list_, *made, {}, &RunRow::status, &RunRow::status);
  list_ = std::move(made);
  list_state_ = state;
  list_made_ms_ = now;
  return changed;
}

void VizServer::watch() {
  block_stop_signals();
  int64_t list_looked_ms = now_ms();
  while (!stopping_) {
    std::this_thread::sleep_for(kLook);
    const std::vector<RunCache::Key> changed = cache_.poll();
    bool list = false;
    if (now_ms() - list_looked_ms >= kLookAtListMs) {
      list_looked_ms = now_ms();
      try {
        list = list_changed();
      } catch (const std::exception&) {  // a program has the database for long, say: the list is what it was
      }
    }
    changes_.add(list, changed);
  }
}

}  // namespace nmoe
