#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

// What write_file_atomically() puts between a file's name and its own numbers.
constexpr std::string_view kUnfinished = ".tmp-";

std::string remedy_for(int error, const fs::path& path) {
  switch (error) {
    case ENOENT:
      return "check the path for a typing error, or create what is missing";
    case EACCES:
    case EPERM:
      return fmt::format("change the permissions of '{}' or of its folder, or choose another path", path.string());
    case EROFS:
      return "that file system is mounted read-only: choose another path";
    case ENOSPC:
      return "free space on that file system, or choose a path on another one";
    case EDQUOT:
      return "your quota on that file system is used up: free space, or choose another path";
    case EFBIG:
      return "raise the file size limit (ulimit -f), or choose a file system that allows it";
    case EISDIR:
      return "name a file, not a folder";
    case ENOTDIR:
    case EEXIST:
      return "a part of the path is a file where a folder is needed: move it, or choose another "
             "path";
    case EMFILE:
    case ENFILE:
      return "too many files are open: raise the limit (ulimit -n)";
    case EIO:
      return "the storage device reports a fault: see the system log (dmesg)";
    default:
      return "check the path and the file system it is on";
  }
}

Error io_error(std::string_view action, const fs::path& path, int error) {
  return runtime_error(fmt::format("cannot {} '{}': {}", action, path.string(), std::generic_category().message(error)),
                       remedy_for(error, path));
}

// Closes a descriptor at the end of a scope; for reading, where close has nothing to report.
class Descriptor {
 public:
  Descriptor(std::string_view action, const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (fd_ < 0) throw io_error(action, path, errno);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void sync_descriptor(const Descriptor& descriptor, const fs::path& path) {
  // Some file systems cannot sync a folder and say so with EINVAL; there is nothing to do about it.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) throw io_error("sync", path, errno);
}

constexpr std::string_view kSixLetters = "XXXXXX";  // what mkdtemp() replaces
constexpr int kNotLocked = -1;                      // this file system has no locks for folders
constexpr int kLockedByOther = -2;

// A descriptor that holds the folder's lock until it is closed, or one of the two above.
int lock_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return kNotLocked;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const bool locked = errno == EWOULDBLOCK;
  ::close(fd);
  return locked ? kLockedByOther : kNotLocked;
}

// Folders of TemporaryFolder::beside() that no process holds any more.
void remove_abandoned_folders(const fs::path& parent, std::string_view prefix) {
  std::error_code ignored;  // to remove them is a courtesy
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.size() == prefix.size() + kSixLetters.size() && name.starts_with(prefix);
    if (ours && entry.symlink_status(ignored).type() == fs::file_type::directory) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    const int lock = lock_folder(path);
    if (lock < 0) continue;
    fs::remove_all(path, ignored);
    ::close(lock);
  }
}

}  // namespace

bool is_name_below(std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos) return false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

void check_links_stay_inside(const fs::path& dir) {
  std::error_code error;
  const fs::path inside = fs::canonical(dir, error);
  if (error) return;  // whoever reads it says what is wrong
  const bool is_snapshot = inside.parent_path().filename() == "snapshots";
  const fs::path blobs = inside.parent_path().parent_path() / "blobs";
  const auto is_below = [](const fs::path& path, const fs::path& folder) {
    return std::ranges::mismatch(folder, path).in1 == folder.end();
  };
  for (const auto& entry : fs::directory_iterator(inside, error)) {
    if (!entry.is_symlink()) continue;
    const fs::path target = fs::canonical(entry.path(), error);
    if (error || is_below(target, inside) || (is_snapshot && is_below(target, blobs))) continue;
    throw runtime_error(
        fmt::format("'{}' is a link to '{}', out of its folder", entry.path().string(), target.string()),
        "if that is meant, put a copy of the file there; if the folder came from elsewhere, do not trust it");
  }
}

std::string read_file(const fs::path& path) {
  const Descriptor file("read", path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw io_error("read", path, errno);
  // The size is a hint only: files in /proc report 0.
  std::string content;
  size_t used = 0;
  content.resize(static_cast<size_t>(std::max<off_t>(status.st_size, 0)) + 1);
  for (;;) {
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

void write_file_atomically(const fs::path& path, std::string_view content) {
  static std::atomic<unsigned> serial{0};  // two threads may write the same path
  const fs::path parent = parent_of(path);
  const fs::path temporary =
      parent / fmt::format(".{}{}{}-{}", path.filename().string(), kUnfinished, ::getpid(), serial++);
  FileWriter writer(temporary);
  writer.write(content.data(), content.size());
  writer.close();
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw io_error("replace", path, error);
  }
  sync_directory(parent);
}

void remove_unfinished_files(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    const size_t numbers = name.rfind(kUnfinished);
    if (name.starts_with('.') && numbers != std::string::npos &&
        name.find_first_not_of("0123456789-", numbers + kUnfinished.size()) == std::string::npos) {
      paths.push_back(entry.path());
    }
  }
  for (const fs::path& path : paths) fs::remove(path, error);
  if (error) throw io_error("clean up", dir, error.value());
}

void sync_file(const fs::path& path) { sync_descriptor(Descriptor("sync", path, O_RDONLY), path); }

void sync_directory(const fs::path& path) { sync_descriptor(Descriptor("sync", path, O_RDONLY | O_DIRECTORY), path); }

void make_directories(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const fs::path parent = parent_of(path);
  if (parent != path) make_directories(parent);
  if (::mkdir(path.c_str(), 0777) != 0) {
    const int reason = errno;
    if (fs::is_directory(path, error)) return;  // made by another process, or "path/" by "path"
    throw io_error("create folder", path, reason == EEXIST ? ENOTDIR : reason);
  }
  sync_directory(parent);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw runtime_error(fmt::format("cannot remove '{}': {}", path.string(), error.message()),
                        "remove it by hand, or correct the permissions of the folder it is in");
  }
}

TemporaryFolder::TemporaryFolder(fs::path path) : path_(std::move(path)) {
  remove_tree(path_);
  make_directories(path_);
}

TemporaryFolder TemporaryFolder::beside(const fs::path& target) {
  const fs::path parent = parent_of(target);
  make_directories(parent);
  const std::string prefix = fmt::format(".{}.nmoe-", target.filename().string());
  remove_abandoned_folders(parent, prefix);
  // The system's umask, which only setting it tells, is what mkdtemp() leaves out.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  for (;;) {
    std::string path = (parent / fmt::format("{}{}", prefix, kSixLetters)).string();
    if (::mkdtemp(path.data()) == nullptr) throw io_error("create a folder in", parent, errno);
    ::chmod(path.c_str(), 0777 & ~mask);
    const int lock = lock_folder(path);
    // Whoever looked for abandoned folders before it was locked has removed it.
    if (lock != kLockedByOther && fs::exists(path)) return {std::move(path), lock};
    if (lock >= 0) ::close(lock);
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // the failure that led here is the one to report
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

FileWriter::FileWriter(fs::path path) : FileWriter(std::move(path), 0, O_CREAT | O_TRUNC) {}

FileWriter::FileWriter(fs::path path, uint64_t size) : FileWriter(std::move(path), size, 0) {}

FileWriter::FileWriter(fs::path path, uint64_t size, int flags)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666)),
      size_(size),
      created_((flags & O_CREAT) != 0) {
  if (fd_ < 0) throw io_error("write", path_, errno);
  // A device or pipe must not reach the destructor, which would remove it; nor a file whose content is still wanted.
  const auto refuse = [&](const Error& error) {
    ::close(fd_);
    throw error;
  };
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse(runtime_error(fmt::format("cannot write '{}': not a regular file", path_.string()),
                         "name a new file, or one that may be replaced"));
  }
  if (static_cast<uint64_t>(status.st_size) < size) {
    refuse(runtime_error(fmt::format("'{}' has {} bytes; {} had been written", path_.string(), status.st_size, size),
                         "the file was cut: begin again without it"));
  }
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) refuse(io_error("truncate", path_, errno));
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (created_) ::unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  const uint64_t end = size_;
  size_ += bytes;
  write_at(end, data, bytes);
}

void FileWriter::reserve(uint64_t bytes) {
  if (bytes == 0) return;
  size_ += bytes;
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(size_)) == 0) return;
  if (errno != EOPNOTSUPP || ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) throw io_error("write", path_, errno);
}

void FileWriter::write_at(uint64_t offset, const void* data, size_t bytes) {
  NMOE_CHECK(fd_ >= 0, "'{}' is closed", path_.string());
  NMOE_CHECK(offset + bytes <= size_, "'{}' has {} bytes; {} more written at {}", path_.string(), size_, bytes, offset);
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(fd_, next, bytes, static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw io_error("write", path_, errno);
    }
    next += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
}

void FileWriter::sync() {
  NMOE_CHECK(fd_ >= 0, "'{}' is closed", path_.string());
  if (::fsync(fd_) != 0) throw io_error("sync", path_, errno);
}

void FileWriter::close() {
  sync();
  // The descriptor is gone whatever close says, so a failure removes the file here.
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int error = errno;
    if (created_) ::unlink(path_.c_str());
    throw io_error("close", path_, error);
  }
}

FileLock::FileLock(const fs::path& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw io_error("lock", path, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  if (error != EWOULDBLOCK) throw io_error("lock", path, error);
  throw runtime_error(fmt::format("another process is at work on '{}'", parent_of(path).string()),
                      "wait for it to end, or end it");
}

FileLock::~FileLock() { ::close(fd_); }

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor file("read", path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw io_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) throw io_error("read", path, EISDIR);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses an empty range
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) throw io_error("map", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

void MappedFile::drop(size_t begin, size_t end) const {
  NMOE_CHECK(begin <= end && end <= size_, "bytes [{}, {}) of '{}', which has {}", begin, end, path_.string(), size_);
  // Rounded down to pages at both ends: a reader going forward is done with what lies before
  // `begin`, and still wants what lies after `end`.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = begin / page * page;
  const size_t last = end == size_ ? end : end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace nmoe
