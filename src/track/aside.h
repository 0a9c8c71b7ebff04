// Files that cannot be used make room for new ones, so that what records does not hold up what it records. They lose
// nothing but their names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/files.h"

namespace nmoe {

class Aside {
 public:
  // Renames a file to "<path>.damaged", or "<path>.damaged-2" and so on where that is taken; nothing there is fine.
  // Error (runtime) where it cannot be renamed.
  void move(const fs::path& path);
  // Gives all of them their names back, in place of what has them now. Errors are passed over.
  void undo();
  // What a user is told of them, a warning without its beginning: "'a/b' is damaged (why); it is 'b.damaged' now".
  std::string text(const std::string& why) const;

 private:
  std::vector<std::pair<fs::path, fs::path>> moved_;  // from, to
};

}  // namespace nmoe
