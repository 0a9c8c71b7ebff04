// Files as sequences of records, each a document to be.
//
// Records of a file are numbered from 1: documents of a text, lines of JSON lines (blank ones are counted but
// skipped), elements of JSON, rows of Parquet. Reading needs memory for one record and some buffers, whatever the
// file's size. JSON is read with simdjson, which validates all of it; Parquet with DuckDB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "data/prep/record.h"

namespace nmoe {

// Begins after record `skip` (0: at the start). Error (runtime) if the file cannot be opened, or is an incomplete
// Parquet file; damaged rows are records with faults. Error (usage) if a Parquet file lacks the fields, or has other
// types in them, and if plain text is to have messages.
std::unique_ptr<RecordReader> open_records(const std::filesystem::path& path, const RecordOptions& options,
                                           int64_t skip = 0);

// Whether a record with a fault ends the work: always if the fault is its file's, else if there are more of them than
// `allowed`. Counts it in `bad`.
bool ends_work(const Record& record, int64_t& bad, int64_t allowed);

// The Error (runtime) for a record that ends the work.
Error bad_record_error(const std::filesystem::path& path, const RecordOptions& options, const Record& record,
                       int64_t allowed);

// "'a.jsonl', line 3", for messages; without a number if the file is one document.
std::string place_of(const std::filesystem::path& path, const RecordOptions& options, int64_t number);

}  // namespace nmoe
