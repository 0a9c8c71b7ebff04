#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <utility>

#include "base/bounded_file.h"
#include "base/files.h"

namespace nmoe {

// What the signal's handler has to know of a map. It allocates nothing and takes no lock.
struct MappedFile::Watch {
  Watch(const std::byte* data, size_t size, const fs::path& of, const struct stat& status);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static void on_bus_error(int signal, siginfo_t* info, void* context);

  uintptr_t begin;
  uintptr_t end;
  fs::path path;
  dev_t device;
  ino_t inode;
  std::atomic<bool> failed{false};
  size_t slot;
};

namespace {

// Maps beyond so many are not watched.
constexpr size_t kMaxWatched = 1 << 14;
constexpr size_t kNoSlot = kMaxWatched;

std::array<std::atomic<void*>, kMaxWatched> watched{};
std::atomic<size_t> watched_end{0};  // slots from here on were never used
std::atomic<int64_t> num_failed{0};
std::mutex watched_mutex;  // of those who change slots
size_t page_bytes = 0;

Error unreadable(const fs::path& path) {
  return runtime_error(fmt::format("'{}' was cut, or its disk failed, while it was read", path.string()),
                       "restore the file, see the system log (dmesg), and begin again");
}

}  // namespace

// A page of a map that has no file behind it any more, or whose disk fails: zeros are put there.
void MappedFile::Watch::on_bus_error(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (size_t i = 0, end = watched_end.load(); i < end; ++i) {
    auto* watch = static_cast<Watch*>(watched[i].load());
    if (watch == nullptr || at < watch->begin || at >= watch->end) continue;
    void* page = reinterpret_cast<void*>(at - at % page_bytes);
    if (::mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) break;
    if (!watch->failed.exchange(true)) num_failed.fetch_add(1);
    errno = saved;
    return;
  }
  std::signal(signal, SIG_DFL);  // not of a map: what failed is done again, and ends the process
}

MappedFile::Watch::Watch(const std::byte* data, size_t size, const fs::path& of, const struct stat& status)
    : begin(reinterpret_cast<uintptr_t>(data)),
      end(begin + size),
      path(of),
      device(status.st_dev),
      inode(status.st_ino),
      slot(kNoSlot) {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, nullptr);
  });
  const std::lock_guard lock(watched_mutex);
  for (size_t i = 0; i < kMaxWatched; ++i) {
    if (watched[i].load() != nullptr) continue;
    slot = i;
    watched[i] = this;
    if (i >= watched_end.load()) watched_end = i + 1;
    return;
  }
}

MappedFile::Watch::~Watch() {
  const std::lock_guard lock(watched_mutex);
  if (slot != kNoSlot) watched[slot] = nullptr;
  if (failed) num_failed.fetch_sub(1);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  // Without O_NONBLOCK, a pipe keeps whoever opens it waiting for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw io_error("read", path, errno);
  struct stat status {};
  int error = ::fstat(fd, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (error == 0 && !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw not_a_file(path);
  }
  void* data = nullptr;
  if (error == 0) {
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) {  // mmap refuses an empty range
      data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (data == MAP_FAILED) error = errno;
    }
  }
  ::close(fd);
  if (error != 0) throw io_error("read", path, error);
  if (data == nullptr) return;
  data_ = static_cast<const std::byte*>(data);
  watch_ = std::make_unique<Watch>(data_, size_, path_, status);
}

MappedFile::~MappedFile() {
  watch_.reset();
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watch_(std::move(other.watch_)) {}

void MappedFile::drop(size_t begin, size_t end) const {
  NMOE_CHECK(begin <= end && end <= size_, "bytes [{}, {}) of '{}', which has {}", begin, end, path_.string(), size_);
  // Rounded down to pages at both ends: a reader going forward is done with what lies before
  // `begin`, and still wants what lies after `end`.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = begin / page * page;
  const size_t last = end == size_ ? end : end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

// The rest of a file's last page reads as zeros without a signal; so its size counts, unless another took its name.
void MappedFile::check() const {
  if (watch_ == nullptr) return;
  struct stat status {};
  const bool is_cut = ::stat(path_.c_str(), &status) == 0 && status.st_ino == watch_->inode &&
                      status.st_dev == watch_->device && static_cast<size_t>(status.st_size) < size_;
  if (is_cut || watch_->failed) throw unreadable(path_);
}

void check_mapped_files() {
  if (num_failed.load() == 0) return;
  const std::lock_guard lock(watched_mutex);
  for (size_t i = 0, end = watched_end.load(); i < end; ++i) {
    const auto* watch = static_cast<const MappedFile::Watch*>(watched[i].load());
    if (watch == nullptr || !watch->failed) continue;
    throw unreadable(watch->path);
  }
}

}  // namespace nmoe
