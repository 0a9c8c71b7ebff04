#include "hf/kept_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.h"
#include "hf/hf_model.h"
#include "hf/kept_matrix.h"
#include "hf/weights.h"
#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe {
namespace {

constexpr int64_t blocks_of(int64_t size) { return (size + kHfFp8Block - 1) / kHfFp8Block; }

// The code whose meaning under `scale` is `value`, or is nearest to it.
uint8_t code_of(float value, float scale) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7F;
  return scale == 0.0F || !std::isfinite(scale) ? sign : float_to_e4m3(value / scale);
}

// The least power of two of E8M0 that is not below `scale`, and is not 0 as `dtype`: all but F16 have each of them.
float power_of_two_from(float scale, DType dtype) {
  return e8m0_to_float(float_to_e8m0(dtype == DType::kF16 ? std::max(scale, 0x1p-24F) : scale));
}

// A matrix [R, C] and the scales [ceil(R / 128), ceil(C / 128)] of its blocks.
class Fp8Matrix final : public KeptMatrix {
 public:
  Fp8Matrix(TensorSource values, const SafetensorsFile& file, const SafetensorsFile::Entry& scales, HfScales kind)
      : values_(std::move(values)),
        scales_name_(scales.name),
        scales_dtype_(scales.dtype),
        scales_shape_(scales.shape),
        kind_(kind) {
    const Shape& shape = values_.shape;
    if (shape.rank() != 2 || scales.shape != Shape{blocks_of(shape[0]), blocks_of(shape[1])} ||
        !is_weight_dtype(scales.dtype)) {
      throw runtime_error(
          fmt::format("'{}': '{}' {} is not the scales of {}", file.path().string(), scales.name, scales.shape, shape),
          "the checkpoint was altered: take another one");
    }
    scales_.resize(static_cast<size_t>(scales.shape.num_elements()));
    widen(scales.dtype, file.bytes(scales).data(), scales_.data(), scales_.size());
  }

  bool is_unchanged() const override {
    std::vector<float> row(static_cast<size_t>(columns()));
    for (int64_t i = 0; i < rows(); ++i) {
      read(i, 0, row);
      for (int64_t j = 0; j < columns(); ++j) {
        const float value = row[static_cast<size_t>(j)], scale = scale_of(i, j);
        if (std::bit_cast<uint32_t>(fp8_meaning(code_of(value, scale), scale)) != std::bit_cast<uint32_t>(value)) {
          return false;
        }
      }
    }
    return true;
  }

  void make_scales() override {
    std::vector<float> row(static_cast<size_t>(columns()));
    std::ranges::fill(scales_, 0.0F);
    for (int64_t i = 0; i < rows(); ++i) {
      read(i, 0, row);
      for (int64_t j = 0; j < columns(); ++j) {
        float& largest = scales_[scale_index(i, j)];
        largest = std::max(largest, std::abs(row[static_cast<size_t>(j)]));
      }
    }
    std::vector<std::byte> stored(scales_.size() * dtype_bytes(scales_dtype_));
    for (float& scale : scales_) {
      scale /= kE4M3Max;
      if (kind_ == HfScales::kPowersOfTwo) scale = power_of_two_from(scale, scales_dtype_);
    }
    narrow(scales_.data(), scales_dtype_, stored.data(), scales_.size());
    widen(scales_dtype_, stored.data(), scales_.data(), scales_.size());
  }

  // Elements [begin, begin + out.size()).
  void codes(int64_t begin, std::span<std::byte> out) const {
    std::vector<float> values(static_cast<size_t>(std::min<int64_t>(columns(), std::ssize(out))));
    for (int64_t done = 0; done < std::ssize(out);) {
      const int64_t row = (begin + done) / columns(), column = (begin + done) % columns();
      const int64_t count = std::min(columns() - column, std::ssize(out) - done);
      values.resize(static_cast<size_t>(count));
      read(row, column, values);
      for (int64_t j = 0; j < count; ++j) {
        out[static_cast<size_t>(done + j)] =
            std::byte{code_of(values[static_cast<size_t>(j)], scale_of(row, column + j))};
      }
      done += count;
    }
  }

  std::array<TensorSource, 2> sources(const std::shared_ptr<const KeptMatrix>& self) const override {
    const auto read_codes = [this, self](size_t begin, std::span<std::byte> out) {
      codes(static_cast<int64_t>(begin), out);
      return std::span<const std::byte>(out);
    };
    const auto read_scales = [this, self](size_t begin, std::span<std::byte> out) {
      const size_t size = dtype_bytes(scales_dtype_);
      narrow(scales_.data() + begin / size, scales_dtype_, out.data(), out.size() / size);
      return std::span<const std::byte>(out);
    };
    return {TensorSource{values_.name, DType::kF8E4M3, values_.shape, read_codes, values_.check},
            TensorSource{scales_name_, scales_dtype_, scales_shape_, read_scales}};
  }

 private:
  int64_t rows() const { return values_.shape[0]; }
  int64_t columns() const { return values_.shape[1]; }
  size_t scale_index(int64_t row, int64_t column) const {
    return static_cast<size_t>(row / kHfFp8Block * blocks_of(columns()) + column / kHfFp8Block);
  }
  float scale_of(int64_t row, int64_t column) const { return scales_[scale_index(row, column)]; }

  // The first values of a row from `column` on.
  void read(int64_t row, int64_t column, std::span<float> out) const {
    const size_t size = dtype_bytes(values_.dtype);
    std::vector<std::byte> scratch(out.size() * size);
    const auto bytes = values_.read(static_cast<size_t>(row * columns() + column) * size, scratch);
    widen(values_.dtype, bytes.data(), out.data(), out.size());
  }

  TensorSource values_;
  std::string scales_name_;
  DType scales_dtype_;
  Shape scales_shape_;
  HfScales kind_;
  std::vector<float> scales_;
};

}  // namespace

KeptFormat in_kept_format(std::vector<TensorSource> tensors, const SafetensorsFile& carried, HfScales kind,
                          ThreadPool& pool) {
  std::vector<std::shared_ptr<KeptMatrix>> matrices(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* const scales = carried.find(scales_name(tensors[i].name));
    const auto* const block_scales = carried.find(block_scales_name(tensors[i].name));
    if (scales != nullptr) matrices[i] = std::make_shared<Fp8Matrix>(tensors[i], carried, *scales, kind);
    if (block_scales != nullptr) matrices[i] = kept_mxfp4(tensors[i], carried, *block_scales);
  }
  std::vector<char> unchanged(tensors.size());  // not bool: threads write neighbours
  pool.parallel_for(std::ssize(tensors), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    if (!matrices[at]) return;
    unchanged[at] = matrices[at]->is_unchanged() ? 1 : 0;
    if (unchanged[at] == 0) matrices[at]->make_scales();
  });
  KeptFormat kept;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!matrices[i]) {
      kept.tensors.push_back(std::move(tensors[i]));
      continue;
    }
    ++(unchanged[i] != 0 ? kept.num_unchanged : kept.num_changed);
    for (TensorSource& source : matrices[i]->sources(matrices[i])) kept.tensors.push_back(std::move(source));
  }
  return kept;
}

}  // namespace nmoe
