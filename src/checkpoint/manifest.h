// manifest.json: what a checkpoint consists of, and the hashes that prove it unchanged.
//
// Of a tensor it has the whole's shape, the slices it lies in and the hashes of its chunks (tensor/chunks.h):
//
//   {"name": "layers.1.moe.experts_in", "dtype": "F32", "shape": [64, 512, 256],
//    "slices": [{"offset": 0, "extent": 4194304, "file": "model.rank_00000.safetensors"},
//               {"offset": 4194304, "extent": 4194304, "file": "model.rank_00001.safetensors"}],
//    "chunks": ["9f86...", ...],
//    "sha256": "2c26..."}
//
// Offset and extent count elements of the flattened tensor; both are at edges of chunks. Where a file has several
// slices of a tensor, a slice has "first" too, its first element there, unless that is 0. "sha256" is tensor_sha256()
// of the chunks. In format version 2, which is still read, every tensor is whole, in model.safetensors or
// optimizer.safetensors, and its "sha256" is that of its bytes: it is one chunk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/stream/cursor.h"
#include "rdep/placement.h"
#include "tensor/chunks.h"
#include "tensor/tensor.h"

namespace nmoe {

// What a run has seen of the products of one part of a layer, whose format it looks at
// (train/precision/precision_watch.h).
struct PrecisionRole {
  int64_t layer = 0;
  std::string part;            // "experts"
  bool in_act = false;         // whether they are computed without it, for now
  std::vector<int32_t> votes;  // 1: a look at them spoke for the other; the last ones, the newest last

  bool operator==(const PrecisionRole&) const = default;
};

// Where a run stood. There is no random state: every random number is a function of the seed and of
// these counts.
struct CheckpointInfo {
  int64_t step = 0;     // optimizer steps done
  int64_t tokens = 0;   // tokens trained on, without padding
  double flops = -1.0;  // what that took (model/spec/cost.h); below 0: written before it was counted
  StreamCursor cursor;  // the first sequence of the global order not yet trained on
  std::vector<PrecisionRole> precision = {};  // empty where nobody looks
  ExpertState experts;  // where ranks had them, which changes no tensor: those are in the experts' own order
  int64_t num_parameters = 0;
  std::string run_id;              // whose metrics go with it
  std::string config_fingerprint;  // config_fingerprint() of the run's configuration
  std::string data_fingerprint;    // names the corpus and its tokenizer
  int64_t arithmetic_changes = 0;  // that the program which trained it had (train/step/arithmetic_changes.h)
  std::string product_identity;    // of the first rank's device (ops/products/products.h); "" where it has none
  std::string nmoe_version;
  std::string nmoe_commit;
  std::string created_at{};  // UTC, ISO 8601; set by write_checkpoint
};

struct ManifestFile {
  std::string name;  // "config.toml", "huggingface/config.json"
  uint64_t bytes = 0;
  std::string sha256;  // empty where every tensor in the file has its own, in the lists below
};
// Where carried files are (checkpoint.h).
inline constexpr std::string_view kCarriedFolder = "huggingface";

// Where a part of a tensor is: under the tensor's name in `file`, in which all slices of it lie one after the other,
// with slices_shape().
struct TensorSlice {
  ElementRange range;
  std::string file;
  int64_t first = 0;  // element of the file's tensor
};

struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;                            // of the whole
  std::vector<TensorSlice> slices;        // by rising offset; together they are the whole
  TensorChunks chunks;                    // of the whole
  std::vector<std::string> chunk_sha256;  // of each chunk's bytes
  std::string sha256;                     // of the tensor, over its chunks'
};

struct CheckpointManifest {
  CheckpointInfo info;
  std::string weights_sha256;  // combined_sha256(model)
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> model;
  std::vector<ManifestTensor> optimizer;
};

// What one of several writers wrote of a checkpoint: plain values, which travel to whoever publishes.
struct WrittenPart {
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> model, optimizer;  // as merge_slices() takes them
};
// As text for another rank of the run, and back.
std::string print_written_part(const WrittenPart& part);
WrittenPart parse_written_part(std::string_view text);

// The tensors that writers wrote slices of. `parts` are their entries, one after the other, each with the slices in its
// writer's file, in their order there, the hashes of these slices' chunks alone and no hash of the tensor; the result
// is in the order in which names appear first. Writers must agree on a tensor, and its slices be all of it, without
// overlap (checked).
std::vector<ManifestTensor> merge_slices(std::span<const ManifestTensor> parts);

// JSON, ending in a hash of the rest, so that an altered manifest is found out too.
std::string print_manifest(const CheckpointManifest& manifest);

// Error (runtime) when `text` is no manifest of a format version known here, was altered, or contradicts itself; `path`
// is for the message.
CheckpointManifest parse_manifest(std::string_view text, const fs::path& path);

// One SHA-256 over all the tensors: that of the lines "name dtype shape sha256\n" in byte order of
// the names, say "embedding F32 [512, 64] 9f86...", where sha256 is the tensor's. It depends on names, dtypes, shapes
// and bytes, not on who wrote what into which file. The hashes of format version 2 being other ones, the same weights
// have another combined hash there.
std::string combined_sha256(std::span<const ManifestTensor> tensors);

}  // namespace nmoe
