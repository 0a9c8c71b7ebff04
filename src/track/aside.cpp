#include "track/aside.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/error.h"

namespace nmoe {
namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

void Aside::move(const fs::path& path) {
  if (!is_there(path)) return;
  fs::path name = path;
  name += ".damaged";
  for (int number = 2; is_there(name); ++number) {
    name = path;
    name += fmt::format(".damaged-{}", number);
  }
  if (std::rename(path.c_str(), name.c_str()) != 0) throw io_error("rename", path, errno);
  moved_.emplace_back(path, name);
}

void Aside::undo() {
  for (const auto& [from, to] : moved_) std::rename(to.c_str(), from.c_str());
  moved_.clear();
}

std::string Aside::text(const std::string& why) const {
  std::string told;
  for (const auto& [from, to] : moved_) {
    const std::string reason = told.empty() && !why.empty() ? fmt::format(" ({})", why) : "";
    told += fmt::format("{}'{}' is damaged{}; it is '{}' now", told.empty() ? "" : ", and ", from.string(), reason,
                        to.filename().string());
  }
  return told;
}

}  // namespace nmoe
