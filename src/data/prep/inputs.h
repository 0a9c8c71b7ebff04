// The input files that a command's arguments name.
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

struct InputPaths {
  std::vector<std::filesystem::path> files;
  std::vector<std::filesystem::path> skipped;  // files in folders that were left out because of their extension
  std::vector<std::filesystem::path> empty;    // of `files`, those without a byte: the user may have expected some
};

// Each argument is a file, a folder or a glob (*, ?, [...]) of either. In folders, only *.txt, *.jsonl, *.ndjson (each
// also with .gz or .zst) and *.parquet are read, at any depth; not .md and .json, which in a dataset's folder are its
// description (README.md, dataset_info.json): name those, or give a glob. Files come in the order of the arguments,
// those of one argument sorted by path, each file once. Error (usage) if an argument names nothing, or a file of a
// kind that cannot be read (by its name: a table such as .csv, a compression other than gzip and zstd); `what` says
// what the arguments are for.
InputPaths expand_inputs(const std::vector<std::string>& arguments, const std::string& what);

// A line that tells the user of skipped files, and one of empty ones; "" if there are none. Of `files` nothing is told.
std::string describe_left_out(const InputPaths& inputs);

}  // namespace nmoe
