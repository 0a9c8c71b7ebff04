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

InputPaths files_below(const fs::path& folder) {
  InputPaths found;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file()) (belongs(it->path()) ? found.files : found.skipped).push_back(it->path());
  }
  if (error) {
    throw runtime_error(fmt::format("cannot list '{}': {}", folder.string(), error.message()),
                        "check the permissions of the folder and of those below it");
  }
  sort_by_name(found.files);
  sort_by_name(found.skipped);
  return found;
}

constexpr const char* kFolderFiles = ".txt, .jsonl, .ndjson or .parquet";

Error nothing_to_read(const std::string& what, const std::string& argument, const std::vector<fs::path>& skipped) {
  if (skipped.empty()) {
    return usage_error(
        fmt::format("{}: '{}' names no file to read", what, argument),
        fmt::format("name files, folders that hold {} files, or a glob such as 'books/*.txt'", kFolderFiles));
  }
  return usage_error(fmt::format("{}: '{}' holds no {} file, but {} of other kinds, such as '{}'", what, argument,
                                 kFolderFiles, skipped.size(), skipped.front().string()),
                     fmt::format("to read files of other names as text, name them, or give a glob such as '{}/*{}'",
                                 skipped.front().parent_path().string(), skipped.front().extension().string()));
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

InputPaths expand_inputs(const std::vector<std::string>& arguments, const std::string& what) {
  InputPaths inputs;
  std::set<fs::path> seen;
  for (const std::string& argument : arguments) {
    bool named_any = false;
    std::vector<fs::path> skipped;
    // A path that exists is meant as it is, whatever characters it has.
    std::error_code error;
    const auto paths = fs::exists(argument, error) ? std::vector<fs::path>{argument} : matches_of(argument);
    for (const fs::path& path : paths) {
      const InputPaths found = fs::is_directory(path) ? files_below(path) : InputPaths{.files = {path}};
      named_any |= !found.files.empty();
      for (const fs::path& file : found.files) {
        check_readable(file);
        if (!seen.insert(fs::canonical(file)).second) continue;
        inputs.files.push_back(file);
        if (fs::is_regular_file(file) && fs::file_size(file) == 0) inputs.empty.push_back(file);
      }
      skipped.insert(skipped.end(), found.skipped.begin(), found.skipped.end());
    }
    if (!named_any) throw nothing_to_read(what, argument, skipped);
    inputs.skipped.insert(inputs.skipped.end(), skipped.begin(), skipped.end());
  }
  // Another argument may have named them, or a folder above theirs.
  std::erase_if(inputs.skipped, [&](const fs::path& file) { return !seen.insert(fs::canonical(file)).second; });
  return inputs;
}

std::string describe_left_out(const InputPaths& inputs) {
  const auto plural = [](const std::vector<fs::path>& files) { return files.size() == 1 ? "" : "s"; };
  const auto such_as = [](const std::vector<fs::path>& files) {
    return fmt::format("{}'{}'", files.size() == 1 ? "" : "such as ", files.front().string());
  };
  std::string text;
  if (!inputs.skipped.empty()) {
    const char* them = inputs.skipped.size() == 1 ? "it" : "them";
    text +=
        fmt::format("skipped {} file{} in folders, not {}: {}; to read {} as text, name {} or give a glob\n",
                    inputs.skipped.size(), plural(inputs.skipped), kFolderFiles, such_as(inputs.skipped), them, them);
  }
  if (!inputs.empty.empty()) {
    text += fmt::format("found nothing in {} empty file{}: {}\n", inputs.empty.size(), plural(inputs.empty),
                        such_as(inputs.empty));
  }
  return text;
}

}  // namespace nmoe
