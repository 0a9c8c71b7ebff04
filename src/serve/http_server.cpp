#include "serve/http_server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/signals.h"
#include "base/start_thread.h"

namespace nmoe {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr int64_t kFreeBytes = 64 << 10;    // that a client may have held whatever others do
constexpr size_t kPiece = 64 << 10;         // what a client has to take before its deadline
constexpr size_t kScratch = 16 << 10;       // of a body, at once
constexpr int64_t kMostDrained = 64 << 20;  // of a body that was refused
constexpr auto kDrainTime = std::chrono::seconds(2);
constexpr auto kFlushTime = std::chrono::milliseconds(300);  // for answers that are there when the server stops
constexpr rlim_t kLeastFiles = 32;                           // without which nobody could be answered
constexpr int64_t kOtherFiles = 128;                         // open files of the process that are no connections

std::string decode_percent(std::string_view text) {
  std::string decoded;
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    decoded += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// `limits` with as many connections as the process may have files.
HttpLimits with_room(HttpLimits limits) {
  const int64_t wanted = limits.max_connections;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return limits;
  const auto needed = static_cast<rlim_t>(wanted + kOtherFiles);
  if (files.rlim_cur < needed) {
    files.rlim_cur = std::min(needed, files.rlim_max);
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur < kLeastFiles) {
    throw runtime_error(fmt::format("a server needs {} open files, and may have {}", kLeastFiles, files.rlim_cur),
                        "raise the limit (ulimit -n)");
  }
  limits.max_connections =
      std::clamp<int64_t>(static_cast<int64_t>(files.rlim_cur) - kOtherFiles, 1, std::max<int64_t>(1, wanted));
  return limits;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (beast::iequals({key.data(), key.size()}, {name.data(), name.size()})) return value;
  }
  return "";
}

int64_t HttpRequest::count(std::string_view name) const {
  return std::ranges::count_if(headers, [&](const auto& header) {
    return beast::iequals(header.first, {name.data(), name.size()});
  });
}

std::vector<std::string> HttpRequest::parameters(std::string_view name) const {
  std::vector<std::string> values;
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (decode_percent(pair.substr(0, equals)) != name) continue;
    std::string value(pair.substr(std::min(equals + 1, pair.size())));
    std::ranges::replace(value, '+', ' ');
    values.push_back(decode_percent(value));
  }
  return values;
}

struct HttpServer::State {
  State(HttpHandler& the_handler, const HttpLimits& the_limits) : handler(the_handler), limits(the_limits) {}

  void accept();
  // Before a new connection is taken. False when all that there are ask or are answered in time.
  bool make_room();
  void work();
  void forget(const std::shared_ptr<Connection>& connection);

  HttpHandler& handler;
  HttpLimits limits;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> busy{io.get_executor()};
  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  bool ending = false;                                 // answers that are there are still written
  std::list<std::shared_ptr<Connection>> connections;  // network thread
  std::atomic<int64_t> held = 0;
  std::thread network;
  std::vector<std::thread> workers;
  int num_workers = 1;

  std::mutex mutex;  // guards what follows
  std::condition_variable arrived;
  std::deque<std::shared_ptr<Connection>> requests;  // that wait for a worker: at most one a connection
  bool stopping = false;
};

// Everything is of the network thread but what HttpAnswer declares and what is atomic. While a worker has the
// connection (working_), request_ and note_ are the worker's.
class HttpServer::Connection final : public HttpAnswer, public std::enable_shared_from_this<Connection> {
 public:
  enum class Phase { kHead, kDraining, kBody, kAnswering };  // in the order in which they are given up

  Connection(State& server, tcp::socket socket)
      : server_(server), stream_(std::move(socket)), buffer_(static_cast<size_t>(server.limits.max_header)) {
    error_code error;
    stream_.socket().set_option(tcp::no_delay(true), error);
    const tcp::endpoint remote = stream_.socket().remote_endpoint(error);
    if (!error) remote_ = remote.address().to_string();
  }
  ~Connection() override { server_.held -= held_; }

  void start() {
    guarded([this] { read_head(); });
  }
  Phase phase() const { return phase_; }
  Clock::time_point since() const { return since_; }
  // Whether it is the client who keeps the connection from going on.
  bool waits_for_client() const { return phase_ != Phase::kAnswering || (finished_ && !working_); }

  void close() {
    if (left_.exchange(true)) return;
    const std::shared_ptr<Connection> self = shared_from_this();
    stream_.close();
    server_.forget(self);
    if (phase_ == Phase::kAnswering && !working_) {
      note_ = "the client left";
      log();
    }
  }

  // On a worker.
  void work() {
    try {
      server_.handler.on_request(request_, *this);
    } catch (const std::bad_alloc&) {
      if (!begun_) send(server_.handler.refusal(503, "the server is out of memory: try again later, or ask for less"));
    } catch (const std::exception&) {
      if (!begun_) send(server_.handler.refusal(500, "an error of the server"));
    }
    asio::post(server_.io, [self = shared_from_this()] {
      self->working_ = false;
      if (self->left_) return self->log();
      if (!self->ended_) return self->close();
      if (self->finished_) self->guarded([&] { self->write_next(); });
    });
  }

  void send(HttpReply reply) override {
    if (begun_) return;  // what has begun otherwise is cut
    begun_ = ended_ = true;
    post([reply = std::move(reply)](Connection& c) mutable { c.reply(std::move(reply)); });
  }
  bool begin(HttpReply head) override {
    begun_ = true;
    post([head = std::move(head)](Connection& c) { c.put(c.make_head(head, std::nullopt)); });
    return !left_;
  }
  bool write(std::string_view piece) override {
    if (left_) return false;
    if (piece.empty()) return true;
    std::string bytes = chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::string(piece);
    if (!hold(static_cast<int64_t>(bytes.size()))) return false;
    post([bytes = std::move(bytes)](Connection& c) mutable {
      c.out_.push_back(std::move(bytes));
      c.write_next();
    });
    return true;
  }
  void end() override {
    ended_ = true;
    post([](Connection& c) {
      c.finished_ = true;
      if (c.chunked_) return c.put("0\r\n\r\n");
      c.write_next();
    });
  }
  bool client_left() const override { return left_; }
  void release_body() override {
    hold(-static_cast<int64_t>(request_.body.size()));
    std::string().swap(request_.body);
  }
  void set_note(std::string note) override { note_ = std::move(note); }

 private:
  // An exception here (there is no memory, say) ends its connection alone.
  template <class Action>
  void guarded(Action&& action) {
    try {
      action();
    } catch (const std::exception&) {
      close();
    }
  }
  auto then(void (Connection::*member)(error_code, size_t)) {
    return [self = shared_from_this(), member](error_code error, size_t size) {
      if (!self->left_) self->guarded([&] { (self.get()->*member)(error, size); });
    };
  }
  template <class Action>
  void post(Action&& action) {
    asio::post(server_.io, [self = shared_from_this(), action = std::forward<Action>(action)]() mutable {
      if (!self->left_) self->guarded([&] { action(*self); });
    });
  }
  void enter(Phase phase) {
    phase_ = phase;
    since_ = Clock::now();
  }
  // Counts bytes that are kept for this client. False when they are too many.
  bool hold(int64_t bytes) {
    const int64_t mine = held_ += bytes;
    const int64_t all = server_.held += bytes;
    return mine <= kFreeBytes || all <= server_.limits.max_held;
  }

  void read_head() {
    enter(Phase::kHead);
    request_ = {};
    request_.remote = remote_;
    note_.clear();
    begun_ = ended_ = finished_ = logged_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.limits.max_header));
    parser_->body_limit(static_cast<uint64_t>(server_.limits.max_body));
    stream_.expires_after(server_.limits.timeout);
    http::async_read_header(stream_, buffer_, *parser_, then(&Connection::on_head));
  }

  void on_head(error_code error, size_t) {
    asked_ = Clock::now();
    if (error) return refuse(error);
    const auto& head = parser_->get();
    keep_alive_ = parser_->keep_alive();
    chunked_ = head.version() >= 11;
    const std::string_view target = view(head.target());
    const size_t mark = std::min(target.find('?'), target.size());
    request_.path = decode_percent(target.substr(0, mark));
    request_.query = target.substr(std::min(mark + 1, target.size()));
    request_.method = view(head.method_string());
    is_head_ = request_.method == "HEAD";
    if (is_head_) request_.method = "GET";
    for (const auto& field : head) {
      request_.headers.emplace_back(view(field.name_string()), view(field.value()));
    }
    const bool has_body = !parser_->is_done();
    if (std::optional<HttpReply> answer = server_.handler.on_head(request_)) {
      if (has_body) keep_alive_ = false;
      enter(Phase::kAnswering);
      return reply(std::move(*answer));
    }
    if (!has_body) return hand_over();
    enter(Phase::kBody);
    if (beast::iequals(head[http::field::expect], "100-continue")) put("HTTP/1.1 100 Continue\r\n\r\n");
    scratch_.resize(kScratch);
    stream_.expires_after(server_.limits.timeout);
    read_body();
  }

  void read_body() {
    parser_->get().body().data = scratch_.data();
    parser_->get().body().size = scratch_.size();
    http::async_read_some(stream_, buffer_, *parser_, then(&Connection::on_body));
  }

  void on_body(error_code error, size_t) {
    if (error && error != http::error::need_buffer) return refuse(error);
    const size_t size = scratch_.size() - parser_->get().body().size;
    request_.body.append(scratch_.data(), size);
    if (!hold(static_cast<int64_t>(size))) {
      return refuse_with(503, "other requests with large bodies leave no room for this one");
    }
    if (!parser_->is_done()) return read_body();
    hand_over();
  }

  // What is no request, or none that is taken.
  void refuse(error_code error) {
    const bool is_http = error.category() == http::make_error_code(http::error::bad_method).category();
    if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message) {
      return close();  // the client left, or was too slow
    }
    if (error == http::error::body_limit) {
      return refuse_with(413, fmt::format("the body is larger than {} bytes", server_.limits.max_body));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return refuse_with(431, fmt::format("line and headers are more than {} bytes", server_.limits.max_header));
    }
    refuse_with(400, "this is not a request that the server understands");
  }

  void refuse_with(int status, const std::string& message) {
    keep_alive_ = false;
    enter(Phase::kAnswering);
    release_body();
    reply(server_.handler.refusal(status, message));
  }

  void hand_over() {
    std::string().swap(scratch_);
    enter(Phase::kAnswering);
    working_ = true;
    watch_client();
    const std::lock_guard lock(server_.mutex);
    server_.requests.push_back(shared_from_this());
    server_.arrived.notify_one();
  }

  // Sees when the client leaves while its answer is made.
  void watch_client() {
    if (watching_) return;
    watching_ = true;
    stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->watching_ = false;
      if (error || self->left_ || self->phase_ != Phase::kAnswering) return;
      char byte = 0;
      const ssize_t got = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      const bool has_more_to_say = got > 0 || (got < 0 && errno == EAGAIN);
      if (!has_more_to_say) self->close();
    });
  }

  std::string make_head(const HttpReply& reply, std::optional<size_t> size) {
    status_ = reply.status;
    if (!chunked_ && !size) keep_alive_ = false;
    http::response_header<> head;
    head.version(11);
    head.result(static_cast<unsigned>(reply.status));
    if (!reply.type.empty()) head.set(http::field::content_type, reply.type);
    for (const auto& [name, value] : reply.headers) head.set(name, value);
    if (size) {
      head.set(http::field::content_length, std::to_string(*size));
    } else if (chunked_) {
      head.set(http::field::transfer_encoding, "chunked");
    }
    if (!keep_alive_) head.set(http::field::connection, "close");
    if (keep_alive_ && !chunked_) head.set(http::field::connection, "keep-alive");
    std::ostringstream text;
    text << head;
    return std::move(text).str();
  }

  void reply(HttpReply reply) {
    if (!reply.note.empty()) note_ = std::move(reply.note);
    std::string bytes = make_head(reply, reply.body.size());
    if (!is_head_) bytes += reply.body;
    finished_ = true;
    put(std::move(bytes));
  }

  void put(std::string bytes) {
    hold(static_cast<int64_t>(bytes.size()));
    out_.push_back(std::move(bytes));
    write_next();
  }

  void write_next() {
    if (writing_) return;
    if (out_.empty()) {
      if (finished_ && !working_) finish();
      return;
    }
    writing_ = true;
    stream_.expires_after(server_.limits.timeout);
    const std::string& front = out_.front();
    asio::async_write(stream_, asio::buffer(front.data() + sent_, std::min(kPiece, front.size() - sent_)),
                      then(&Connection::on_written));
  }

  void on_written(error_code error, size_t size) {
    writing_ = false;
    if (error) return close();
    hold(-static_cast<int64_t>(size));
    sent_ += size;
    if (sent_ == out_.front().size()) {
      out_.pop_front();
      sent_ = 0;
    }
    write_next();
  }

  void log() {
    if (std::exchange(logged_, true)) return;
    const std::chrono::duration<double> time = Clock::now() - asked_;
    server_.handler.log({.remote = remote_,
                         .method = is_head_ ? "HEAD" : request_.method,
                         .path = request_.path,
                         .status = status_,
                         .seconds = time.count(),
                         .note = note_});
  }

  void finish() {
    log();
    release_body();
    if (keep_alive_ && !server_.ending) return read_head();
    // Closed with bytes unread, the answer might not reach the client.
    enter(Phase::kDraining);
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kDrainTime);
    drained_ = 0;
    scratch_.resize(kScratch);
    drain();
  }

  void drain() { stream_.async_read_some(asio::buffer(scratch_), then(&Connection::on_drained)); }

  void on_drained(error_code error, size_t size) {
    drained_ += static_cast<int64_t>(size);
    if (error || drained_ > kMostDrained) return close();
    drain();
  }

  State& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::buffer_body>> parser_;
  std::string remote_;
  HttpRequest request_;
  std::string scratch_;
  std::string note_;
  Phase phase_ = Phase::kHead;
  Clock::time_point since_ = Clock::now();
  Clock::time_point asked_ = Clock::now();
  std::deque<std::string> out_;  // of the first, sent_ bytes are gone
  size_t sent_ = 0;
  int64_t drained_ = 0;
  int status_ = 0;
  bool keep_alive_ = false;
  bool chunked_ = false;  // the client knows chunks (HTTP/1.1)
  bool is_head_ = false;
  bool writing_ = false;
  bool watching_ = false;
  bool working_ = false;
  bool finished_ = false;  // out_ ends with the answer's end
  bool logged_ = false;
  bool begun_ = false;  // of the worker, as
  bool ended_ = false;
  std::atomic<bool> left_ = false;
  std::atomic<int64_t> held_ = 0;
};

void HttpServer::State::forget(const std::shared_ptr<Connection>& connection) {
  std::erase(connections, connection);
  if (ending && connections.empty()) pause.cancel();
}

bool HttpServer::State::make_room() {
  if (static_cast<int64_t>(connections.size()) < limits.max_connections) return true;
  std::shared_ptr<Connection> slowest;
  for (const std::shared_ptr<Connection>& connection : connections) {
    if (!connection->waits_for_client()) continue;
    const auto order = [](const Connection& c) { return std::pair(c.phase(), c.since()); };
    if (!slowest || order(*connection) < order(*slowest)) slowest = connection;
  }
  if (slowest) slowest->close();
  return slowest != nullptr;
}

void HttpServer::State::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    try {
      if (!error && make_room()) {
        connections.push_back(std::make_shared<Connection>(*this, std::move(socket)));
        connections.back()->start();
      }
    } catch (const std::bad_alloc&) {
      error = make_error_code(boost::system::errc::not_enough_memory);
    }
    if (!error) return accept();
    // Out of files or memory: time for others to end.
    pause.expires_after(std::chrono::milliseconds(50));
    pause.async_wait([this](error_code stopped) {
      if (!stopped) accept();
    });
  });
}

void HttpServer::State::work() {
  block_stop_signals();
  for (;;) {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [this] { return stopping || !requests.empty(); });
    if (stopping) return;
    const std::shared_ptr<Connection> connection = std::move(requests.front());
    requests.pop_front();
    lock.unlock();
    connection->work();
  }
}

HttpServer::HttpServer(HttpHandler& handler, const std::string& host, int port, const HttpLimits& limits,
                       int num_workers)
    : state_(std::make_unique<State>(handler, with_room(limits))) {
  state_->num_workers = num_workers;
  error_code error;
  tcp::resolver resolver(state_->io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  tcp::acceptor& acceptor = state_->acceptor;
  // NOTE: only SO_REUSEADDR: with SO_REUSEPORT a second server could take the same port.
  if (!error) acceptor.open(found.begin()->endpoint().protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(found.begin()->endpoint(), error);
  if (!error) acceptor.listen(SOMAXCONN, error);
  if (error == asio::error::no_descriptors) {
    throw runtime_error("the server has no file left to listen with", "raise the limit of open files (ulimit -n)");
  }
  if (error) {
    throw runtime_error(fmt::format("cannot listen on {}:{}: {}", host, port, error.message()),
                        "another program may have the port: choose one with --port (0: any), and an address of this "
                        "machine with --host");
  }
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

void HttpServer::start() {
  for (int i = 0; i < state_->num_workers; ++i) {
    state_->workers.push_back(start_thread("to answer", [this] { state_->work(); }));
  }
  state_->accept();
  state_->network = start_thread("for the network", [this] {
    block_stop_signals();
    state_->io.run();
  });
}

void HttpServer::stop() {
  const bool started = state_->network.joinable();
  if (started)
    asio::post(state_->io, [state = state_.get()] {
      error_code ignored;
      state->acceptor.close(ignored);
      const auto close_those = [state](auto condition) {
        const std::list<std::shared_ptr<Connection>> all = state->connections;
        for (const std::shared_ptr<Connection>& connection : all) {
          if (condition(*connection)) connection->close();
        }
      };
      close_those([](const Connection& c) { return c.phase() != Connection::Phase::kAnswering; });
      state->ending = true;
      state->pause.expires_after(kFlushTime);
      if (state->connections.empty()) return;
      state->pause.async_wait([close_those](error_code) { close_those([](const Connection&) { return true; }); });
    });
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->arrived.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
  state_->workers.clear();
  state_->busy.reset();
  if (started) state_->network.join();
  state_->requests.clear();
}

}  // namespace nmoe
