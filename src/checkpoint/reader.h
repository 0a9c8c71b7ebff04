// Reading and verifying checkpoints. Nothing is believed that does not hash to what was written.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// A checkpoint opened for loading. Const members may be called from several threads.
//
// Where a file is missing, cut off or altered, the Error (runtime) names it, and the tensor, and
// its remedy names the last checkpoint in the same folder that is good; finding that one may take
// hashing several.
class CheckpointReader {
 public:
  // `path` is a checkpoint, or a folder of checkpoints, of which it takes the latest. Checks
  // everything but the tensors' bytes: manifest, sizes, headers, config.toml and tokenizer.json.
  static CheckpointReader open(const fs::path& path);

  const fs::path& path() const { return path_; }  // of the checkpoint itself
  const CheckpointInfo& info() const { return manifest_.info; }
  const std::string& config_toml() const { return config_toml_; }
  const std::string& tokenizer_json() const { return tokenizer_json_; }  // empty: there is none
  // What is in tokenizer.json. Error (usage) when there is none.
  std::shared_ptr<const Tokenizer> tokenizer() const;
  // Verified, as they are passed on to a checkpoint written after this one.
  std::vector<CarriedFile> carried() const;
  std::span<const ManifestTensor> model() const { return manifest_.model; }
  std::span<const ManifestTensor> optimizer() const { return manifest_.optimizer; }
  const SafetensorsFile& model_file() const { return model_file_; }  // its bytes are not verified

  // Copies the tensor `name`, of the model or of the optimizer, to `destination` in host memory,
  // verifying its hash. An imported BF16 or F16 tensor is widened for an F32 destination. Error (usage) when there is
  // none of that name, dtype and shape: the configuration is another one.
  void load(const std::string& name, const Tensor& destination) const;

  // Loads exactly what the checkpoint has: a tensor missing on either side is an Error (usage).
  void load_model(std::span<const NamedTensor> destinations) const;
  void load_optimizer(std::span<const NamedTensor> destinations) const;

  // One SHA-256 over all model weights (combined_sha256), verified against their bytes on the disk.
  std::string weights_sha256() const;

 private:
  friend std::optional<std::string> verify_checkpoint(const fs::path& path);

  explicit CheckpointReader(fs::path checkpoint);
  void verify_contents() const;  // tensors and carried files
  std::vector<CarriedFile> verified_carried() const;
  void load_from(const SafetensorsFile& file, std::span<const ManifestTensor> tensors, const std::string& name,
                 const Tensor& destination) const;
  void load_all(const SafetensorsFile& file, std::span<const ManifestTensor> tensors,
                std::span<const NamedTensor> destinations) const;

  fs::path path_;
  CheckpointManifest manifest_;
  std::string config_toml_;
  std::string tokenizer_json_;
  SafetensorsFile model_file_;
  SafetensorsFile optimizer_file_;
};

// What is wrong with a checkpoint (the first bad file or tensor), or nothing when everything in it
// hashes to what its manifest says. `path` as for CheckpointReader::open; Error (runtime) when
// there is no checkpoint at all.
std::optional<std::string> verify_checkpoint(const fs::path& path);

}  // namespace nmoe
