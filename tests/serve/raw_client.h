// A client that says what no good client would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/error.h"

namespace nmoe {

class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    NMOE_CHECK(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "port {}", port);
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the server does not take it any more.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Nothing more is sent.
  void finish() const { ::shutdown(socket_, SHUT_WR); }
  // What comes until the server closes or `most` are there.
  std::string read(size_t most = size_t{1} << 30) const {
    std::string text;
    char part[1 << 16];
    while (text.size() < most) {
      const ssize_t got = ::recv(socket_, part, sizeof(part), 0);
      if (got <= 0) break;
      text.append(part, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int socket_;
};

}  // namespace nmoe
