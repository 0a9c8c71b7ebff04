// What the layout of the repository promises, checked from what the build knows: folders of src/ stand in dependency
// order, and no file is long; includes.h beside it reads files that this build leaves out, too. Every function returns
// one message a violation, none when all is well.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace nmoe::test {

// An object file of the build, and every file that its compiler read (absolute paths).
struct CompiledObject {
  std::string object;
  std::vector<fs::path> files;
};

// Reads what `ninja -t deps` prints. Relative paths are taken from `build_dir`.
std::vector<CompiledObject> parse_ninja_deps(std::string_view text, const fs::path& build_dir);

// A library of the folder src/`folder`, and another target that it links to.
struct Link {
  std::string folder;
  std::string target;
  std::string links_to;
};

// Reads lines "folder target links_to".
std::vector<Link> parse_links(std::string_view text);

// The folders of src/, each of which may use itself and those before it.
class FolderOrder {
 public:
  FolderOrder(fs::path src_dir, std::vector<std::string> folders);

  const fs::path& src_dir() const { return src_dir_; }
  const std::vector<std::string>& folders() const { return folders_; }

  // The folder in which a file of src/ lies; empty for any other file.
  std::string folder_of(const fs::path& file) const;
  // A folder that is not listed stands before all others: it may use none.
  bool may_use(const std::string& user, const std::string& used) const;

 private:
  int position(const std::string& folder) const;

  fs::path src_dir_;
  std::vector<std::string> folders_;
};

using ReadFile = std::function<std::string(const fs::path&)>;

// What stands between quotes or angle brackets in the #include lines of a file's text.
std::vector<std::string> included_names(const std::string& text);

// Includes, of sources and of headers, that lead to a folder which stands later. What counts is what compilers read;
// the text of the files (`read`) only tells which of them has the #include.
std::vector<std::string> upward_includes(const std::vector<CompiledObject>& objects, const FolderOrder& order,
                                         const ReadFile& read);

// Libraries that link to one of a folder which stands later.
std::vector<std::string> upward_links(const std::vector<Link>& links, const FolderOrder& order);

// Files of more than `max_lines` lines.
std::vector<std::string> long_files(const std::vector<fs::path>& files, int max_lines, const ReadFile& read);

// Messages, one a line.
std::string one_a_line(const std::vector<std::string>& messages);

}  // namespace nmoe::test
