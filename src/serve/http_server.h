// HTTP/1.1 that withstands misbehaving clients: one network thread with deadlines, and workers that never wait
// for a client. Boost.Beast parses; docs/log/generation.md says why it and not another library.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nmoe {

// What clients may make the server hold. Memory stays below max_connections * (2 * max_header + 128 KiB) + max_held.
struct HttpLimits {
  int64_t max_header = 16 << 10;          // bytes of a request's line and headers, of a chunk's line, of trailers
  int64_t max_body = 8 << 20;             // bytes
  int64_t max_connections = 1024;         // beyond it, the client that has been slowest to ask is closed for a new one
  int64_t max_held = int64_t{128} << 20;  // bytes of bodies and unsent answers beyond 64 KiB a client, together
  // How long a client has for each of: its request's line and headers (also the limit for being idle), the body, and
  // accepting 64 KiB of an answer. Arriving bytes do not restart it.
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
};

struct HttpRequest {
  std::string remote;  // address of the client
  std::string method;  // HEAD is GET here
  std::string path;    // without query, %xx decoded
  std::string query;   // what came behind '?'
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;

  // The first of that name (lower or upper case), or "".
  std::string_view header(std::string_view name) const;
  int64_t count(std::string_view name) const;
  // All values of that name in a query such as "a=1&b=x%20y", decoded, in order.
  std::vector<std::string> parameters(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string note;  // for the log
};

// Where a worker puts its answer, either by send() or by begin(), write() and end(). No call waits for the client.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  virtual void send(HttpReply reply) = 0;
  // The head, then pieces of the body. False when nobody reads them: the client left, or reads too slowly for max_held.
  virtual bool begin(HttpReply head) = 0;
  virtual bool write(std::string_view piece) = 0;
  virtual void end() = 0;

  virtual bool client_left() const = 0;
  // The request's body is not needed any more, and leaves max_held.
  virtual void release_body() = 0;
  virtual void set_note(std::string note) = 0;
};

struct HttpLogEntry {
  std::string_view remote;
  std::string_view method;  // "" and path too: what came was no request
  std::string_view path;
  int status = 0;
  double seconds = 0;  // since the head was there
  std::string_view note;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Network thread, must not block: the head is there, the body is not. A reply ends the request, and a body is not
  // read.
  virtual std::optional<HttpReply> on_head(const HttpRequest& request) = 0;
  // A worker's thread. An answer that has not ended when this returns or throws is cut: the client sees that.
  virtual void on_request(const HttpRequest& request, HttpAnswer& answer) = 0;
  // What the server refuses by itself. Network thread.
  virtual HttpReply refusal(int status, const std::string& message) = 0;
  // Network thread, after every answer.
  virtual void log(const HttpLogEntry& entry) = 0;
};

class HttpServer {
 public:
  // Listens on host:port (0: any free port) from here on, and answers from start() on. Raises the process's limit of
  // open files where max_connections needs it, and else lowers those. Error (runtime) when it cannot listen, or may
  // have too few files to answer anyone. `handler` lives longer.
  HttpServer(HttpHandler& handler, const std::string& host, int port, const HttpLimits& limits, int num_workers);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  void start();
  // Gives answers that are there a moment to be written, closes all connections, and waits for the handler's calls that
  // run: they see that their clients left.
  void stop();

 private:
  class Connection;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nmoe
