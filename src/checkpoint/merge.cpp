#include "checkpoint/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ranges>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "config/load.h"
#include "config/training_keys.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using Readers = std::vector<CheckpointReader>;

// In what a model's weights mean; losses and where they began are how they came to be.
std::string other_model(const CheckpointReader& a, const CheckpointReader& b) {
  const ModelConfig of_a = saved_config(a).model;
  ModelConfig of_b = saved_config(b).model;
  take_training_keys(of_b, of_a);
  return explain_difference(of_a, of_b);
}

void check_tensors(const CheckpointReader& first, const CheckpointReader& other) {
  const auto fail = [&](const std::string& what) {
    throw usage_error(fmt::format("{} and {} cannot be merged: {}", first.path().string(), other.path().string(), what),
                      "merge checkpoints of one model, imported with one --dtype");
  };
  if (first.model().size() != other.model().size()) {
    fail(fmt::format("they have {} and {} tensors", first.model().size(), other.model().size()));
  }
  for (const ManifestTensor& tensor : first.model()) {
    const auto same = std::ranges::find(other.model(), tensor.name, &ManifestTensor::name);
    if (same == other.model().end()) fail(fmt::format("the second has no tensor '{}'", tensor.name));
    if (same->dtype != tensor.dtype || same->shape != tensor.shape) {
      fail(fmt::format("'{}' is {} {} and {} {}", tensor.name, dtype_name(tensor.dtype), tensor.shape,
                       dtype_name(same->dtype), same->shape));
    }
  }
}

void check_together(const CheckpointReader& first, const CheckpointReader& other) {
  if (const std::string difference = other_model(first, other); !difference.empty()) {
    throw usage_error(
        fmt::format("{} and {} hold different models:\n{}", first.path().string(), other.path().string(), difference),
        "merge checkpoints of one model");
  }
  const auto hash = [](const CheckpointReader& reader) {
    return reader.tokenizer_json().empty() ? "" : reader.tokenizer()->hash();
  };
  if (hash(first) != hash(other)) {
    throw usage_error(fmt::format("{} and {} have different tokenizers", first.path().string(), other.path().string()),
                      "merge checkpoints whose ids mean the same texts");
  }
  check_tensors(first, other);
}

// The mean of a tensor's elements from byte `begin` on, into `to`.
struct Merge {
  const Readers& readers;
  const std::vector<double>& counts;
  double sum;  // of counts

  void operator()(const ManifestTensor& tensor, size_t begin, std::span<std::byte> to) const {
    const size_t width = dtype_bytes(tensor.dtype), size = to.size() / width;
    std::vector<double> total(size, 0.0);
    std::vector<float> values(size);
    for (size_t k = 0; k < readers.size(); ++k) {
      readers[k].load_part(tensor.name, static_cast<int64_t>(begin / width),
                           Tensor(values.data(), DType::kF32, {static_cast<int64_t>(size)}));
      for (size_t i = 0; i < size; ++i) total[i] += counts[k] * static_cast<double>(values[i]);
    }
    for (size_t i = 0; i < size; ++i) values[i] = static_cast<float>(total[i] / sum);
    convert(DType::kF32, values.data(), tensor.dtype, to.data(), size);
  }
};

const CheckpointReader& last_of(const Readers& readers) {
  return *std::ranges::max_element(readers | std::views::reverse, {},
                                   [](const CheckpointReader& reader) { return reader.info().step; });
}

}  // namespace

MergeReport merge_checkpoints(const MergeOptions& options) {
  if (options.checkpoints.size() < 2) {
    throw usage_error("one checkpoint has nothing to be merged with", "name two or more");
  }
  Readers readers;
  for (const fs::path& path : options.checkpoints) readers.push_back(CheckpointReader::open(path));
  for (const CheckpointReader& reader : readers) check_together(readers.front(), reader);
  const CheckpointFolder folder(options.out);
  if (fs::exists(options.out / "manifest.json")) {
    throw usage_error(fmt::format("'{}' is a checkpoint", options.out.string()),
                      "name the folder that the merged one is to be in");
  }
  if (const auto present = latest_checkpoint(options.out)) {
    throw usage_error(
        fmt::format("'{}' holds the checkpoint {} already", options.out.string(), present->filename().string()),
        "merge into another folder, or remove that one first");
  }
  std::vector<double> counts(readers.size(), 1.0);
  if (options.weights == MergeWeights::kLinear) std::iota(counts.begin(), counts.end(), 1.0);
  const Merge merge{readers, counts, std::accumulate(counts.begin(), counts.end(), 0.0)};

  const CheckpointReader& last = last_of(readers);
  std::vector<TensorSource> sources;
  for (const ManifestTensor& tensor : last.model()) {
    sources.push_back({.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .read = [&merge, &tensor](size_t begin, std::span<std::byte> scratch) {
                         merge(tensor, begin, scratch);
                         return std::span<const std::byte>(scratch);
                       }});
  }
  CheckpointHead head{.info = last.info(),
                      .config_toml = last.config_toml(),
                      .tokenizer_json = last.tokenizer_json(),
                      .carried = last.carried()};
  head.info.run_id.clear();  // no run's state, but its weights
  head.info.nmoe_version = options.version;
  head.info.nmoe_commit = options.commit;
  ThreadPool pool(options.num_threads);
  MergeReport report{.checkpoint = write_checkpoint(options.out, head, sources, {}, pool),
                     .num_tensors = std::ssize(sources)};
  for (size_t k = 0; k < readers.size(); ++k) report.parts.push_back({readers[k].path(), counts[k] / merge.sum});
  return report;
}

}  // namespace nmoe
