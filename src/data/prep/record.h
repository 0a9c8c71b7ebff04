// A record: what a file holds of a document to be. Readers of files (data/prep/records.h) make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nmoe {

struct RecordOptions {
  std::string text_field = "text";  // of JSON objects and Parquet rows
  std::string id_field = {};        // empty: records have no id of their own
  std::string prompt_field = {};    // empty: no prompts
  std::string messages_field = {};  // not empty: records are conversations, and text and prompt fields are ignored
  std::vector<std::string> ignored_fields = {};  // of conversations: members beside the messages that are left out
  bool whole = false;  // a record's text is its whole JSON object or Parquet row, as JSON; fields are ignored
  // The line that ends a document of a text file; "": blank lines, any number of them. Nothing: the file is one
  // document.
  std::optional<std::string> split_on = {};
  // In (0, 1), for text files that are one document: this share at the end of each, cut at a nearby line end, becomes a
  // separate document, the file's tail.
  std::optional<double> tail = {};
  // If more than 0, a document that is a whole text file is delivered in parts of at most this many bytes
  // (text_reader.h), so that files need not fit in memory.
  size_t part_bytes = 0;
  // A record larger than this is a fault, and its file ends there: some kilobytes of compressed data can expand to more
  // than any memory holds.
  size_t max_bytes = size_t{512} << 20;
};

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

}  // namespace nmoe
