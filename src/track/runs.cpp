#include "track/runs.h"

#include <fmt/chrono.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/failure.h"
#include "base/process.h"
#include "base/say.h"
#include "track/aside.h"

namespace nmoe {
namespace {

constexpr int kSchemaVersion = 1;  // SQLite's user_version
constexpr int kBusyTimeoutMs = 5000;

// Foreign programs read these tables: change them by adding columns.
constexpr const char* kSchema = R"(
  CREATE TABLE experiments(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, project TEXT NOT NULL, description TEXT NOT NULL,
    created_at TEXT NOT NULL, UNIQUE(name, project));
  CREATE TABLE runs(
    id TEXT PRIMARY KEY, experiment_id INTEGER NOT NULL REFERENCES experiments(id),
    name TEXT NOT NULL, config_json TEXT NOT NULL CHECK(json_valid(config_json)),
    git_hash TEXT NOT NULL, git_dirty INTEGER NOT NULL,
    pid INTEGER NOT NULL, process_start INTEGER NOT NULL, host TEXT NOT NULL,
    checkpoint_dir TEXT NOT NULL,
    started_at TEXT NOT NULL, updated_at TEXT NOT NULL, ended_at TEXT,
    status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    step INTEGER NOT NULL DEFAULT 0, last_loss REAL, tokens_per_s REAL,
    results_json TEXT CHECK(results_json IS NULL OR json_valid(results_json)));
)";

constexpr auto kLaterColumns = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"tokens", "INTEGER"},
    {"valid_loss", "REAL"},
    {"valid_bpb", "REAL"},
    {"checkpoint_step", "INTEGER"},
    {"note", "TEXT NOT NULL DEFAULT ''"},
    {"smooth_loss", "REAL"},
});

// Whatever list() reads, newest last: the rows themselves hold configurations, over which it would have to step.
// Named after the last column, since an index of a name stays what it was made as.
constexpr const char* kListed = R"(
  DROP INDEX IF EXISTS runs_listed;
  CREATE INDEX IF NOT EXISTS runs_listed_smooth_loss ON runs(
    started_at, id, experiment_id, name, pid, process_start, host, checkpoint_dir, updated_at, ended_at, status,
    reason, step, last_loss, tokens_per_s, tokens, valid_loss, valid_bpb, checkpoint_step, note, smooth_loss);
)";

constexpr std::array<std::pair<RunStatus, std::string_view>, 7> kStatusNames = {{
    {RunStatus::kRunning, "running"},
    {RunStatus::kCompleted, "completed"},
    {RunStatus::kInterrupted, "interrupted"},
    {RunStatus::kFailed, "failed"},
    {RunStatus::kFailedNan, "failed_nan"},
    {RunStatus::kFailedCollapse, "failed_collapse"},
    {RunStatus::kDead, "dead"},
}};

RunStatus parse_status(std::string_view name) {
  const auto* found = std::ranges::find(kStatusNames, name, &decltype(kStatusNames)::value_type::second);
  NMOE_CHECK(found != kStatusNames.end(), "run status '{}'", name);
  return found->first;
}

// What SQLite is to take for a path: "file:a" would be a URI.
std::string plain_name(const fs::path& path) { return path.is_absolute() ? path.string() : "./" + path.string(); }

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

// When the process started, in clock ticks since boot; nothing when there is no such process, or it ended and nobody
// has waited for it.
std::optional<int64_t> process_start(int64_t pid) {
  std::string stat;
  try {
    stat = read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const Error&) {
    return std::nullopt;
  }
  // Field 3, the state, and 22; the second, the program's name in parentheses, may hold blanks and parentheses itself.
  size_t at = stat.rfind(')');
  if (at == std::string::npos || at + 2 >= stat.size() || stat[at + 2] == 'Z' || stat[at + 2] == 'X') {
    return std::nullopt;
  }
  for (int field = 3; field <= 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? std::nullopt : std::optional(std::stoll(stat.substr(at + 1)));
}

int64_t own_process_start() {
  const auto start = process_start(::getpid());
  NMOE_CHECK(start.has_value(), "/proc/{}/stat cannot be read", ::getpid());
  return *start;
}

void check_run_id(const std::string& id, std::string_view from) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; };
  // It names a folder of metrics.
  if (id.find_first_not_of('.') == std::string::npos || !std::ranges::all_of(id, allowed)) {
    throw usage_error(fmt::format("{}'{}' is not a run id", from, id), "use letters, digits, '.', '_' and '-'");
  }
}

}  // namespace

std::string_view run_status_name(RunStatus status) {
  return std::ranges::find(kStatusNames, status, &decltype(kStatusNames)::value_type::first)->second;
}

// A prepared statement with its values bound in order.
class RunStore::Statement {
 public:
  template <class... Values>
  Statement(const RunStore& store, std::string_view sql, const Values&... values) : store_(store) {
    store.check(sqlite3_prepare_v2(store.database_, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr));
    int index = 0;
    (store.check(bind(++index, values)), ...);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Whether there is a (further) row.
  bool step() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_DONE && code != SQLITE_ROW) store_.check(code);
    return code == SQLITE_ROW;
  }
  int64_t integer(int column) { return sqlite3_column_int64(statement_, column); }
  std::optional<int64_t> integer_or_null(int column) {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
    return integer(column);
  }
  std::string text(int column) {  // NULL is empty
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr ? "" : bytes;
  }
  std::optional<double> real(int column) {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
    return sqlite3_column_double(statement_, column);
  }

 private:
  int bind(int index, int64_t value) { return sqlite3_bind_int64(statement_, index, value); }
  int bind(int index, double value) {  // SQLite makes NULL of a NaN
    return sqlite3_bind_double(statement_, index, value);
  }
  int bind(int index, std::string_view value) {
    return sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  }

  const RunStore& store_;
  sqlite3_stmt* statement_ = nullptr;
};

// Rolled back unless committed. Immediate: readers that turn writers would not be helped by the
// busy timeout.
class RunStore::Transaction {
 public:
  explicit Transaction(const RunStore& store) : store_(store) { Statement(store_, "BEGIN IMMEDIATE").step(); }
  ~Transaction() {
    if (!committed_) sqlite3_exec(store_.database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    Statement(store_, "COMMIT").step();
    committed_ = true;
  }

 private:
  const RunStore& store_;
  bool committed_ = false;
};

RunStore::RunStore(const fs::path& path, Access access) : path_(path) {
  if (access == Access::kWrite && path.has_parent_path()) make_directories(path.parent_path());
  try {
    access == Access::kWrite ? open() : open_for_reading();
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
}

RunStore::~RunStore() { sqlite3_close(database_); }

void RunStore::open() {
  check(sqlite3_open_v2(plain_name(path_).c_str(), &database_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr));
  check(sqlite3_busy_timeout(database_, kBusyTimeoutMs));
  // Readers and the writer do not wait for each other. A file system without shared memory keeps
  // the old mode.
  // Two that make the file at once meet here, where SQLite does not wait as it does elsewhere.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBusyTimeoutMs);
  int code = SQLITE_BUSY;
  while (code == SQLITE_BUSY && std::chrono::steady_clock::now() < deadline) {
    code = sqlite3_exec(database_, "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if (code == SQLITE_BUSY) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  check(code);
  execute("PRAGMA synchronous = NORMAL");
  execute("PRAGMA foreign_keys = ON");

  Transaction transaction(*this);
  const int64_t version = query_integer("PRAGMA user_version");
  if (version == kSchemaVersion) {
    if (query_integer("SELECT count(*) FROM sqlite_master WHERE name IN ('runs', 'experiments')") != 2) {
      throw DamagedRuns(ErrorKind::kRuntime, fmt::format("'{}' has not the tables that it should", path_.string()),
                        "move it away");
    }
    complete_schema();
    transaction.commit();
    return;
  }
  if (version != 0 || query_integer("SELECT count(*) FROM sqlite_master") != 0) require_own_kind(version);
  execute(kSchema);
  complete_schema();
  execute(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
  transaction.commit();
}

void RunStore::complete_schema() {
  for (const auto& [name, type] : kLaterColumns) {
    if (!has_column(name)) execute(fmt::format("ALTER TABLE runs ADD COLUMN {} {}", name, type));
  }
  execute(kListed);
}

bool RunStore::has_column(std::string_view name) const {
  return Statement(*this, "SELECT 1 FROM pragma_table_info('runs') WHERE name = ?", name).step();
}

// A database with a write-ahead log is read with the help of a file beside it. Where none can be made, it is read as
// one that nobody changes: without what may still be in a log.
void RunStore::open_for_reading() {
  check(sqlite3_open_v2(plain_name(path_).c_str(), &database_, SQLITE_OPEN_READONLY, nullptr));
  check(sqlite3_busy_timeout(database_, kBusyTimeoutMs));
  const int code = sqlite3_exec(database_, "SELECT count(*) FROM sqlite_master", nullptr, nullptr, nullptr);
  if (code == SQLITE_CANTOPEN || code == SQLITE_READONLY) {
    std::string uri = "file:";
    for (const char c : fs::absolute(path_).string()) {
      uri += std::string_view("?#%").find(c) == std::string_view::npos ? std::string(1, c)
                                                                       : fmt::format("%{:02x}", static_cast<int>(c));
    }
    sqlite3_close(std::exchange(database_, nullptr));
    check(sqlite3_open_v2((uri + "?immutable=1").c_str(), &database_, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr));
  }
  require_own_kind(query_integer("PRAGMA user_version"));
  has_all_columns_ = false;
}

void RunStore::require_own_kind(int64_t version) const {
  if (version == kSchemaVersion) return;
  throw runtime_error(fmt::format("'{}' is a database of another kind or version (user_version "
                                  "{}, this nmoe's is {})",
                                  path_.string(), version, kSchemaVersion),
                      "move it away, or use the program that made it");
}

void RunStore::check(int code) const {
  if (code == SQLITE_OK) return;
  const std::string what = fmt::format("'{}': {}", path_.string(), sqlite3_errmsg(database_));
  switch (code & 0xFF) {  // the rest says more of the same
    case SQLITE_BUSY:
      throw runtime_error(what, "another program holds it: close that one and try again");
    case SQLITE_NOMEM:
      throw out_of_memory(what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      throw DamagedRuns(ErrorKind::kRuntime, what, "if it is damaged or another program's, move it away");
    case SQLITE_CANTOPEN:
    case SQLITE_FULL:
    case SQLITE_IOERR:
      if (const int error = sqlite3_system_errno(database_); error != 0) {
        throw runtime_error(fmt::format("{}: {}", what, std::generic_category().message(error)),
                            io_error("open", path_, error).remedy());
      }
      [[fallthrough]];
    default:
      throw runtime_error(what,
                          "see that file and folder are writable and the disk not full; if the file is damaged "
                          "or another program's, move it away");
  }
}

void RunStore::execute(const std::string& sql) const {
  check(sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr));
}

int64_t RunStore::query_integer(const char* sql) const {
  Statement statement(*this, sql);
  NMOE_CHECK(statement.step(), "no row from: {}", sql);
  return statement.integer(0);
}

int64_t RunStore::experiment_id(const RunInfo& info) {
  Statement(*this,
            "INSERT INTO experiments(name, project, description, created_at) VALUES(?, '', '', ?) "
            "ON CONFLICT(name, project) DO NOTHING",
            info.experiment, utc_now())
      .step();
  Statement experiment(*this, "SELECT id FROM experiments WHERE name = ? AND project = ''", info.experiment);
  NMOE_CHECK(experiment.step(), "experiment '{}'", info.experiment);
  return experiment.integer(0);
}

bool RunStore::has_run(const std::string& id) { return Statement(*this, "SELECT 1 FROM runs WHERE id = ?", id).step(); }

std::string RunStore::new_run_id() {
  if (const char* wanted = std::getenv("NMOE_RUN"); wanted != nullptr && *wanted != '\0') {
    check_run_id(wanted, "NMOE_RUN=");
    if (has_run(wanted)) {
      throw usage_error(fmt::format("'{}' already has a run '{}' (from NMOE_RUN)", path_.string(), wanted),
                        "resume that run, or give NMOE_RUN another value");
    }
    return wanted;
  }
  // A process may start more than one run in a second.
  for (std::time_t time = std::time(nullptr);; ++time) {
    std::string id = fmt::format("run_{}_{}", time, ::getpid());
    if (!has_run(id)) return id;
  }
}

std::string RunStore::start(const RunInfo& info) {
  Transaction transaction(*this);
  std::string id = new_run_id();
  insert(id, info);
  transaction.commit();
  return id;
}

void RunStore::insert(const std::string& id, const RunInfo& info) {
  const std::string now = utc_now();
  Statement(*this,
            "INSERT INTO runs(id, experiment_id, name, config_json, git_hash, git_dirty, pid, "
            "process_start, host, checkpoint_dir, started_at, updated_at, status) "
            "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running')",
            id, experiment_id(info), info.name, info.config_json, info.git_hash, int64_t{info.git_dirty},
            int64_t{::getpid()}, own_process_start(), host_name(), info.checkpoint_dir, now, now)
      .step();
}

void RunStore::resume(const std::string& id, const RunInfo& info) {
  Transaction transaction(*this);
  Statement run(*this, "SELECT status, host, pid, process_start FROM runs WHERE id = ?", id);
  if (!run.step()) {
    check_run_id(id, "");
    insert(id, info);
    transaction.commit();
    return;
  }
  const int64_t pid = run.integer(2);
  if (run.text(0) == "running" && run.text(1) == host_name() && pid != ::getpid() &&
      process_start(pid) == run.integer(3)) {
    throw usage_error(fmt::format("run '{}' is still running as process {}", id, pid),
                      "stop that process first (kill -TERM saves a checkpoint)");
  }
  Statement(*this,
            "UPDATE runs SET experiment_id = ?, name = ?, config_json = ?, git_hash = ?, "
            "git_dirty = ?, pid = ?, process_start = ?, host = ?, checkpoint_dir = ?, "
            "updated_at = ?, ended_at = NULL, status = 'running', reason = '', "
            "results_json = NULL WHERE id = ?",
            experiment_id(info), info.name, info.config_json, info.git_hash, int64_t{info.git_dirty},
            int64_t{::getpid()}, own_process_start(), host_name(), info.checkpoint_dir, utc_now(), id)
      .step();
  transaction.commit();
}

void RunStore::progress(const std::string& id, const RunProgress& progress) {
  Statement(*this,
            "UPDATE runs SET step = ?, tokens = ?, last_loss = ?, smooth_loss = ?, tokens_per_s = ?, updated_at = ? "
            "WHERE id = ?",
            progress.step, progress.tokens, progress.loss, progress.smooth_loss, progress.tokens_per_s, utc_now(), id)
      .step();
  require_changed(id);
}

void RunStore::validated(const std::string& id, double loss, double bits_per_byte) {
  Statement(*this, "UPDATE runs SET valid_loss = ?, valid_bpb = ? WHERE id = ?", loss, bits_per_byte, id).step();
  require_changed(id);
}

void RunStore::saved(const std::string& id, int64_t step) {
  Statement(*this, "UPDATE runs SET checkpoint_step = ? WHERE id = ?", step, id).step();
  require_changed(id);
}

void RunStore::set_note(const std::string& id, const std::string& note) {
  Statement(*this, "UPDATE runs SET note = ? WHERE id = ?", note, id).step();
  require_changed(id);
}

void RunStore::remove(const std::string& id) {
  Transaction transaction(*this);
  Statement run(*this, "SELECT status, host, pid, process_start FROM runs WHERE id = ?", id);
  if (!run.step()) throw usage_error(fmt::format("'{}' has no run '{}'", path_.string(), id), "n runs lists them");
  // One of another host may be alive.
  if (run.text(0) == "running" && (run.text(1) != host_name() || process_start(run.integer(2)) == run.integer(3))) {
    throw usage_error(fmt::format("run '{}' is running as process {} of {}", id, run.integer(2), run.text(1)),
                      "stop it first");
  }
  Statement(*this, "DELETE FROM runs WHERE id = ?", id).step();
  transaction.commit();
}

std::string RunStore::config(const std::string& id) {
  Statement run(*this, "SELECT config_json FROM runs WHERE id = ?", id);
  if (!run.step()) throw usage_error(fmt::format("'{}' has no run '{}'", path_.string(), id), "n runs lists them");
  return run.text(0);
}

void RunStore::require_changed(const std::string& id) const {
  if (sqlite3_changes(database_) == 1) return;
  throw runtime_error(fmt::format("'{}' has no run '{}' any more", path_.string(), id),
                      "leave the rows of runs that have not ended alone");
}

void RunStore::finish(const std::string& id, RunStatus status, const std::string& reason) {
  NMOE_CHECK(status != RunStatus::kRunning && status != RunStatus::kDead, "run '{}' ends as {}", id,
             run_status_name(status));
  const std::string now = utc_now();
  Statement(*this,
            "UPDATE runs SET status = ?, reason = ?, updated_at = ?, ended_at = ?, "
            "results_json = json_object('final_loss', last_loss, 'steps_completed', step) WHERE id = ?",
            run_status_name(status), reason, now, now, id)
      .step();
  require_changed(id);
}

std::vector<RunRow> RunStore::list(int64_t limit) {
  Statement run(*this, row_query("ORDER BY started_at DESC, runs.rowid DESC LIMIT ?"), limit);
  return read_rows(run);
}

std::optional<RunRow> RunStore::find(const std::string& id) {
  Statement run(*this, row_query("WHERE runs.id = ?"), id);
  std::vector<RunRow> rows = read_rows(run);
  return rows.empty() ? std::nullopt : std::optional(std::move(rows.front()));
}

std::string RunStore::row_query(std::string_view clauses) {
  std::string later;
  bool has_all = true;
  for (const auto& [name, type] : kLaterColumns) {
    const bool has = has_all_columns_ || has_column(name);
    has_all = has_all && has;
    later += fmt::format("{}{}", later.empty() ? "" : ", ", has ? name : "NULL");
  }
  has_all_columns_ = has_all;
  return fmt::format(
      "SELECT runs.id, runs.name, experiments.name, status, reason, host, pid, "
      "process_start, started_at, updated_at, ended_at, step, last_loss, tokens_per_s, "
      "checkpoint_dir, {} FROM runs JOIN experiments ON experiments.id = experiment_id {}",
      later, clauses);
}

std::vector<RunRow> RunStore::read_rows(Statement& run) {
  const std::string here = host_name();
  std::vector<RunRow> rows;
  while (run.step()) {
    RunRow row = {.id = run.text(0),
                  .name = run.text(1),
                  .experiment = run.text(2),
                  .status = parse_status(run.text(3)),
                  .reason = run.text(4),
                  .host = run.text(5),
                  .pid = run.integer(6),
                  .started_at = run.text(8),
                  .updated_at = run.text(9),
                  .ended_at = run.text(10),
                  .step = run.integer(11),
                  .last_loss = run.real(12),
                  .smooth_loss = run.real(20),
                  .tokens_per_s = run.real(13),
                  .checkpoint_dir = run.text(14),
                  .tokens = run.integer_or_null(15),
                  .valid_loss = run.real(16),
                  .valid_bpb = run.real(17),
                  .checkpoint = run.integer_or_null(18),
                  .note = run.text(19)};
    if (row.status == RunStatus::kRunning && row.host == here && process_start(row.pid) != run.integer(7)) {
      row.status = RunStatus::kDead;
      row.reason = fmt::format(
          "process {} no longer exists and recorded no end: it was killed, or the machine went down", row.pid);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void set_runs_aside(const fs::path& path, const DamagedRuns& damage) {
  Aside aside;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    fs::path file = path;
    file += suffix;
    aside.move(file);
  }
  say("warning: {}\n", aside.text(damage.what()));
}

fs::path runs_database(const fs::path& run_dir) {
  fs::path database = run_dir / "experiments.db";
  if (!fs::exists(database)) {
    throw usage_error(fmt::format("no runs: {} does not exist", database.string()),
                      "train something first, or name the runs' folder with --dir");
  }
  return database;
}

}  // namespace nmoe
