// Safetensors files (https://huggingface.co/docs/safetensors), read and written.
//
//   u64 N | N bytes of JSON | tensor bytes            all little-endian, tensors row-major
//
// The JSON maps each tensor's name to its "dtype", "shape" and "data_offsets" [begin, end), counted
// from the first tensor byte. The tensors cover what follows the JSON without gap or overlap. The
// key "__metadata__" is for comments; it is read past.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "tensor/named_tensor.h"

namespace nmoe {

// A tensor to be written, whose bytes may be made while it is.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  // The tensor's bytes [begin, begin + scratch.size()): in memory of its own, or put into `scratch`. Both ends are
  // edges of elements. Threads may ask at the same time.
  std::function<std::span<const std::byte>(size_t begin, std::span<std::byte> scratch)> read;
  // Called behind the last read: an Error (runtime) where what was read is not what a file had. None where the bytes
  // come from no file: a run's weights are saved whatever became of its data.
  std::function<void()> check = {};

  size_t num_bytes() const { return static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype); }
};

// Sources over tensors that stay where they are.
std::vector<TensorSource> in_memory(std::span<const NamedTensor> tensors);

// The SHA-256 of each of a tensor's chunks (tensor/chunks.h), in their order.
using ChunkHashes = std::vector<std::string>;

// Writes `tensors` in the order given, several chunks at a time where the pool has several threads, and syncs the file.
// Tensor bytes begin at a multiple of 8; `metadata`, when there is any, goes under "__metadata__". Returns the hashes
// of each tensor, in the same order. Leaves no file behind on an Error (runtime). Names must differ (checked).
std::vector<ChunkHashes> write_safetensors(const fs::path& path, std::span<const TensorSource> tensors,
                                           ThreadPool& pool, const std::map<std::string, std::string>& metadata = {});

// A safetensors file, mapped for reading. Const members may be called from several threads.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    size_t begin;  // in bytes from the start of the file
    size_t end;
  };

  // Maps the file and checks its header whole, so that every entry lies inside the file and has the
  // bytes its shape and dtype ask for. Error (runtime) naming file and tensor otherwise.
  explicit SafetensorsFile(const fs::path& path);

  const fs::path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in file order
  const Entry* find(std::string_view name) const;                 // nullptr when there is none
  std::span<const std::byte> bytes(const Entry& entry) const;

  // Appends the entry's bytes [begin, end) to what `hash` is of. With `destination` (end - begin bytes), copies them
  // there and hashes the copy. Either way the pages read leave the resident size again.
  void hash(const Entry& entry, size_t begin, size_t end, Sha256& hash, void* destination = nullptr) const;
  ChunkHashes chunk_hashes(const Entry& entry) const;

 private:
  MappedFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> position in entries_
};

}  // namespace nmoe
