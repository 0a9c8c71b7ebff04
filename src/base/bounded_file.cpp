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

namespace {

// A file that is open, and not too large by what the system says of it.
class BoundedFile {
 public:
  // Without O_NONBLOCK, a pipe keeps whoever opens it waiting for a writer. Those of /dev were named on purpose.
  BoundedFile(const fs::path& path, uint64_t max_bytes)
      : path_(path),
        max_bytes_(max_bytes),
        named_device_(path.string().starts_with("/dev/")),
        file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (named_device_ ? 0 : O_NONBLOCK))) {
    struct stat status {};
    if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) throw io_error("read", path_, errno);
    if (S_ISDIR(status.st_mode)) throw io_error("read", path_, EISDIR);
    if (!S_ISREG(status.st_mode) && !named_device_) throw not_a_file(path_);
    size_ = static_cast<size_t>(std::max<off_t>(status.st_size, 0));
    check_size(size_);
  }

  std::string read() const {
    // The size is a hint only: files in /proc report 0.
    std::string content;
    size_t used = 0;
    content.resize(size_ + 1);
    for (;;) {
      check_size(used);
      if (used == content.size()) content.resize(2 * content.size());
      const ssize_t count = ::read(file_.get(), content.data() + used, content.size() - used);
      if (count == 0) break;
      if (count < 0) {
        if (errno == EINTR) continue;
        throw io_error("read", path_, errno);
      }
      used += static_cast<size_t>(count);
    }
    content.resize(used);
    return content;
  }

 private:
  void check_size(uint64_t bytes) const {
    if (bytes <= max_bytes_) return;
    throw runtime_error(fmt::format("'{}' is larger than {}, the most that such a file may have", path_.string(),
                                    human_bytes(static_cast<int64_t>(max_bytes_))),
                        "see that it is the right file, and whole");
  }

  const fs::path& path_;
  uint64_t max_bytes_;
  bool named_device_;
  FileDescriptor file_;
  size_t size_ = 0;
};

}  // namespace

std::string read_file(const fs::path& path) { return read_file_up_to(path, kMaxWholeFile); }

std::string read_file_up_to(const fs::path& path, uint64_t max_bytes) { return BoundedFile(path, max_bytes).read(); }

void check_file_up_to(const fs::path& path, uint64_t max_bytes) { const BoundedFile opened(path, max_bytes); }

}  // namespace nmoe
