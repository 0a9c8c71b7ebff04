#include "track/run_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/say.h"
#include "base/text.h"

namespace nmoe {

RunLog::RunLog(const fs::path& path) : fd_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_ < 0) say("warning: {}\n", io_error("open", path, errno).what());
}

RunLog::~RunLog() {
  if (fd_ >= 0) ::close(fd_);
}

void RunLog::line(std::string_view text) {
  if (fd_ < 0) return;
  const std::string bytes =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}  {}\n", fmt::gmtime(std::time(nullptr)), terminal_safe(text));
  [[maybe_unused]] const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
}

}  // namespace nmoe
