#include "data/prep/parquet_reader.h"

#include <duckdb.h>
#include <strings.h>

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/crash_note.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "data/prep/content.h"
#include "data/prep/messages.h"

namespace nmoe {
namespace {

// Room for a page and what it is decompressed from: DuckDB itself writes pages of 100 MB.
constexpr const char* kMemoryLimit = "512MB";

constexpr const char* kWholeFile = "see that it is a whole Parquet file: download or write it again";

// For DuckDB's handles, which are pointers that a function taking the pointer's address destroys.
template <class Handle, void (*destroy)(Handle*)>
struct HandleDeleter {
  void operator()(Handle handle) const { destroy(&handle); }
};
template <class Handle, void (*destroy)(Handle*)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, HandleDeleter<Handle, destroy>>;

// A result of a query. Rows come in chunks, computed as they are asked for.
class Result {
 public:
  Result() = default;
  ~Result() { duckdb_destroy_result(&result_); }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  duckdb_result* get() { return &result_; }
  // DuckDB's reason, its first line: beyond it our SQL is quoted.
  std::string error() {
    const char* message = duckdb_result_error(&result_);
    const std::string text = message == nullptr ? "" : message;
    return text.substr(0, text.find('\n'));
  }

 private:
  duckdb_result result_{};
};

std::string sql_quoted(std::string_view text, char quote) {
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote) out += quote;
    out += c;
  }
  return out + quote;
}

// As an SQL string that names this file alone: DuckDB takes paths for patterns.
std::string path_literal(const fs::path& path) {
  std::string pattern;
  for (const char c : path.string()) {
    if (c == '*' || c == '?' || c == '[') {
      pattern += {'[', c, ']'};
    } else {
      pattern += c;
    }
  }
  return sql_quoted(pattern, '\'');
}

// A file without a byte has no rows, as files of other kinds have no records.
class NoRecords final : public RecordReader {
 public:
  bool next(Record&) override { return false; }
  int64_t file_bytes_read() const override { return 0; }
};

class ParquetReader final : public RecordReader {
 public:
  ParquetReader(const fs::path& path, const RecordOptions& options, int64_t skip)
      : path_(path),
        options_(options),
        file_bytes_(static_cast<int64_t>(fs::file_size(path))),
        number_(skip),
        crash_note_(
            fmt::format("DuckDB crashed on '{}': the file is damaged, or was altered on purpose", path.string()),
            fmt::format("{}; or leave it out. What is prepared is kept", kWholeFile)) {
    const CrashNote::Scope scope(crash_note_);
    open_database();
    const std::string file = path_literal(path);
    describe(file);
    // Numbers and dates become text; strings stay as they are.
    const auto as_text = [](const std::string& field) {
      return field.empty() ? std::string("NULL") : fmt::format("CAST({} AS VARCHAR)", sql_quoted(field, '"'));
    };
    const auto as_stored = [](const std::string& field) {
      return field.empty() ? std::string("NULL") : sql_quoted(field, '"');
    };
    const bool conversations = !options.messages_field.empty();
    const auto as_json = [](const std::string& expression) {
      return fmt::format("CAST(to_json({}) AS VARCHAR)", expression);
    };
    const std::string text = options.whole   ? as_json("records")
                             : conversations ? as_json(sql_quoted(options.messages_field, '"'))
                                             : as_stored(options.text_field);
    const std::string beside = conversations ? fields_ : as_stored(options.prompt_field);
    select_ =
        fmt::format("SELECT {}, {}, {} FROM read_parquet({}{}) AS records", text, beside.empty() ? "NULL" : beside,
                    as_text(options.id_field), file, numbers_rows_ ? ", file_row_number = true" : "");
  }

  bool next(Record& record) override {
    const CrashNote::Scope scope(crash_note_);
    while (row_ == chunk_rows_) {
      if (number_ >= num_rows_) return false;
      const std::string failure = fetch();
      if (!failure.empty() && narrow_down(failure, record)) return true;
    }
    record = {.number = ++number_};
    if (!options_.messages_field.empty()) {
      std::string json;
      take(0, options_.messages_field, json, record);
      std::string fields;
      if (!fields_.empty()) take(1, "", fields, record);
      if (record.fault.empty()) take_messages(json, fields, record);
    } else {
      take(0, options_.text_field, record.text, record);
      if (!options_.prompt_field.empty()) take(1, options_.prompt_field, record.prompt, record);
    }
    if (!options_.id_field.empty()) take(2, options_.id_field, record.id, record);
    check_utf8(record);
    ++row_;
    return true;
  }

  // Rows stand for bytes.
  int64_t file_bytes_read() const override {
    if (num_rows_ == 0) return file_bytes_;
    return static_cast<int64_t>(static_cast<double>(file_bytes_) * static_cast<double>(number_) /
                                static_cast<double>(num_rows_));
  }

 private:
  void open_database() {
    duckdb_config raw_config = nullptr;
    NMOE_CHECK(duckdb_create_config(&raw_config) == DuckDBSuccess, "duckdb_create_config");
    const Owned<duckdb_config, duckdb_destroy_config> config(raw_config);
    // One thread: the tokenizer needs the others. Nothing is fetched, nothing spilled beside the user's files.
    for (const auto& [name, value] : {std::pair{"threads", "1"},
                                      {"memory_limit", kMemoryLimit},
                                      {"temp_directory", ""},
                                      {"preserve_insertion_order", "true"},
                                      {"autoinstall_known_extensions", "false"},
                                      {"autoload_known_extensions", "false"}}) {
      NMOE_CHECK(duckdb_set_config(raw_config, name, value) == DuckDBSuccess, "DuckDB setting {} = {}", name, value);
    }
    duckdb_database database = nullptr;
    NMOE_CHECK(duckdb_open_ext(nullptr, &database, raw_config, nullptr) == DuckDBSuccess, "duckdb_open_ext");
    database_.reset(database);
    duckdb_connection connection = nullptr;
    NMOE_CHECK(duckdb_connect(database, &connection) == DuckDBSuccess, "duckdb_connect");
    connection_.reset(connection);
  }

  Error cannot_read(const std::string& reason) const {
    if (reason.starts_with("Out of Memory")) return too_large(reason);
    return runtime_error(fmt::format("cannot read '{}': {}", path_.string(), reason), kWholeFile);
  }

  Error too_large(const std::string& reason) const {
    return runtime_error(fmt::format("cannot read '{}' with {} of memory: {}", path_.string(), kMemoryLimit, reason),
                         "write it again with smaller pages or row groups");
  }

  // Checks that the fields are there, once each and of a usable type, and counts the rows.
  void describe(const std::string& file) {
    Result columns;
    if (duckdb_query(connection_.get(), fmt::format("DESCRIBE SELECT * FROM read_parquet({})", file).c_str(),
                     columns.get()) != DuckDBSuccess) {
      throw cannot_read(columns.error());
    }
    std::vector<std::string> names;
    std::vector<std::string> types;
    while (duckdb_data_chunk raw = duckdb_fetch_chunk(*columns.get())) {
      const Owned<duckdb_data_chunk, duckdb_destroy_data_chunk> chunk(raw);
      for (idx_t row = 0; row < duckdb_data_chunk_get_size(raw); ++row) {
        names.emplace_back(string_at(raw, 0, row));
        types.emplace_back(string_at(raw, 1, row));
      }
    }
    // DuckDB's numbers of rows have this name; where the file has it, rows are counted instead, which takes longer.
    numbers_rows_ = std::ranges::none_of(
        names, [](const std::string& name) { return ::strcasecmp(name.c_str(), "file_row_number") == 0; });
    const auto type_of = [&](const std::string& field) {
      const auto found = std::ranges::find(names, field);
      if (found == names.end()) {
        throw usage_error(fmt::format("'{}' has no column \"{}\"", path_.string(), field),
                          fmt::format("it has {}: see --text-field, --messages-field and the like", join_or(names)));
      }
      return types[static_cast<size_t>(found - names.begin())];
    };
    if (!options_.messages_field.empty()) {
      type_of(options_.messages_field);
      fields_ = fields_of(names);
    }
    for (const std::string& field : {options_.text_field, options_.prompt_field}) {
      if (field.empty() || options_.whole || !options_.messages_field.empty()) continue;
      const std::string type = type_of(field);
      if (type != "VARCHAR" && type != "BLOB") {
        throw usage_error(fmt::format("column \"{}\" of '{}' is {}, not a string", field, path_.string(), type),
                          "name a column of strings with --text-field or --prompt-field");
      }
    }
    if (!options_.id_field.empty()) type_of(options_.id_field);
    Result count;
    if (duckdb_query(connection_.get(), fmt::format("SELECT num_rows FROM parquet_file_metadata({})", file).c_str(),
                     count.get()) != DuckDBSuccess) {
      throw cannot_read(count.error());
    }
    const Owned<duckdb_data_chunk, duckdb_destroy_data_chunk> chunk(duckdb_fetch_chunk(*count.get()));
    num_rows_ = *static_cast<const int64_t*>(duckdb_vector_get_data(duckdb_data_chunk_get_vector(chunk.get(), 0)));
  }

  // The expression for what a row has beside its messages, as a JSON object; "": nothing.
  std::string fields_of(const std::vector<std::string>& columns) const {
    std::string members;
    for (const std::string& column : columns) {
      if (!is_field_beside_messages(column, options_)) continue;
      const std::string name = sql_quoted(column, '"');
      members += fmt::format("{}{} := {}", members.empty() ? "" : ", ", name, name);
    }
    return members.empty() ? "" : fmt::format("CAST(to_json(struct_pack({})) AS VARCHAR)", members);
  }

  // Begins to read rows [number_, limit_). Returns why that fails, "" if it does not.
  std::string execute() {
    const std::string sql =
        numbers_rows_ ? fmt::format("{} WHERE file_row_number >= {} AND file_row_number < {}", select_, number_, limit_)
                      : fmt::format("{} LIMIT {} OFFSET {}", select_, limit_ - number_, number_);
    duckdb_prepared_statement raw = nullptr;
    const duckdb_state prepared = duckdb_prepare(connection_.get(), sql.c_str(), &raw);
    const Owned<duckdb_prepared_statement, duckdb_destroy_prepare> statement(raw);
    if (prepared != DuckDBSuccess) throw cannot_read(duckdb_prepare_error(raw));
    duckdb_pending_result raw_pending = nullptr;
    const duckdb_state pending_state = duckdb_pending_prepared_streaming(raw, &raw_pending);
    const Owned<duckdb_pending_result, duckdb_destroy_pending> pending(raw_pending);
    if (pending_state != DuckDBSuccess) throw cannot_read(duckdb_pending_error(raw_pending));
    rows_ = std::make_unique<Result>();
    if (duckdb_execute_pending(raw_pending, rows_->get()) != DuckDBSuccess) return rows_->error();
    NMOE_CHECK(duckdb_result_is_streaming(*rows_->get()), "DuckDB does not stream: {}", sql);
    return "";
  }

  // The next chunk, if the rows being read have one. Returns why it cannot be read, "" if it can.
  std::string fetch() {
    if (!rows_) {
      const int64_t suspected = bad_before_ - number_;
      limit_ = suspected > 0 ? number_ + std::max<int64_t>(suspected / 2, 1) : num_rows_;
      if (std::string failure = execute(); !failure.empty()) return failure;
    }
    chunk_.reset(duckdb_stream_fetch_chunk(*rows_->get()));
    row_ = 0;
    chunk_rows_ = chunk_ ? duckdb_data_chunk_get_size(chunk_.get()) : 0;
    if (chunk_rows_ > 0) return "";
    if (number_ == limit_) {
      rows_.reset();
      return "";
    }
    const std::string failure = rows_->error();
    return failure.empty() ? "rows are missing" : failure;
  }

  // DuckDB gives up a whole query, having read ahead. Halving what is asked for finds the row at fault, which is told
  // as such (true), and reading goes on behind it.
  bool narrow_down(const std::string& failure, Record& record) {
    if (failure.starts_with("Out of Memory")) throw too_large(failure);
    // Some failures leave a database of no use.
    chunk_.reset();
    rows_.reset();
    connection_.reset();
    database_.reset();
    open_database();
    row_ = chunk_rows_ = 0;
    bad_before_ = limit_;
    if (limit_ - number_ > 1) return false;
    record = {.number = ++number_, .fault = "the row cannot be read: " + failure, .remedy = kWholeFile};
    return true;
  }

  // A cell's bytes, valid as long as the chunk.
  static std::string_view string_at(duckdb_data_chunk chunk, idx_t column, idx_t row) {
    auto* cells = static_cast<duckdb_string_t*>(duckdb_vector_get_data(duckdb_data_chunk_get_vector(chunk, column)));
    // A short string lives in the handle itself.
    return {duckdb_string_t_data(&cells[row]), duckdb_string_t_length(cells[row])};
  }

  void take(idx_t column, const std::string& field, std::string& out, Record& record) {
    uint64_t* valid = duckdb_vector_get_validity(duckdb_data_chunk_get_vector(chunk_.get(), column));
    if (valid == nullptr || duckdb_validity_row_is_valid(valid, row_)) {
      out.assign(string_at(chunk_.get(), column, row_));
    } else if (record.fault.empty()) {
      record.fault = fmt::format("\"{}\" is NULL", field);
    }
  }

  fs::path path_;
  RecordOptions options_;
  int64_t file_bytes_;
  int64_t num_rows_ = 0;
  int64_t number_;          // rows that are done
  int64_t limit_ = 0;       // where the query being read ends
  int64_t bad_before_ = 0;  // beyond number_: one of the rows up to here cannot be read
  bool numbers_rows_ = true;
  CrashNote crash_note_;
  std::string select_;
  std::string fields_;  // of conversations: fields_of
  Owned<duckdb_database, duckdb_close> database_;
  Owned<duckdb_connection, duckdb_disconnect> connection_;
  std::unique_ptr<Result> rows_;  // of the query, while there is one
  Owned<duckdb_data_chunk, duckdb_destroy_data_chunk> chunk_;
  idx_t chunk_rows_ = 0;
  idx_t row_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> open_parquet(const fs::path& path, const RecordOptions& options, int64_t skip) {
  if (MappedFile(path).bytes().empty()) return std::make_unique<NoRecords>();
  return std::make_unique<ParquetReader>(path, options, skip);
}

}  // namespace nmoe
