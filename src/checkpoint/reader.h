// Reading and verifying checkpoints. Nothing is believed that does not hash to what was written.
#pragma once

#include <functional>
#include <map>
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

  // The bytes of `tensor`, one of the above, from its element `offset` to the end of the slice that it is in, as they
  // lie mapped from the slice's file. Not verified. Good while this object lives.
  std::span<const std::byte> stored_bytes(const ManifestTensor& tensor, int64_t offset) const;

  // Copies the tensor `name`, of the model or of the optimizer, from all its slices to `destination` in host memory,
  // verifying its hashes. An imported BF16 or F16 tensor is widened for an F32 destination. Error (usage) when there is
  // none of that name, dtype and shape: the configuration is another one.
  void load(const std::string& name, const Tensor& destination) const;

  // The same for a part of it, [offset, offset + destination.num_elements()) of the flattened tensor's elements, in
  // whatever shape. Reads and verifies the chunks that these are in, and no others. Error (usage) when the tensor has
  // no such part.
  void load_part(const std::string& name, int64_t offset, const Tensor& destination) const;

  // Loads exactly what the checkpoint has: a tensor missing on either side is an Error (usage).
  void load_model(std::span<const NamedTensor> destinations) const;
  void load_optimizer(std::span<const NamedTensor> destinations) const;

  // What a tensor is to be loaded as.
  struct Wanted {
    std::string name;
    DType dtype;
    Shape shape;
  };
  // Error (usage) unless the checkpoint has exactly these, in any order.
  void check_model(std::span<const Wanted> wanted) const { check_all(manifest_.model, wanted); }
  void check_optimizer(std::span<const Wanted> wanted) const { check_all(manifest_.optimizer, wanted); }
  // Loads parts of tensors, of the model or of the optimizer, as load_part() does, several at a time.
  void load_parts(std::span<const NamedPart> destinations) const;

  // One SHA-256 over all model weights (combined_sha256), verified against their bytes on the disk.
  std::string weights_sha256() const;

 private:
  friend std::optional<std::string> verify_checkpoint(const fs::path& path);

  // A chunk to be verified, and a destination that takes what it can of the tensor's elements from `offset` on.
  struct ChunkRead {
    const ManifestTensor* tensor;
    int64_t chunk;
    int64_t offset;
    Tensor destination;
  };

  explicit CheckpointReader(fs::path checkpoint);
  void open_tensor_files();
  void check_slices(const ManifestTensor& tensor, std::vector<const TensorSlice*> slices) const;
  void verify_contents() const;  // tensors and carried files
  void verify(std::span<const ManifestTensor> tensors, ThreadPool& pool) const;
  std::vector<CarriedFile> verified_carried() const;

  const TensorSlice& slice_at(const ManifestTensor& tensor, int64_t offset) const;
  bool read_chunk(const ChunkRead& read) const;  // whether its hash is right
  // Error (runtime) naming the first, in the order given, whose hash is wrong.
  void read_chunks(std::span<const ChunkRead> reads, ThreadPool& pool) const;

  const ManifestTensor& find(const std::string& name) const;
  void check_loads(const ManifestTensor& tensor, DType dtype, const Shape& shape) const;
  static void append_chunks(const ManifestTensor& tensor, int64_t offset, const Tensor& destination,
                            std::vector<ChunkRead>& reads);
  void load_chunks(std::span<const ChunkRead> reads) const;
  void check_all(std::span<const ManifestTensor> tensors, std::span<const Wanted> wanted) const;
  void load_all(std::span<const ManifestTensor> tensors, std::span<const NamedTensor> destinations) const;

  fs::path path_;
  CheckpointManifest manifest_;
  std::string config_toml_;
  std::string tokenizer_json_;
  std::map<std::string, SafetensorsFile, std::less<>> files_;  // those with slices, by name
};

// What is wrong with a checkpoint (the first bad file or tensor), or nothing when everything in it
// hashes to what its manifest says. `path` as for CheckpointReader::open; Error (runtime) when
// there is no checkpoint at all.
std::optional<std::string> verify_checkpoint(const fs::path& path);

}  // namespace nmoe
