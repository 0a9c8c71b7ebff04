// The tensors of a Hugging Face folder: model.safetensors, or shards listed in model.safetensors.index.json. FP8 and
// MXFP4 weights are read as what they stand for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "hf/tensor_map.h"
#include "tensor/chunks.h"

namespace nmoe {

// What an FP8 tensor's element is: its code's value times its block's scale, rounded to BF16, which is what DeepSeek's
// own conversion makes of it.
float fp8_meaning(uint8_t code, float scale);
// What the scales of an FP8 tensor are called.
std::string scales_name(const std::string& tensor);
// Of an MXFP4 tensor: what its codes are called, and its scales.
std::string blocks_name(const std::string& tensor);
std::string block_scales_name(const std::string& tensor);
// Whether a tensor is called as scales of either are, and of which it then is the scales; the same of codes in blocks.
bool is_scales_name(std::string_view tensor);
std::string name_of_scaled(std::string_view scales);
bool is_blocks_name(std::string_view tensor);
std::string name_of_blocks(std::string_view blocks);

// An MXFP4 tensor [E, in, out] is codes [E, out, in / 32, 16] in E2M1, the lower half of a byte first, and scales
// [E, out, in / 32] in E8M0, both U8: a value is its code's times its scale, which BF16 has exactly but where that is
// beyond it (gpt-oss, arXiv 2508.10925; OCP Microscaling Formats 1.0). Such values, and the codes of a byte.
constexpr int64_t kHfMxFp4Block = 32;
float mxfp4_meaning(uint8_t code, uint8_t scale);
constexpr uint8_t mxfp4_code(std::byte pair, int64_t element) {
  return static_cast<uint8_t>(static_cast<uint8_t>(pair) >> (element % 2 * 4) & 15U);
}

// A tensor on the disk. Const members may be called from several threads.
class HfTensor {
 public:
  // `scales`, of an FP8 tensor [R, C], is F32, BF16 or F16 [ceil(R / 128), ceil(C / 128)]: element (i, j) is
  // fp8_meaning of its code and scales[i / 128][j / 128] (DeepSeek-V3, arXiv 2412.19437, section 3.3;
  // "weight_scale_inv" in its checkpoints). Of codes in U8 they are those of MXFP4, as above.
  HfTensor(const SafetensorsFile& file, const SafetensorsFile::Entry& entry,
           const SafetensorsFile::Entry* scales = nullptr, const SafetensorsFile* scales_file = nullptr);

  // Of its values: [E, in, out] of an MXFP4 tensor.
  const Shape& shape() const { return shape_; }
  // That on the disk, BF16 for what is quantised.
  DType dtype() const { return is_quantised() ? DType::kBF16 : entry_->dtype; }
  bool is_quantised() const { return scales_entry_ != nullptr; }
  bool is_mxfp4() const { return is_quantised() && entry_->dtype == DType::kU8; }

  // Elements [begin, begin + count) as `dtype`, which is dtype() or, where both are weight dtypes, another one.
  void read(int64_t begin, int64_t count, DType dtype, std::byte* out) const;
  // Elements [begin, end) of a piece of this tensor.
  void read(const TensorPiece& piece, int64_t begin, int64_t end, DType dtype, std::byte* out) const;
  // What is on the disk, and its hash (tensor_sha256).
  std::span<const std::byte> bytes() const { return file_->bytes(*entry_); }
  std::string sha256() const { return tensor_sha256(file_->chunk_hashes(*entry_)); }
  // Of a quantised tensor: its scales on the disk, and their hash.
  TensorSource scales() const;
  std::string scales_sha256() const { return tensor_sha256(scales_file_->chunk_hashes(*scales_entry_)); }

 private:
  void dequantise(int64_t begin, int64_t count, float* out) const;
  // `count` elements from `index` on, one behind the other in the same output of the same expert.
  void widen_mxfp4(int64_t index, int64_t count, float* out) const;

  const SafetensorsFile* file_;
  const SafetensorsFile::Entry* entry_;
  const SafetensorsFile* scales_file_;
  const SafetensorsFile::Entry* scales_entry_;
  Shape shape_;
  std::vector<float> scales_;
  int64_t scale_columns_ = 0;
};

class HfWeights {
 public:
  // Error (runtime) when the folder has no weights, a file is missing, cut off or damaged, a tensor is not where the
  // index says, or an FP8 or MXFP4 tensor has no scales of the shape it needs.
  explicit HfWeights(const fs::path& dir);

  const std::map<std::string, HfTensor>& tensors() const { return tensors_; }
  const HfTensor* find(const std::string& name) const;  // nullptr when there is none
  size_t num_files() const { return files_.size(); }
  int64_t num_bytes() const;      // of all files
  int64_t num_quantised() const;  // of the tensors

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, HfTensor> tensors_;
};

}  // namespace nmoe
