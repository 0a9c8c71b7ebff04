#include "serve/host_names.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace nmoe {
namespace {

// The name in a Host header: without port, an IPv6 address without brackets. What has something else behind the
// brackets is no name of anything.
std::string host_name(std::string_view header) {
  if (header.starts_with("[")) {
    const size_t end = std::min(header.find(']'), header.size() - 1);
    const std::string_view behind = header.substr(end + 1);
    const bool is_address = header[end] == ']' && (behind.empty() || behind.front() == ':');
    return is_address ? lower(header.substr(1, end - 1)) : std::string(header);
  }
  return lower(header.substr(0, header.find(':')));
}

// A number stands for one machine, whoever answers for names.
bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string machine_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? lower(name) : "";
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

HostNames::HostNames(const std::string& host, const std::vector<std::string>& others)
    : names_{"localhost", lower(host), machine_name()} {
  for (const std::string& name : others) names_.push_back(lower(name));
}

std::optional<HostNames::Refusal> HostNames::refusal(const HttpRequest& request) const {
  if (request.count("Host") > 1) return Refusal{400, "the header Host is there more than once"};
  if (request.count("Host") == 0) return std::nullopt;  // no browser
  const std::string name = host_name(request.header("Host"));
  if (is_address(name) || std::ranges::find(names_, name) != names_.end()) return std::nullopt;
  return Refusal{403,
                 fmt::format("this server does not answer for the host '{}': start it with --allow-host NAME", name)};
}

}  // namespace nmoe
