#include "hf/weights.h"

#include <algorithm>
#include <set>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "hf/config_json.h"
#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kScaleSuffix = "_scale_inv";

constexpr int64_t kConvertedAtOnce = 4096;  // elements; on the stack

Error folder_error(const fs::path& path, const std::string& what) {
  return runtime_error(fmt::format("'{}': {}", path.string(), what), "fetch the model again, with all its files");
}

// The file each tensor is said to be in; empty for a folder without an index.
std::map<std::string, std::string> read_index(const fs::path& dir) {
  const fs::path path = dir / kIndexFile;
  if (fs::exists(dir / kSingleFile)) return {};
  if (!fs::exists(path)) {
    throw runtime_error(fmt::format("'{}' holds neither {} nor {}", dir.string(), kSingleFile, kIndexFile),
                        "name the folder of a Hugging Face model with safetensors weights");
  }
  const nlohmann::json json = try_parse_json<nlohmann::json>(read_file_up_to(path, kMaxListFile));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) throw folder_error(path, "no \"weight_map\" in it");
  std::map<std::string, std::string> index;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!is_name_below(name) || fs::path(name).filename() != name) {
      throw folder_error(path, fmt::format("tensor '{}' is in no file of the folder", tensor));
    }
    index.emplace(tensor, name);
  }
  return index;
}

}  // namespace

float fp8_meaning(uint8_t code, float scale) { return bf16_to_float(float_to_bf16(e4m3_to_float(code) * scale)); }

std::string scales_name(const std::string& tensor) { return tensor + std::string(kScaleSuffix); }

bool is_scales_name(std::string_view tensor) { return tensor.ends_with(kScaleSuffix); }

std::string name_of_scaled(std::string_view scales) {
  return std::string(scales.substr(0, scales.size() - kScaleSuffix.size()));
}

HfTensor::HfTensor(const SafetensorsFile& file, const SafetensorsFile::Entry& entry,
                   const SafetensorsFile::Entry* scales, const SafetensorsFile* scales_file)
    : file_(&file), entry_(&entry), scales_file_(scales_file), scales_entry_(scales) {
  if (scales == nullptr) return;
  scale_columns_ = scales->shape[1];
  scales_.resize(static_cast<size_t>(scales->shape.num_elements()));
  widen(scales->dtype, scales_file->bytes(*scales).data(), scales_.data(), scales_.size());
}

void HfTensor::dequantise(int64_t begin, int64_t count, float* out) const {
  const std::byte* source = bytes().data() + begin;
  const int64_t columns = entry_->shape[1];
  while (count > 0) {
    // To the end of the row or of the block of columns, whichever comes first.
    const int64_t row = begin / columns, column = begin % columns, block = column / kHfFp8Block;
    const int64_t run = std::min({count, columns - column, (block + 1) * kHfFp8Block - column});
    const float scale = scales_[static_cast<size_t>(row / kHfFp8Block * scale_columns_ + block)];
    for (int64_t i = 0; i < run; ++i) out[i] = fp8_meaning(static_cast<uint8_t>(source[i]), scale);
    source += run;
    out += run;
    begin += run;
    count -= run;
  }
}

TensorSource HfTensor::scales() const {
  return {scales_entry_->name, scales_entry_->dtype, scales_entry_->shape,
          [bytes = scales_file_->bytes(*scales_entry_)](size_t begin, std::span<std::byte> scratch) {
            return bytes.subspan(begin, scratch.size());
          },
          check_mapped_files};
}

void HfTensor::read(int64_t begin, int64_t count, DType dtype, std::byte* out) const {
  if (!is_quantised()) {
    const std::byte* source = bytes().data() + static_cast<size_t>(begin) * dtype_bytes(entry_->dtype);
    convert(entry_->dtype, source, dtype, out, static_cast<size_t>(count));
    return;
  }
  float values[kConvertedAtOnce];
  for (int64_t done = 0; done < count; done += kConvertedAtOnce) {
    const int64_t some = std::min(kConvertedAtOnce, count - done);
    dequantise(begin + done, some, values);
    narrow(values, dtype, out + static_cast<size_t>(done) * dtype_bytes(dtype), static_cast<size_t>(some));
  }
}

HfWeights::HfWeights(const fs::path& dir) {
  const std::map<std::string, std::string> index = read_index(dir);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  if (index.empty()) names.insert(kSingleFile);

  struct Place {
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
  };
  std::map<std::string, Place> places;
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsFile>(dir / name));
    for (const SafetensorsFile::Entry& entry : files_.back()->entries()) {
      const bool expected = index.empty() || (index.contains(entry.name) && index.at(entry.name) == name);
      if (!expected) {
        throw folder_error(dir / name, fmt::format("{} does not list the tensor '{}' in it", kIndexFile, entry.name));
      }
      places.emplace(entry.name, Place{files_.back().get(), &entry});
    }
  }
  for (const auto& [tensor, file] : index) {
    if (!places.contains(tensor)) {
      throw folder_error(dir / file, fmt::format("it has no tensor '{}', which {} lists", tensor, kIndexFile));
    }
  }

  for (const auto& [name, place] : places) {
    const SafetensorsFile::Entry& entry = *place.entry;
    if (is_scales_name(name) && places.contains(name_of_scaled(name))) continue;
    if (entry.dtype != DType::kF8E4M3) {
      tensors_.emplace(name, HfTensor(*place.file, entry));
      continue;
    }
    const auto blocks = [](int64_t size) { return (size + kHfFp8Block - 1) / kHfFp8Block; };
    const auto scales = places.find(scales_name(name));
    if (scales == places.end() || entry.shape.rank() != 2 || !is_weight_dtype(scales->second.entry->dtype) ||
        scales->second.entry->shape != Shape{blocks(entry.shape[0]), blocks(entry.shape[1])}) {
      throw folder_error(
          dir, fmt::format("the FP8 tensor '{}' {} has no scales '{}' in F32, BF16 or F16 for blocks of {} x {}", name,
                           entry.shape, scales_name(name), kHfFp8Block, kHfFp8Block));
    }
    tensors_.emplace(name, HfTensor(*place.file, entry, scales->second.entry, scales->second.file));
  }
}

const HfTensor* HfWeights::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

int64_t HfWeights::num_quantised() const {
  return std::ranges::count_if(tensors_, [](const auto& tensor) { return tensor.second.is_quantised(); });
}

int64_t HfWeights::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += static_cast<int64_t>(fs::file_size(file->path()));
  return bytes;
}

}  // namespace nmoe
