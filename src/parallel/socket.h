// TCP connections, over IPv4 and IPv6. Nothing here waits without an end.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/wire.h"

namespace nmoe {

using Clock = std::chrono::steady_clock;

inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// A connection that ended, broke, or on which nothing moved for too long; or none could be had.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns a descriptor. Non-blocking; closed in programs that this one starts.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();
  // Ends what waits on it, in any thread; the descriptor stays.
  void shut_down() const;
  void shut_down_sending() const;
  std::string peer() const;  // address and port of the other end

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage storage;
  socklen_t length;

  bool is_loopback() const;
  std::string text() const;  // "127.0.0.1:29500", "[::1]:29500"
};

// All addresses of a host, by name or number. ConnectionLost when there is none.
std::vector<Address> resolve(const std::string& host, int port);
// Of every interface; the first that the system has is enough.
std::vector<Address> any_interface(int port);
// A name or number that can only mean this host.
bool means_loopback(const std::string& host);

// Listens there, or says why it cannot (the socket is closed); in_use: because something else does.
struct Listener {
  Socket socket;
  std::string fault;
  bool in_use = false;
};
Listener listen_at(const Address& address);
Socket accept_from(const Socket& listener);  // closed when nobody waits
// ConnectionLost when there is none by the deadline.
Socket connect_to(const Address& address, Clock::time_point deadline);

// Whole or ConnectionLost; `patience`: how long nothing may move.
void send_all(const Socket& socket, std::span<const std::byte> bytes, std::chrono::milliseconds patience);
void receive_all(const Socket& socket, std::span<std::byte> bytes, std::chrono::milliseconds patience);
void send_frame(const Socket& socket, FrameKind kind, std::string_view body, std::chrono::milliseconds patience);
// WireFault for what is no frame or is longer than `limit`.
Frame receive_frame(const Socket& socket, uint32_t limit, std::chrono::milliseconds patience);

// As much as goes without waiting; ConnectionLost when it is broken.
size_t send_some(const Socket& socket, std::string_view bytes);
// Adds to `bytes` what has come; false at the end.
bool receive_some(const Socket& socket, FrameBuffer& bytes);

}  // namespace nmoe
