// Files as a sequence of records, one a document-to-be.
//
// Records of a file are numbered from 1: documents of a text, lines of JSON lines (blank ones count but are passed
// over), elements of JSON, rows of Parquet. Reading takes memory for a record and some buffers, whatever the file's
// size. JSON is read with simdjson, which validates all of it; Parquet with DuckDB.
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
  std::string messages_field = {};  // not empty: records are conversations, and the two before are not looked at
  // The line that ends a document of a text file; "": blank lines, any number of them. Nothing: the file is one
  // document.
  std::optional<std::string> split_on = {};
  // In (0, 1), for text files that are one document: this share of each, cut behind a line's end near by, is a document
  // of its own, the file's tail.
  std::optional<double> tail = {};
  // More than 0: a document that is a whole text file comes in parts of at most this many bytes (part_size), so that no
  // file need fit in memory.
  size_t part_bytes = 0;
  // A record that is read from more bytes is at fault, and its file ends there: some kilobytes of compressed data can
  // become more than any memory holds.
  size_t max_bytes = size_t{512} << 20;
};

// How much of the front of a text makes a part of at most `most` bytes: up to behind its last line end, else its last
// whole character. All of a text that is no longer.
size_t part_size(std::string_view text, size_t most);

struct Record {
  int64_t number = 0;
  std::string text;
  std::string prompt;
  std::string messages;  // of a conversation: JSON, a list of {"role", "content"} (data/prep/conversation.h)
  std::string id;
  bool tail = false;  // see RecordOptions::tail
  // Why it cannot be used, if it cannot: invalid JSON or UTF-8, a missing field, a wrong type, the file's early end, a
  // file that is no text.
  std::string fault;
  // How the fault is mended, where more can be said than to mend it.
  std::string remedy;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;

  // The next record; false at the end of the file. Fills `record` anew. A file without any record has one that says so.
  virtual bool next(Record& record) = 0;

  // How much of the file has been read: of its size on disk.
  virtual int64_t file_bytes_read() const = 0;
};

// Begins after record `skip` (0: at the start). Error (runtime) when the file cannot be opened, or is a Parquet file
// that is not whole; rows of it that are damaged are records at fault. Error (usage) when a Parquet file has not the
// fields, or another type in them, and when a plain text is to have messages.
std::unique_ptr<RecordReader> open_records(const std::filesystem::path& path, const RecordOptions& options,
                                           int64_t skip = 0);

// The Error (runtime) for a record at fault, when more of them were found than the `allowed`.
Error bad_record_error(const std::filesystem::path& path, const RecordOptions& options, const Record& record,
                       int64_t allowed);

// "'a.jsonl', line 3", for messages; without a number where the file is one document.
std::string place_of(const std::filesystem::path& path, const RecordOptions& options, int64_t number);

}  // namespace nmoe
