// Serves a page that shows runs, and what it asks for. It reads, and never writes.
//
//   GET /                  the page, and its parts: nothing secret; metrics.js is made here (metrics_module.h)
//   GET /api/...           with "Authorization: Bearer TOKEN" only
//       runs?q=&filter=&sort=&limit=&offset=&key=    JSON: runs of which all filters (run_query.h) are true and that
//                                               have q, with what their configurations have under these keys
//       run?run=&rank=                          JSON: a run's row, configuration, ranks, and the tags of one
//       compare?run=A&run=B...                  JSON: in what configurations differ
//       log?run=                                the end of train.log
//       series?run=&rank=&tag=&x=&from=&to=&width=&log=    a curve's buckets (window.h)
//       csv?run=A&run=B...&rank=&tag=A&tag=B... all values of curves, one row each
//       checkpoints?run=                        JSON: what there is of them (checkpoints.h)
//       samples?run=                            JSON: what its model wrote at validations (track/run_files.h)
//       memory?run=                             JSON: what it planned
//       alerts?run=A&run=B...                   JSON: what they found amiss (track/alerts.h)
//       layers?run=&of=&at=                     arrays of all layers of a step (layers.h)
//       events                                  server-sent events: what has changed since
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "serve/host_names.h"
#include "serve/http_server.h"
#include "track/runs.h"
#include "viz/changes.h"
#include "viz/run_cache.h"

namespace nmoe {

struct VizOptions {
  fs::path run_dir = "runs";
  std::string host = "127.0.0.1";
  int port = 0;                            // 0: any that is free
  std::string token;                       // that whoever asks has to know; not empty
  std::vector<std::string> allowed_hosts;  // beside those that HostNames knows
  int64_t cache_bytes = int64_t{2} << 30;
};

class VizServer : private HttpHandler {
 public:
  // Listens from here on. Error (usage) where there are no runs, (runtime) when it cannot listen.
  explicit VizServer(VizOptions options);
  ~VizServer() override;  // stops
  VizServer(const VizServer&) = delete;
  VizServer& operator=(const VizServer&) = delete;

  int port() const { return http_.port(); }
  void start();

 private:
  using Runs = std::vector<RunRow>;

  std::optional<HttpReply> on_head(const HttpRequest& request) override;
  void on_request(const HttpRequest& request, HttpAnswer& answer) override;
  HttpReply refusal(int status, const std::string& message) override;
  void log(const HttpLogEntry& entry) override;

  HttpReply runs(const HttpRequest& request);
  HttpReply run(const HttpRequest& request);
  HttpReply compare(const HttpRequest& request);
  HttpReply run_log(const HttpRequest& request);
  HttpReply series(const HttpRequest& request);
  HttpReply layers(const HttpRequest& request);
  HttpReply checkpoints(const HttpRequest& request);
  HttpReply alerts(const HttpRequest& request);
  HttpReply samples(const HttpRequest& request);
  HttpReply memory(const HttpRequest& request);
  void csv(const HttpRequest& request, HttpAnswer& answer);
  void events(HttpAnswer& answer);

  RunRow asked_run(const std::string& id);
  std::shared_ptr<const Runs> list();
  std::string config(const std::string& run);
  bool list_changed();
  void watch();

  const VizOptions options_;
  const HostNames hosts_;
  RunCache cache_;
  Changes changes_;
  std::mutex store_mutex_;  // guards what follows
  RunStore store_;
  std::mutex list_mutex_;  // guards what follows
  std::shared_ptr<const Runs> list_;
  std::string list_state_;  // of the database's files, as of list_; the watcher's
  int64_t list_made_ms_ = 0;
  std::atomic<int> num_streams_ = 0;
  std::atomic<bool> stopping_ = false;
  HttpServer http_;  // its threads call the others
  std::thread watcher_;
};

}  // namespace nmoe
