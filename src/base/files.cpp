#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "base/file_descriptor.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"

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
    case ENAMETOOLONG:
      return "choose a shorter name";
    case EMFILE:
    case ENFILE:
      return "too many files are open: raise the limit (ulimit -n)";
    case ENOMEM:
      return out_of_memory("").remedy();
    case EIO:
      return "the storage device reports a fault: see the system log (dmesg)";
    default:
      return "check the path and the file system it is on";
  }
}

FileDescriptor open_to_sync(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) throw io_error("sync", path, errno);
  return FileDescriptor(fd);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void sync_descriptor(const FileDescriptor& descriptor, const fs::path& path) {
  // Some file systems cannot sync a folder and say so with EINVAL; there is nothing to do about it.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) throw io_error("sync", path, errno);
}

}  // namespace

Error io_error(std::string_view action, const fs::path& path, int error) {
  return runtime_error(fmt::format("cannot {} '{}': {}", action, path.string(), std::generic_category().message(error)),
                       remedy_for(error, path));
}

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
  for (const fs::path& path : paths) {
    std::error_code of_this;
    fs::remove(path, of_this);
    if (of_this) error = of_this;
  }
  if (error) throw io_error("clean up", dir, error.value());
}

void sync_file(const fs::path& path) { sync_descriptor(open_to_sync(path, O_RDONLY), path); }

void sync_directory(const fs::path& path) { sync_descriptor(open_to_sync(path, O_RDONLY | O_DIRECTORY), path); }

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

namespace {

constexpr std::string_view kUnfinishedFolder = ".unfinished-";  // between a folder's name and its number
constexpr size_t kFolderDigits = 12;
constexpr auto kUnlockableAge = std::chrono::hours(24);

fs::path unfinished_folder(const fs::path& target) {
  uint64_t number = 0;
  NMOE_CHECK(::getrandom(&number, sizeof(number), 0) == sizeof(number), "getrandom: errno {}", errno);
  return parent_of(target) / fmt::format(".{}{}{:0{}x}", target.filename().string(), kUnfinishedFolder,
                                         number >> (64 - 4 * kFolderDigits), kFolderDigits);
}

// Whether `fd` is still what `path` names.
bool is_at(int fd, const fs::path& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

// Whether nobody is at work in a temporary folder.
bool is_abandoned(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  const bool held = !locked && errno == EWOULDBLOCK;
  ::close(fd);
  if (locked || held) return locked;
  std::error_code error;
  const auto changed = fs::last_write_time(folder, error);
  return !error && fs::file_time_type::clock::now() - changed > kUnlockableAge;
}

}  // namespace

// Between mkdir and flock another process may take the folder for one that was left.
TemporaryFolder::TemporaryFolder(const fs::path& target) {
  for (;;) {
    path_ = unfinished_folder(target);
    if (::mkdir(path_.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw io_error("create folder", path_, errno);
    }
    fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) {
      const int error = errno;
      ::rmdir(path_.c_str());
      throw io_error("open folder", path_, error);
    }
    // Not every file system can: then remove_unfinished_folders() goes by its age.
    const bool taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && is_at(fd_, path_)) return;
    ::close(fd_);
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // the failure that led here is the one to report
  fs::remove_all(path_, ignored);
  ::close(fd_);
}

void remove_unfinished_folders(const fs::path& target) {
  const std::string prefix =
      target.has_filename() ? fmt::format(".{}{}", target.filename().string(), kUnfinishedFolder) : std::string(".");
  std::error_code error;
  std::vector<fs::path> abandoned;
  for (fs::directory_iterator it(parent_of(target), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const size_t number = name.rfind(kUnfinishedFolder);
    if (!name.starts_with(prefix) || number == std::string::npos ||
        name.size() != number + kUnfinishedFolder.size() + kFolderDigits ||
        name.find_first_not_of("0123456789abcdef", number + kUnfinishedFolder.size()) != std::string::npos) {
      continue;
    }
    if (is_abandoned(it->path())) abandoned.push_back(it->path());
  }
  for (const fs::path& path : abandoned) fs::remove_all(path, error);
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

// A holder may remove the file when it lets go: what is locked must be what others would find.
FileLock::FileLock(const fs::path& path) : fd_(-1) {
  const auto refuse = [&](const Error& error) {
    ::close(fd_);
    throw error;
  };
  do {
    if (fd_ >= 0) ::close(fd_);
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw io_error("lock", path, errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) continue;
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) {
      say("note: '{}' is on a file system without locks: nothing keeps a second process away\n", path.string());
      break;
    }
    if (errno != EWOULDBLOCK) refuse(io_error("lock", path, errno));
    std::string holder(200, '\0');
    holder.resize(static_cast<size_t>(std::max<ssize_t>(::pread(fd_, holder.data(), holder.size(), 0), 0)));
    holder.resize(std::min(holder.find('\n'), holder.size()));
    refuse(runtime_error(fmt::format("another process is at work on '{}'{}", parent_of(path).string(),
                                     holder.empty() ? "" : ": " + holder),
                         "wait for it to end, or end it"));
  } while (!is_at(fd_, path));
  const std::string holder = fmt::format("process {} on {}\n", ::getpid(), host_name());
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    refuse(io_error("write", path, errno));
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace nmoe
