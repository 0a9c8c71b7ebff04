// The server of n viz, as a browser and as others ask it.
#include "viz/viz_server.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "checkpoint/manifest.h"
#include "model/heads/objectives.h"
#include "serve/raw_client.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/alerts.h"
#include "track/catalogue.h"
#include "track/holding_process.h"
#include "track/run_files.h"
#include "viz/checkpoints.h"
#include "viz/recorded_runs.h"

namespace nmoe {
namespace {

using nlohmann::json;
using test::contains;

constexpr const char* kViewerToken = "0123456789abcdef";

// Two runs, recorded once for all tests.
struct Recorded {
  Recorded() {
    one = test::record_run(dir.path(), "one", 2.0, R"({"run":{"seed":1},"optim":{"lr":0.001}})",
                           "step 1\nwarning: slow\n");
    two = test::record_run(dir.path(), "<img src=x onerror=alert(1)>", 2.5,
                           R"({"run":{"seed":1},"optim":{"lr":0.002}})", "");
  }
  const test::TempDir dir;
  std::string one, two;
};
const Recorded& recorded() {
  static const Recorded runs;
  return runs;
}

class VizServerTest : public testing::Test {
 protected:
  VizServerTest() { serve(run_dir_); }
  void serve(const fs::path& run_dir) {
    server_.emplace(VizOptions{.run_dir = run_dir, .token = kViewerToken});
    server_->start();
  }

  httplib::Client client() const { return httplib::Client("127.0.0.1", server_->port()); }
  static httplib::Headers with(const std::string& token) { return {{"Authorization", "Bearer " + token}}; }
  std::string get(const std::string& path, int status = 200) const {
    const httplib::Result result = client().Get(path.c_str(), with(kViewerToken));
    if (!result) {
      ADD_FAILURE() << httplib::to_string(result.error());
      return "";
    }
    EXPECT_EQ(result->status, status) << path << ": " << result->body;
    return result->body;
  }
  json ask(const std::string& path) const { return json::parse(get(path), nullptr, false); }
  int status_of(const std::string& path, const httplib::Headers& headers) const {
    const httplib::Result result = client().Get(path.c_str(), headers);
    return result ? result->status : -1;
  }

  // A reply of api/series.
  struct Curve {
    uint32_t count = 0;
    double first = 0, last = 0;
    int64_t size = 0;
    std::vector<double> x, min, max, value;
    std::vector<uint32_t> values, bad;
  };
  Curve curve(const std::string& query) const {
    const std::string bytes = get("/api/series?" + query);
    Curve curve;
    if (bytes.size() < 32) {
      ADD_FAILURE() << bytes;
      return curve;
    }
    EXPECT_LE(bytes.size(), size_t{64} << 10);
    std::memcpy(&curve.count, bytes.data() + 4, 4);
    std::memcpy(&curve.first, bytes.data() + 8, 8);
    std::memcpy(&curve.last, bytes.data() + 16, 8);
    std::memcpy(&curve.size, bytes.data() + 24, 8);
    size_t at = 32;
    const auto take = [&](auto& column) {
      column.resize(curve.count);
      const size_t size = curve.count * sizeof(column[0]);
      ASSERT_LE(at + size, bytes.size());
      std::memcpy(column.data(), bytes.data() + at, size);
      at += size;
    };
    take(curve.x), take(curve.min), take(curve.max), take(curve.value), take(curve.values), take(curve.bad);
    return curve;
  }

  const fs::path run_dir_ = recorded().dir.path();
  const std::string one_ = recorded().one, two_ = recorded().two;
  std::optional<VizServer> server_;
};

TEST_F(VizServerTest, WhoMayAsk) {
  for (const char* path : {"/api/runs", "/api/run?run=x", "/api/series", "/api/events", "/api/nothing"}) {
    EXPECT_EQ(status_of(path, {}), 401) << path;
    EXPECT_EQ(status_of(path, with("0123456789abcdee")), 401) << path;
    EXPECT_EQ(status_of(path, with("")), 401) << path;
    EXPECT_EQ(status_of(path, {{"Cookie", std::string("token=") + kViewerToken}}), 401) << path;
  }
  EXPECT_EQ(status_of("/api/runs", with(kViewerToken)), 200);
  // A name that somebody has made to point here.
  const auto named = [&](const std::string& host) {
    const RawClient raw(server_->port());
    raw.send("GET /api/runs HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\nAuthorization: Bearer " +
             kViewerToken + "\r\n\r\n");
    return raw.read().substr(9, 3);
  };
  EXPECT_EQ(named("evil.example"), "403");
  EXPECT_EQ(named("evil.example:8010"), "403");
  EXPECT_EQ(named("127.0.0.1.evil.example"), "403");
  EXPECT_EQ(named("LOCALHOST:1"), "200");
  EXPECT_EQ(named("127.0.0.1:1"), "200");
  EXPECT_EQ(named("localhost\r\nHost: evil.example"), "400");
  // It reads, and that is all.
  EXPECT_EQ(client().Post("/api/runs", with(kViewerToken), "", "text/plain")->status, 405);
  EXPECT_EQ(client().Delete("/api/run?run=x", with(kViewerToken))->status, 405);
}

TEST_F(VizServerTest, Page) {
  const httplib::Result page = client().Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_TRUE(contains(page->body, "<!doctype html>"));
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  const std::string policy = page->get_header_value("Content-Security-Policy");
  EXPECT_TRUE(contains(policy, "default-src 'none'"));
  EXPECT_TRUE(contains(policy, "script-src 'self'"));
  EXPECT_FALSE(contains(policy, "unsafe"));
  EXPECT_EQ(page->get_header_value("X-Content-Type-Options"), "nosniff");
  // Whatever the page and its modules name is here, and nothing of it is elsewhere.
  std::vector<std::string> left = {"/"};
  std::set<std::string> seen;
  while (!left.empty()) {
    const std::string path = left.back();
    left.pop_back();
    if (!seen.insert(path).second) continue;
    const httplib::Result file = client().Get(path.c_str());
    ASSERT_TRUE(file);
    EXPECT_EQ(file->status, 200) << path;
    if (path == "/uplot.js" || path == "/uplot_license.txt") continue;
    EXPECT_FALSE(contains(file->body, "http://")) << path;
    EXPECT_FALSE(contains(file->body, "https://")) << path;
    EXPECT_FALSE(contains(file->body, "innerHTML")) << path;
    for (const char* before : {"src=\"", "href=\"", "from './", "SharedWorker('"}) {
      for (size_t at = 0; (at = file->body.find(before, at)) != std::string::npos;) {
        at += std::strlen(before);
        const std::string name = file->body.substr(at, file->body.find_first_of("\"'", at) - at);
        if (!name.starts_with("#") && !name.starts_with("data:")) left.push_back("/" + name);
      }
    }
  }
  EXPECT_GE(seen.size(), 15u);
}

// The page's script has its tags from the catalogue.
TEST_F(VizServerTest, ThePageKnowsMetricsByTheirDeclarations) {
  const httplib::Result file = client().Get("/metrics.js");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->get_header_value("Content-Type").starts_with("text/javascript"));
  EXPECT_TRUE(contains(file->body, "export const kFirstTags = ['train/loss', 'valid/loss', ")) << file->body;
  EXPECT_TRUE(contains(file->body, "export const kTimeTags = ['throughput/ms_per_step', ")) << file->body;
  EXPECT_TRUE(contains(file->body, "export const kPhaseTags = ['phase/begin', ")) << file->body;
  EXPECT_TRUE(contains(file->body, R"(export const kGpuTag = /^gpu\/(\d+)\/(.+)$/;)")) << file->body;
  int64_t count = 0;
  for (size_t at = 0; (at = file->body.find('\'', at)) != std::string::npos; ++count) {
    const size_t end = file->body.find('\'', at + 1);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = file->body.substr(at + 1, end - at - 1);
    EXPECT_NE(find_tag(tag), nullptr) << tag;
    at = end + 1;
  }
  EXPECT_GE(count, 20);
}

TEST_F(VizServerTest, PathsThatLeadElsewhere) {
  for (const char* path : {"/../secret", "/%2e%2e/secret", "/..%2fsecret", "//etc/passwd", "/style.css/../../secret",
                           "/viz.html%00", "/page/viz.html", "/api/../viz.html"}) {
    const RawClient raw(server_->port());
    raw.send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
                         path, kViewerToken));
    EXPECT_EQ(raw.read().substr(9, 3), "404") << path;
  }
  for (const std::string& run :
       std::vector<std::string>{"..", "../metrics/" + one_, "..%2f..", one_ + "/..", "%00", "", "*"}) {
    for (const char* route : {"run", "log", "series", "layers", "csv", "checkpoints", "alerts", "samples", "memory"}) {
      get(fmt::format("/api/{}?run={}", route, run), 400);
    }
  }
  get("/api/series?run=" + one_ + "&tag=train/loss&rank=-1", 500);
  get("/api/series?run=" + one_ + "&tag=train/loss&rank=../0", 400);
  get("/api/series?run=" + one_ + "&tag=train/loss&from=nan", 400);
  get("/api/series?run=" + one_ + "&tag=train/loss&x=day", 400);
  EXPECT_EQ(curve("run=" + one_ + "&tag=../../secret").count, 0u);
}

TEST_F(VizServerTest, Runs) {
  json list = ask("/api/runs");
  ASSERT_EQ(list["runs"].size(), 2u);
  EXPECT_EQ(list["runs"][0]["name"], "<img src=x onerror=alert(1)>") << "as it is: the page makes text of it";
  EXPECT_EQ(list["runs"][1]["id"], one_);
  EXPECT_EQ(list["runs"][1]["step"], test::kRecordedSteps);
  EXPECT_EQ(ask("/api/runs?filter=loss%3C2.3")["runs"][0]["id"], one_);
  EXPECT_EQ(ask("/api/runs?filter=loss%3C2.3&filter=step%3E1k")["total"], 0);
  EXPECT_EQ(ask("/api/runs?sort=loss")["runs"][0]["id"], one_);
  EXPECT_EQ(ask("/api/runs?q=ONE")["total"], 2) << "both have it: the other in 'onerror'";
  EXPECT_EQ(ask("/api/runs?q=onerror%3Dalert")["total"], 1);
  list = ask("/api/runs?limit=1&offset=1");
  EXPECT_EQ(list["total"], 2);
  ASSERT_EQ(list["runs"].size(), 1u);
  EXPECT_EQ(list["runs"][0]["id"], one_);
  EXPECT_TRUE(contains(get("/api/runs?filter=los%3C2", 400), "did you mean 'loss'?"));
}

TEST_F(VizServerTest, OneRun) {
  const json run = ask("/api/run?run=" + one_);
  EXPECT_EQ(run["config"]["optim"]["lr"], 0.001);
  EXPECT_EQ(run["ranks"], json::parse("[0]"));
  const auto found = std::ranges::find_if(run["tags"], [](const json& tag) { return tag["tag"] == "train/loss"; });
  ASSERT_NE(found, run["tags"].end());
  EXPECT_EQ((*found)["unit"], "nats");
  EXPECT_EQ((*found)["step"], test::kRecordedSteps);
  EXPECT_EQ(get("/api/log?run=" + one_), "step 1\nwarning: slow\n");
  const json compared = ask("/api/compare?run=" + one_ + "&run=" + two_);
  EXPECT_EQ(compared["differences"], json::parse(R"([{"key":"optim.lr","values":["0.001","0.002"]}])"));
}

// Whatever objectives a run has, their losses are among what it has recorded, with what they are.
TEST_F(VizServerTest, LossesOfAllObjectives) {
  const test::TempDir dir;
  std::string id;
  {
    RunStore store(dir.path() / "experiments.db");
    id = store.start({.name = "losses"});
    MetricsWriter writer(metrics_path(dir.path(), id));
    MetricRecord record{.step = 1, .ts_ms = now_ms()};
    for (const Objective* objective : kObjectives) record.put(objective->metric, 0.5);
    writer.append(record);
  }
  serve(dir.path());
  const json run = ask("/api/run?run=" + id);
  ASSERT_EQ(run["tags"].size(), kObjectives.size());
  for (const Objective* objective : kObjectives) {
    const auto found = std::ranges::find_if(
        run["tags"], [&](const json& tag) { return tag["tag"] == std::string(objective->metric.tag); });
    ASSERT_NE(found, run["tags"].end()) << objective->metric.tag;
    EXPECT_EQ((*found)["value"], 0.5);
    EXPECT_EQ((*found)["meaning"], std::string(objective->metric.meaning));
    EXPECT_EQ(curve("run=" + id + "&tag=" + std::string(objective->metric.tag)).count, 1u);
  }
}

TEST_F(VizServerTest, Curves) {
  // Every value, as there are fewer than pixels.
  const Curve all = curve("run=" + one_ + "&tag=train/loss&width=1600");
  EXPECT_EQ(all.size, test::kRecordedSteps);
  ASSERT_EQ(all.count, uint32_t{test::kRecordedSteps});
  for (size_t i = 0; i < all.count; ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    EXPECT_EQ(all.x[i], static_cast<double>(step));
    if (step == test::kNanStep) {
      EXPECT_EQ(all.bad[i], 1u);
      EXPECT_TRUE(std::isnan(all.value[i]) && std::isnan(all.min[i]));
    } else {
      EXPECT_EQ(all.value[i], test::recorded_loss(step, 2.0));
    }
  }
  const Curve few = curve("run=" + one_ + "&tag=train/loss&width=10&x=tokens");
  EXPECT_LE(few.count, 11u);
  EXPECT_EQ(few.first, 4096.0);
  EXPECT_EQ(few.last, 4096.0 * test::kRecordedSteps);
  EXPECT_EQ(*std::ranges::max_element(few.max), 9.5) << "the spike";
  const Curve zoomed = curve("run=" + one_ + "&tag=train/loss&from=100&to=110&x=step");
  EXPECT_EQ(zoomed.count, 11u + 2u);
  EXPECT_EQ(curve("run=" + one_ + "&tag=nothing").count, 0u);
}

TEST_F(VizServerTest, AgainstTrainingTime) {
  const Curve curve_of = curve("run=" + one_ + "&tag=train/loss&x=training&width=1600");
  ASSERT_EQ(curve_of.count, uint32_t{test::kRecordedSteps});
  EXPECT_NEAR(curve_of.first, 0.08, 1e-9);
  EXPECT_NEAR(curve_of.last, 0.08 * test::kRecordedSteps, 1e-9);
}

TEST_F(VizServerTest, KeysOfConfigurations) {
  const json rows = ask("/api/runs?key=optim.lr&key=run.seed&key=nothing")["runs"];
  EXPECT_EQ(rows[0]["config"], json::parse(R"({"optim.lr":"0.002","run.seed":"1"})"));
  EXPECT_EQ(rows[1]["config"], json::parse(R"({"optim.lr":"0.001","run.seed":"1"})"));
  EXPECT_FALSE(ask("/api/runs")["runs"][0].contains("config"));
}

TEST_F(VizServerTest, Csv) {
  const std::string text = get("/api/csv?run=" + one_ + "&run=" + two_ + "&tag=train/loss&tag=nothing&tag=valid/loss");
  EXPECT_TRUE(text.starts_with("run,tag,step,ts_ms,value\r\n" + one_ + ",train/loss,1,"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 2 * (test::kRecordedSteps + test::kRecordedSteps / 50));
  // The value as it was recorded, to the bit.
  const std::string row = "\r\n" + two_ + ",train/loss,17,";
  const size_t at = text.find(row);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(std::stod(text.substr(text.find(',', at + row.size()) + 1)), test::recorded_loss(17, 2.5));
  EXPECT_TRUE(contains(text, fmt::format("{},train/loss,{},", one_, test::kNanStep)));
  EXPECT_TRUE(contains(text, ",nan\r\n"));
  EXPECT_EQ(get("/api/csv?rank=3&tag=train/loss&run=" + one_), "run,tag,step,ts_ms,value\r\n") << "no such rank";
}

TEST_F(VizServerTest, Checkpoints) {
  const fs::path folder = run_dir_ / "checkpoints" / "one";
  const auto write = [&](int64_t step, const std::string& run) {
    const CheckpointManifest manifest = {
        .info = {.step = step, .tokens = 100 * step, .run_id = run, .created_at = "2026-11-22T10:00:00Z"},
        .weights_sha256 = std::string(64, 'a'),
        .files = {{.name = "config.toml", .bytes = 1000, .sha256 = std::string(64, 'b')},
                  {.name = "model.safetensors", .bytes = 500000}}};
    const fs::path path = folder / fmt::format("step_{:08}", step);
    make_directories(path);
    write_file_atomically(path / "manifest.json", print_manifest(manifest));
    return path / "manifest.json";
  };
  write(40, one_);
  write(80, one_);
  write(120, two_);
  const fs::path altered = write(160, one_);
  write_file_atomically(altered, read_file(altered).replace(read_file(altered).find("16000"), 5, "16001"));
  const json list = ask("/api/checkpoints?run=" + one_)["checkpoints"];
  ASSERT_EQ(list.size(), 3u) << "one is of another run";
  EXPECT_EQ(list[1]["step"], 80);
  EXPECT_EQ(list[1]["tokens"], 8000);
  EXPECT_EQ(list[1]["bytes"], 501000);
  EXPECT_EQ(list[1]["weights_sha256"], std::string(64, 'a'));
  EXPECT_EQ(list[1]["fault"], "");
  EXPECT_EQ(list[2]["step"], 160);
  EXPECT_TRUE(contains(list[2]["fault"].get<std::string>(), "was altered"));
  EXPECT_EQ(ask("/api/checkpoints?run=" + two_)["checkpoints"].size(), 0u);
  EXPECT_TRUE(checkpoints_of(run_dir_ / "metrics", {.id = one_, .name = "../checkpoints/one"}).empty())
      << "names lead nowhere else";
}

TEST_F(VizServerTest, Alerts) {
  EXPECT_EQ(ask("/api/alerts?run=" + one_)["alerts"], json::array());
  append_alert(alerts_path(metrics_path(run_dir_, two_)),
               {.kind = AlertKind::kSilent, .step = 7, .ts_ms = 1000, .value = 31.0, .text = "\x1b[2J nothing\xff"});
  const json alerts = ask("/api/alerts?run=" + one_ + "&run=" + two_)["alerts"];
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0]["run"], two_);
  EXPECT_EQ(alerts[0]["kind"], "silent");
  EXPECT_EQ(alerts[0]["step"], 7);
  EXPECT_EQ(alerts[0]["ts_ms"], 1000);
  get("/api/alerts?run=" + one_ + "&run=../" + two_, 400);
}

TEST_F(VizServerTest, SamplesAndPlannedMemory) {
  EXPECT_EQ(ask("/api/samples?run=" + one_), json::parse(R"({"sets":[]})"));
  EXPECT_EQ(ask("/api/memory?run=" + one_), json::parse(R"({"regions":[]})"));
  const fs::path database = metrics_path(run_dir_, one_);
  for (int64_t step = 1; step <= 60; ++step) {
    append_samples(samples_path(database), {.step = step, .samples = {{.prompt = "<b>Once</b>", .text = " upon\xff"}}});
  }
  write_memory_plan(memory_plan_path(database),
                    {{.name = "parameters", .bytes = 1024, .meaning = "weights", .on_device = true}});
  const json sets = ask("/api/samples?run=" + one_)["sets"];
  ASSERT_EQ(sets.size(), 50u);
  EXPECT_EQ(sets[0]["step"], 11);
  EXPECT_EQ(sets[49]["samples"][0]["prompt"], "<b>Once</b>");
  EXPECT_EQ(ask("/api/memory?run=" + one_)["regions"],
            json::parse(R"([{"name":"parameters","bytes":1024,"meaning":"weights","on_device":true}])"));
}

TEST_F(VizServerTest, Layers) {
  const std::string bytes = get("/api/layers?run=" + one_ + "&of=load&at=20");
  ASSERT_EQ(bytes.size(), 24u + 4 * test::kRecordedLayers + 4 * test::kRecordedLayers * test::kRecordedExperts);
  uint32_t head[4];
  int64_t step = 0;
  std::memcpy(head, bytes.data(), sizeof(head));
  std::memcpy(&step, bytes.data() + 16, 8);
  EXPECT_EQ(head[1], uint32_t{test::kRecordedLayers});
  EXPECT_EQ(head[2], uint32_t{test::kRecordedExperts});
  EXPECT_EQ(head[3], uint32_t{test::kRecordedSteps / 10});
  EXPECT_EQ(step, 210);
  const MetricRecord record = test::recorded_step(step, 2.0);
  for (size_t layer = 0; layer < test::kRecordedLayers; ++layer) {
    const std::vector<float>& load = record.arrays[2 * layer].second;
    EXPECT_EQ(std::memcmp(bytes.data() + 24 + 4 * test::kRecordedLayers + layer * load.size() * 4, load.data(),
                          load.size() * 4),
              0)
        << layer;
  }
  EXPECT_EQ(get("/api/layers?run=" + one_ + "&of=nothing").size(), 24u);
}

// What is recorded while somebody looks, is told; so is a run that begins again from an earlier step.
TEST_F(VizServerTest, FollowsARun) {
  const test::TempDir dir;
  RunStore store(dir.path() / "experiments.db");
  store.start({.name = "first"});
  serve(dir.path());
  std::mutex mutex;
  std::string told;
  std::thread stream([&] {
    httplib::Client events = client();
    events.Get("/api/events", with(kViewerToken), [&](const char* data, size_t size) {
      const std::lock_guard lock(mutex);
      told.append(data, size);
      return !contains(told, "stop it");
    });
  });
  const auto waits_for = [&](const std::string& text) {
    for (int i = 0; i < 6000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::lock_guard lock(mutex);
      const size_t at = told.find(text);
      if (at == std::string::npos) continue;
      told.erase(0, at + text.size());
      return true;
    }
    return false;
  };
  EXPECT_TRUE(waits_for(": here"));
  const std::string id = store.start({.name = "live"});
  MetricsWriter writer(metrics_path(dir.path(), id));
  for (int64_t step = 1; step <= 5; ++step) writer.append(test::recorded_step(step, 2.0));
  EXPECT_TRUE(waits_for("\"list\":true")) << "a new run";
  EXPECT_EQ(curve("run=" + id + "&tag=train/loss").size, 5);
  const std::string event = "[\"" + id + "\",0]";
  writer.append(test::recorded_step(6, 2.0));
  EXPECT_TRUE(waits_for(event));
  EXPECT_EQ(curve("run=" + id + "&tag=train/loss").size, 6);
  writer.rewind(3);
  EXPECT_TRUE(waits_for(event));
  EXPECT_EQ(curve("run=" + id + "&tag=train/loss").size, 3);
  EXPECT_EQ(curve("run=" + id + "&tag=train/loss").value.back(), test::recorded_loss(3, 2.0));
  writer.rewind(0);
  EXPECT_TRUE(waits_for(event));
  writer.append(test::recorded_step(1, 2.0));
  EXPECT_TRUE(waits_for(event));
  EXPECT_EQ(curve("run=" + id + "&tag=train/loss").size, 1) << "of a tag that was gone for a while";
  server_.reset();  // ends the stream, and waits for nobody
  stream.join();
}

TEST_F(VizServerTest, ForgetsWhatIsTooMuch) {
  RunCache cache(run_dir_, /*max_bytes=*/test::kRecordedSteps * 24 * 3 / 2);  // of one, not of two
  const std::vector<std::string> tags = {"train/loss"};
  size_t size = 0;
  for (const std::string& run : {one_, two_, one_, two_}) {
    cache.look(run, 0, tags,
               [&](const MetricsReader& metrics, TrainingTime&) { size = metrics.series("train/loss").size(); });
    EXPECT_EQ(size, static_cast<size_t>(test::kRecordedSteps)) << "read again where it was forgotten";
  }
  EXPECT_EQ(test::error_of([&] { cache.look(one_, 7, tags, [](const MetricsReader&, TrainingTime&) {}); }).kind(),
            ErrorKind::kRuntime);
}

// A run whose database another program has, or that is being read for somebody, keeps nobody from the others.
TEST(RunCache, NoRunWaitsForAnother) {
  const test::TempDir dir;
  const auto path_of = [&](const std::string& run) { return metrics_path(dir.path(), run); };
  MetricsWriter held(path_of("held"), 3600.0), live(path_of("live"), 3600.0);
  RunCache cache(dir.path(), 1 << 20);
  for (const char* run : {"held", "live"}) {
    (run == std::string("held") ? held : live).append(test::recorded_step(1, 2.0));
    cache.look(run, 0, {}, [](const MetricsReader&, TrainingTime&) {});
  }
  for (int64_t step = 2; step <= 3; ++step) {  // what moves there twice is to be read from the database
    held.append(test::recorded_step(step, 2.0));
    held.flush();
  }
  const auto polled = [&](int64_t step) {
    live.append(test::recorded_step(step, 2.0));
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<RunCache::Key> changed = cache.poll();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
    return std::ranges::count(changed, RunCache::Key("live", 0));
  };
  {
    const HoldingProcess holder(path_of("held"), HoldingProcess::For::kWriting);
    EXPECT_EQ(polled(2), 1);
  }
  std::promise<void> looking, looked;
  std::thread reader([&] {
    cache.look("held", 0, {}, [&](const MetricsReader&, TrainingTime&) {
      looking.set_value();
      looked.get_future().wait();
    });
  });
  looking.get_future().wait();
  EXPECT_EQ(polled(3), 1);
  looked.set_value();
  reader.join();
  EXPECT_EQ(std::ranges::count(cache.poll(), RunCache::Key("held", 0)), 1) << "what it has missed comes now";
}

TEST(VizServer, WithoutRuns) {
  const test::TempDir dir;
  const Error error = test::error_of([&] { VizServer server({.run_dir = dir.path(), .token = kViewerToken}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "experiments.db does not exist"));
}

}  // namespace
}  // namespace nmoe
