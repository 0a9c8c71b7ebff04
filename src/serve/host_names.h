// By which names a server may be called. A page that a browser loaded from elsewhere can have a name of its own point
// to this machine (DNS rebinding), but the browser says that name in the request's Host.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_server.h"

namespace nmoe {

std::string lower(std::string_view text);  // of ASCII's letters

class HostNames {
 public:
  // `host`, where the server listens, localhost, this machine's name, every address, and `others`.
  HostNames(const std::string& host, const std::vector<std::string>& others);

  struct Refusal {
    int status = 0;
    std::string message;
  };
  // Nothing of a request that may be answered.
  std::optional<Refusal> refusal(const HttpRequest& request) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace nmoe
