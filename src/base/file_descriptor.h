// Holds a file descriptor until the end of a scope, where closing has nothing to report: for reading.
#pragma once

#include <unistd.h>

namespace nmoe {

class FileDescriptor {
 public:
  // Takes over what open() returned.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { ::close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace nmoe
