// <run.dir>/metrics/<run id>/train.log: what a run says on the terminal, line by line, each with its time.
#pragma once

#include <string_view>

#include "base/files.h"

namespace nmoe {

// A line that cannot be written is lost: what matters of it is in the metrics. Not thread-safe.
class RunLog {
 public:
  // Goes on behind what is there. Where the file cannot be opened, that is said on standard error, and all is lost.
  explicit RunLog(const fs::path& path);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void line(std::string_view text);  // one write

 private:
  int fd_;
};

}  // namespace nmoe
