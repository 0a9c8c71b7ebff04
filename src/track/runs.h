// experiments.db: which runs exist and how they do. SQLite, so several processes may have it open.
//
//   experiments(id, name, project, description, created_at)
//   runs(id, experiment_id, name, config_json, git_hash, git_dirty, pid, process_start, host,
//        checkpoint_dir, started_at, updated_at, ended_at, status, reason, step, last_loss,
//        tokens_per_s, results_json, tokens, valid_loss, valid_bpb, checkpoint_step, note, smooth_loss)
//
// The columns behind results_json, and an index of what list() reads, are added to databases of earlier versions, which
// can go on using them.
// `project` is empty. results_json is an object made at a run's end: "final_loss", null without a finite one, and
// "steps_completed". Times are UTC in ISO 8601. process_start tells a run's process from a later one of its number.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"

struct sqlite3;

namespace nmoe {

enum class RunStatus {
  kRunning,
  kCompleted,
  kInterrupted,     // saved and left on a signal
  kFailed,          // the reason says why
  kFailedNan,       // the loss or a gradient was not finite
  kFailedCollapse,  // a router collapsed
  kDead,            // only listed, never stored: "running", but its process is gone
};

std::string_view run_status_name(RunStatus status);  // "running", ..., "failed_nan", "dead"

// What is known of a run when it starts.
struct RunInfo {
  std::string name;
  std::string experiment;          // created when new
  std::string config_json = "{}";  // any JSON
  std::string git_hash{};
  bool git_dirty = false;
  std::string checkpoint_dir{};
};

struct RunRow {
  std::string id;
  std::string name;
  std::string experiment;
  RunStatus status = RunStatus::kRunning;
  std::string reason;  // empty unless the run ended otherwise than completed
  std::string host;
  int64_t pid = 0;
  std::string started_at;
  std::string updated_at;
  std::string ended_at;  // empty while running
  int64_t step = 0;
  std::optional<double> last_loss;  // of one batch; nothing before the first progress, or when it was a NaN
  // See RecentLosses; nothing of runs of a version that did not record it, either.
  std::optional<double> smooth_loss;
  std::optional<double> tokens_per_s;
  std::string checkpoint_dir;
  std::optional<int64_t> tokens;      // trained on
  std::optional<double> valid_loss;   // of the last validation of all sources
  std::optional<double> valid_bpb;    // same
  std::optional<int64_t> checkpoint;  // step of the last that is whole
  std::string note;                   // a person's
};

// How far a run is.
struct RunProgress {
  int64_t step = 0;
  int64_t tokens = 0;        // trained on
  double loss = 0.0;         // of the step's batch
  double smooth_loss = 0.0;  // RecentLosses::mean()
  double tokens_per_s = 0.0;
};

// Of a database that is none, or damaged.
class DamagedRuns : public Error {
 public:
  using Error::Error;
};

// Used from one thread at a time. Every call is one transaction, waits up to 5 s for other
// processes' and throws an Error (runtime) naming the file when it fails, or DamagedRuns.
class RunStore {
 public:
  enum class Access {
    kWrite,  // creating the file and its folder when missing
    kRead,   // list(), find() and config() alone, also in a folder that nobody may write to; the file must be there
  };
  explicit RunStore(const fs::path& path, Access access = Access::kWrite);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  // Records a new run of this process and returns its id: $NMOE_RUN, else run_<unix time>_<pid>.
  // Error (usage) when $NMOE_RUN is taken or has other characters than letters, digits, "._-".
  std::string start(const RunInfo& info);

  // Makes run `id` one of this process, running again; one that is not there, since its database was lost, is made
  // again. Error (usage) when it is still running in a living process of this host, or when `id` is none.
  void resume(const std::string& id, const RunInfo& info);

  // These, and finish(): Error (runtime) where another program has removed the run.
  void progress(const std::string& id, const RunProgress& progress);  // what is not finite is stored as unknown
  void validated(const std::string& id, double loss, double bits_per_byte);
  void saved(const std::string& id, int64_t step);

  void set_note(const std::string& id, const std::string& note);
  // Forgets the run; its files are the caller's affair. Error (usage) where there is none, or while it is running: one
  // of another host counts as running until it has ended itself.
  void remove(const std::string& id);

  // Ends a run. `status` is neither kRunning nor kDead.
  void finish(const std::string& id, RunStatus status, const std::string& reason);

  // The newest `limit` runs, newest first.
  std::vector<RunRow> list(int64_t limit = std::numeric_limits<int64_t>::max());
  std::optional<RunRow> find(const std::string& id);
  std::string config(const std::string& id);  // JSON. Error (usage) where there is no such run

 private:
  class Statement;
  class Transaction;

  void open();
  void complete_schema();  // of databases of earlier versions
  bool has_column(std::string_view name) const;
  void open_for_reading();
  std::string row_query(std::string_view clauses);
  static std::vector<RunRow> read_rows(Statement& run);
  void require_own_kind(int64_t version) const;  // of the tables
  void check(int code) const;                    // throws what a SQLite result code other than SQLITE_OK means
  void execute(const std::string& sql) const;
  int64_t query_integer(const char* sql) const;
  bool has_run(const std::string& id);
  void insert(const std::string& id, const RunInfo& info);
  void require_changed(const std::string& id) const;
  std::string new_run_id();
  int64_t experiment_id(const RunInfo& info);

  const fs::path path_;
  sqlite3* database_ = nullptr;
  bool has_all_columns_ = true;  // false where the file is only read, until all are seen: a writer adds them
};

// Sets a damaged database aside, with what SQLite has beside it, and says so (aside.h).
void set_runs_aside(const fs::path& path, const DamagedRuns& damage);

// <run_dir>/experiments.db. Error (usage) where there is none.
fs::path runs_database(const fs::path& run_dir);

}  // namespace nmoe
