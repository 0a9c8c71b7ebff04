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
constexpr std::string_view kScaleSuffix = "_scale_inv", kBlocksSuffix = "_blocks", kBlockScalesSuffix = "_scales";

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

std::string blocks_name(const std::string& tensor) { return tensor + std::string(kBlocksSuffix); }

std::string block_scales_name(const std::string& tensor) { return tensor + std::string(kBlockScalesSuffix); }

bool is_scales_name(std::string_view tensor) {
  return tensor.ends_with(kScaleSuffix) || tensor.ends_with(kBlockScalesSuffix);
}

std::string name_of_scaled(std::string_view scales) {
  const size_t suffix = (scales.ends_with(kScaleSuffix) ? kScaleSuffix : kBlockScalesSuffix).size();
  return std::string(scales.substr(0, scales.size() - suffix));
}

bool is_blocks_name(std::string_view tensor) { return tensor.ends_with(kBlocksSuffix); }

std::string name_of_blocks(std::string_view blocks) {
  return std::string(blocks.substr(0, blocks.size() - kBlocksSuffix.size()));
}

float mxfp4_meaning(uint8_t code, uint8_t scale) {
  return bf16_to_float(float_to_bf16(e2m1_to_float(code) * e8m0_to_float(scale)));
}

HfTensor::HfTensor(const SafetensorsFile& file, const SafetensorsFile::Entry& entry,
                   const SafetensorsFile::Entry* scales, const SafetensorsFile* scales_file)
    : file_(&file), entry_(&entry), scales_file_(scales_file), scales_entry_(scales), shape_(entry.shape) {
  if (is_mxfp4()) shape_ = {shape_[0], shape_[2] * kHfMxFp4Block, shape_[1]};
  if (scales == nullptr || is_mxfp4()) return;
  scale_columns_ = scales->shape[1];
  scales_.resize(static_cast<size_t>(scales->shape.num_elements()));
  widen(scales->dtype, scales_file->bytes(*scales).data(), scales_.data(), scales_.size());
}

void HfTensor::widen_mxfp4(int64_t index, int64_t count, float* values) const {
  const int64_t in = shape_[1], out = shape_[2];
  const int64_t expert = index / (in * out), row = index / out % in, column = index % out;
  const int64_t first = (expert * out + column) * in + row;  // among the codes
  const std::byte* const codes = bytes().data();
  const std::byte* const scales = scales_file_->bytes(*scales_entry_).data();
  for (int64_t i = 0, place = first; i < count; ++i, ++place) {
    values[i] = mxfp4_meaning(mxfp4_code(codes[place / 2], place), static_cast<uint8_t>(scales[place / kHfMxFp4Block]));
  }
}

void HfTensor::dequantise(int64_t begin, int64_t count, float* out) const {
  if (is_mxfp4()) {
    for (int64_t i = 0; i < count; ++i) widen_mxfp4(begin + i, 1, out + i);
    return;
  }
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

namespace {

// Elements [begin, end) of a piece, of so many bytes each. Rows are taken some at a time, column by column: where they
// are columns of the tensor, neighbours in one cache line are read together.
template <class Element>
void gather(const TensorPiece& piece, int64_t begin, int64_t end, const std::byte* tensor, std::byte* target) {
  constexpr int64_t kRows = 64;
  const auto* const source = reinterpret_cast<const Element*>(tensor);
  auto* const out = reinterpret_cast<Element*>(target);
  for (int64_t first = begin / piece.width; first * piece.width < end; first += kRows) {
    for (int64_t column = 0; column < piece.width; ++column) {
      for (int64_t row = first; row < first + kRows; ++row) {
        const int64_t i = row * piece.width + column;
        if (i >= begin && i < end) out[i - begin] = source[piece.place_of(i)];
      }
    }
  }
}

}  // namespace

void HfTensor::read(const TensorPiece& piece, int64_t begin, int64_t end, DType dtype, std::byte* out) const {
  if (!piece.is_spread()) return read(piece.tensor_offset + begin, end - begin, dtype, out);
  NMOE_CHECK(!is_quantised() || is_mxfp4(), "{} is spread over codes of FP8", piece.tensor);
  const int64_t some = std::max(kConvertedAtOnce, 64 * piece.width);
  std::vector<float> values;
  std::vector<std::byte> gathered;
  for (int64_t from = begin; from < end; from += some) {
    const int64_t to = std::min(end, from + some);
    std::byte* const target = out + static_cast<size_t>(from - begin) * dtype_bytes(dtype);
    if (is_quantised()) {
      values.resize(static_cast<size_t>(to - from));
      for (int64_t i = from, run = 0; i < to; i += run) {
        run = piece.column_step == shape_[2] ? std::min(to - i, piece.width - i % piece.width) : 1;
        widen_mxfp4(piece.place_of(i), run, values.data() + (i - from));
      }
      narrow(values.data(), dtype, target, values.size());
      continue;
    }
    const size_t size = dtype_bytes(entry_->dtype);
    gathered.resize(static_cast<size_t>(to - from) * size);
    size == 2 ? gather<uint16_t>(piece, from, to, bytes().data(), gathered.data())
              : gather<uint32_t>(piece, from, to, bytes().data(), gathered.data());
    convert(entry_->dtype, gathered.data(), dtype, target, static_cast<size_t>(to - from));
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

  const auto has = [&](const std::string& name, DType dtype) {
    const auto found = places.find(name);
    return found != places.end() && found->second.entry->dtype == dtype;
  };
  const auto belongs_to_codes = [&](const std::string& scales) {
    const std::string scaled = name_of_scaled(scales);
    return has(scaled, DType::kF8E4M3) || has(blocks_name(scaled), DType::kU8);
  };
  for (const auto& [name, place] : places) {
    const SafetensorsFile::Entry& entry = *place.entry;
    if (is_scales_name(name) && belongs_to_codes(name)) continue;
    if (is_blocks_name(name) && entry.dtype == DType::kU8) {
      const std::string tensor = name_of_blocks(name);
      const auto scales = places.find(block_scales_name(tensor));
      const Shape& shape = entry.shape;
      if (shape.rank() != 4 || shape[3] * 2 != kHfMxFp4Block || scales == places.end() ||
          scales->second.entry->dtype != DType::kU8 ||
          scales->second.entry->shape != Shape{shape[0], shape[1], shape[2]}) {
        throw folder_error(dir, fmt::format("the MXFP4 tensor '{}' {} has no scales '{}' in U8 for blocks of {}", name,
                                            shape, block_scales_name(tensor), kHfMxFp4Block));
      }
      tensors_.emplace(tensor, HfTensor(*place.file, entry, scales->second.entry, scales->second.file));
      continue;
    }
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
