// A process that has a database open, as DuckDB has it: with a lock on the whole file.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/files.h"

namespace nmoe {

// Until killed.
class HoldingProcess {
 public:
  enum class For { kReading, kWriting };  // beside other readers, or alone

  explicit HoldingProcess(const fs::path& path, For use) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const int fd = ::open(path.c_str(), use == For::kReading ? O_RDONLY : O_RDWR);
      struct flock lock {};
      lock.l_type = use == For::kReading ? F_RDLCK : F_WRLCK;
      lock.l_whence = SEEK_SET;
      const bool held = fd >= 0 && ::fcntl(fd, F_SETLKW, &lock) == 0;
      if (::write(ready[1], held ? "y" : "n", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char answer = 'n';
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~HoldingProcess() { close(); }
  HoldingProcess(const HoldingProcess&) = delete;
  HoldingProcess& operator=(const HoldingProcess&) = delete;

  void close() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace nmoe
