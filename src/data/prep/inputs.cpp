#include "data/prep/inputs.h"

#include <glob.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "data/prep/byte_stream.h"

namespace nmoe {
namespace {

void sort_by_name(std::vector<fs::path>& paths) {
  std::ranges::sort(paths, {}, [](const fs::path& path) { return path.string(); });
}

std::vector<fs::path> matches_of(const std::string& pattern) {
  ::glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  sort_by_name(paths);
  return paths;
}

bool belongs(const fs::path& path) {
  switch (file_kind(path)) {
    case FileKind::kText:
      return (is_compressed(path) ? path.stem() : path).extension() == ".txt";
    case FileKind::kJsonLines:
    case FileKind::kParquet:
      return true;
    case FileKind::kJson:
      return false;
  }
  return false;
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file() && belongs(it->path())) files.push_back(it->path());
  }
  if (error) {
    throw runtime_error(fmt::format("cannot list '{}': {}", folder.string(), error.message()),
                        "check the permissions of the folder and of those below it");
  }
  sort_by_name(files);
  return files;
}

// What is said of a name before anything is read. What a file of another name holds, its reader sees (content.h).
void check_readable(const fs::path& path) {
  const std::string extension = path.extension().string();
  const std::string inner = (is_compressed(path) ? path.stem() : path).extension().string();
  if (inner == ".csv" || inner == ".tsv") {
    throw usage_error(fmt::format("'{}' is a table, not text", path.string()),
                      "write it as JSON lines or Parquet, with a field for each column");
  }
  for (const std::string_view other : {".xz", ".bz2", ".lz4", ".lzma", ".zip", ".7z", ".rar", ".tgz", ".tar"}) {
    if (extension != other && inner != ".tar") continue;
    throw usage_error(fmt::format("'{}' is compressed or packed in a way that is not read", path.string()),
                      "unpack it, or compress it as .gz or .zst");
  }
}

}  // namespace

FileKind file_kind(const fs::path& path) {
  const std::string extension = (is_compressed(path) ? path.stem() : path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return FileKind::kJsonLines;
  if (extension == ".json") return FileKind::kJson;
  if (extension == ".parquet" && !is_compressed(path)) return FileKind::kParquet;
  return FileKind::kText;
}

std::vector<fs::path> expand_inputs(const std::vector<std::string>& arguments, const std::string& what) {
  std::vector<fs::path> files;
  std::set<fs::path> seen;
  for (const std::string& argument : arguments) {
    bool named_any = false;
    // A path that exists is meant as it is, whatever characters it has.
    std::error_code error;
    const auto paths = fs::exists(argument, error) ? std::vector<fs::path>{argument} : matches_of(argument);
    for (const fs::path& path : paths) {
      const auto found = fs::is_directory(path) ? files_below(path) : std::vector<fs::path>{path};
      named_any |= !found.empty();
      for (const fs::path& file : found) {
        check_readable(file);
        if (seen.insert(fs::canonical(file)).second) files.push_back(file);
      }
    }
    if (!named_any) {
      throw usage_error(
          fmt::format("{}: '{}' names no file to read", what, argument),
          "name files, folders that hold .txt, .jsonl or .parquet files, or a glob such as 'books/*.txt'");
    }
  }
  return files;
}

}  // namespace nmoe
