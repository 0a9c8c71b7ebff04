// Files as sequences of records, each a document to be.
//
// Records of a file are numbered from 1: documents of a text, lines of JSON lines (blank ones are counted but
// skipped), elements of JSON, rows of Parquet. Reading needs memory for one record and some buffers, whatever the
// file's size. JSON is read with simdjson, which validates all of it; Parquet with DuckDB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/prep/inputs.h"

namespace nmoe {

struct RecordOptions {
  std::string text_field = "text";  // of JSON objects and Parquet rows
  std::string id_field = {};        // empty: records have no id of their own
  std::string prompt_field = {};    // empty: no prompts
  std::string messages_field = {};  // not empty: records are conversations, and text and prompt fields are ignored
  bool whole = false;  // a record's text is its whole JSON object or Parquet row, as JSON; fields are ignored
  // The line that ends a document of a text file; "": blank lines, any number of them. Nothing: the file is one
  // document.
  std::optional<std::string> split_on = {};
  // In (0, 1), for text files that are one document: this share at the end of each, cut at a nearby line end, becomes a
  // separate document, the file's tail.
  std::optional<double> tail = {};
  // If more than 0, a document that is a whole text file is delivered in parts of at most this many bytes (part_size),
  // so that files need not fit in memory.
  size_t part_bytes = 0;
  // A record larger than this is a fault, and its file ends there: some kilobytes of compressed data can expand to more
  // than any memory holds.
  size_t max_bytes = size_t{512} << 20;
};

// The size of the first part of a text, of at most `most` bytes: it ends after the last line end, or else after the
// last whole character. All of a text that is not longer.
size_t part_size(std::string_view text, size_t most);

struct Record {
  int64_t number = 0;
  std::string text;
  std::string prompt;
  std::string messages;  // of a conversation: JSON, a list of {"role", "content"} (data/prep/messages.h)
  std::string fields;    // of a conversation: what it has beside, as a JSON object ("tools"); "": nothing
  std::string id;
  bool tail = false;  // see RecordOptions::tail
  // Why it cannot be used; empty if it can. Invalid JSON or UTF-8, a missing field, a wrong type, a truncated file, a
  // file that is not text.
  std::string fault;
  // The remedy, if there is a specific one.
  std::string remedy;
  // The fault is the file's: what it holds from here on cannot be read, or is not what its name says. Such a fault is
  // no bad record that could be left out, however few: whole files would be.
  bool ends_file = false;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;

  // Reads the next record into `record`; false at the end of the file. A file without any has one whose fault says so.
  virtual bool next(Record& record) = 0;

  // Bytes read so far, of the file's size on disk.
  virtual int64_t file_bytes_read() const = 0;
};

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
