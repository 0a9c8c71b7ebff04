// Files of plain text as records.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "data/prep/record.h"

namespace nmoe {

// See open_records().
std::unique_ptr<RecordReader> open_text(const std::filesystem::path& path, const RecordOptions& options, int64_t skip);

// The size of the first part of a text, of at most `most` bytes: it ends after the last line end, or else after the
// last whole character. All of a text that is not longer.
size_t part_size(std::string_view text, size_t most);

}  // namespace nmoe
