#include "track/metrics_file.h"

#include <duckdb.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr auto kReaderPatience = std::chrono::seconds(10);
constexpr auto kReaderRetry = std::chrono::milliseconds(20);

enum class Access { kRead, kWrite };

// Taken for as long as a database is open.
std::mutex& database_mutex() {
  static std::mutex mutex;
  return mutex;
}

Error duckdb_error(const fs::path& path, const char* message) {
  // Beyond the first line DuckDB quotes our SQL.
  const std::string text = message == nullptr ? "unknown failure" : message;
  return runtime_error(fmt::format("metrics '{}': {}", path.string(), text.substr(0, text.find('\n'))),
                       "see that the folder is writable and the disk not full; if the file is damaged or another "
                       "program's, move it away");
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
  set("memory_limit", "64MB");
  set("temp_directory", "");           // no spilling to files beside ours
  set("default_block_size", "16384");  // a short run's file is tens of KB, not half a MB
  set("autoinstall_known_extensions", "false");
  set("autoload_known_extensions", "false");
  return config;
}

class Database {
 public:
  // Throws Locked when another process stands in the way, Error for anything else.
  struct Locked {
    std::string message;
  };
  Database(const fs::path& path, Access access) : path_(path), turn_(database_mutex()) {
    const Config config = make_config(access);
    char* message = nullptr;
    if (duckdb_open_ext(path.c_str(), &database_, config.get(), &message) != DuckDBSuccess) {
      const std::string text = message == nullptr ? "" : message;
      duckdb_free(message);
      if (is_lock_conflict(text)) throw Locked{text};
      throw duckdb_error(path, text.c_str());
    }
    if (duckdb_connect(database_, &connection_) != DuckDBSuccess) {
      duckdb_close(&database_);
      throw duckdb_error(path, "cannot connect");
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
    if (state != DuckDBSuccess) throw duckdb_error(path_, duckdb_result_error(&result));
  }

  void append_to_batch(std::span<const MetricRow> rows) {
    duckdb_appender raw = nullptr;
    const duckdb_state created = duckdb_appender_create_ext(connection_, "temp", "main", "batch", &raw);
    const auto destroy = [](duckdb_appender appender) { duckdb_appender_destroy(&appender); };
    const std::unique_ptr<std::remove_pointer_t<duckdb_appender>, decltype(destroy)> appender(raw, destroy);
    const auto check = [&](duckdb_state state) {
      if (state != DuckDBSuccess) throw duckdb_error(path_, duckdb_appender_error(raw));
    };
    check(created);
    for (const MetricRow& row : rows) {
      check(duckdb_append_int64(raw, row.step));
      check(duckdb_append_varchar_length(raw, row.tag.data(), row.tag.size()));
      check(duckdb_append_double(raw, row.value));
      check(duckdb_append_int64(raw, row.ts_ms));
      check(duckdb_appender_end_row(raw));
    }
    check(duckdb_appender_close(raw));
  }

  // Runs a query whose columns are step, tag, value, ts_ms; `tag`, if given, is its parameter.
  std::vector<MetricRow> select(const char* sql, const std::string* tag);

 private:
  const fs::path& path_;
  std::lock_guard<std::mutex> turn_;
  duckdb_database database_ = nullptr;
  duckdb_connection connection_ = nullptr;
};

template <class T>
const T* column(duckdb_data_chunk chunk, idx_t index) {
  return static_cast<const T*>(duckdb_vector_get_data(duckdb_data_chunk_get_vector(chunk, index)));
}

std::vector<MetricRow> Database::select(const char* sql, const std::string* tag) {
  duckdb_prepared_statement statement = nullptr;
  const auto destroy_statement = [](duckdb_prepared_statement* s) { duckdb_destroy_prepare(s); };
  const std::unique_ptr<duckdb_prepared_statement, decltype(destroy_statement)> statement_owner(&statement,
                                                                                                destroy_statement);
  if (duckdb_prepare(connection_, sql, &statement) != DuckDBSuccess) {
    throw duckdb_error(path_, duckdb_prepare_error(statement));
  }
  if (tag != nullptr) {
    NMOE_CHECK(duckdb_bind_varchar_length(statement, 1, tag->data(), tag->size()) == DuckDBSuccess,
               "binding '{}' to: {}", *tag, sql);
  }
  duckdb_result result;
  const duckdb_state state = duckdb_execute_prepared(statement, &result);
  const std::unique_ptr<duckdb_result, void (*)(duckdb_result*)> result_owner(&result, duckdb_destroy_result);
  if (state != DuckDBSuccess) throw duckdb_error(path_, duckdb_result_error(&result));

  std::vector<MetricRow> rows;
  while (duckdb_data_chunk chunk = duckdb_fetch_chunk(result)) {
    const auto* steps = column<int64_t>(chunk, 0);
    const auto* tags = column<duckdb_string_t>(chunk, 1);
    const auto* values = column<double>(chunk, 2);
    const auto* times = column<int64_t>(chunk, 3);
    for (idx_t i = 0; i < duckdb_data_chunk_get_size(chunk); ++i) {
      duckdb_string_t text = tags[i];  // a short string lives in the handle itself
      rows.push_back(
          {steps[i], std::string(duckdb_string_t_data(&text), duckdb_string_t_length(text)), values[i], times[i]});
    }
    duckdb_destroy_data_chunk(&chunk);
  }
  return rows;
}

std::vector<MetricRow> read(const fs::path& path, const char* sql, const std::string* tag) {
  const auto deadline = std::chrono::steady_clock::now() + kReaderPatience;
  for (;;) {
    try {
      return Database(path, Access::kRead).select(sql, tag);
    } catch (const Database::Locked& locked) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw duckdb_error(path, locked.message.c_str());
      }
    }
    std::this_thread::sleep_for(kReaderRetry);
  }
}

}  // namespace

std::optional<std::string> try_write_metrics(const fs::path& path, std::span<const MetricRow> rows,
                                             std::optional<int64_t> rewind_to) {
  constexpr const char* kColumns = "(step BIGINT, tag VARCHAR, value DOUBLE, ts_ms BIGINT)";
  try {
    // Closed without a commit, be it by an error, the transaction never was.
    Database database(path, Access::kWrite);
    database.execute("BEGIN");
    database.execute(fmt::format("CREATE TABLE IF NOT EXISTS metrics{}", kColumns));
    if (rewind_to) {
      database.execute(fmt::format("DELETE FROM metrics WHERE step > {}", *rewind_to));
    }
    if (!rows.empty()) {
      // No index keeps the key: it would have to be read at every opening. The bound on the step
      // lets DuckDB skip, by its block statistics, everything but the end of the table.
      const int64_t first = std::ranges::min(rows, {}, &MetricRow::step).step;
      database.execute(fmt::format("CREATE TEMP TABLE batch{}", kColumns));
      database.append_to_batch(rows);
      database.execute(
          fmt::format("DELETE FROM metrics USING batch WHERE metrics.step >= {} AND "
                      "metrics.step = batch.step AND metrics.tag = batch.tag",
                      first));
      database.execute("INSERT INTO metrics FROM batch");
    }
    database.execute("COMMIT");
  } catch (const Database::Locked& locked) {
    return locked.message;
  }
  return std::nullopt;
}

std::vector<MetricRow> read_series(const fs::path& path, const std::string& tag) {
  return read(path, "SELECT step, tag, value, ts_ms FROM metrics WHERE tag = $1 ORDER BY step", &tag);
}

std::vector<MetricRow> last_values(const fs::path& path) {
  return read(path,
              "SELECT max(step), tag, arg_max(value, step), arg_max(ts_ms, step) "
              "FROM metrics GROUP BY tag ORDER BY tag",
              nullptr);
}

}  // namespace nmoe
