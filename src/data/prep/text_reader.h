// Files of plain text as records.
#pragma once

#include <filesystem>
#include <memory>

#include "data/prep/records.h"

namespace nmoe {

// See open_records().
std::unique_ptr<RecordReader> open_text(const std::filesystem::path& path, const RecordOptions& options, int64_t skip);

}  // namespace nmoe
