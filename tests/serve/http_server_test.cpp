// The server under clients that are slow, endless or gone.
#include "serve/http_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "serve/raw_client.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;
using test::contains;
using Clock = std::chrono::steady_clock;

// GET is answered at once; POST /echo with its body, /stream with pieces until nobody takes them, /throw with nothing.
class Handler : public HttpHandler {
 public:
  std::optional<HttpReply> on_head(const HttpRequest& request) override {
    if (request.method != "GET") return std::nullopt;
    return HttpReply{.status = 200, .type = "text/plain", .body = "got " + request.path, .headers = {}, .note = {}};
  }
  void on_request(const HttpRequest& request, HttpAnswer& answer) override {
    if (request.path == "/throw") throw std::runtime_error("no");
    if (request.path == "/cut") {
      answer.begin({.status = 200, .type = "text/plain", .body = {}, .headers = {}, .note = {}});
      answer.write("half");
      return;
    }
    if (request.path == "/stream") {
      answer.begin({.status = 200, .type = "text/plain", .body = {}, .headers = {}, .note = {}});
      const std::string piece(10000, 'x');
      while (answer.write(piece)) written += static_cast<int64_t>(piece.size());
      return;
    }
    if (request.path == "/wait") {
      while (!answer.client_left()) std::this_thread::sleep_for(milliseconds(1));
      ++num_left;
      return;
    }
    answer.send({.status = 200, .type = "text/plain", .body = request.body, .headers = {}, .note = {}});
  }
  HttpReply refusal(int status, const std::string& message) override {
    return {.status = status, .type = "text/plain", .body = message, .headers = {}, .note = {}};
  }
  void log(const HttpLogEntry& entry) override {
    const std::lock_guard lock(mutex);
    statuses.push_back(entry.status);
  }

  std::mutex mutex;
  std::vector<int> statuses;
  std::atomic<int64_t> written = 0;
  std::atomic<int> num_left = 0;
};

class HttpServerTest : public testing::Test {
 protected:
  void start(const HttpLimits& limits = {}, int workers = 2) {
    server_ = std::make_unique<HttpServer>(handler_, "127.0.0.1", 0, limits, workers);
    server_->start();
  }
  RawClient client() const { return RawClient(server_->port()); }
  // What is answered to all of `request`, the server closing.
  std::string ask(std::string_view request) const {
    const RawClient raw = client();
    raw.send(request);
    return raw.read();
  }
  bool becomes(auto condition) const {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
    return condition();
  }

  Handler handler_;
  std::unique_ptr<HttpServer> server_;
};

constexpr const char* kGet = "GET /a%20b?c HTTP/1.1\r\nConnection: close\r\n\r\n";

TEST_F(HttpServerTest, Answers) {
  start();
  EXPECT_TRUE(contains(ask(kGet), "got /a b"));
  EXPECT_FALSE(contains(ask("HEAD /a HTTP/1.1\r\nConnection: close\r\n\r\n"), "got"));
  EXPECT_TRUE(contains(ask("POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"), "\r\n\r\nabc"));
  EXPECT_TRUE(contains(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                           "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n"),
                       "\r\n\r\nabc"));
  // Several on one connection, sent at once.
  const std::string two = ask(std::string("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n") + kGet);
  EXPECT_TRUE(contains(two, "got /1"));
  EXPECT_TRUE(contains(two, "got /2"));
  EXPECT_TRUE(contains(two, "got /a b"));
  EXPECT_TRUE(contains(ask("POST /throw HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"), " 500 "));
  // An answer that was not ended has no last chunk.
  const std::string cut = ask("POST /cut HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
  EXPECT_FALSE(contains(cut, "\r\n0\r\n"));
}

TEST(HttpRequestTest, Parameters) {
  using Values = std::vector<std::string>;
  HttpRequest request;
  EXPECT_EQ(request.parameters("a"), Values{});
  request.query = "a=1&b=x%20y&%61=+%2B&=&c&a==&&a";
  EXPECT_EQ(request.parameters("a"), (Values{"1", " +", "=", ""}));
  EXPECT_EQ(request.parameters("b"), Values{"x y"});
  EXPECT_EQ(request.parameters("c"), Values{""});
  EXPECT_EQ(request.parameters("d"), Values{});
}

TEST_F(HttpServerTest, ContinuesWhenAsked) {
  start();
  const RawClient raw = client();
  raw.send("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(contains(raw.read(1), "100 Continue"));
  raw.send("ok");
  EXPECT_TRUE(contains(raw.read(), "\r\n\r\nok"));
}

TEST_F(HttpServerTest, WhatIsNoRequest) {
  start();
  EXPECT_TRUE(contains(ask("nonsense\r\n\r\n"), " 400 "));
  EXPECT_TRUE(contains(ask("GET / HTTP/9.9\r\n\r\n"), " 400 "));
  EXPECT_TRUE(contains(ask("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), " 400 "));
  // Two ways to say how long it is: where a proxy takes the other one, a second request could hide in the first.
  EXPECT_TRUE(
      contains(ask("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), " 400 "));
  EXPECT_TRUE(contains(ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), " 400 "));
}

TEST_F(HttpServerTest, EndlessHeads) {
  start();
  const std::string endless(1 << 20, 'a');
  EXPECT_TRUE(contains(ask(endless), " 4"));
  EXPECT_TRUE(contains(ask("GET /" + endless), " 431 "));
  EXPECT_TRUE(contains(ask("GET / HTTP/1.1\r\nX: " + endless), " 431 "));
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 10000; ++i) many += "X: y\r\n";
  EXPECT_TRUE(contains(ask(many), " 431 "));
  EXPECT_TRUE(contains(ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + endless), " 4"));
  EXPECT_TRUE(contains(ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + endless), " 4"));
}

TEST_F(HttpServerTest, LargeBodies) {
  start({.max_body = 100000});
  EXPECT_TRUE(
      contains(ask("POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n" + std::string(100001, 'x')), " 413 "));
  std::string chunks = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 200; ++i) chunks += "400\r\n" + std::string(0x400, 'x') + "\r\n";
  EXPECT_TRUE(contains(ask(chunks), " 413 "));
  // A body that nobody asked for is not kept; the client learns that the connection ends.
  const std::string got = ask("GET /a HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + std::string(90000, 'x'));
  EXPECT_TRUE(contains(got, "got /a"));
  EXPECT_TRUE(contains(got, "Connection: close"));
}

// A byte now and then does not keep a connection.
TEST_F(HttpServerTest, Deadlines) {
  start({.timeout = milliseconds(300)});
  const auto trickle = [&](std::string_view begin) {
    const RawClient raw = client();
    const Clock::time_point started = Clock::now();
    raw.send(begin);
    // The second write after the server has closed fails.
    while (raw.send("x") && Clock::now() - started < std::chrono::seconds(5)) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    return Clock::now() - started;
  };
  EXPECT_LE(trickle("GET /"), std::chrono::seconds(3));
  EXPECT_LE(trickle("POST / HTTP/1.1\r\nX: "), std::chrono::seconds(3));
  EXPECT_LE(trickle("POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"), std::chrono::seconds(3));
  EXPECT_EQ(client().read(), "");  // says nothing, and is closed
}

// Who takes nothing of an answer holds a bounded part of it, and no worker.
TEST_F(HttpServerTest, ReadersThatTakeNothing) {
  start({.max_held = 1 << 20, .timeout = milliseconds(300)}, 1);
  const RawClient raw = client();
  raw.send("POST /stream HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
  EXPECT_TRUE(becomes([&] { return handler_.written > 900000; }));
  EXPECT_TRUE(contains(ask("POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"), "abc"));
  EXPECT_LE(handler_.written, 64 << 20);  // what the system's buffers take comes on top
}

TEST_F(HttpServerTest, BodiesThatAreHeldTogether) {
  start({.max_held = 300000});
  std::vector<std::unique_ptr<RawClient>> slow;
  const std::string part(90000, 'x');
  for (int i = 0; i < 4; ++i) {
    slow.push_back(std::make_unique<RawClient>(server_->port()));
    slow.back()->send("POST /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + part);
  }
  EXPECT_TRUE(becomes([&] {
    const std::lock_guard lock(handler_.mutex);
    return std::ranges::count(handler_.statuses, 503) >= 1;
  }));
  // Small ones have room always.
  EXPECT_TRUE(contains(ask("POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"), "abc"));
  slow.clear();
  const std::string whole(100000, 'y');
  EXPECT_TRUE(becomes([&] {
    return contains(ask("POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n" + whole), whole);
  }));
}

TEST_F(HttpServerTest, PlacesGoToThoseWhoAsk) {
  start({.max_connections = 4});
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<RawClient>(server_->port()));
  EXPECT_TRUE(contains(ask(kGet), "got /a b"));
  // Those that are being answered keep theirs.
  start({.max_connections = 4}, 4);
  idle.clear();
  for (int i = 0; i < 3; ++i) {
    idle.push_back(std::make_unique<RawClient>(server_->port()));
    idle.back()->send("POST /wait HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(contains(ask(kGet), "got /a b"));
  EXPECT_EQ(handler_.num_left, 0);
  idle.clear();
  EXPECT_TRUE(becomes([&] { return handler_.num_left == 3; }));
}

TEST_F(HttpServerTest, StopsAtOnce) {
  start({}, 2);
  std::vector<std::unique_ptr<RawClient>> all;
  for (const char* begin :
       {"", "GET /", "POST /wait HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
        "POST /stream HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nx",
        "POST /wait HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"}) {
    all.push_back(std::make_unique<RawClient>(server_->port()));
    all.back()->send(begin);
  }
  EXPECT_TRUE(contains(ask(kGet), "got"));
  const Clock::time_point begin = Clock::now();
  server_->stop();
  EXPECT_LE(Clock::now() - begin, std::chrono::seconds(2));
}

}  // namespace
}  // namespace nmoe
