// The server under attack, with its figures: what good clients notice of it. Slow, and only worth its figures on a
// machine that is idle otherwise.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "serve/raw_client.h"
#include "serve/served_model.h"

namespace nmoe {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kSlowClients = 500;

int64_t resident_bytes(const test::Program& program) {
  std::ifstream status(fmt::format("/proc/{}/status", program.pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

// What runs beside the test until it is destroyed, or finds the server gone.
class Aside {
 public:
  explicit Aside(const std::function<void(const std::atomic<bool>&)>& work)
      : thread_([this, work] {
          try {
            work(end_);
          } catch (const CheckFailure&) {
            return;
          }
        }) {}
  ~Aside() {
    end_ = true;
    thread_.join();
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  std::atomic<bool> end_ = false;
  std::thread thread_;
};

// A byte a second from each of many connections, in every part of a request; one that is closed comes again.
void be_slow(int port, const std::atomic<bool>& end) {
  constexpr const char* kBegins[] = {"G", "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
                                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                     "application/json\r\nContent-Length: 1000000\r\n\r\n",
                                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                     "application/json\r\nTransfer-Encoding: chunked\r\n\r\n"};
  std::vector<std::unique_ptr<RawClient>> clients(kSlowClients);
  while (!end) {
    for (size_t i = 0; i < clients.size() && !end; ++i) {
      if (clients[i] == nullptr || !clients[i]->send("1")) {
        clients[i] = std::make_unique<RawClient>(port);
        clients[i]->send(kBegins[i % std::size(kBegins)]);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(1'000'000 / kSlowClients));
    }
  }
}

// Without end, as fast as it is taken: a request's line, a header, many headers, a chunk's line.
void be_endless(int port, const std::atomic<bool>& end) {
  const std::string kBegins[] = {"GET /", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\n",
                                 "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;"};
  const std::string flood(1 << 16, 'a');
  std::string headers;
  while (headers.size() < flood.size()) headers += "X: y\r\n";
  for (size_t i = 0; !end; ++i) {
    const RawClient client(port);
    client.send(kBegins[i % std::size(kBegins)]);
    for (int piece = 0; piece < 1000 && client.send(i % 4 == 2 ? headers : flood) && !end; ++piece) continue;
  }
}

// Texts written a second for four clients that ask one after the other.
double good_rate(const ServedModel& server, double seconds) {
  std::atomic<int> texts = 0;
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      httplib::Client client = server.client();
      client.set_keep_alive(true);
      while (Seconds(Clock::now() - begin).count() < seconds) {
        const httplib::Result result = client.Post(
            "/v1/completions", R"({"prompt": "the", "max_tokens": 64, "ignore_eos": true})", "application/json");
        if (result && result->status == 200) ++texts;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return texts / Seconds(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The longest that /health took, asked every 20 ms.
double health_seconds(const ServedModel& server, double seconds) {
  double worst = 0;
  for (const Clock::time_point begin = Clock::now(); Seconds(Clock::now() - begin).count() < seconds;) {
    const Clock::time_point asked = Clock::now();
    const httplib::Result result = server.client().Get("/health");
    EXPECT_TRUE(result && result->status == 200);
    worst = std::max(worst, Seconds(Clock::now() - asked).count());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return worst;
}

TEST(FloodTest, GoodClientsHardlyNotice) {
  ServedModel server({"--max-sequences", "4"});
  good_rate(server, 2);
  const int64_t idle = resident_bytes(server.program());
  std::vector<double> alone, beside;
  double health = 0;
  for (int round = 0; round < 3; ++round) {
    alone.push_back(good_rate(server, 4));
    const Aside slow([&](const std::atomic<bool>& end) { be_slow(server.port(), end); });
    std::this_thread::sleep_for(std::chrono::seconds(2));
    beside.push_back(good_rate(server, 4));
    health = std::max(health, health_seconds(server, 1));
  }
  const double share = median(beside) / median(alone);
  fmt::print("{} slow clients: {:.1f} texts a second, {:.1f} without: {:.1f} %; /health {:.1f} ms\n", kSlowClients,
             median(beside), median(alone), 100 * share, 1e3 * health);
  EXPECT_GE(share, 0.9);
  EXPECT_LE(health, 0.1);

  const Aside slow([&](const std::atomic<bool>& end) { be_slow(server.port(), end); });
  const Aside endless([&](const std::atomic<bool>& end) { be_endless(server.port(), end); });
  int64_t most = 0;
  {
    const Aside watch([&](const std::atomic<bool>& end) {
      for (; !end; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
        most = std::max(most, resident_bytes(server.program()));
      }
    });
    health = health_seconds(server, 5);
  }
  fmt::print("endless requests beside them: {:.1f} MB above idle, /health {:.1f} ms\n",
             static_cast<double>(most - idle) * 1e-6, 1e3 * health);
  EXPECT_LE(most - idle, 300'000'000);
  EXPECT_LE(health, 0.1);

  const Clock::time_point begin = Clock::now();
  server.program().send(SIGTERM);
  EXPECT_EQ(server.program().wait().exit_code, 0);
  const double end = Seconds(Clock::now() - begin).count();
  fmt::print("ended {:.2f} s after SIGTERM\n", end);
  EXPECT_LE(end, 5);
}

}  // namespace
}  // namespace nmoe
