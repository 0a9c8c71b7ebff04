#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hf/kept_matrix.h"
#include "hf/weights.h"
#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe {
namespace {

class MxFp4Matrix final : public KeptMatrix {
 public:
  MxFp4Matrix(TensorSource values, const SafetensorsFile& file, const SafetensorsFile::Entry& scales)
      : values_(std::move(values)), scales_shape_(scales.shape) {
    const Shape& shape = values_.shape;
    if (shape.rank() != 3 || shape[1] % kHfMxFp4Block != 0 || scales.dtype != DType::kU8 ||
        scales.shape != Shape{shape[0], shape[2], shape[1] / kHfMxFp4Block}) {
      throw runtime_error(
          fmt::format("'{}': '{}' {} is not the scales of {}", file.path().string(), scales.name, scales.shape, shape),
          "the checkpoint was altered: take another one");
    }
    const std::span<const std::byte> bytes = file.bytes(scales);
    scales_.resize(bytes.size());
    std::ranges::transform(bytes, scales_.begin(), [](std::byte byte) { return static_cast<uint8_t>(byte); });
  }

  bool is_unchanged() const override {
    bool same = true;
    for_each_row(0, rows(), [&](int64_t row, const float* values) {
      for (int64_t i = 0; i < in() && same; ++i) {
        const uint8_t scale = scale_of(row, i);
        const float meaning = mxfp4_meaning(code_of(values[i], scale), scale);
        same = std::bit_cast<uint32_t>(meaning) == std::bit_cast<uint32_t>(values[i]);
      }
      return same;
    });
    return same;
  }

  void make_scales() override {
    for_each_row(0, rows(), [&](int64_t row, const float* values) {
      for (int64_t block = 0; block < in() / kHfMxFp4Block; ++block) {
        float largest = 0.0F;
        for (int64_t i = 0; i < kHfMxFp4Block; ++i) {
          largest = std::max(largest, std::abs(values[block * kHfMxFp4Block + i]));
        }
        constexpr int kBias = 127, kLargestExponent = 2;
        const int exponent = largest > 0.0F && std::isfinite(largest) ? std::ilogb(largest) : -kBias;
        scales_[static_cast<size_t>(row * (in() / kHfMxFp4Block) + block)] =
            static_cast<uint8_t>(std::clamp(exponent - kLargestExponent + kBias, 0, 254));
      }
      return true;
    });
  }

  std::array<TensorSource, 2> sources(const std::shared_ptr<const KeptMatrix>& self) const override {
    const auto codes = [this, self](size_t begin, std::span<std::byte> out) {
      write_codes(static_cast<int64_t>(begin), out);
      return std::span<const std::byte>(out);
    };
    const auto scales = [this, self](size_t begin, std::span<std::byte> out) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = std::byte{scales_[begin + i]};
      return std::span<const std::byte>(out);
    };
    const Shape& shape = scales_shape_;
    return {TensorSource{blocks_name(values_.name),
                         DType::kU8,
                         {shape[0], shape[1], shape[2], kHfMxFp4Block / 2},
                         codes,
                         values_.check},
            TensorSource{block_scales_name(values_.name), DType::kU8, shape, scales}};
  }

 private:
  // Rows are the outputs of all experts, one after the other.
  int64_t in() const { return values_.shape[1]; }
  int64_t out() const { return values_.shape[2]; }
  int64_t rows() const { return values_.shape[0] * out(); }
  uint8_t scale_of(int64_t row, int64_t i) const {
    return scales_[static_cast<size_t>((row * in() + i) / kHfMxFp4Block)];
  }
  static uint8_t code_of(float value, uint8_t scale) { return float_to_e2m1(value * e8m0_to_inverse(scale)); }

  // Calls fn(row, its values [in]) for rows [begin, end), as long as it returns true. Values lie by inputs: many rows
  // are read at once.
  template <class Fn>
  void for_each_row(int64_t begin, int64_t end, const Fn& fn) const {
    constexpr int64_t kRows = 256;
    const size_t size = dtype_bytes(values_.dtype);
    std::vector<float> rows, line;
    std::vector<std::byte> scratch;
    for (int64_t first = begin; first < end;) {
      const int64_t expert = first / out(), column = first % out();
      const int64_t count = std::min({kRows, end - first, out() - column});
      rows.resize(static_cast<size_t>(count * in()));
      line.resize(static_cast<size_t>(count));
      scratch.resize(line.size() * size);
      for (int64_t i = 0; i < in(); ++i) {
        const auto offset = static_cast<size_t>((expert * in() + i) * out() + column);
        widen(values_.dtype, values_.read(offset * size, scratch).data(), line.data(), line.size());
        for (int64_t k = 0; k < count; ++k) rows[static_cast<size_t>(k * in() + i)] = line[static_cast<size_t>(k)];
      }
      for (int64_t k = 0; k < count; ++k) {
        if (!fn(first + k, rows.data() + k * in())) return;
      }
      first += count;
    }
  }

  // Bytes [begin, begin + out.size()) of the codes.
  void write_codes(int64_t begin, std::span<std::byte> target) const {
    const int64_t row_bytes = in() / 2, end = begin + std::ssize(target);
    for_each_row(begin / row_bytes, (end + row_bytes - 1) / row_bytes, [&](int64_t row, const float* values) {
      for (int64_t i = 0; i < in(); i += 2) {
        const int64_t place = row * row_bytes + i / 2;
        if (place < begin || place >= end) continue;
        const uint8_t scale = scale_of(row, i);
        const int low = code_of(values[i], scale), high = code_of(values[i + 1], scale);
        target[static_cast<size_t>(place - begin)] = static_cast<std::byte>(low | high << 4);
      }
      return true;
    });
  }

  TensorSource values_;
  Shape scales_shape_;
  std::vector<uint8_t> scales_;
};

}  // namespace

std::shared_ptr<KeptMatrix> kept_mxfp4(TensorSource values, const SafetensorsFile& file,
                                       const SafetensorsFile::Entry& scales) {
  return std::make_shared<MxFp4Matrix>(std::move(values), file, scales);
}

}  // namespace nmoe
