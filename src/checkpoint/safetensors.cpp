#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "tensor/chunks.h"

namespace nmoe {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr size_t kAlignment = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kBlock = 1 << 20;                 // hashed while it is still in the cache
constexpr const char* kMetadataKey = "__metadata__";

std::string header_of(std::span<const TensorSource> tensors, const std::map<std::string, std::string>& metadata) {
  OrderedJson::object_t header;
  if (!metadata.empty()) header.emplace_back(kMetadataKey, metadata);
  uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    const uint64_t end = offset + tensor.num_bytes();
    // Not emplace(), which looks for the name first: names are known to differ.
    header.emplace_back(tensor.name, OrderedJson{{"dtype", dtype_name(tensor.dtype)},
                                                 {"shape", tensor.shape.dims()},
                                                 {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = OrderedJson(std::move(header)).dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

struct ByteRange {
  size_t begin, end;
};

ByteRange bytes_of(ElementRange range, DType dtype) {
  return {static_cast<size_t>(range.offset) * dtype_bytes(dtype),
          static_cast<size_t>(range.end()) * dtype_bytes(dtype)};
}

Error damaged(const fs::path& path, const std::string& what) {
  return runtime_error(fmt::format("'{}': {}", path.string(), what),
                       "the file is damaged or no safetensors file: write or fetch it again");
}

Json parse_header(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    throw damaged(file.path(), fmt::format("{} bytes are too few for a header", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes) {
    throw damaged(file.path(), fmt::format("a header of {} bytes in a file of {}", length, bytes.size()));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  Json header;
  try {
    header = parse_json<Json>({text, length});
  } catch (const JsonError& error) {
    throw damaged(file.path(), fmt::format("the header is not JSON: {}", error.what()));
  }
  if (!header.is_object()) throw damaged(file.path(), "the header is not a JSON object");
  return header;
}

// The list of integers >= 0 under `key`, or nothing when it is anything else.
std::optional<std::vector<int64_t>> natural_numbers(const Json& object, const char* key) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& item : *list) {
    // Unsigned is how the parser marks an integer >= 0; above int64's range it would turn negative.
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) return std::nullopt;
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

// Offsets in the result still count from the first tensor byte.
SafetensorsFile::Entry parse_entry(const fs::path& path, const std::string& name, const Json& object) {
  const auto fail = [&](const std::string& what) { return damaged(path, fmt::format("tensor '{}': {}", name, what)); };
  if (!object.is_object()) throw fail("its header entry is not a JSON object");

  const auto dtype_text = object.find("dtype");
  if (dtype_text == object.end() || !dtype_text->is_string()) throw fail("no dtype");
  const auto dtype = dtype_from_name(dtype_text->get_ref<const std::string&>());
  if (!dtype) {
    throw fail(
        fmt::format("unknown dtype {} (known: F64, F32, BF16, F16, F8_E4M3, I64, I32, I16, U8)", dtype_text->dump()));
  }

  const auto dims = natural_numbers(object, "shape");
  if (!dims) throw fail("its shape is not a list of sizes");
  if (dims->size() > Shape::kMaxRank) {
    throw fail(fmt::format("{} dimensions, more than {}", dims->size(), Shape::kMaxRank));
  }
  int64_t bytes = static_cast<int64_t>(dtype_bytes(*dtype));
  for (const int64_t dim : *dims) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) throw fail("its shape is absurdly large");
  }

  const auto offsets = natural_numbers(object, "data_offsets");
  if (!offsets || offsets->size() != 2) throw fail("data_offsets is not a pair of offsets");
  const auto [begin, end] = std::array{(*offsets)[0], (*offsets)[1]};
  const Shape shape{std::span<const int64_t>(*dims)};
  if (begin > end || end - begin != bytes) {
    throw fail(
        fmt::format("offsets [{}, {}) for {} {}, which takes {} bytes", begin, end, dtype_name(*dtype), shape, bytes));
  }
  return {name, *dtype, shape, static_cast<size_t>(begin), static_cast<size_t>(end)};
}

}  // namespace

std::vector<TensorSource> in_memory(std::span<const NamedTensor> tensors) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    NMOE_CHECK(tensor.raw() != nullptr || tensor.num_bytes() == 0, "tensor '{}' has no data", name);
    const std::span bytes(static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.num_bytes()));
    sources.push_back({name, tensor.dtype(), tensor.shape(), [bytes](size_t begin, std::span<std::byte> scratch) {
                         return bytes.subspan(begin, scratch.size());
                       }});
  }
  return sources;
}

std::vector<ChunkHashes> write_safetensors(const fs::path& path, std::span<const TensorSource> tensors,
                                           ThreadPool& pool, const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const TensorSource& tensor : tensors) {
    NMOE_CHECK(tensor.name != kMetadataKey && names.insert(tensor.name).second, "tensor name '{}'", tensor.name);
  }

  FileWriter file(path);
  const std::string header = header_of(tensors, metadata);
  const uint64_t header_bytes = header.size();
  file.write(&header_bytes, kLengthBytes);
  file.write(header.data(), header.size());

  struct Chunk {
    const TensorSource* tensor;
    ByteRange bytes;        // of the tensor
    uint64_t tensor_begin;  // in the file
    std::string* sha256;
  };
  std::vector<Chunk> chunks;
  std::vector<ChunkHashes> hashes(tensors.size());
  uint64_t end = file.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSource& tensor = tensors[i];
    const TensorChunks layout(tensor.dtype, tensor.shape);
    hashes[i].resize(static_cast<size_t>(layout.count()));
    for (int64_t k = 0; k < layout.count(); ++k) {
      chunks.push_back({&tensor, bytes_of(layout[k], tensor.dtype), end, &hashes[i][static_cast<size_t>(k)]});
    }
    end += tensor.num_bytes();
  }
  file.reserve(end - file.size());

  std::vector<std::vector<std::byte>> scratch(static_cast<size_t>(pool.num_threads()));
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t task, int thread) {
    const Chunk& chunk = chunks[static_cast<size_t>(task)];
    std::vector<std::byte>& own = scratch[static_cast<size_t>(thread)];
    own.resize(kBlock);
    Sha256 hash;
    for (size_t begin = chunk.bytes.begin; begin < chunk.bytes.end; begin += kBlock) {
      const size_t count = std::min(kBlock, chunk.bytes.end - begin);
      const std::span<const std::byte> block = chunk.tensor->read(begin, std::span(own).first(count));
      hash.update(block.data(), block.size());
      file.write_at(chunk.tensor_begin + begin, block.data(), block.size());
    }
    *chunk.sha256 = hash.finish();
  });
  for (const TensorSource& tensor : tensors) {
    if (tensor.check) tensor.check();
  }
  file.close();
  return hashes;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  const Json header = parse_header(file_);
  for (const auto& [name, object] : header.items()) {
    if (name != kMetadataKey) entries_.push_back(parse_entry(path, name, object));
  }
  std::ranges::sort(entries_, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_.bytes().data(), kLengthBytes);
  const size_t first = kLengthBytes + header_bytes;
  size_t expected = 0;  // where the next tensor has to begin
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.begin != expected) {
      throw damaged(path, fmt::format("tensor '{}' begins at offset {}, but the one before it ends at {}", entry.name,
                                      entry.begin, expected));
    }
    expected = entry.end;
    if (entry.end > file_.bytes().size() - first) {
      throw damaged(path, fmt::format("tensor '{}' ends at byte {} of a file of {}: the file was cut off", entry.name,
                                      first + entry.end, file_.bytes().size()));
    }
    entry.begin += first;
    entry.end += first;
    index_.emplace(entry.name, i);
  }
  if (first + expected != file_.bytes().size()) {
    throw damaged(path, fmt::format("{} bytes after the last tensor", file_.bytes().size() - first - expected));
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  return file_.bytes().subspan(entry.begin, entry.end - entry.begin);
}

void SafetensorsFile::hash(const Entry& entry, size_t begin, size_t end, Sha256& hash, void* destination) const {
  NMOE_CHECK(begin <= end && end <= entry.end - entry.begin, "bytes [{}, {}) of tensor '{}', which has {}", begin, end,
             entry.name, entry.end - entry.begin);
  auto* copy = static_cast<std::byte*>(destination);
  for (size_t at = entry.begin + begin; at < entry.begin + end; at += kBlock) {
    const size_t count = std::min(kBlock, entry.begin + end - at);
    const std::byte* block = file_.bytes().data() + at;
    if (copy != nullptr) {
      block = static_cast<const std::byte*>(std::memcpy(copy, block, count));
      copy += count;
    }
    hash.update(block, count);
    file_.drop(at, at + count);
  }
  file_.check();
}

ChunkHashes SafetensorsFile::chunk_hashes(const Entry& entry) const {
  const TensorChunks chunks(entry.dtype, entry.shape);
  ChunkHashes hashes;
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const auto [begin, end] = bytes_of(chunks[i], entry.dtype);
    Sha256 chunk;
    hash(entry, begin, end, chunk);
    hashes.push_back(chunk.finish());
  }
  return hashes;
}

}  // namespace nmoe
