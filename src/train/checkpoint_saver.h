// How the ranks of a run write a checkpoint together while training goes on.
//
// Every rank writes files of its own, by a thread of its own, into one folder under a temporary name, in a file system
// that all share; when all have, and have told each other what they wrote, the first one adds the manifest and gives
// the folder its name. So a checkpoint is whole, or it is not there. What is not published when a run of several ranks
// fails is lost.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/async_writer.h"
#include "train/engine.h"

namespace nmoe {

// One rank's. All ranks make the same calls in the same order, but for has_written() and is_idle().
//
// A full disk ends no training: what keeps a checkpoint from being written is returned, not thrown, once, the same on
// all ranks, by the call that finds out.
class CheckpointSaver {
 public:
  // Checkpoints go to `dir`; after each, all but the last `keep_last` are pruned (0: none). Called from the thread that
  // drives the rank.
  CheckpointSaver(fs::path dir, int64_t keep_last, const Rank& rank);

  // Begins to write the state of `engine`; behind finish(), which gives its staging free. Of `head`, only rank 0's
  // counts.
  void begin(Engine& engine, CheckpointHead head);
  // Whether this rank has written its part of what was begun, or has failed to.
  bool has_written() const { return begun_ && !writer_.busy(); }
  // Whether finish() would not wait for this rank.
  bool is_idle() const { return !begun_ && !writer_.busy(); }
  // Ends what was begun, if anything was; waits until all have written, for however long. The folder gets its name, by
  // rank 0's writing thread.
  [[nodiscard]] std::optional<Error> publish();
  // The same, and waits until the folder has its name and older checkpoints are pruned.
  [[nodiscard]] std::optional<Error> finish();

 private:
  void open_draft(int64_t step);
  void wait_for_writer();
  void wait_for_all_writers();
  std::optional<Error> gather(const std::string& mine, std::vector<std::string>& all);

  const fs::path dir_;
  const int64_t keep_last_;
  Rank rank_;
  bool begun_ = false;                      // and not published
  std::shared_ptr<CheckpointDraft> draft_;  // of what is begun; null where that failed
  std::exception_ptr failure_;              // of this rank, not told yet
  CheckpointHead head_;
  WrittenPart written_;           // by writer_'s thread
  AsyncCheckpointWriter writer_;  // last: it uses all of the above
};

}  // namespace nmoe
