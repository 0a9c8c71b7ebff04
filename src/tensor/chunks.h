// The chunks of a weight, or of optimizer state: where it may be cut between ranks that each keep and write a part, and
// what of it a checkpoint hashes in one piece.
//
// They follow from a tensor's dtype and shape alone. A chunk is a range of the elements, flattened in row-major order:
//
//   a stacked weight, rank 3 [E, out, in]    one [out, in] of it: an expert
//   any other                                1 MiB of its bytes; the last chunk has what remains
//
// A range of whole chunks, taken as a tensor of its own (slice_shape), has those same chunks: whoever writes a slice
// can hash it without knowing the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// Some of a tensor's elements, flattened in row-major order.
struct ElementRange {
  int64_t offset = 0;
  int64_t extent = 0;
  int64_t end() const { return offset + extent; }
  bool operator==(const ElementRange&) const = default;
};

// All elements of a tensor in ranges of as many as `room_bytes` hold in `dtype`, at least one: to take it through
// memory that is smaller than it.
std::vector<ElementRange> parts_in(int64_t room_bytes, DType dtype, int64_t num_elements);

class TensorChunks {
 public:
  // Of a tensor without elements: no chunks.
  TensorChunks() = default;
  TensorChunks(DType dtype, const Shape& shape);
  // One chunk with everything in it, as checkpoints of format version 2 were hashed.
  static TensorChunks undivided(const Shape& shape);

  int64_t count() const { return chunk_elements_ == 0 ? 0 : (num_elements_ + chunk_elements_ - 1) / chunk_elements_; }
  ElementRange operator[](int64_t index) const;
  // The chunk that `element` is in.
  int64_t index_of(int64_t element) const { return element / chunk_elements_; }
  // Whether a chunk begins at `element`, or the tensor ends there.
  bool is_edge(int64_t element) const;
  int64_t chunk_elements() const { return chunk_elements_; }  // of all but the last; 0 without chunks

 private:
  int64_t num_elements_ = 0;
  int64_t chunk_elements_ = 0;
};

// The shape of a slice as a tensor of its own: `shape` when it is everything, [n, out, in] of a stacked weight,
// [extent] of any other. The range must lie in the tensor and begin and end at edges of chunks (checked; `name` is for
// the message).
Shape slice_shape(std::string_view name, DType dtype, const Shape& shape, ElementRange range);
// The same of several slices, one after the other.
Shape slices_shape(std::string_view name, DType dtype, const Shape& shape, std::span<const ElementRange> ranges);

// The hash of a tensor from those of its chunks (64 lower-case hex digits each): the SHA-256 of the lines "hash\n" in
// the chunks' order. So it does not depend on who wrote which slice into which file.
std::string tensor_sha256(std::span<const std::string> chunk_sha256);

}  // namespace nmoe
