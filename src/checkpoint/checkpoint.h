// Checkpoints on disk: writing, finding and pruning them. Reading is in reader.h.
//
//   <dir>/step_00000040/model.safetensors       what the model needs to run
//                       optimizer.safetensors   what training needs beside it
//                       model.rank_00002.safetensors, optimizer.rank_00002.safetensors
//                                               in place of the two, what writer 2 of several has of them
//                       config.toml             the resolved configuration
//                       tokenizer.json          absent where an imported model's tokenizer is of no kind known here
//                       huggingface/            what an imported model had besides, for its export
//                       manifest.json           progress, sizes and hashes (manifest.h)
//   <dir>/.step_00000040.unfinished-*           being written or removed; never read
//   <dir>/.lock                                 held by who writes here
//
// A folder gets its step_ name by one rename after everything in it is on the disk, and loses it by
// one rename before anything in it is removed: whatever bears such a name was once whole, kill -9
// or power loss notwithstanding.
//
// One process at a time writes or prunes in a folder (CheckpointFolder), from one thread at a time, but for the writers
// of a CheckpointDraft. Reading needs no such care.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "tensor/chunks.h"

namespace nmoe {

// A folder of checkpoints that is this process's to write to, for as long as the object lives.
class CheckpointFolder {
 public:
  // Makes the folder where there is none, and removes what killed processes left in it. Error (runtime) when another
  // process has it, naming that, or when nothing can be written there.
  explicit CheckpointFolder(const fs::path& dir);
  ~CheckpointFolder();  // what it made and nothing came into goes
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

 private:
  fs::path dir_;
  std::vector<fs::path> made_;  // from the folder upwards
  std::optional<FileLock> lock_;
};

// A file that training neither reads nor changes, under huggingface/.
struct CarriedFile {
  std::string name;    // in that folder
  fs::path source;     // where it is now
  std::string sha256;  // of a file in another checkpoint, which is linked, not copied; empty: copied and hashed
};
// Holds the tensors of an imported model that are not trained, under the names they came with.
inline constexpr std::string_view kCarriedTensors = "carried.safetensors";

// What a checkpoint says besides its tensors.
struct CheckpointHead {
  CheckpointInfo info;
  std::string config_toml;
  std::string tokenizer_json;  // empty: there is none
  std::vector<CarriedFile> carried;
};

// A run at one moment. The tensors are views: whoever passes a state keeps them alive and unchanged
// meanwhile. Names differ across both lists.
struct CheckpointState : CheckpointHead {
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
};

// Writes <dir>/step_<step>, creating `dir` when needed and replacing a checkpoint of the same step,
// and returns its path when it is durable. Error (runtime), say for a full disk, leaves what was
// there before and nothing else.
fs::path write_checkpoint(const fs::path& dir, const CheckpointState& state);

// The same from tensors that are made as they are written; `carried` become huggingface/carried.safetensors.
fs::path write_checkpoint(const fs::path& dir, const CheckpointHead& head, std::span<const TensorSource> model,
                          std::span<const TensorSource> carried, ThreadPool& pool);

// What a writer has of a tensor: one slice, or of a stacked weight several, one after the other.
struct TensorPart {
  TensorSource source;               // under the tensor's name; its shape is slices_shape() (tensor/chunks.h)
  Shape shape;                       // of the whole tensor
  std::vector<ElementRange> slices;  // elements of the flattened tensor, from edge to edge of chunks
};
TensorPart whole_tensor(TensorSource source);
// Of a tensor that the writer has all of, as replicas do that share the writing.
TensorPart part_of(const TensorSource& whole, ElementRange range);

// One of those who write a checkpoint together.
struct WriterIndex {
  int index = 0;
  int count = 1;
};

// A checkpoint that is being written, under a temporary name. Every writer writes its part; then one merges what they
// report and publishes. The tensors' hashes, and with them the hash of the weights, are those that a single writer's
// would have. Destroyed unpublished, as after an Error in any writer, it leaves nothing.
class CheckpointDraft {
 public:
  // Makes a temporary folder in `dir`, and `dir` when needed.
  CheckpointDraft(const fs::path& dir, int64_t step);
  // One that another has made, in `folder`, which stays the other's to publish or to remove.
  static CheckpointDraft joined(const fs::path& dir, int64_t step, fs::path folder);

  const fs::path& folder() const { return folder_; }

  // Writes files of this writer's own and returns when they are durable. At most one part of each tensor, with no slice
  // that is empty unless the tensor is. Several threads may call it at the same time, one a writer, each with a pool of
  // its own. NMOE_CHECK fails where a slice is not cut at edges of chunks; Error (runtime), say for a full disk.
  WrittenPart write(WriterIndex writer, std::span<const TensorPart> model, std::span<const TensorPart> optimizer,
                    ThreadPool& pool) const;

  // Adds what is not of the writers and gives the folder its name, replacing a checkpoint of the same step; returns its
  // path when it is durable. `parts` are all that was written, in the writers' order; together they are every tensor,
  // once (checked). Call it once, when every writer has returned.
  fs::path publish(const CheckpointHead& head, std::span<const WrittenPart> parts,
                   std::span<const TensorSource> carried, ThreadPool& pool);

 private:
  CheckpointDraft(fs::path dir, int64_t step, fs::path folder)
      : dir_(std::move(dir)), step_(step), folder_(std::move(folder)) {}

  fs::path dir_;
  int64_t step_;
  fs::path folder_;
  std::optional<TemporaryFolder> own_;  // of who made it
};

// The checkpoints in `dir` in ascending order of steps; empty when there is no such folder. Contents are not looked at.
// Error (runtime) when the folder cannot be read.
std::vector<fs::path> list_checkpoints(const fs::path& dir);

// The last of list_checkpoints.
std::optional<fs::path> latest_checkpoint(const fs::path& dir);

// Removes all but the last `keep_last` checkpoints (0: removes none) and what killed processes left
// under temporary names.
void prune_checkpoints(const fs::path& dir, int64_t keep_last);

// Removes the optimizer's state, which going on with training needs and nothing else, from all checkpoints in `dir` but
// the newest; returns the bytes that were freed. What remains is a whole checkpoint, linked beside the old one and put
// in its place at one stroke: a kill leaves either. The caller holds a CheckpointFolder. Error (runtime), say where the
// file system cannot exchange folders, leaves the checkpoint as it was.
int64_t drop_optimizer_states(const fs::path& dir);

// The step in a checkpoint folder's name, or nothing when it is none.
std::optional<int64_t> checkpoint_step(const fs::path& path);

}  // namespace nmoe
