#include "base/bounded_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file_descriptor.h"
#include "base/text.h"

namespace nmoe {

Error not_a_file(const fs::path& path) {
  return runtime_error(fmt::format("cannot read '{}': it is a pipe, a socket or a device, not a file", path.string()),
                       "put a file there, or name one");
}

std::string read_file(const fs::path& path) { return read_file_up_to(path, kMaxWholeFile); }

std::string read_file_up_to(const fs::path& path, uint64_t max_bytes) {
  // Without O_NONBLOCK, a pipe keeps whoever opens it waiting for a writer. Those of /dev were named on purpose.
  const bool named_device = path.string().starts_with("/dev/");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (named_device ? 0 : O_NONBLOCK));
  if (fd < 0) throw io_error("read", path, errno);
  const FileDescriptor file(fd);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw io_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) throw io_error("read", path, EISDIR);
  if (!S_ISREG(status.st_mode) && !named_device) throw not_a_file(path);
  const auto check_size = [&](uint64_t bytes) {
    if (bytes <= max_bytes) return;
    throw runtime_error(fmt::format("'{}' is larger than {}, the most that such a file may have", path.string(),
                                    human_bytes(static_cast<int64_t>(max_bytes))),
                        "see that it is the right file, and whole");
  };
  check_size(static_cast<uint64_t>(std::max<off_t>(status.st_size, 0)));
  // The size is a hint only: files in /proc report 0.
  std::string content;
  size_t used = 0;
  content.resize(static_cast<size_t>(std::max<off_t>(status.st_size, 0)) + 1);
  for (;;) {
    check_size(used);
    if (used == content.size()) content.resize(2 * content.size());
    const ssize_t count = ::read(file.get(), content.data() + used, content.size() - used);
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw io_error("read", path, errno);
    }
    used += static_cast<size_t>(count);
  }
  content.resize(used);
  return content;
}

}  // namespace nmoe
