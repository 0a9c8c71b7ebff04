// How the ranks of a run write a checkpoint together while training continues.
//
// Every rank writes its own files, on its own thread, into one folder with a temporary name, in a file
// system that all share. When all have finished and exchanged what they wrote, rank 0 adds the manifest
// and renames the folder. A checkpoint is therefore complete, or it does not exist. If a run of several
// ranks fails, what has not been published is lost.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/async_writer.h"
#include "checkpoint/checkpoint.h"
#include "train/step/engine.h"

namespace nmoe {

// The saver of one rank. All ranks make the same calls in the same order, except for has_written() and is_idle().
//
// A full disk does not end training: an error that keeps a checkpoint from being written is not thrown but returned,
// once, and on all ranks alike, by the call that notices it.
class CheckpointSaver {
 public:
  // Checkpoints go to `dir`; after each, all but the last `keep_last` are pruned (0: none). Called from the thread that
  // drives the rank.
  CheckpointSaver(fs::path dir, int64_t keep_last, const Rank& rank);

  // Begins to write the state of `engine`; to be called after finish(), which releases the memory it passes through
  // (train/step/state_ring.h). What does not fit there is waited for, without time limit: until it has been read, or
  // writing has failed. Only rank 0's `head` is used.
  void begin(Engine& engine, CheckpointHead head);
  // Whether this rank has finished, or failed, writing its part of the checkpoint that was begun.
  bool has_written() const { return begun_ && !writer_.busy(); }
  // Whether finish() would not wait for this rank.
  bool is_idle() const { return !begun_ && !writer_.busy(); }
  // Completes a checkpoint that was begun, if any: waits, without time limit, until all ranks have written. Rank 0's
  // writing thread renames the folder.
  [[nodiscard]] std::optional<Error> publish();
  // The same, and waits until the folder is renamed and older checkpoints are pruned.
  [[nodiscard]] std::optional<Error> finish();

 private:
  void open_draft(int64_t step);
  void hand_over(StateRing& ring);
  void drop();
  void wait_for_writer();
  void wait_for_all_writers();
  std::optional<Error> gather(const std::string& mine, std::vector<std::string>& all);

  const fs::path dir_;
  const int64_t keep_last_;
  Rank rank_;
  bool begun_ = false;                      // and not published
  std::shared_ptr<CheckpointDraft> draft_;  // of the checkpoint begun; null if that failed
  std::exception_ptr failure_;              // of this rank, not yet reported
  CheckpointHead head_;
  std::optional<WrittenPart> written_;  // of the checkpoint begun, by writer_'s thread once it has all of it
  AsyncCheckpointWriter writer_;        // last: it uses all of the above
};

}  // namespace nmoe
