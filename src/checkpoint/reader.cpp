#include "checkpoint/reader.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

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
  return parse_manifest(read_file(path), path);
}

constexpr std::string_view kTokenizerFile = "tokenizer.json";

bool has_file(const CheckpointManifest& manifest, std::string_view name) {
  return std::ranges::find(manifest.files, name, &ManifestFile::name) != manifest.files.end();
}

// The path of `name` in the checkpoint once it is known to have its recorded size.
fs::path sized_file(const fs::path& checkpoint, const CheckpointManifest& manifest, std::string_view name) {
  const auto file = std::ranges::find(manifest.files, name, &ManifestFile::name);
  NMOE_CHECK(file != manifest.files.end(), "no {} in an intact manifest", name);
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

// Opens a tensor file and holds its header against the manifest.
SafetensorsFile open_tensors(const fs::path& checkpoint, const CheckpointManifest& manifest, std::string_view name,
                             std::span<const ManifestTensor> tensors) {
  SafetensorsFile file(sized_file(checkpoint, manifest, name));
  for (const ManifestTensor& tensor : tensors) {
    const SafetensorsFile::Entry* entry = file.find(tensor.name);
    if (entry == nullptr || entry->dtype != tensor.dtype || entry->shape != tensor.shape) {
      throw fault(file.path(), fmt::format("tensor '{}' is not {} {} as in the manifest", tensor.name,
                                           dtype_name(tensor.dtype), tensor.shape));
    }
  }
  if (file.entries().size() != tensors.size()) {
    throw fault(file.path(), fmt::format("{} tensors, {} in the manifest", file.entries().size(), tensors.size()));
  }
  return file;
}

// Hashes the tensor, into `destination` when there is one.
void verify_tensor(const SafetensorsFile& file, const ManifestTensor& tensor, void* destination) {
  if (file.sha256(*file.find(tensor.name), destination) != tensor.sha256) {
    throw fault(file.path(), fmt::format("tensor '{}' was altered: its hash differs", tensor.name));
  }
}

bool can_load(const ManifestTensor& tensor, const Tensor& destination) {
  if (tensor.shape != destination.shape()) return false;
  return tensor.dtype == destination.dtype() || (is_weight_dtype(tensor.dtype) && destination.dtype() == DType::kF32);
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
      tokenizer_json_(has_file(manifest_, kTokenizerFile) ? read_text(path_, manifest_, kTokenizerFile) : ""),
      model_file_(open_tensors(path_, manifest_, "model.safetensors", manifest_.model)),
      optimizer_file_(open_tensors(path_, manifest_, "optimizer.safetensors", manifest_.optimizer)) {}

CheckpointReader CheckpointReader::open(const fs::path& path) {
  const fs::path checkpoint = resolve(path);
  try {
    return CheckpointReader(checkpoint);
  } catch (const Error& error) {
    throw refusal(checkpoint, error);
  }
}

void CheckpointReader::load(const std::string& name, const Tensor& destination) const {
  const auto in_model = std::ranges::find(manifest_.model, name, &ManifestTensor::name);
  const bool found = in_model != manifest_.model.end();
  load_from(found ? model_file_ : optimizer_file_, found ? model() : optimizer(), name, destination);
}

void CheckpointReader::load_from(const SafetensorsFile& file, std::span<const ManifestTensor> tensors,
                                 const std::string& name, const Tensor& destination) const {
  const auto tensor = std::ranges::find(tensors, name, &ManifestTensor::name);
  if (tensor == tensors.end()) {
    throw usage_error(fmt::format("checkpoint '{}' has no tensor '{}'", path_.string(), name), kOtherConfigRemedy);
  }
  if (!can_load(*tensor, destination)) {
    throw usage_error(
        fmt::format("checkpoint '{}': tensor '{}' is {} {}, the configuration asks for {} {}", path_.string(), name,
                    dtype_name(tensor->dtype), tensor->shape, dtype_name(destination.dtype()), destination.shape()),
        kOtherConfigRemedy);
  }
  NMOE_CHECK(destination.raw() != nullptr || destination.num_bytes() == 0, "tensor '{}' is loaded into no memory",
             name);
  try {
    if (tensor->dtype == destination.dtype()) {
      verify_tensor(file, *tensor, destination.raw());
    } else {
      verify_tensor(file, *tensor, nullptr);
      widen(tensor->dtype, file.bytes(*file.find(name)).data(), destination.data<float>(),
            static_cast<size_t>(destination.num_elements()));
    }
  } catch (const Error& error) {
    throw refusal(path_, error);
  }
}

void CheckpointReader::load_all(const SafetensorsFile& file, std::span<const ManifestTensor> tensors,
                                std::span<const NamedTensor> destinations) const {
  std::set<std::string_view> unclaimed;
  for (const ManifestTensor& tensor : tensors) unclaimed.insert(tensor.name);
  ThreadPool pool;
  pool.parallel_for(static_cast<int64_t>(destinations.size()), [&](int64_t i, int) {
    const NamedTensor& item = destinations[static_cast<size_t>(i)];
    load_from(file, tensors, item.name, item.tensor);
  });
  for (const NamedTensor& item : destinations) unclaimed.erase(item.name);
  if (!unclaimed.empty()) {
    throw usage_error(fmt::format("checkpoint '{}' has a tensor '{}', unknown to the configuration", path_.string(),
                                  *unclaimed.begin()),
                      kOtherConfigRemedy);
  }
}

void CheckpointReader::load_model(std::span<const NamedTensor> destinations) const {
  load_all(model_file_, manifest_.model, destinations);
}

void CheckpointReader::load_optimizer(std::span<const NamedTensor> destinations) const {
  load_all(optimizer_file_, manifest_.optimizer, destinations);
}

void CheckpointReader::verify_contents() const {
  for (const ManifestTensor& tensor : manifest_.model) verify_tensor(model_file_, tensor, nullptr);
  for (const ManifestTensor& tensor : manifest_.optimizer) {
    verify_tensor(optimizer_file_, tensor, nullptr);
  }
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
    for (const ManifestTensor& tensor : manifest_.model) verify_tensor(model_file_, tensor, nullptr);
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
