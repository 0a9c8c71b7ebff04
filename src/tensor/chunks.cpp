#include "tensor/chunks.h"

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int kStackedRank = 3;

}  // namespace

std::vector<ElementRange> parts_in(int64_t room_bytes, DType dtype, int64_t num_elements) {
  constexpr int64_t kAligned = 64;  // elements: parts begin where vectors may
  const int64_t room = room_bytes / static_cast<int64_t>(dtype_bytes(dtype));
  NMOE_CHECK(room > 0 || num_elements == 0, "{} bytes of room for elements in {}", room_bytes, dtype_name(dtype));
  const int64_t most = room > kAligned && room < num_elements ? room / kAligned * kAligned : room;
  std::vector<ElementRange> parts;
  for (int64_t begin = 0; begin < num_elements; begin += most) {
    parts.push_back({begin, std::min(most, num_elements - begin)});
  }
  return parts;
}

TensorChunks::TensorChunks(DType dtype, const Shape& shape) : num_elements_(shape.num_elements()) {
  if (num_elements_ == 0) return;
  chunk_elements_ =
      shape.rank() == kStackedRank ? shape[1] * shape[2] : kChunkBytes / static_cast<int64_t>(dtype_bytes(dtype));
}

TensorChunks TensorChunks::undivided(const Shape& shape) {
  TensorChunks chunks;
  chunks.num_elements_ = chunks.chunk_elements_ = shape.num_elements();
  return chunks;
}

ElementRange TensorChunks::operator[](int64_t index) const {
  NMOE_CHECK(index >= 0 && index < count(), "chunk {} of {}", index, count());
  const int64_t offset = index * chunk_elements_;
  return {offset, std::min(chunk_elements_, num_elements_ - offset)};
}

bool TensorChunks::is_edge(int64_t element) const {
  return element == num_elements_ || (chunk_elements_ > 0 && element % chunk_elements_ == 0);
}

Shape slice_shape(std::string_view name, DType dtype, const Shape& shape, ElementRange range) {
  return slices_shape(name, dtype, shape, std::span(&range, 1));
}

Shape slices_shape(std::string_view name, DType dtype, const Shape& shape, std::span<const ElementRange> ranges) {
  const int64_t num_elements = shape.num_elements();
  const TensorChunks chunks(dtype, shape);
  int64_t extent = 0;
  for (const ElementRange& range : ranges) {
    NMOE_CHECK(range.offset >= 0 && range.extent >= 0 && range.end() <= num_elements,
               "tensor '{}' {} {} has no elements [{}, {})", name, dtype_name(dtype), shape, range.offset, range.end());
    for (const int64_t cut : {range.offset, range.end()}) {
      NMOE_CHECK(chunks.is_edge(cut), "tensor '{}' {} {} is cut at element {}, inside a chunk: chunks have {} elements",
                 name, dtype_name(dtype), shape, cut, chunks.chunk_elements());
    }
    extent += range.extent;
  }
  if (extent == num_elements) return shape;
  if (shape.rank() == kStackedRank) return {extent / chunks.chunk_elements(), shape[1], shape[2]};
  return {extent};
}

std::string tensor_sha256(std::span<const std::string> chunk_sha256) {
  Sha256 hash;
  for (const std::string& chunk : chunk_sha256) {
    hash.update(chunk);
    hash.update("\n");
  }
  return hash.finish();
}

}  // namespace nmoe
