// Which file of src/ includes which, by their text: those that this build leaves out count too.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "layout/layout.h"

namespace nmoe::test {

// One #include; both files relative to src/.
struct Include {
  fs::path user, used;
};
// Those of `files` (absolute paths) that name another of them, beside the file or from src/ on.
std::vector<Include> includes_among(const std::vector<fs::path>& files, const fs::path& src_dir, const ReadFile& read);

// A unit is a header and the source of its name. One message for each largest set of units that include each other,
// however indirectly, with the includes between them.
std::vector<std::string> circles_of_units(const std::vector<Include>& includes);

// Includes that lead to a folder which stands later.
std::vector<std::string> upward_includes(const std::vector<Include>& includes, const FolderOrder& order);

// Files below the folder `from` that include, however indirectly, one below the folder `to`; with the way there.
std::vector<std::string> ways_between(const std::vector<Include>& includes, const fs::path& from, const fs::path& to);

}  // namespace nmoe::test
