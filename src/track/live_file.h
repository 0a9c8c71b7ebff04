// rank_<r>.live: what a rank has measured and not yet put into its database (metrics_file.h).
//
//   "nmoelive"    u32 version    u32 crc32c of what follows    u64 id    u64 base    then records (record.h)
//
// Records have positions: bytes since the file's id began. Byte `base` stands behind the head; what was before it is in
// the database, which keeps id and the position up to which it has the records. So every value has one home: what the
// database says it has is void in the file. The file is replaced by a shorter one with the same id whenever records
// have moved to the database; a reader that has the old one open finds all of it there, and goes on in the new one at
// its position.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "track/record.h"

namespace nmoe {

// The end that writes. Errors (runtime) name the file. Not thread-safe.
class LiveFile {
 public:
  // Goes on with what a killed process left, without the record that it was writing, or makes a new one. A file that is
  // something else, say zeros after a power cut, is set aside (aside.h) and warned of.
  explicit LiveFile(fs::path path);
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  uint64_t id() const { return id_; }
  uint64_t base() const { return base_; }
  uint64_t end() const { return end_; }

  // One write. Where it fails, the record is not there.
  void append(std::string_view frame);
  // Returns when all of it is on the disk. From any thread, but not beside drop_before().
  void sync() const;
  // At most `max_bytes` from `position` on.
  std::string read(uint64_t position, size_t max_bytes) const;
  // Replaces the file by one without what was before `position`, which may be beyond its end: a power cut can take what
  // the database has.
  void drop_before(uint64_t position);
  // Removes the file, which is not used any more.
  void remove();

 private:
  void open_new(uint64_t base, std::string_view records);
  bool adopt(int fd);

  fs::path path_;
  int fd_ = -1;
  uint64_t id_ = 0;
  uint64_t base_ = 0;
  uint64_t end_ = 0;
  bool torn_ = false;  // behind the end is a part of a record
};

// The end that reads, in whichever process, without locks.
class LiveTail {
 public:
  explicit LiveTail(fs::path path) : path_(std::move(path)) {}
  ~LiveTail();
  LiveTail(const LiveTail&) = delete;
  LiveTail& operator=(const LiveTail&) = delete;

  // Opens what is there now, to be read from `position` of `id` on, or all of it where it has another id. False without
  // a file, or where it begins behind that position: then what lies between is in the database.
  bool open(uint64_t id, uint64_t position);
  bool is_open() const { return fd_ >= 0; }
  // Whether there is a file, and another than open() has refused, or one with other permissions.
  bool can_try_again() const;
  uint64_t id() const { return id_; }
  uint64_t position() const { return position_; }  // of the next record; outside of poll()

  using TakeRecord = std::function<void(MetricRecord record, uint64_t end)>;  // `end`: the position behind it
  enum class State { kFollowing, kEnded, kLost };
  // Passes on the records that have come. kEnded: the file is gone, and the database has all of it, which may be more
  // than was passed on. kLost: another file is there now, of which something may be in the database only.
  State poll(const TakeRecord& take);

 private:
  struct Mark {
    uint64_t device, inode, mode;  // what decides whether it can be opened: not its size
    bool operator==(const Mark&) const = default;
  };
  std::optional<Mark> mark() const;  // of the file; nothing where there is none
  void close();
  void read_on(const TakeRecord& take);

  fs::path path_;
  int fd_ = -1;
  std::optional<Mark> refused_;
  uint64_t id_ = 0;
  uint64_t base_ = 0;
  uint64_t position_ = 0;
};

// rank_<r>.live, which goes with a rank's database.
fs::path live_path(const fs::path& database);

}  // namespace nmoe
