#include "parallel/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;

std::string error_text() { return std::strerror(errno); }

void set_option(const Socket& socket, int level, int option, int value) {
  NMOE_CHECK(setsockopt(socket.fd(), level, option, &value, sizeof(value)) == 0, "setsockopt {}: {}", option,
             error_text());
}

// Small messages go at once, and the system finds out when the other end is gone for good.
void set_up(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// False when `patience` goes by first.
bool wait_for(const Socket& socket, short events, milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd descriptor{socket.fd(), events, 0};
    const int64_t wait = std::clamp<int64_t>(left.count(), 0, 1 << 30);
    const int ready = poll(&descriptor, 1, static_cast<int>(wait));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) throw ConnectionLost(error_text());
  }
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(address, length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  if (address->sa_family == AF_INET6) return fmt::format("[{}]:{}", host.data(), port.data());
  return fmt::format("{}:{}", host.data(), port.data());
}

Address address_of(const sockaddr* address, socklen_t length) {
  Address result{};
  std::memcpy(&result.storage, address, length);
  result.length = length;
  return result;
}

// A retried connection to a port of this host that nobody listens at may meet itself.
bool is_own_end(const Socket& socket) {
  Address here{}, there{};
  here.length = there.length = sizeof(sockaddr_storage);
  return getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here.storage), &here.length) == 0 &&
         getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there.storage), &there.length) == 0 &&
         here.text() == there.text();
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Socket::shut_down() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

void Socket::shut_down_sending() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_WR);
}

std::string Socket::peer() const {
  Address address{};
  address.length = sizeof(address.storage);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return "who has gone";
  return address.text();
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24) == 127;
  }
  return storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr) != 0;
}

std::string Address::text() const { return numeric(reinterpret_cast<const sockaddr*>(&storage), length); }

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  const int error = getaddrinfo(name.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (error != 0) throw ConnectionLost(fmt::format("{} has no address: {}", host, gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    addresses.push_back(address_of(at->ai_addr, at->ai_addrlen));
  }
  return addresses;
}

std::vector<Address> any_interface(int port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  six.sin6_addr = in6addr_any;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return {address_of(reinterpret_cast<const sockaddr*>(&six), sizeof(six)),
          address_of(reinterpret_cast<const sockaddr*>(&four), sizeof(four))};
}

bool means_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

Listener listen_at(const Address& address) {
  const int family = address.storage.ss_family;
  Listener listener;
  listener.socket = Socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listener.socket.is_open()) {
    // Connections of an earlier run, closed but not yet forgotten, do not hold the port.
    set_option(listener.socket, SOL_SOCKET, SO_REUSEADDR, 1);
    // IPv4's come to the address of every interface too.
    if (family == AF_INET6) set_option(listener.socket, IPPROTO_IPV6, IPV6_V6ONLY, address.is_loopback() ? 1 : 0);
    if (::bind(listener.socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 &&
        ::listen(listener.socket.fd(), SOMAXCONN) == 0) {
      return listener;
    }
  }
  listener.in_use = errno == EADDRINUSE;
  listener.fault = error_text();
  listener.socket.close();
  return listener;
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) set_up(socket);
  return socket;
}

Socket connect_to(const Address& address, Clock::time_point deadline) {
  const auto fail = [&](const std::string& why) { throw ConnectionLost(fmt::format("{}: {}", address.text(), why)); };
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) fail(error_text());
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    if (errno != EINPROGRESS) fail(error_text());
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (!wait_for(socket, POLLOUT, left)) fail("no answer");
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) fail(std::strerror(error));
  }
  if (is_own_end(socket)) fail(std::strerror(ECONNREFUSED));
  set_up(socket);
  return socket;
}

void send_all(const Socket& socket, std::span<const std::byte> bytes, milliseconds patience) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (!would_block()) {
      throw ConnectionLost(error_text());
    } else if (!wait_for(socket, POLLOUT, patience)) {
      throw ConnectionLost(fmt::format("it took no byte for {:.3g} s", seconds(patience)));
    }
  }
}

void receive_all(const Socket& socket, std::span<std::byte> bytes, milliseconds patience) {
  while (!bytes.empty()) {
    const ssize_t received = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<size_t>(received));
    } else if (received == 0) {
      throw ConnectionLost("it ended the connection");
    } else if (!would_block()) {
      throw ConnectionLost(error_text());
    } else if (!wait_for(socket, POLLIN, patience)) {
      throw ConnectionLost(fmt::format("it sent no byte for {:.3g} s", seconds(patience)));
    }
  }
}

void send_frame(const Socket& socket, FrameKind kind, std::string_view body, milliseconds patience) {
  const std::string frame = encode_frame(kind, body);
  send_all(socket, std::as_bytes(std::span(frame)), patience);
}

Frame receive_frame(const Socket& socket, uint32_t limit, milliseconds patience) {
  std::array<char, kFrameHeaderBytes> header{};
  receive_all(socket, std::as_writable_bytes(std::span(header)), patience);
  const std::string_view seen(header.data(), header.size());
  Frame frame{frame_kind(seen), std::string(frame_length(seen, limit), '\0')};
  receive_all(socket, std::as_writable_bytes(std::span(frame.body)), patience);
  return frame;
}

size_t send_some(const Socket& socket, std::string_view bytes) {
  const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (!would_block()) throw ConnectionLost(error_text());
  return 0;
}

bool receive_some(const Socket& socket, FrameBuffer& bytes) {
  std::array<char, 16384> block;
  const ssize_t received = ::recv(socket.fd(), block.data(), block.size(), 0);
  if (received > 0) bytes.add({block.data(), static_cast<size_t>(received)});
  return received > 0 || (received < 0 && would_block());
}

}  // namespace nmoe
