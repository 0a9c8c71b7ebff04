#include "track/json_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/json.h"
#include "track/log_tail.h"

namespace nmoe {

using Json = nlohmann::ordered_json;

void append_line(const fs::path& path, std::string_view line) {
  const int fd = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw io_error("open", path, errno);
  struct stat status {};
  char last = '\n';
  const bool begun = ::fstat(fd, &status) == 0 && status.st_size > 0 && ::pread(fd, &last, 1, status.st_size - 1) == 1;
  std::string bytes = begun && last != '\n' ? "\n" : "";
  bytes += line;
  bytes += '\n';
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(fd);
  if (written != static_cast<ssize_t>(bytes.size())) throw io_error("write", path, error);
}

void each_json_line(const fs::path& path, size_t max_bytes, const std::function<void(const Json&)>& take) {
  const std::string text = log_tail(path, max_bytes);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) return;
    const Json json = try_parse_json<Json>(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (json.is_discarded()) continue;
    try {
      take(json);
    } catch (const nlohmann::json::exception&) {
    } catch (const JsonError&) {
    }
  }
}

}  // namespace nmoe
