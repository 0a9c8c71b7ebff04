#include "hf/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hf_folder.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class Fp8Weights : public test::TempDirTest {
 protected:
  static constexpr int64_t kRows = 200, kColumns = 300;  // 2 x 3 blocks with ragged ends

  Fp8Weights() {
    file_.add("w", DType::kF8E4M3, {kRows, kColumns});
    file_.add("w_scale_inv", DType::kF32, {2, 3});
    auto* scales = file_.at("w_scale_inv").data<float>();
    for (int i = 0; i < 6; ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
  }
  HfWeights written() {
    file_.write(dir_ / "model.safetensors");
    return HfWeights(dir_);
  }
  // Element (i, j) by the format's description.
  float expected(int64_t i, int64_t j) const {
    const auto bits = static_cast<const uint8_t*>(file_.at("w").raw())[i * kColumns + j];
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double magnitude =
        exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6) : (1.0 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
    const float value = static_cast<float>(bits & 0x80 ? -magnitude : magnitude);
    return bf16_to_float(float_to_bf16(value * file_.at("w_scale_inv").data<float>()[i / 128 * 3 + j / 128]));
  }

  TensorFile file_;
};

TEST_F(Fp8Weights, AreScaledByBlocks) {
  const HfWeights weights = written();
  EXPECT_EQ(weights.tensors().size(), 1u);  // the scales are no weights
  const HfTensor& tensor = *weights.find("w");
  EXPECT_EQ(tensor.dtype(), DType::kBF16);
  std::vector<float> values(kRows * kColumns);
  tensor.read(0, kRows * kColumns, DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      const float want = expected(i, j), got = values[static_cast<size_t>(i * kColumns + j)];
      if (std::isnan(got) && (static_cast<const uint8_t*>(file_.at("w").raw())[i * kColumns + j] & 0x7f) == 0x7f)
        continue;
      ASSERT_EQ(got, want) << i << ", " << j;
    }
  }
}

// What is called as scales are, beside a tensor that has none, is a tensor of its own, which a model may have no place
// for.
TEST_F(Fp8Weights, OthersOfSuchNamesAreNoScales) {
  for (const char* name : {"v", "v_scales", "v_scale_inv"}) file_.add(name, DType::kBF16, {4, 4});
  const HfWeights weights = written();
  EXPECT_EQ(weights.tensors().size(), 4U);
  for (const char* name : {"w", "v", "v_scales", "v_scale_inv"}) EXPECT_NE(weights.find(name), nullptr) << name;
}

// Blocks of a large tensor are read one after the other, from anywhere.
TEST_F(Fp8Weights, ReadFromAnywhereAsBf16) {
  const HfWeights weights = written();
  std::vector<uint16_t> values(5000);
  weights.find("w")->read(12345, 5000, DType::kBF16, reinterpret_cast<std::byte*>(values.data()));
  for (int64_t i = 0; i < 5000; ++i) {
    const float want = expected((12345 + i) / kColumns, (12345 + i) % kColumns);
    if (std::abs(want) > 400.0f * 0.06f) continue;  // may be where NaN is encoded
    ASSERT_EQ(values[static_cast<size_t>(i)], float_to_bf16(want)) << i;
  }
}

// Some releases keep scales as narrow as the other weights.
TEST_F(Fp8Weights, ScalesMayBeNarrow) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<float> scales = {0.5f, 1.0f, 2.0f, 4.0f, 0.25f, 8.0f};  // exact in each
    file_.remove("w_scale_inv");
    file_.add("w_scale_inv", DType::kF32, {2, 3});
    std::copy(scales.begin(), scales.end(), file_.at("w_scale_inv").data<float>());
    const float want[] = {expected(0, 0), expected(199, 299)};
    file_.remove("w_scale_inv");
    file_.add("w_scale_inv", dtype, {2, 3});
    narrow(scales.data(), dtype, file_.at("w_scale_inv").raw(), scales.size());
    const HfWeights weights = written();
    float got[2];
    weights.find("w")->read(0, 1, DType::kF32, reinterpret_cast<std::byte*>(&got[0]));
    weights.find("w")->read(kRows * kColumns - 1, 1, DType::kF32, reinterpret_cast<std::byte*>(&got[1]));
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(got[i] == want[i] || std::isnan(got[i])) << got[i] << " " << want[i];
  }
}

TEST_F(Fp8Weights, NeedTheirScales) {
  file_.remove("w_scale_inv");
  const Error missing = error_of([&] { written(); });
  EXPECT_TRUE(contains(missing.what(), "'w'") && contains(missing.what(), "w_scale_inv")) << missing.what();
  file_.add("w_scale_inv", DType::kF32, {2, 2});
  EXPECT_TRUE(contains(error_of([&] { written(); }).what(), "w_scale_inv"));
}

TEST_F(Fp8Weights, FolderWithoutWeights) {
  const Error error = error_of([&] { HfWeights{dir_}; });
  EXPECT_TRUE(contains(error.what(), dir_.string())) << error.what();
}

}  // namespace
}  // namespace nmoe
