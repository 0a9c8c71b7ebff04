// Requests that no page makes: whatever is asked, the server answers with what it has or a refusal, and goes on.
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <map>

#include "base/rng.h"
#include "serve/raw_client.h"
#include "support/errors.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "viz/hostile.h"
#include "viz/recorded_runs.h"
#include "viz/viz_server.h"

namespace nmoe {
namespace {

using test::contains;

constexpr const char* kToken = "0123456789abcdef";

class RequestsTest : public test::TempDirTest {
 protected:
  RequestsTest() {
    // Whatever a database calls a run, its files are its own.
    for (const char* name : test::kHostileNames) {
      id_ = RunStore(run_dir_ / "experiments.db")
                .start({.name = name, .experiment = name, .config_json = "[1, {\"\": null}]"});
    }
    MetricsWriter writer(metrics_path(run_dir_, id_), 3600.0);
    MetricRecord record = test::recorded_step(10, 2.0);
    record.scalars.emplace_back(test::kHostileNames[0], 1.0);
    writer.append(record);
    write_file_atomically(dir_ / "secret", "a secret of others");
    write_file_atomically(run_dir_ / "secret", "a secret of others");
  }

  const fs::path run_dir_ = dir_ / "runs";
  std::string id_;
};

std::string request_of(const std::string& target, const std::string& more = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n{}\r\n",
                     target, kToken, more);
}

TEST_F(RequestsTest, ManyThatAreNearlyGood) {
  VizServer server({.run_dir = run_dir_, .token = kToken});
  server.start();
  const std::string run = "run=" + id_;
  const std::vector<std::string> seeds = {
      "/",
      "/viz.js",
      "/api/runs?q=a&filter=loss%3C3&sort=-loss&limit=10&offset=0&key=optim.lr",
      "/api/run?" + run + "&rank=0",
      "/api/compare?" + run + "&" + run,
      "/api/log?" + run,
      "/api/series?" + run + "&rank=0&tag=train/loss&x=training&from=1&to=9e3&width=100&log=1",
      "/api/csv?" + run + "&rank=0&tag=train/loss",
      "/api/checkpoints?" + run,
      "/api/alerts?" + run + "&" + run,
      "/api/layers?" + run + "&of=load&at=3",
  };
  const std::vector<std::string> pieces = {"..",
                                           "/",
                                           "%2e%2e%2f",
                                           "%00",
                                           "\\",
                                           "//",
                                           "&",
                                           "=",
                                           "?",
                                           "#",
                                           "%",
                                           "%zz",
                                           "+",
                                           "-1",
                                           "1e309",
                                           "nan",
                                           "inf",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "18446744073709551616",
                                           "0x10",
                                           "*",
                                           "~",
                                           "<",
                                           ">=",
                                           "'",
                                           "\"",
                                           "<script>",
                                           ";",
                                           "{}",
                                           "[]",
                                           "\xff\xfe",
                                           "\xe2\x80\xae",
                                           "http://evil.example/",
                                           "rank=7",
                                           "run=..",
                                           "tag=",
                                           "x=day"};
  const Philox rng(1, "requests");
  uint64_t drawn = 0;
  const auto draw = [&](size_t count) { return static_cast<size_t>(rng.bits(drawn++) % count); };
  std::map<std::string, int> answers;
  for (int i = 0; i < 1500; ++i) {
    std::string target = seeds[draw(seeds.size())];
    for (size_t changes = draw(4); changes > 0; --changes) {
      const size_t at = draw(target.size() + 1);
      switch (draw(4)) {
        case 0:
          target.insert(at, pieces[draw(pieces.size())]);
          break;
        case 1:
          target.replace(at, draw(8), pieces[draw(pieces.size())]);
          break;
        case 2:
          target.erase(at, draw(8));
          break;
        default:
          target.insert(at, target.substr(draw(target.size() + 1), draw(20)));
      }
    }
    const RawClient client(server.port());
    client.send(request_of(target));
    const std::string reply = client.read();
    ASSERT_TRUE(reply.starts_with("HTTP/1.1 ")) << target << ": " << reply.substr(0, 200);
    ++answers[reply.substr(9, 3)];
    EXPECT_FALSE(contains(reply, "an error of the server")) << target;
    EXPECT_FALSE(contains(reply, "a secret of others")) << target;
  }
  EXPECT_GT(answers["200"], 300);
  EXPECT_GT(answers["400"] + answers["404"], 300);
  const RawClient client(server.port());
  client.send(request_of("/api/runs"));
  EXPECT_TRUE(contains(client.read(), "\"total\":10,"));
}

// DNS rebinding, and targets that name another server: pages of others must get nothing, even with the token.
TEST_F(RequestsTest, NamesThatPointHere) {
  VizServer server({.run_dir = run_dir_, .token = kToken});
  server.start();
  const auto status = [&](const std::string& target, const std::string& host) {
    const RawClient client(server.port());
    client.send(fmt::format("GET {} HTTP/1.1\r\n{}Authorization: Bearer {}\r\nConnection: close\r\n\r\n", target, host,
                            kToken));
    return client.read().substr(9, 3);
  };
  for (const char* host : {"evil.example",
                           "EVIL.example:8010",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "127.0.0.1.nip.io",
                           "localhost@evil.example",
                           "evil.example@127.0.0.1",
                           "[::1].evil.example",
                           "[::1]evil.example",
                           "[evil.example]",
                           "2130706433",
                           "0x7f.1",
                           "127.1",
                           "localhost evil.example",
                           "localhost,evil.example",
                           "localhost%2eevil",
                           "[",
                           "]",
                           "[]",
                           ""}) {
    for (const char* target : {"/", "/api/runs"}) {
      EXPECT_EQ(status(target, std::string("Host: ") + host + "\r\n"), "403") << host;
    }
  }
  for (const char* host : {"localhost", "LocalHost:99", "127.0.0.1:8010", "[::1]", "[::1]:8010"}) {
    EXPECT_EQ(status("/api/runs", std::string("Host: ") + host + "\r\n"), "200") << host;
  }
  EXPECT_EQ(status("/api/runs", "Host: localhost\r\nHost: evil.example\r\n"), "400");
  EXPECT_EQ(status("http://evil.example/api/runs", "Host: localhost\r\n"), "404");
  // A page of elsewhere may not read what is answered, and not send its own headers along: no answer allows it.
  const RawClient client(server.port());
  client.send(
      "OPTIONS /api/runs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
      "Access-Control-Request-Headers: authorization\r\nConnection: close\r\n\r\n");
  const std::string reply = client.read();
  EXPECT_EQ(reply.substr(9, 3), "405");
  EXPECT_FALSE(contains(reply, "Access-Control-Allow"));
}

// All that `n viz` does is possible in a folder in which it may write nothing, as on a mount that is read-only.
TEST_F(RequestsTest, WhereNobodyMayWrite) {
  std::optional<MetricsWriter> live(std::in_place, metrics_path(run_dir_, id_, 1), 3600.0);
  live->append(test::recorded_step(20, 2.0));  // while a trainer of somebody else's is at work
  constexpr fs::perms kRead = fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
  constexpr fs::perms kEnter = kRead | fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  std::map<fs::path, fs::perms> before;
  std::map<fs::path, uintmax_t> sizes;
  const auto look = [&] {
    std::map<fs::path, uintmax_t> found;
    for (const auto& entry : fs::recursive_directory_iterator(run_dir_)) {
      found[entry.path()] = entry.is_directory() ? 0 : entry.file_size();
    }
    return found;
  };
  sizes = look();
  fs::permissions(dir_, kEnter | fs::perms::owner_write);
  for (const auto& entry : fs::recursive_directory_iterator(run_dir_)) {
    before[entry.path()] = entry.status().permissions();
    fs::permissions(entry.path(), entry.is_directory() ? kEnter : kRead);
  }
  fs::permissions(run_dir_, kEnter);
  std::vector<std::string> command = {NMOE_PROGRAM, "viz", "--dir", run_dir_.string(), "--port", "0"};
  if (::geteuid() == 0) {  // who may write anywhere
    command.insert(command.begin(), {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  }
  test::Program viz("/", command);
  ASSERT_TRUE(viz.wait_for("#token=")) << viz.errors();
  std::string said;
  for (int i = 0; i < 100 && !said.ends_with("\n"); ++i, std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    said = viz.errors();
  }
  const std::string token = said.substr(said.find("#token=") + 7, 32);
  const size_t colon = said.find(':', said.find("http://") + 7);
  httplib::Client client("127.0.0.1", std::stoi(said.substr(colon + 1)));
  const auto get = [&](const std::string& path) {
    const httplib::Result result = client.Get(path.c_str(), {{"Authorization", "Bearer " + token}});
    EXPECT_TRUE(result && result->status == 200) << path << (result ? result->body : "");
    return result ? result->body : "";
  };
  EXPECT_TRUE(contains(get("/api/runs"), id_));
  EXPECT_TRUE(contains(get("/api/run?run=" + id_), "train/loss"));
  EXPECT_TRUE(contains(get("/api/csv?run=" + id_ + "&tag=train/loss"), id_ + ",train/loss,10,")) << "of the database";
  EXPECT_TRUE(contains(get("/api/csv?rank=1&run=" + id_ + "&tag=train/loss"), id_ + ",train/loss,20,")) << "live";
  get("/api/layers?run=" + id_ + "&of=load");
  get("/api/checkpoints?run=" + id_);
  EXPECT_EQ(look(), sizes) << "it has written something";
  fs::permissions(run_dir_, fs::perms::owner_all);
  for (const auto& [path, permissions] : before) fs::permissions(path, permissions);
}

}  // namespace
}  // namespace nmoe
