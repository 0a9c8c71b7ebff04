// Checkpoints on disk: writing, finding and pruning them. Reading is in reader.h.
//
//   <dir>/step_00000040/model.safetensors       what the model needs to run
//                       optimizer.safetensors   what training needs beside it
//                       config.toml             the resolved configuration
//                       tokenizer.json          absent where an imported model's tokenizer is of no kind known here
//                       huggingface/            what an imported model had besides, for its export
//                       manifest.json           progress, sizes and hashes (manifest.h)
//   <dir>/.tmp-*                                being written or removed; never read
//
// A folder gets its step_ name by one rename after everything in it is on the disk, and loses it by
// one rename before anything in it is removed: whatever bears such a name was once whole, kill -9
// or power loss notwithstanding.
//
// One process at a time writes or prunes in a folder, from one thread at a time. Reading needs no
// such care.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace nmoe {

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

// The checkpoints in `dir` in ascending order of steps; empty when there is no such folder.
// Contents are not looked at.
std::vector<fs::path> list_checkpoints(const fs::path& dir);

// The last of list_checkpoints.
std::optional<fs::path> latest_checkpoint(const fs::path& dir);

// Removes all but the last `keep_last` checkpoints (0: removes none) and what killed processes left
// under temporary names.
void prune_checkpoints(const fs::path& dir, int64_t keep_last);

// The step in a checkpoint folder's name, or nothing when it is none.
std::optional<int64_t> checkpoint_step(const fs::path& path);

}  // namespace nmoe
