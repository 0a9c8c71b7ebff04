#include "track/live_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/say.h"
#include "track/aside.h"

namespace nmoe {
namespace {

constexpr std::string_view kMagic = "nmoelive";
constexpr uint32_t kVersion = 1;
constexpr size_t kReadBytes = size_t{1} << 20;  // at a time; more where a record is larger

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t checksum;  // of what follows
  uint64_t id;
  uint64_t base;

  std::string_view checked() const { return {reinterpret_cast<const char*>(&id), sizeof(id) + sizeof(base)}; }
};
static_assert(sizeof(Head) == 32);

// Fewer bytes at the end of the file.
size_t read_at(int fd, uint64_t offset, void* bytes, size_t size, const fs::path& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(fd, static_cast<char*>(bytes) + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io_error("read", path, errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io_error("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

std::optional<Head> read_head(int fd, const fs::path& path) {
  Head head;
  if (read_at(fd, 0, &head, sizeof(head), path) < sizeof(head)) return std::nullopt;
  if (std::string_view(head.magic, sizeof(head.magic)) != kMagic || head.version != kVersion ||
      head.checksum != crc32c(head.checked())) {
    return std::nullopt;
  }
  // The database has them in columns of signed numbers.
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (head.id > kMost || head.base > kMost / 2) return std::nullopt;
  return head;
}

uint64_t size_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw io_error("read", path, errno);
  return static_cast<uint64_t>(status.st_size);
}

// Fits a signed column of a database.
uint64_t new_id() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 31) ^ random();
}

}  // namespace

LiveFile::LiveFile(fs::path path) : path_(std::move(path)) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (fd < 0 && errno != ENOENT) throw io_error("open", path_, errno);
  if (fd >= 0) {
    if (adopt(fd)) return;
    ::close(fd);
    Aside aside;
    aside.move(path_);
    say("warning: {}\n", aside.text(""));
  }
  id_ = new_id();
  open_new(0, "");
}

LiveFile::~LiveFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool LiveFile::adopt(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw io_error("read", path_, errno);
  const std::optional<Head> head = S_ISREG(status.st_mode) ? read_head(fd, path_) : std::nullopt;
  if (!head) return false;
  uint64_t good = 0;
  std::string bytes;
  for (;;) {
    const size_t kept = bytes.size();
    bytes.resize(std::max(kReadBytes, 2 * kept));
    const size_t got = read_at(fd, sizeof(Head) + good + kept, bytes.data() + kept, bytes.size() - kept, path_);
    bytes.resize(kept + got);
    const size_t whole = decode_records(bytes, [](const MetricRecord&, size_t) {});
    good += whole;
    bytes.erase(0, whole);
    if (got == 0 || bytes.size() > kMaxRecordBytes + kReadBytes) break;
  }
  if (::ftruncate(fd, static_cast<off_t>(sizeof(Head) + good)) != 0) throw io_error("cut", path_, errno);
  fd_ = fd;
  id_ = head->id;
  base_ = head->base;
  end_ = base_ + good;
  return true;
}

void LiveFile::open_new(uint64_t base, std::string_view records) {
  Head head{.version = kVersion, .id = id_, .base = base};
  std::ranges::copy(kMagic, head.magic);
  head.checksum = crc32c(head.checked());
  fs::path fresh = path_;
  fresh += ".tmp";
  const int fd = ::open(fresh.c_str(), O_RDWR | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw io_error("create", fresh, errno);
  try {
    write_all(fd, {reinterpret_cast<const char*>(&head), sizeof(head)}, fresh);
    write_all(fd, records, fresh);
    if (::rename(fresh.c_str(), path_.c_str()) != 0) throw io_error("rename", fresh, errno);
  } catch (...) {
    ::close(fd);
    ::unlink(fresh.c_str());
    throw;
  }
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  base_ = base;
  end_ = base + records.size();
  torn_ = false;
}

void LiveFile::append(std::string_view frame) {
  // What came through of a record that failed would stand in front of all that follows.
  if (torn_ && ::ftruncate(fd_, static_cast<off_t>(sizeof(Head) + end_ - base_)) != 0) {
    throw io_error("cut", path_, errno);
  }
  torn_ = true;
  write_all(fd_, frame, path_);
  torn_ = false;
  end_ += frame.size();
}

void LiveFile::sync() const {
  if (::fdatasync(fd_) != 0) throw io_error("write", path_, errno);
}

std::string LiveFile::read(uint64_t position, size_t max_bytes) const {
  NMOE_CHECK(position >= base_ && position <= end_, "position {} of {} to {}", position, base_, end_);
  std::string bytes(static_cast<size_t>(std::min<uint64_t>(max_bytes, end_ - position)), '\0');
  bytes.resize(read_at(fd_, sizeof(Head) + position - base_, bytes.data(), bytes.size(), path_));
  return bytes;
}

void LiveFile::drop_before(uint64_t position) {
  open_new(position, position < end_ ? read(position, end_ - position) : "");
}

void LiveFile::remove() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) throw io_error("remove", path_, errno);
}

LiveTail::~LiveTail() { close(); }

void LiveTail::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::optional<LiveTail::Mark> LiveTail::mark() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return std::nullopt;
  return Mark{status.st_dev, status.st_ino, status.st_mode};
}

bool LiveTail::can_try_again() const {
  const std::optional<Mark> now = mark();
  return now && now != refused_;
}

bool LiveTail::open(uint64_t id, uint64_t position) {
  close();
  refused_ = mark();
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) return false;
  const std::optional<Head> head = read_head(fd_, path_);
  const bool continues = head && head->id == id;
  if (!head || (continues && head->base > position)) {
    close();
    return false;
  }
  id_ = head->id;
  base_ = head->base;
  position_ = continues ? position : base_;
  refused_.reset();
  return true;
}

void LiveTail::read_on(const TakeRecord& take) {
  for (std::string bytes;;) {
    const uint64_t offset = sizeof(Head) + position_ - base_;
    const uint64_t size = size_of(fd_, path_);
    if (size <= offset + bytes.size()) return;
    // All of what is there, unless it is much, since the next record may be larger than a read.
    bytes.resize(std::min<size_t>(static_cast<size_t>(size - offset), bytes.size() + kReadBytes));
    bytes.resize(read_at(fd_, offset, bytes.data(), bytes.size(), path_));
    const size_t whole =
        decode_records(bytes, [&](MetricRecord record, size_t end) { take(std::move(record), position_ + end); });
    position_ += whole;
    bytes.erase(0, whole);
  }
}

LiveTail::State LiveTail::poll(const TakeRecord& take) {
  while (is_open()) {
    // Whatever was written to this file was written before another took its place.
    struct stat there {
    }, here{};
    const bool found = ::stat(path_.c_str(), &there) == 0;
    read_on(take);
    if (::fstat(fd_, &here) != 0) throw io_error("read", path_, errno);
    if (found && there.st_ino == here.st_ino && there.st_dev == here.st_dev) return State::kFollowing;
    const uint64_t id = id_, position = position_;
    if (!found) {
      close();
    } else if (!open(id, position) || id_ != id) {
      close();
      return State::kLost;
    }
  }
  return fs::exists(path_) ? State::kLost : State::kEnded;
}

fs::path live_path(const fs::path& database) { return fs::path(database).replace_extension("live"); }

}  // namespace nmoe
