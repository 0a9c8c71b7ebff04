#include "checkpoint/reader.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

constexpr const char* kOtherConfigRemedy =
    "use the configuration the checkpoint was written with: config.toml in its folder";

// Thrown where a checkpoint is not as it was written; the remedy is for refusal() to find.
Error fault(const fs::path& path, const std::string& what) {
  return runtime_error(fmt::format("'{}': {}", path.string(), what), "");
}

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) throw fault(path, error.message());
  return bytes;
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  size_of(path);  // a missing file is a fault of the checkpoint, not a mistyped path
  return parse_manifest(read_file_up_to(path, kMaxListFile), path);
}

constexpr int64_t kBlockElements = 1 << 18;  // widened while they are still in the cache

constexpr std::string_view kTokenizerFile = "tokenizer.json";

bool has_file(const CheckpointManifest& manifest, std::string_view name) {
  return std::ranges::find(manifest.files, name, &ManifestFile::name) != manifest.files.end();
}

// The path of `name` in the checkpoint once it is known to have its recorded size.
fs::path sized_file(const fs::path& checkpoint, const CheckpointManifest& manifest, std::string_view name) {
  const auto file = std::ranges::find(manifest.files, name, &ManifestFile::name);
  if (file == manifest.files.end()) throw fault(checkpoint / "manifest.json", fmt::format("it lists no {}", name));
  fs::path path = checkpoint / name;
  if (const uint64_t bytes = size_of(path); bytes != file->bytes) {
    throw fault(path, fmt::format("{} bytes, written with {}", bytes, file->bytes));
  }
  return path;
}

std::string read_text(const fs::path& checkpoint, const CheckpointManifest& manifest, std::string_view name) {
  const fs::path path = sized_file(checkpoint, manifest, name);
  std::string text = read_file(path);
  if (sha256_hex(text) != std::ranges::find(manifest.files, name, &ManifestFile::name)->sha256) {
    throw fault(path, "altered: its hash differs");
  }
  return text;
}

// Whether a tensor of one dtype can be loaded as another.
bool converts(DType stored, DType wanted) {
  return stored == wanted || (is_weight_dtype(stored) && wanted == DType::kF32);
}

const ManifestTensor* find_tensor(std::span<const ManifestTensor> tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &ManifestTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

Error no_tensor(const fs::path& checkpoint, const std::string& name) {
  return usage_error(fmt::format("checkpoint '{}' has no tensor '{}'", checkpoint.string(), name), kOtherConfigRemedy);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// The checkpoint that `path` means.
fs::path resolve(const fs::path& path) {
  fs::path plain = path.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();  // "step_00000040/"
  std::error_code error;
  if (!fs::is_directory(plain, error)) {
    throw runtime_error(fmt::format("no checkpoint at '{}': no such folder", path.string()),
                        "name a checkpoint (step_...) or the folder it is in");
  }
  // A checkpoint that was copied under another name is known by its manifest.
  if (checkpoint_step(plain) || fs::exists(plain / "manifest.json", error)) return plain;
  if (const auto latest = latest_checkpoint(plain)) return *latest;
  throw runtime_error(fmt::format("no checkpoint in '{}'", path.string()),
                      "name a checkpoint (step_...) or the folder it is in");
}

// What a user is told about a damaged checkpoint: the cause, and what to use instead.
Error refusal(const fs::path& checkpoint, const Error& cause) {
  std::string remedy = cause.remedy();
  if (!remedy.empty()) remedy += "; ";
  std::vector<fs::path> others = list_checkpoints(parent_of(checkpoint));
  std::ranges::reverse(others);
  for (const fs::path& other : others) {
    if (other.filename() != checkpoint.filename() && !verify_checkpoint(other)) {
      remedy += fmt::format(
          "the last good checkpoint in that folder is '{}': "
          "use it, or move the bad one away to resume from it",
          other.string());
      return runtime_error(cause.what(), remedy);
    }
  }
  remedy += "that folder has no good checkpoint: restore one from a copy, or start anew";
  return runtime_error(cause.what(), remedy);
}

}  // namespace

CheckpointReader::CheckpointReader(fs::path checkpoint)
    : path_(std::move(checkpoint)),
      manifest_(read_manifest(path_)),
      config_toml_(read_text(path_, manifest_, "config.toml")),
      tokenizer_json_(has_file(manifest_, kTokenizerFile) ? read_text(path_, manifest_, kTokenizerFile) : "") {
  open_tensor_files();
}

// Opens the files that slices lie in and holds their headers against the manifest.
void CheckpointReader::open_tensor_files() {
  for (const ManifestFile& file : manifest_.files) {
    if (file.sha256.empty()) files_.emplace(file.name, SafetensorsFile(sized_file(path_, manifest_, file.name)));
  }
  std::map<std::string_view, size_t> num_tensors;
  for (const auto* tensors : {&manifest_.model, &manifest_.optimizer}) {
    for (const ManifestTensor& tensor : *tensors) {
      std::map<std::string_view, std::vector<const TensorSlice*>> by_file;
      for (const TensorSlice& slice : tensor.slices) by_file[slice.file].push_back(&slice);
      for (auto& [name, slices] : by_file) {
        check_slices(tensor, slices);
        ++num_tensors[name];
      }
    }
  }
  for (const auto& [name, file] : files_) {
    if (file.entries().size() != num_tensors[name]) {
      throw fault(file.path(), fmt::format("{} tensors, {} in the manifest", file.entries().size(), num_tensors[name]));
    }
  }
}

// Holds what a file has of a tensor against the slices that the manifest says are there.
void CheckpointReader::check_slices(const ManifestTensor& tensor, std::vector<const TensorSlice*> slices) const {
  std::ranges::sort(slices, {}, &TensorSlice::first);
  const std::string& name = slices.front()->file;
  std::vector<ElementRange> ranges;
  int64_t first = 0;
  for (const TensorSlice* slice : slices) {
    if (slice->first != first) {
      throw fault(path_ / "manifest.json", fmt::format("a slice of tensor '{}' begins at element {} of {}, not at {}",
                                                       tensor.name, slice->first, name, first));
    }
    ranges.push_back(slice->range);
    first += slice->range.extent;
  }
  const auto file = files_.find(name);
  if (file == files_.end()) throw fault(path_ / "manifest.json", fmt::format("it lists no {}", name));
  const Shape shape = slices_shape(tensor.name, tensor.dtype, tensor.shape, ranges);
  const SafetensorsFile::Entry* entry = file->second.find(tensor.name);
  if (entry == nullptr || entry->dtype != tensor.dtype || entry->shape != shape) {
    throw fault(path_ / name, fmt::format("tensor '{}' is not {} {} as in the manifest", tensor.name,
                                          dtype_name(tensor.dtype), shape));
  }
}

CheckpointReader CheckpointReader::open(const fs::path& path) {
  const fs::path checkpoint = resolve(path);
  try {
    return CheckpointReader(checkpoint);
  } catch (const Error& error) {
    throw refusal(checkpoint, error);
  }
}

const TensorSlice& CheckpointReader::slice_at(const ManifestTensor& tensor, int64_t offset) const {
  const auto after =
      std::ranges::upper_bound(tensor.slices, offset, {}, [](const TensorSlice& slice) { return slice.range.offset; });
  NMOE_CHECK(after != tensor.slices.begin() && offset <= tensor.shape.num_elements(), "element {} of tensor '{}' {}",
             offset, tensor.name, tensor.shape);
  return *std::prev(after);
}

std::span<const std::byte> CheckpointReader::stored_bytes(const ManifestTensor& tensor, int64_t offset) const {
  const auto& [range, name, first] = slice_at(tensor, offset);
  const SafetensorsFile& file = files_.find(name)->second;
  const size_t element_bytes = dtype_bytes(tensor.dtype);
  return file.bytes(*file.find(tensor.name))
      .subspan(static_cast<size_t>(first + offset - range.offset) * element_bytes,
               static_cast<size_t>(range.end() - offset) * element_bytes);
}

bool CheckpointReader::read_chunk(const ChunkRead& read) const {
  const ManifestTensor& tensor = *read.tensor;
  const ElementRange chunk = tensor.chunks[read.chunk];
  const TensorSlice& slice = slice_at(tensor, chunk.offset);
  const SafetensorsFile& file = files_.find(slice.file)->second;
  const SafetensorsFile::Entry& entry = *file.find(tensor.name);
  const auto element_bytes = static_cast<int64_t>(dtype_bytes(tensor.dtype));

  Sha256 hash;
  // Hashes elements [begin, end) of the tensor.
  const auto add = [&](int64_t begin, int64_t end, void* destination = nullptr) {
    const int64_t shift = slice.first - slice.range.offset;
    file.hash(entry, static_cast<size_t>((begin + shift) * element_bytes),
              static_cast<size_t>((end + shift) * element_bytes), hash, destination);
  };
  // Those of [begin, end) that the destination takes.
  const auto wanted = [&](int64_t begin, int64_t end) {
    const int64_t from = std::clamp(read.offset, begin, end);
    return std::pair(from, std::clamp(read.offset + read.destination.num_elements(), from, end));
  };
  if (tensor.dtype == read.destination.dtype()) {
    const auto [from, to] = wanted(chunk.offset, chunk.end());
    add(chunk.offset, from);
    if (from < to) {
      add(from, to, static_cast<std::byte*>(read.destination.raw()) + (from - read.offset) * element_bytes);
    }
    add(to, chunk.end());
  } else {
    std::vector<std::byte> block(static_cast<size_t>(std::min(kBlockElements, chunk.extent) * element_bytes));
    for (int64_t begin = chunk.offset; begin < chunk.end(); begin += kBlockElements) {
      const int64_t end = std::min(begin + kBlockElements, chunk.end());
      add(begin, end, block.data());
      const auto [from, to] = wanted(begin, end);
      if (from == to) continue;
      widen(tensor.dtype, block.data() + (from - begin) * element_bytes,
            read.destination.data<float>() + (from - read.offset), static_cast<size_t>(to - from));
    }
  }
  return hash.finish() == tensor.chunk_sha256[static_cast<size_t>(read.chunk)];
}

void CheckpointReader::read_chunks(std::span<const ChunkRead> reads, ThreadPool& pool) const {
  const auto num_reads = static_cast<int64_t>(reads.size());
  std::atomic<int64_t> first_bad = num_reads;
  pool.parallel_for(num_reads, [&](int64_t i, int) {
    int64_t known = first_bad.load();
    if (i > known || read_chunk(reads[static_cast<size_t>(i)])) return;
    while (i < known && !first_bad.compare_exchange_weak(known, i)) {
    }
  });
  if (first_bad == num_reads) return;
  const ChunkRead& bad = reads[static_cast<size_t>(first_bad.load())];
  const ElementRange range = bad.tensor->chunks[bad.chunk];
  throw fault(path_ / slice_at(*bad.tensor, range.offset).file,
              fmt::format("tensor '{}' was altered: its hash differs in chunk {} of {} (elements [{}, {}))",
                          bad.tensor->name, bad.chunk, bad.tensor->chunks.count(), range.offset, range.end()));
}

// The chunks that the destination's elements are in, from element `offset` of the tensor on.
void CheckpointReader::append_chunks(const ManifestTensor& tensor, int64_t offset, const Tensor& destination,
                                     std::vector<ChunkRead>& reads) {
  if (destination.num_elements() == 0) return;
  NMOE_CHECK(destination.raw() != nullptr, "tensor '{}' is loaded into no memory", tensor.name);
  const int64_t last = tensor.chunks.index_of(offset + destination.num_elements() - 1);
  for (int64_t chunk = tensor.chunks.index_of(offset); chunk <= last; ++chunk) {
    reads.push_back({&tensor, chunk, offset, destination});
  }
}

void CheckpointReader::load_chunks(std::span<const ChunkRead> reads) const {
  ThreadPool pool;
  try {
    read_chunks(reads, pool);
  } catch (const Error& error) {
    throw refusal(path_, error);
  }
}

void CheckpointReader::check_loads(const ManifestTensor& tensor, DType dtype, const Shape& shape) const {
  if (tensor.shape == shape && converts(tensor.dtype, dtype)) return;
  throw usage_error(
      fmt::format("checkpoint '{}': tensor '{}' is {} {}, the configuration asks for {} {}", path_.string(),
                  tensor.name, dtype_name(tensor.dtype), tensor.shape, dtype_name(dtype), shape),
      kOtherConfigRemedy);
}

const ManifestTensor& CheckpointReader::find(const std::string& name) const {
  for (const auto* tensors : {&manifest_.model, &manifest_.optimizer}) {
    if (const ManifestTensor* tensor = find_tensor(*tensors, name)) return *tensor;
  }
  throw no_tensor(path_, name);
}

void CheckpointReader::load(const std::string& name, const Tensor& destination) const {
  const ManifestTensor& tensor = find(name);
  check_loads(tensor, destination.dtype(), destination.shape());
  std::vector<ChunkRead> reads;
  append_chunks(tensor, 0, destination, reads);
  load_chunks(reads);
}

void CheckpointReader::load_part(const std::string& name, int64_t offset, const Tensor& destination) const {
  const ManifestTensor& tensor = find(name);
  const int64_t count = destination.num_elements(), num_elements = tensor.shape.num_elements();
  if (offset < 0 || count > num_elements || offset > num_elements - count ||
      !converts(tensor.dtype, destination.dtype())) {
    throw usage_error(fmt::format("checkpoint '{}': tensor '{}' is {} {}, the configuration asks for its elements "
                                  "[{}, {}) as {}",
                                  path_.string(), name, dtype_name(tensor.dtype), tensor.shape, offset, offset + count,
                                  dtype_name(destination.dtype())),
                      kOtherConfigRemedy);
  }
  std::vector<ChunkRead> reads;
  append_chunks(tensor, offset, destination, reads);
  load_chunks(reads);
}

void CheckpointReader::check_all(std::span<const ManifestTensor> tensors, std::span<const Wanted> wanted) const {
  std::set<std::string_view> unclaimed;
  for (const ManifestTensor& tensor : tensors) unclaimed.insert(tensor.name);
  for (const auto& [name, dtype, shape] : wanted) {
    const ManifestTensor* tensor = find_tensor(tensors, name);
    if (tensor == nullptr) throw no_tensor(path_, name);
    check_loads(*tensor, dtype, shape);
    unclaimed.erase(name);
  }
  if (!unclaimed.empty()) {
    throw usage_error(fmt::format("checkpoint '{}' has a tensor '{}', unknown to the configuration", path_.string(),
                                  *unclaimed.begin()),
                      kOtherConfigRemedy);
  }
}

void CheckpointReader::load_parts(std::span<const NamedPart> destinations) const {
  std::vector<ChunkRead> reads;
  for (const NamedPart& part : destinations) {
    const ManifestTensor& tensor = find(part.name);
    check_loads(tensor, part.tensor.dtype(), part.shape);
    append_chunks(tensor, part.offset, part.tensor, reads);
  }
  load_chunks(reads);
}

void CheckpointReader::load_all(std::span<const ManifestTensor> tensors,
                                std::span<const NamedTensor> destinations) const {
  std::vector<Wanted> wanted;
  std::vector<NamedPart> parts;
  for (const auto& [name, tensor] : destinations) {
    wanted.push_back({name, tensor.dtype(), tensor.shape()});
    parts.push_back({name, tensor, tensor.shape(), 0});
  }
  check_all(tensors, wanted);
  load_parts(parts);
}

void CheckpointReader::load_model(std::span<const NamedTensor> destinations) const {
  load_all(manifest_.model, destinations);
}

void CheckpointReader::load_optimizer(std::span<const NamedTensor> destinations) const {
  load_all(manifest_.optimizer, destinations);
}

void CheckpointReader::verify(std::span<const ManifestTensor> tensors, ThreadPool& pool) const {
  std::vector<ChunkRead> reads;
  for (const ManifestTensor& tensor : tensors) {
    for (int64_t chunk = 0; chunk < tensor.chunks.count(); ++chunk) {
      reads.push_back({&tensor, chunk, 0, Tensor(nullptr, tensor.dtype, {0})});
    }
  }
  read_chunks(reads, pool);
}

void CheckpointReader::verify_contents() const {
  ThreadPool pool;
  verify(manifest_.model, pool);
  verify(manifest_.optimizer, pool);
  verified_carried();
}

std::vector<CarriedFile> CheckpointReader::verified_carried() const {
  const std::string prefix = fmt::format("{}/", kCarriedFolder);
  std::vector<CarriedFile> files;
  for (const ManifestFile& file : manifest_.files) {
    if (!file.name.starts_with(prefix)) continue;
    const fs::path source = sized_file(path_, manifest_, file.name);
    if (sha256_of_file(source) != file.sha256) throw fault(source, "altered: its hash differs");
    files.push_back({file.name.substr(prefix.size()), source, file.sha256});
  }
  return files;
}

std::vector<CarriedFile> CheckpointReader::carried() const {
  try {
    return verified_carried();
  } catch (const Error& error) {
    throw refusal(path_, error);
  }
}

std::shared_ptr<const Tokenizer> CheckpointReader::tokenizer() const {
  if (tokenizer_json_.empty()) {
    throw usage_error(fmt::format("checkpoint '{}' has no tokenizer for text", path_.string()),
                      "n import says why the model's own is of no use here; without one it can be exported, compared "
                      "(n parity) and trained from");
  }
  return load_tokenizer((path_ / kTokenizerFile).string());
}

std::string CheckpointReader::weights_sha256() const {
  try {
    ThreadPool pool;
    verify(manifest_.model, pool);
  } catch (const Error& error) {
    throw refusal(path_, error);
  }
  return manifest_.weights_sha256;
}

std::optional<std::string> verify_checkpoint(const fs::path& path) {
  const fs::path checkpoint = resolve(path);
  try {
    CheckpointReader(checkpoint).verify_contents();
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace nmoe
