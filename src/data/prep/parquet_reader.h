// Parquet files as records, through DuckDB.
#pragma once

#include <filesystem>
#include <memory>

#include "data/prep/record.h"

namespace nmoe {

// See open_records(). The text and the prompt are strings (or binary that is UTF-8); an id may be of any type,
// messages are a list of structs with role and content.
std::unique_ptr<RecordReader> open_parquet(const std::filesystem::path& path, const RecordOptions& options,
                                           int64_t skip);

}  // namespace nmoe
