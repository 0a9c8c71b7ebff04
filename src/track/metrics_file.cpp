#include "track/metrics_file.h"

#include <duckdb.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>

#include "base/error.h"
#include "base/failure.h"

namespace nmoe {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kRetry = std::chrono::milliseconds(20);

enum class Access { kRead, kWrite };

// Taken for as long as a database is open.
std::mutex& database_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Throws what DuckDB's message means.
[[noreturn]] void fail(const fs::path& path, const char* message) {
  // Beyond the first line DuckDB quotes our SQL.
  const std::string all = message == nullptr ? "unknown failure" : message;
  const std::string what = fmt::format("metrics '{}': {}", path.string(), all.substr(0, all.find('\n')));
  const auto says = [&](std::span<const std::string_view> words) {
    return std::ranges::any_of(words, [&](std::string_view word) { return all.find(word) != std::string::npos; });
  };
  constexpr std::string_view kMemory[] = {"Out of Memory", "Cannot allocate memory", "bad_alloc"};
  constexpr std::string_view kFiles[] = {"Too many open files"};
  constexpr std::string_view kSystem[] = {"No space left",  "Disk quota",        "Permission denied",
                                          "Read-only file", "File too large",    "Not a directory",
                                          "No such file",   "Could not set lock"};
  if (says(kMemory)) throw out_of_memory(what);
  const std::string remedy =
      "see that the folder is writable and the disk not full; if the file is damaged or another program's, move it "
      "away";
  if (says(kFiles)) throw runtime_error(what, "raise the limit of open files (ulimit -n)");
  if (says(kSystem)) throw runtime_error(what, remedy);
  throw DamagedMetrics(ErrorKind::kRuntime, what, remedy);
}

bool is_lock_conflict(const std::string& message) {
  return message.find("Could not set lock on file") != std::string::npos;
}

struct ConfigDeleter {
  void operator()(duckdb_config config) const { duckdb_destroy_config(&config); }
};
using Config = std::unique_ptr<std::remove_pointer_t<duckdb_config>, ConfigDeleter>;

// The writer lives inside a training process: small, on its own thread alone, never on the network.
Config make_config(Access access) {
  duckdb_config raw = nullptr;
  NMOE_CHECK(duckdb_create_config(&raw) == DuckDBSuccess, "duckdb_create_config");
  Config config(raw);
  const auto set = [&](const char* name, const char* value) {
    NMOE_CHECK(duckdb_set_config(raw, name, value) == DuckDBSuccess, "DuckDB setting {} = {}", name, value);
  };
  set("access_mode", access == Access::kRead ? "READ_ONLY" : "READ_WRITE");
  set("threads", "1");
  set("memory_limit", "256MB");
  set("temp_directory", "");           // no spilling to files beside ours
  set("default_block_size", "16384");  // a short run's file is tens of KB, not half a MB
  set("autoinstall_known_extensions", "false");
  set("autoload_known_extensions", "false");
  return config;
}

// What DuckDB is to take for a path and nothing else. A name such as "sqlite:a" would mean another kind of database,
// and it takes a question mark for the beginning of options, in the name of the log beside the file alone: a folder
// with one is named by a descriptor.
class PlainName {
 public:
  explicit PlainName(const fs::path& path)
      : path_(path.string()), text_(path.is_absolute() ? path_ : (fs::path(".") / path).string()) {
    if (text_.find('?') == std::string::npos) return;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    fd_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) throw io_error("open", folder, errno);
    text_ = fmt::format("/proc/self/fd/{}/{}", fd_, path.filename().string());
  }
  ~PlainName() {
    if (fd_ >= 0) ::close(fd_);
  }
  PlainName(const PlainName&) = delete;
  PlainName& operator=(const PlainName&) = delete;

  const char* c_str() const { return text_.c_str(); }
  // A message with the path as it was given.
  std::string in_words(std::string message) const {
    for (size_t at = message.find(text_); at != std::string::npos; at = message.find(text_, at + path_.size())) {
      message.replace(at, text_.size(), path_);
    }
    return message;
  }

 private:
  std::string path_;
  std::string text_;
  int fd_ = -1;
};

class Database {
 public:
  // Throws Locked when somebody stands in the way, Error for anything else.
  struct Locked {
    std::string message;
  };
  enum class Turn { kWait, kNow };  // for others of this process
  Database(const fs::path& path, Access access, Turn turn = Turn::kWait)
      : path_(path), name_(path), turn_(database_mutex(), std::defer_lock) {
    if (turn == Turn::kWait) {
      turn_.lock();
    } else if (!turn_.try_lock()) {
      throw Locked{"in use by this process"};
    }
    const Config config = make_config(access);
    char* message = nullptr;
    if (duckdb_open_ext(name_.c_str(), &database_, config.get(), &message) != DuckDBSuccess) {
      const std::string text = name_.in_words(message == nullptr ? "" : message);
      duckdb_free(message);
      if (is_lock_conflict(text)) throw Locked{text};
      fail(path, text.c_str());
    }
    if (duckdb_connect(database_, &connection_) != DuckDBSuccess) {
      duckdb_close(&database_);
      fail(path, "cannot connect");
    }
  }
  ~Database() {
    duckdb_disconnect(&connection_);
    duckdb_close(&database_);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void execute(const std::string& sql) {
    duckdb_result result;
    const duckdb_state state = duckdb_query(connection_, sql.c_str(), &result);
    const std::unique_ptr<duckdb_result, void (*)(duckdb_result*)> owner(&result, duckdb_destroy_result);
    if (state != DuckDBSuccess) fail(path_, duckdb_result_error(&result));
  }

  // Appends to a table in chunks: `fill` writes row `row` of `num_rows` at place `at` of the chunk's vectors.
  using Vectors = std::span<const duckdb_vector>;
  using FillRow = std::function<void(size_t row, idx_t at, Vectors columns)>;
  void append(const char* table, size_t num_rows, const FillRow& fill);

  // Runs a query and calls `take` with each row of its chunks. `tag`, if given, is its parameter.
  using TakeRow = std::function<void(idx_t at, Vectors columns)>;
  void select(const std::string& sql, const std::string* tag, const TakeRow& take);

 private:
  const fs::path& path_;
  const PlainName name_;
  std::unique_lock<std::mutex> turn_;
  duckdb_database database_ = nullptr;
  duckdb_connection connection_ = nullptr;
};

template <class T>
T& cell(duckdb_vector vector, idx_t at) {
  return static_cast<T*>(duckdb_vector_get_data(vector))[at];
}

std::string text_cell(duckdb_vector vector, idx_t at) {
  duckdb_string_t text = cell<duckdb_string_t>(vector, at);  // a short string lives in the handle itself
  return {duckdb_string_t_data(&text), duckdb_string_t_length(text)};
}

std::vector<duckdb_vector> columns_of(duckdb_data_chunk chunk) {
  std::vector<duckdb_vector> columns;
  for (idx_t i = 0; i < duckdb_data_chunk_get_column_count(chunk); ++i) {
    columns.push_back(duckdb_data_chunk_get_vector(chunk, i));
  }
  return columns;
}

struct ChunkDeleter {
  void operator()(duckdb_data_chunk chunk) const { duckdb_destroy_data_chunk(&chunk); }
};
using Chunk = std::unique_ptr<std::remove_pointer_t<duckdb_data_chunk>, ChunkDeleter>;

void Database::append(const char* table, size_t num_rows, const FillRow& fill) {
  duckdb_appender raw = nullptr;
  const duckdb_state created = duckdb_appender_create_ext(connection_, "temp", "main", table, &raw);
  const auto destroy = [](duckdb_appender appender) { duckdb_appender_destroy(&appender); };
  const std::unique_ptr<std::remove_pointer_t<duckdb_appender>, decltype(destroy)> appender(raw, destroy);
  const auto check = [&](duckdb_state state) {
    if (state != DuckDBSuccess) fail(path_, duckdb_appender_error(raw));
  };
  check(created);
  std::vector<duckdb_logical_type> types;
  for (idx_t i = 0; i < duckdb_appender_column_count(raw); ++i) types.push_back(duckdb_appender_column_type(raw, i));
  for (size_t first = 0; first < num_rows; first += duckdb_vector_size()) {
    const Chunk chunk(duckdb_create_data_chunk(types.data(), types.size()));
    const std::vector<duckdb_vector> columns = columns_of(chunk.get());
    const idx_t count = std::min<size_t>(duckdb_vector_size(), num_rows - first);
    for (idx_t at = 0; at < count; ++at) fill(first + at, at, columns);
    duckdb_data_chunk_set_size(chunk.get(), count);
    check(duckdb_append_data_chunk(raw, chunk.get()));
  }
  for (duckdb_logical_type& type : types) duckdb_destroy_logical_type(&type);
  check(duckdb_appender_close(raw));
}

void Database::select(const std::string& sql, const std::string* tag, const TakeRow& take) {
  duckdb_prepared_statement statement = nullptr;
  const auto destroy_statement = [](duckdb_prepared_statement* s) { duckdb_destroy_prepare(s); };
  const std::unique_ptr<duckdb_prepared_statement, decltype(destroy_statement)> statement_owner(&statement,
                                                                                                destroy_statement);
  if (duckdb_prepare(connection_, sql.c_str(), &statement) != DuckDBSuccess) {
    fail(path_, duckdb_prepare_error(statement));
  }
  if (tag != nullptr) {
    NMOE_CHECK(duckdb_bind_varchar_length(statement, 1, tag->data(), tag->size()) == DuckDBSuccess,
               "binding '{}' to: {}", *tag, sql);
  }
  // Streamed: a long series is larger than the memory that a database may take here.
  duckdb_result result;
  const duckdb_state state = duckdb_execute_prepared_streaming(statement, &result);
  const std::unique_ptr<duckdb_result, void (*)(duckdb_result*)> result_owner(&result, duckdb_destroy_result);
  if (state != DuckDBSuccess) fail(path_, duckdb_result_error(&result));
  while (const Chunk chunk{duckdb_fetch_chunk(result)}) {
    const std::vector<duckdb_vector> columns = columns_of(chunk.get());
    const idx_t count = duckdb_data_chunk_get_size(chunk.get());
    if (count == 0) break;
    for (idx_t at = 0; at < count; ++at) take(at, columns);
  }
}

uint64_t folded_position(Database& database, uint64_t id, uint64_t base) {
  uint64_t position = base;
  database.select(fmt::format("SELECT position FROM live_position WHERE id = {}", id), nullptr,
                  [&](idx_t at, Database::Vectors columns) {
                    position = std::max(position, static_cast<uint64_t>(cell<int64_t>(columns[0], at)));
                  });
  return position;
}

constexpr const char* kScalarColumns = "(step BIGINT, tag VARCHAR, value DOUBLE, ts_ms BIGINT)";
constexpr const char* kArrayColumns = "(step BIGINT, tag VARCHAR, value FLOAT[], ts_ms BIGINT)";

using Key = std::pair<int64_t, std::string>;  // step, tag

// What records come to: the last value of a key, unless it was rewound.
template <class Value>
struct Rows {
  struct Row {
    Value value;
    int64_t ts_ms;
  };
  std::map<Key, Row> by_key;

  void rewind(int64_t step) {
    std::erase_if(by_key, [step](const auto& item) { return item.first.first > step; });
  }

  // In place of rows of the same keys. No index keeps the key: it would have to be read at every opening. The bound on
  // the step lets DuckDB skip, by its block statistics, everything but the end of the table.
  void replace(Database& database, const char* table, const char* columns) const {
    if (by_key.empty()) return;
    std::vector<const std::pair<const Key, Row>*> rows;
    rows.reserve(by_key.size());
    for (const auto& row : by_key) rows.push_back(&row);
    const std::string batch = fmt::format("{}_batch", table);
    database.execute(fmt::format("CREATE TEMP TABLE {}{}", batch, columns));
    idx_t filled = 0;  // values of arrays in the chunk
    database.append(batch.c_str(), rows.size(), [&](size_t row, idx_t at, Database::Vectors to) {
      const auto& [key, content] = *rows[row];
      cell<int64_t>(to[0], at) = key.first;
      duckdb_vector_assign_string_element_len(to[1], at, key.second.data(), key.second.size());
      if constexpr (std::is_same_v<Value, double>) {
        cell<double>(to[2], at) = content.value;
      } else {
        if (at == 0) filled = 0;
        const idx_t count = content.value.size();
        NMOE_CHECK(duckdb_list_vector_reserve(to[2], filled + count) == DuckDBSuccess, "an array of {} values", count);
        std::ranges::copy(content.value, &cell<float>(duckdb_list_vector_get_child(to[2]), filled));
        cell<duckdb_list_entry>(to[2], at) = {filled, count};
        filled += count;
        NMOE_CHECK(duckdb_list_vector_set_size(to[2], filled) == DuckDBSuccess, "arrays of {} values", filled);
      }
      cell<int64_t>(to[3], at) = content.ts_ms;
    });
    const int64_t first = by_key.begin()->first.first;
    database.execute(
        fmt::format("DELETE FROM {0} USING {1} WHERE {0}.step >= {2} AND {0}.step = {1}.step AND {0}.tag = {1}.tag",
                    table, batch, first));
    database.execute(fmt::format("INSERT INTO {} FROM {}", table, batch));
    database.execute(fmt::format("DROP TABLE {}", batch));
  }
};

// Waits for whoever has the file.
std::unique_ptr<Database> open_patiently(const fs::path& path, Access access) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    try {
      return std::make_unique<Database>(path, access);
    } catch (const Database::Locked& locked) {
      if (std::chrono::steady_clock::now() > deadline) fail(path, locked.message.c_str());
    }
    std::this_thread::sleep_for(kRetry);
  }
}

void make_tables(Database& database) {
  database.execute(
      fmt::format("BEGIN; CREATE TABLE IF NOT EXISTS metrics{}; CREATE TABLE IF NOT EXISTS arrays{}; "
                  "CREATE TABLE IF NOT EXISTS live_position(id BIGINT, position BIGINT); COMMIT",
                  kScalarColumns, kArrayColumns));
}

// All of it in one transaction, and in it the position `end` of the live file `id`, where the records are of one.
struct LivePosition {
  uint64_t id;
  uint64_t end;
};
void write_records(Database& database, std::span<const MetricRecord> records, const std::optional<LivePosition>& live) {
  Rows<double> scalars;
  Rows<std::vector<float>> arrays;
  std::optional<int64_t> rewind_to;  // of what was written before
  for (const MetricRecord& record : records) {
    if (record.rewind) {
      scalars.rewind(record.step);
      arrays.rewind(record.step);
      rewind_to = std::min(rewind_to.value_or(record.step), record.step);
    }
    for (const auto& [tag, value] : record.scalars) {
      scalars.by_key.insert_or_assign({record.step, tag}, Rows<double>::Row{value, record.ts_ms});
    }
    for (const auto& [tag, values] : record.arrays) {
      arrays.by_key.insert_or_assign({record.step, tag}, Rows<std::vector<float>>::Row{values, record.ts_ms});
    }
  }
  // Closed without a commit, be it by an error, the transaction never was.
  database.execute("BEGIN");
  if (rewind_to) {
    database.execute(fmt::format("DELETE FROM metrics WHERE step > {}", *rewind_to));
    database.execute(fmt::format("DELETE FROM arrays WHERE step > {}", *rewind_to));
  }
  scalars.replace(database, "metrics", kScalarColumns);
  arrays.replace(database, "arrays", kArrayColumns);
  if (live) {
    database.execute("DELETE FROM live_position");
    database.execute(fmt::format("INSERT INTO live_position VALUES ({}, {})", live->id, live->end));
  }
  database.execute("COMMIT");
}

}  // namespace

std::optional<std::string> fold_metrics(const fs::path& path, uint64_t id, uint64_t base,
                                        const std::function<std::optional<MetricsBatch>(uint64_t position)>& next) {
  try {
    Database database(path, Access::kWrite);
    make_tables(database);
    uint64_t position = folded_position(database, id, base);
    while (const std::optional<MetricsBatch> batch = next(position)) {
      write_records(database, batch->records, LivePosition{id, batch->end});
      position = batch->end;
    }
  } catch (const Database::Locked& locked) {
    return locked.message;
  }
  return std::nullopt;
}

void add_metrics(const fs::path& path, const MetricRecord& record) {
  const std::unique_ptr<Database> database = open_patiently(path, Access::kWrite);
  make_tables(*database);
  write_records(*database, {&record, 1}, std::nullopt);
}

void check_metrics(const fs::path& path) {
  try {
    Database database(path, Access::kWrite);
    make_tables(database);
    for (const char* table : {"metrics", "arrays"}) {  // a hash needs every value, whatever statistics say
      database.execute(fmt::format("SELECT bit_xor(hash(step, tag, value, ts_ms)) FROM {}", table));
    }
  } catch (const Database::Locked&) {
  }
}

class MetricsView::Impl {
 public:
  explicit Impl(const fs::path& path) : path_(path), database_(open_patiently(path_, Access::kRead)) { read_tables(); }
  Impl(const fs::path& path, Database::Turn turn)
      : path_(path), database_(std::make_unique<Database>(path_, Access::kRead, turn)) {
    read_tables();
  }
  Database& operator*() { return *database_; }
  bool has_table(const char* name) const { return tables_.contains(name); }

 private:
  void read_tables() {
    database_->select("SELECT table_name FROM duckdb_tables()", nullptr,
                      [&](idx_t at, Database::Vectors columns) { tables_.insert(text_cell(columns[0], at)); });
  }

  fs::path path_;
  std::unique_ptr<Database> database_;
  std::set<std::string> tables_;
};

MetricsView::MetricsView(const fs::path& path) : impl_(std::make_unique<Impl>(path)) {}
MetricsView::MetricsView(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsView::~MetricsView() = default;

std::unique_ptr<MetricsView> MetricsView::open_now(const fs::path& path) {
  try {
    return std::unique_ptr<MetricsView>(new MetricsView(std::make_unique<Impl>(path, Database::Turn::kNow)));
  } catch (const Database::Locked&) {
    return nullptr;
  }
}

std::optional<MetricsView::Position> MetricsView::position() {
  std::optional<Position> found;
  if (!impl_->has_table("live_position")) return found;
  (**impl_).select("SELECT id, position FROM live_position", nullptr, [&](idx_t at, Database::Vectors columns) {
    found = {.id = static_cast<uint64_t>(cell<int64_t>(columns[0], at)),
             .end = static_cast<uint64_t>(cell<int64_t>(columns[1], at))};
  });
  return found;
}

std::vector<MetricsView::Last> MetricsView::last(int64_t max_step) {
  std::vector<Last> all;
  const auto ask = [&](const char* table, const char* value, bool is_array) {
    (**impl_).select(fmt::format("SELECT tag, max(step), arg_max({}, step), arg_max(ts_ms, step) FROM {} "
                                 "WHERE step <= {} GROUP BY tag",
                                 value, table, max_step),
                     nullptr, [&](idx_t at, Database::Vectors columns) {
                       all.push_back({.tag = text_cell(columns[0], at),
                                      .is_array = is_array,
                                      .step = cell<int64_t>(columns[1], at),
                                      .value = cell<double>(columns[2], at),
                                      .ts_ms = cell<int64_t>(columns[3], at)});
                     });
  };
  if (impl_->has_table("metrics")) ask("metrics", "value", false);
  if (impl_->has_table("arrays")) ask("arrays", "len(value)::DOUBLE", true);
  std::ranges::sort(all, {}, &Last::tag);
  return all;
}

void MetricsView::series(const std::string& tag, int64_t max_step, const TakeValue& take) {
  if (!impl_->has_table("metrics")) return;
  (**impl_).select(fmt::format("SELECT step, value, ts_ms FROM metrics WHERE tag = $1 AND step <= {}", max_step), &tag,
                   [&](idx_t at, Database::Vectors columns) {
                     take(cell<int64_t>(columns[0], at), cell<double>(columns[1], at), cell<int64_t>(columns[2], at));
                   });
}

void MetricsView::each(int64_t max_step, const TakeTagged& take, const TakeTaggedArray& take_array) {
  if (impl_->has_table("metrics")) {
    (**impl_).select(fmt::format("SELECT tag, step, value, ts_ms FROM metrics WHERE step <= {}", max_step), nullptr,
                     [&](idx_t at, Database::Vectors columns) {
                       take(text_cell(columns[0], at), cell<int64_t>(columns[1], at), cell<double>(columns[2], at),
                            cell<int64_t>(columns[3], at));
                     });
  }
  if (!impl_->has_table("arrays")) return;
  (**impl_).select(fmt::format("SELECT tag, step, value, ts_ms FROM arrays WHERE step <= {}", max_step), nullptr,
                   [&](idx_t at, Database::Vectors columns) {
                     const auto [begin, count] = cell<duckdb_list_entry>(columns[2], at);
                     const float* values = &cell<float>(duckdb_list_vector_get_child(columns[2]), begin);
                     take_array(text_cell(columns[0], at), cell<int64_t>(columns[1], at), {values, values + count},
                                cell<int64_t>(columns[3], at));
                   });
}

void MetricsView::arrays(const std::string& tag, int64_t max_step, const TakeArray& take, int64_t first_step) {
  if (!impl_->has_table("arrays")) return;
  (**impl_).select(fmt::format("SELECT step, value, ts_ms FROM arrays WHERE tag = $1 AND step BETWEEN {} AND {}",
                               first_step, max_step),
                   &tag, [&](idx_t at, Database::Vectors columns) {
                     const auto [begin, count] = cell<duckdb_list_entry>(columns[1], at);
                     const float* values = &cell<float>(duckdb_list_vector_get_child(columns[1]), begin);
                     take(cell<int64_t>(columns[0], at), {values, values + count}, cell<int64_t>(columns[2], at));
                   });
}

void forget_database_code() {
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void*) {
        if (std::string_view(library->dlpi_name).find("libduckdb") == std::string_view::npos) return 0;
        const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
        for (const ElfW(Phdr) & part : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
          // Code alone is as it is in the file: other parts have been written to.
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0 || (part.p_flags & PF_W) != 0) continue;
          const uintptr_t begin = (library->dlpi_addr + part.p_vaddr) / page * page;
          const uintptr_t end = library->dlpi_addr + part.p_vaddr + part.p_memsz;
          ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
        }
        return 1;
      },
      nullptr);
}

}  // namespace nmoe
