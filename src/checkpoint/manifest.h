// manifest.json: what a checkpoint consists of, and the hashes that prove it unchanged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/stream/cursor.h"
#include "tensor/tensor.h"

namespace nmoe {

// Where a run stood. There is no random state: every random number is a function of the seed and of
// these counts.
struct CheckpointInfo {
  int64_t step = 0;     // optimizer steps done
  int64_t tokens = 0;   // tokens trained on
  StreamCursor cursor;  // the first sequence of the global order not yet trained on
  int64_t num_parameters = 0;
  std::string run_id;              // whose metrics go with it
  std::string config_fingerprint;  // config_fingerprint() of the run's configuration
  std::string data_fingerprint;    // names the corpus and its tokenizer
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

struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string sha256;  // of the tensor's bytes
};

struct CheckpointManifest {
  CheckpointInfo info;
  std::string weights_sha256;  // combined_sha256(model)
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> model;      // in model.safetensors, in file order
  std::vector<ManifestTensor> optimizer;  // in optimizer.safetensors, in file order
};

// JSON, ending in a hash of the rest, so that an altered manifest is found out too.
std::string print_manifest(const CheckpointManifest& manifest);

// Error (runtime) when `text` is no manifest of a format version known here or was altered; `path`
// is for the message.
CheckpointManifest parse_manifest(std::string_view text, const fs::path& path);

// One SHA-256 over all the tensors: that of the lines "name dtype shape sha256\n" in byte order of
// the names, say "embedding F32 [512, 64] 9f86...". It depends on names, dtypes, shapes and bytes,
// not on their place in a file.
std::string combined_sha256(std::span<const ManifestTensor> tensors);

}  // namespace nmoe
