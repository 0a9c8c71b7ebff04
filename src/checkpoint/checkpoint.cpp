#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/chrono.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <set>
#include <system_error>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

constexpr std::string_view kStepPrefix = "step_";
constexpr size_t kStepDigits = 8;  // at least: a later step makes the name longer
constexpr const char* kLockFile = ".lock";

std::string step_name(int64_t step) { return fmt::format("{}{:0{}}", kStepPrefix, step, kStepDigits); }

// All the digits of `text` as a number, or nothing.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// What is in `dir`; nothing when there is no such folder.
std::vector<fs::path> entries_of(const fs::path& dir) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw runtime_error(fmt::format("cannot list '{}': {}", dir.string(), error.message()),
                        "name a folder that this user may read");
  }
  return entries;
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw runtime_error(fmt::format("cannot rename '{}' to '{}': {}", from.string(), to.string(), error.message()),
                        "check the permissions of the folder they are in");
  }
}

void remove_checkpoint(const fs::path& checkpoint) {
  const TemporaryFolder doomed(checkpoint);
  rename_path(checkpoint, doomed.path());
  sync_directory(checkpoint.parent_path());  // before anything in it is gone
  remove_tree(doomed.path());
}

// Gives the finished folder its name. A checkpoint of the same step changes places with it at one
// stroke where the file system can do that, so that there is always one of the two, and ends up
// under the temporary name.
void give_name(const fs::path& temporary, const fs::path& checkpoint) {
  if (::rename(temporary.c_str(), checkpoint.c_str()) == 0) return;
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, checkpoint.c_str(), RENAME_EXCHANGE) == 0) {
      return;
    }
    remove_checkpoint(checkpoint);
  }
  rename_path(temporary, checkpoint);
}

// "model.safetensors", of several writers "model.rank_00002.safetensors".
std::string tensor_file(std::string_view group, const WriterIndex& writer) {
  return writer.count == 1 ? fmt::format("{}.safetensors", group)
                           : fmt::format("{}.rank_{:05}.safetensors", group, writer.index);
}

ManifestFile write_text(const fs::path& path, std::string_view text) {
  FileWriter file(path);
  file.write(text.data(), text.size());
  file.close();
  return {path.filename().string(), text.size(), sha256_hex(text)};
}

// Puts a carried file at `path`.
ManifestFile carry(const CarriedFile& file, const fs::path& path) {
  std::error_code error;
  if (!file.sha256.empty()) fs::create_hard_link(file.source, path, error);
  if (file.sha256.empty() || error) fs::copy_file(file.source, path, error);
  if (error) {
    throw runtime_error(
        fmt::format("cannot copy '{}' to '{}': {}", file.source.string(), path.string(), error.message()),
        "check the space and the permissions there");
  }
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);  // a copy has its source's permissions
  sync_file(path);
  return {(fs::path(kCarriedFolder) / file.name).string(), fs::file_size(path),
          file.sha256.empty() ? sha256_of_file(path) : file.sha256};
}

// A checkpoint from one writer.
fs::path write_alone(const fs::path& dir, const CheckpointHead& head, std::span<const TensorSource> model,
                     std::span<const TensorSource> optimizer, std::span<const TensorSource> carried, ThreadPool& pool) {
  const auto whole = [](std::span<const TensorSource> tensors) {
    std::vector<TensorPart> parts;
    for (const TensorSource& tensor : tensors) parts.push_back(whole_tensor(tensor));
    return parts;
  };
  CheckpointDraft draft(dir, head.info.step);
  const WrittenPart part = draft.write({}, whole(model), whole(optimizer), pool);
  return draft.publish(head, std::span(&part, 1), carried, pool);
}

}  // namespace

TensorPart whole_tensor(TensorSource source) {
  const Shape shape = source.shape;
  return {std::move(source), shape, {{0, shape.num_elements()}}};
}

TensorPart part_of(const TensorSource& whole, ElementRange range) {
  const size_t first = static_cast<size_t>(range.offset) * dtype_bytes(whole.dtype);
  TensorSource source = whole;
  source.shape = slice_shape(whole.name, whole.dtype, whole.shape, range);
  source.read = [read = whole.read, first](size_t begin, std::span<std::byte> scratch) {
    return read(first + begin, scratch);
  };
  return {std::move(source), whole.shape, {range}};
}

CheckpointDraft::CheckpointDraft(const fs::path& dir, int64_t step) : CheckpointDraft(dir, step, fs::path()) {
  make_directories(dir);
  own_.emplace(dir / step_name(step));
  folder_ = own_->path();
}

CheckpointDraft CheckpointDraft::joined(const fs::path& dir, int64_t step, fs::path folder) {
  return CheckpointDraft(dir, step, std::move(folder));
}

WrittenPart CheckpointDraft::write(WriterIndex writer, std::span<const TensorPart> model,
                                   std::span<const TensorPart> optimizer, ThreadPool& pool) const {
  NMOE_CHECK(writer.index >= 0 && writer.index < writer.count, "writer {} of {}", writer.index, writer.count);
  WrittenPart written;
  const auto write_tensors = [&](std::string_view group, std::span<const TensorPart> parts) {
    const std::string file = tensor_file(group, writer);
    std::vector<TensorSource> sources;
    for (const auto& [source, shape, slices] : parts) {
      const Shape expected = slices_shape(source.name, source.dtype, shape, slices);
      NMOE_CHECK(source.shape == expected, "the part of tensor '{}' is {}, not {}", source.name, source.shape,
                 expected);
      sources.push_back(source);
    }
    std::vector<ChunkHashes> hashes = write_safetensors(folder_ / file, sources, pool);
    written.files.push_back({file, fs::file_size(folder_ / file), ""});
    std::vector<ManifestTensor> entries;
    for (size_t i = 0; i < parts.size(); ++i) {
      ManifestTensor& entry = entries.emplace_back();
      entry.name = sources[i].name;
      entry.dtype = sources[i].dtype;
      entry.shape = parts[i].shape;
      int64_t first = 0;
      for (const ElementRange& range : parts[i].slices) {
        entry.slices.push_back({range, file, first});
        first += range.extent;
      }
      entry.chunk_sha256 = std::move(hashes[i]);
    }
    return entries;
  };
  written.model = write_tensors("model", model);
  written.optimizer = write_tensors("optimizer", optimizer);
  return written;
}

fs::path CheckpointDraft::publish(const CheckpointHead& head, std::span<const WrittenPart> parts,
                                  std::span<const TensorSource> carried, ThreadPool& pool) {
  NMOE_CHECK(head.info.step == step_, "step {} in the folder of step {}", head.info.step, step_);
  CheckpointManifest manifest;
  manifest.info = head.info;
  manifest.info.created_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  std::vector<ManifestTensor> model, optimizer;
  for (const WrittenPart& part : parts) {
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    model.insert(model.end(), part.model.begin(), part.model.end());
    optimizer.insert(optimizer.end(), part.optimizer.begin(), part.optimizer.end());
  }
  manifest.model = merge_slices(model);
  manifest.optimizer = merge_slices(optimizer);
  manifest.weights_sha256 = combined_sha256(manifest.model);
  manifest.files.push_back(write_text(folder_ / "config.toml", head.config_toml));
  if (!head.tokenizer_json.empty()) {
    manifest.files.push_back(write_text(folder_ / "tokenizer.json", head.tokenizer_json));
  }
  if (!head.carried.empty() || !carried.empty()) {
    const fs::path folder = folder_ / kCarriedFolder;
    make_directories(folder);
    for (const CarriedFile& file : head.carried) manifest.files.push_back(carry(file, folder / file.name));
    if (!carried.empty()) {
      const fs::path path = folder / kCarriedTensors;
      write_safetensors(path, carried, pool);
      manifest.files.push_back(
          {(fs::path(kCarriedFolder) / kCarriedTensors).string(), fs::file_size(path), sha256_of_file(path)});
    }
    sync_directory(folder);
  }
  write_text(folder_ / "manifest.json", print_manifest(manifest));
  sync_directory(folder_);

  fs::path checkpoint = dir_ / step_name(step_);
  give_name(folder_, checkpoint);
  sync_directory(dir_);
  return checkpoint;
}

CheckpointFolder::CheckpointFolder(const fs::path& dir) : dir_(dir) {
  std::error_code unknown;  // make_directories() will say
  for (fs::path path = dir; !path.empty() && !fs::exists(path, unknown); path = path.parent_path()) {
    if (path.has_filename()) made_.push_back(path);
  }
  make_directories(dir);
  lock_.emplace(dir / kLockFile);
  remove_unfinished_folders(dir_ / "");
}

CheckpointFolder::~CheckpointFolder() {
  std::error_code ignored;
  fs::remove(dir_ / kLockFile, ignored);
  for (const fs::path& path : made_) fs::remove(path, ignored);  // if it is empty
}

fs::path write_checkpoint(const fs::path& dir, const CheckpointState& state) {
  ThreadPool pool(1);  // training has the other processors
  return write_alone(dir, state, in_memory(state.model), in_memory(state.optimizer), {}, pool);
}

fs::path write_checkpoint(const fs::path& dir, const CheckpointHead& head, std::span<const TensorSource> model,
                          std::span<const TensorSource> carried, ThreadPool& pool) {
  return write_alone(dir, head, model, {}, carried, pool);
}

std::optional<int64_t> checkpoint_step(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = parse_number<int64_t>(std::string_view(name).substr(kStepPrefix.size()));
  // Only the canonical spelling: "step_40" or "step_-0000001" is somebody else's.
  return step && *step >= 0 && name == step_name(*step) ? step : std::nullopt;
}

std::vector<fs::path> list_checkpoints(const fs::path& dir) {
  std::vector<fs::path> found = entries_of(dir);
  std::erase_if(found, [](const fs::path& path) { return !checkpoint_step(path); });
  std::ranges::sort(found, {}, checkpoint_step);
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& dir) {
  const std::vector<fs::path> found = list_checkpoints(dir);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

void prune_checkpoints(const fs::path& dir, int64_t keep_last) {
  const std::vector<fs::path> found = list_checkpoints(dir);
  const auto keep = static_cast<size_t>(std::max<int64_t>(keep_last, 0));
  if (keep > 0 && found.size() > keep) {
    for (const fs::path& path : std::span(found).first(found.size() - keep)) remove_checkpoint(path);
  }
  remove_unfinished_folders(dir / "");
}

namespace {

int64_t drop_optimizer_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  CheckpointManifest manifest = parse_manifest(read_file_up_to(path, kMaxListFile), path);
  std::set<std::string> dropped;
  for (const ManifestTensor& tensor : manifest.optimizer) {
    for (const TensorSlice& slice : tensor.slices) dropped.insert(slice.file);
  }
  for (const ManifestTensor& tensor : manifest.model) {
    for (const TensorSlice& slice : tensor.slices) dropped.erase(slice.file);
  }
  if (dropped.empty()) return 0;
  manifest.optimizer.clear();
  const TemporaryFolder smaller(checkpoint);
  int64_t freed = 0;
  std::erase_if(manifest.files, [&](const ManifestFile& file) {
    if (!dropped.contains(file.name)) return false;
    freed += static_cast<int64_t>(file.bytes);
    return true;
  });
  std::set<fs::path> folders = {smaller.path()};
  for (const ManifestFile& file : manifest.files) {
    if (!is_name_below(file.name)) {
      throw runtime_error(fmt::format("'{}' lists '{}', which is not a file of a checkpoint", path.string(), file.name),
                          "the checkpoint was altered: move it away");
    }
    const fs::path link = smaller.path() / file.name;
    if (folders.insert(link.parent_path()).second) make_directories(link.parent_path());
    std::error_code error;
    fs::create_hard_link(checkpoint / file.name, link, error);
    if (error) {
      throw runtime_error(fmt::format("cannot link '{}': {}", (checkpoint / file.name).string(), error.message()),
                          "move the checkpoints to a file system that has hard links");
    }
  }
  const std::string text = print_manifest(manifest);
  parse_manifest(text, path);  // one of an earlier format, say, stays what it is
  write_text(smaller.path() / "manifest.json", text);
  for (const fs::path& folder : folders) sync_directory(folder);
  if (::renameat2(AT_FDCWD, smaller.path().c_str(), AT_FDCWD, checkpoint.c_str(), RENAME_EXCHANGE) != 0) {
    throw io_error("exchange", checkpoint, errno);
  }
  sync_directory(checkpoint.parent_path());  // before anything of the old one is gone
  return freed;
}

}  // namespace

int64_t drop_optimizer_states(const fs::path& dir) {
  std::vector<fs::path> found = list_checkpoints(dir);
  if (!found.empty()) found.pop_back();
  int64_t freed = 0;
  for (const fs::path& checkpoint : found) freed += drop_optimizer_state(checkpoint);
  return freed;
}

}  // namespace nmoe
