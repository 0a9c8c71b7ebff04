// The files that a command's arguments mean.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace nmoe {

// What a file holds, by its name; for all but Parquet a further .gz or .zst means compressed.
enum class FileKind {
  kText,       // anything that is none of the others
  kJsonLines,  // .jsonl, .ndjson: one JSON object a line
  kJson,       // .json: JSON objects, in an array or one after the other
  kParquet,    // .parquet
};
FileKind file_kind(const std::filesystem::path& path);

// Each argument is a file, a folder or a glob (*, ?, [...]) of either. Out of folders come *.txt,
// *.jsonl, *.ndjson (each also with .gz or .zst) and *.parquet at any depth; not .md and .json, which in a dataset's
// folder are its description (README.md, dataset_info.json): name those, or give a glob. Files come in the order of the
// arguments, those of one argument sorted by path, each file once. Error (usage) when an argument names nothing, or a
// file of a kind that cannot be read (by its name: a table such as .csv, another compression than gzip and zstd);
// `what` says what the arguments are for.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& arguments, const std::string& what);

}  // namespace nmoe
