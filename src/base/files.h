// File system helpers that either do the whole thing or leave nothing behind. Every failure is an
// Error naming the path, the system's reason and a remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nmoe {

namespace fs = std::filesystem;

// What a system call reported by errno, as an Error (runtime): "cannot <action> '<path>': <reason>", with a remedy.
Error io_error(std::string_view action, const fs::path& path, int error);

// Whether `name`, which stands in a file that others may have written, names something below the folder that it is put
// behind: parts between single slashes, none of them empty, "." or "..".
bool is_name_below(std::string_view name);

// Error (runtime) when a symbolic link in the folder `dir` (not in folders below it) leads out of it. Where `dir` is a
// snapshot in a cache of Hugging Face's hub (snapshots/REVISION), its links into the blobs/ beside snapshots/ are its
// own files.
void check_links_stay_inside(const fs::path& dir);

// The whole file. Error (runtime) when it is missing or cannot be read.
std::string read_file(const fs::path& path);

// Writes under a temporary name beside `path`, syncs, renames: readers see the old file or the new.
void write_file_atomically(const fs::path& path, std::string_view content);

// Removes what write_file_atomically() left in the folder `dir` when a process was killed in it. No other process may
// be writing there.
void remove_unfinished_files(const fs::path& dir);

void sync_file(const fs::path& path);       // fsync
void sync_directory(const fs::path& path);  // makes renames inside durable

// Creates what is missing of `path`, durably.
void make_directories(const fs::path& path);

// Removes a file or a folder with all in it; nothing there is fine.
void remove_tree(const fs::path& path);

// A folder for what is to become `target`: beside it, under a name that is nobody else's, empty at first. Removed with
// what is in it by the destructor, unless it was renamed. This process holds it, so that others know it is at work.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& target);  // whose folder must exist
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int fd_ = -1;
};

// Removes the temporary folders of `target` that killed processes left; with those of every target in its folder where
// `target` has no name ("dir/"). Where the file system knows no locks, those that a day has gone by without a change.
// What cannot be removed stays.
void remove_unfinished_folders(const fs::path& target);

// A regular file being written in order, unbuffered: the caller's blocks are the system calls. Not thread-safe, but for
// write_at(). Unless it was closed, the destructor removes the file; one that was gone on with stays.
class FileWriter {
 public:
  explicit FileWriter(fs::path path);  // creates or truncates
  // Goes on after the first `size` bytes of a file; what it has beyond is cut off. Error (runtime) when it is shorter.
  FileWriter(fs::path path, uint64_t size);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);  // appends
  // Appends bytes to be given by write_at(), and takes their room on the disk where the file system can.
  void reserve(uint64_t bytes);
  // Overwrites what was written or reserved before. May be called from several threads.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  void sync();   // fsync
  void close();  // fsync and close; the file stays

 private:
  FileWriter(fs::path path, uint64_t size, int flags);

  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  bool created_ = true;
};

// Holds a file for this process alone, and lets go of it however the process ends.
class FileLock {
 public:
  // Creates the file if need be, and writes into it who holds it. Error (runtime) when another process does, naming its
  // host and number. A file system without locks holds nothing; that is said on standard error.
  explicit FileLock(const fs::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

// A read-only memory map of a whole file, valid for the object's life.
//
// A file may be cut, or its disk fail, while it is mapped. What can no longer be read is then zero, and check() says
// so: whoever has read from a map calls it before what was read is used. That holds for 16,384 maps at a time; the
// signal of another (SIGBUS) ends the process.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Takes bytes [begin, end) out of the process's resident size, for reading a large file once from
  // end to end. They stay readable: a touch brings them back from the system's page cache.
  void drop(size_t begin, size_t end) const;
  // Error (runtime) when something of the file could not be read, or it is shorter than it was. Any thread.
  void check() const;
  const fs::path& path() const { return path_; }

 private:
  struct Watch;
  friend void check_mapped_files();

  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<Watch> watch_;
};

// Error (runtime) naming a file, mapped now, of which something could not be read: for those who do not know which
// files they have read. That the last page of a file was cut is left to check(). Any thread.
void check_mapped_files();

}  // namespace nmoe
