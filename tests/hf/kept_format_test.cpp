#include "hf/kept_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/reader.h"
#include "hf/export.h"
#include "hf/fixtures.h"
#include "hf/import.h"
#include "hf/weights.h"
#include "hf_folder.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

std::vector<std::byte> bytes_of(const TensorSource& tensor) {
  std::vector<std::byte> scratch(tensor.num_bytes());
  const auto read = tensor.read(0, scratch);
  return {read.begin(), read.end()};
}

class KeptFormatTest : public test::TempDirTest {
 protected:
  static constexpr int64_t kRows = 130, kColumns = 256;  // 2 x 2 blocks; each row has all codes

  KeptFormatTest() {
    file_.add("w", DType::kF8E4M3, {kRows, kColumns});
    auto* codes = static_cast<uint8_t*>(file_.at("w").raw());
    for (int64_t i = 0; i < kRows * kColumns; ++i) codes[i] = static_cast<uint8_t>(i + i / kColumns);
  }
  void set_scales(DType dtype, const std::vector<float>& scales) {
    file_.remove("w_scale_inv");
    file_.add("w_scale_inv", dtype, {2, 2});
    narrow(scales.data(), dtype, file_.at("w_scale_inv").raw(), scales.size());
    file_.write(dir_ / "model.safetensors");
  }
  // The meanings as BF16, and what becomes of them.
  KeptFormat kept(std::vector<std::byte>& values, const SafetensorsFile& file, HfScales scales = HfScales::kNumbers) {
    ThreadPool pool(2);
    const TensorSource source = {"w", DType::kBF16, {kRows, kColumns}, [&](size_t begin, std::span<std::byte> out) {
                                   return std::span<const std::byte>(values).subspan(begin, out.size());
                                 }};
    return in_kept_format({source}, file, scales, pool);
  }
  std::vector<std::byte> meanings() {
    const HfWeights weights(dir_);
    std::vector<std::byte> values(kRows * kColumns * 2);
    weights.find("w")->read(0, kRows * kColumns, DType::kBF16, values.data());
    return values;
  }
  std::vector<std::byte> stored(const std::string& name) const {
    const Tensor tensor = file_.at(name);
    const auto* raw = static_cast<const std::byte*>(tensor.raw());
    return {raw, raw + tensor.num_bytes()};
  }

  TensorFile file_;
};

// Every code, the two that are NaN and the negative zero among them, under scales of all sizes and dtypes.
TEST_F(KeptFormatTest, EveryCodeComesBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::vector<float>& scales : {std::vector<float>{1.0f, 0.1f, 3.3e-4f, 7.7e-3f},
                                             {0.99999f, 1.00001f, 1.9999f, 1.37f},
                                             {6.1e-5f, 5.5f, 123.4f, 0.0123f}}) {
      set_scales(dtype, scales);
      const SafetensorsFile file(dir_ / "model.safetensors");
      std::vector<std::byte> values = meanings();
      const KeptFormat kept = this->kept(values, file);
      EXPECT_EQ(kept.num_unchanged, 1);
      EXPECT_EQ(kept.num_changed, 0);
      ASSERT_EQ(kept.tensors.size(), 2u);
      EXPECT_EQ(bytes_of(kept.tensors[0]), stored("w")) << dtype_name(dtype);
      EXPECT_EQ(kept.tensors[1].name, "w_scale_inv");
      EXPECT_EQ(bytes_of(kept.tensors[1]), stored("w_scale_inv"));
    }
  }
}

// One value that no code means: blocks get scales of their own, and no code is further off than half a step.
TEST_F(KeptFormatTest, AChangedTensorIsQuantisedAnew) {
  auto* codes = static_cast<uint8_t*>(file_.at("w").raw());
  for (int64_t i = 0; i < kRows * kColumns; ++i) codes[i] &= 0xfe;  // no NaN
  set_scales(DType::kF32, {1.0f, 0.1f, 3.3e-4f, 7.7e-3f});
  const SafetensorsFile file(dir_ / "model.safetensors");
  std::vector<std::byte> values = meanings();
  const uint16_t other = float_to_bf16(457.0f);  // beyond the largest code
  std::memcpy(values.data() + 2 * 5, &other, sizeof(other));
  const KeptFormat kept = this->kept(values, file);
  EXPECT_EQ(kept.num_unchanged, 0);
  EXPECT_EQ(kept.num_changed, 1);
  const auto bytes = bytes_of(kept.tensors[0]), scale_bytes = bytes_of(kept.tensors[1]);
  float scales[4];
  std::memcpy(scales, scale_bytes.data(), sizeof(scales));
  EXPECT_EQ(scales[0], bf16_to_float(other) / 448.0f);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, values.data() + 2 * i, sizeof(bits));
    const float scale = scales[i / kColumns / 128 * 2 + i % kColumns / 128], value = bf16_to_float(bits);
    const float meaning = fp8_meaning(static_cast<uint8_t>(bytes[static_cast<size_t>(i)]), scale);
    ASSERT_LE(std::abs(meaning - value), std::max(std::abs(value) * (1.0f / 16 + 1.0f / 256), scale * 0x1p-10f)) << i;
  }
  // Read in other pieces, it is the same.
  std::vector<std::byte> part(1000);
  kept.tensors[0].read(12345, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 12345));
}

// Of all sizes, in each dtype: the largest magnitude is within the codes, and would not be under half the scale. Blocks
// of zeros have a power of two too.
TEST_F(KeptFormatTest, ScalesThatArePowersOfTwoStayThat) {
  set_scales(DType::kF32, {1.0f, 1.0f, 1.0f, 1.0f});
  const std::vector<float> largest = {448.0f * 0.25f, 450.0f, 3.3e-4f, 0.0f};  // exactly a power of two, just above
  const std::vector<float> wanted = {0.25f, 2.0f, 0x1p-20f};
  std::vector<std::byte> values(kRows * kColumns * 2);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto block = static_cast<size_t>(i / kColumns / 128 * 2 + i % kColumns / 128);
    const uint16_t bits = float_to_bf16(i % 3 == 0 ? -largest[block] : largest[block] / 3);
    std::memcpy(values.data() + 2 * i, &bits, sizeof(bits));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    set_scales(dtype, {1.0f, 1.0f, 1.0f, 1.0f});
    const SafetensorsFile file(dir_ / "model.safetensors");
    const KeptFormat kept = this->kept(values, file, HfScales::kPowersOfTwo);
    ASSERT_EQ(kept.num_changed, 1);
    const auto codes = bytes_of(kept.tensors[0]), stored = bytes_of(kept.tensors[1]);
    std::vector<float> scales(4);
    widen(dtype, stored.data(), scales.data(), scales.size());
    for (size_t block = 0; block < wanted.size(); ++block) EXPECT_EQ(scales[block], wanted[block]) << dtype_name(dtype);
    EXPECT_EQ(scales[3], dtype == DType::kF16 ? 0x1p-24f : 0x1p-127f);
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, values.data() + 2 * i, sizeof(bits));
      const float scale = scales[static_cast<size_t>(i / kColumns / 128 * 2 + i % kColumns / 128)];
      const float meaning = fp8_meaning(static_cast<uint8_t>(codes[static_cast<size_t>(i)]), scale);
      ASSERT_LE(std::abs(meaning - bf16_to_float(bits)), std::abs(bf16_to_float(bits)) * (1.0f / 16)) << i;
    }
  }
}

class KeepFormat : public test::TempDirTest {
 protected:
  ExportReport exported(const fs::path& checkpoint, const char* out, std::optional<DType> dtype = {}) {
    return export_model(
        {.checkpoint = checkpoint, .out = dir_ / out, .dtype = dtype, .keep_format = true, .num_threads = 2});
  }
  static std::map<std::string, std::string> weights_of(const fs::path& folder) {
    auto weights = tensors_in(folder);
    std::erase_if(weights, [](const auto& tensor) {  // expected.safetensors
      return tensor.first.starts_with("grad.") || tensor.first == "input_ids" || tensor.first == "logits" ||
             tensor.first == "loss";
    });
    return weights;
  }
};

// Of all that transformers' fixtures have in FP8; and what is exported without is what it decodes to.
TEST_F(KeepFormat, AnUntrainedExportIsTheSource) {
  int num_seen = 0;
  for (const fs::path& fixture : test::hf_fixtures()) {
    if (!nlohmann::json::parse(read_file(fixture / "config.json")).contains("quantization_config")) continue;
    const ImportReport in = import_model({.source = fixture, .out = dir_ / "checkpoint", .num_threads = 2});
    EXPECT_EQ(in.num_carried, 0);
    const ExportReport out = exported(dir_ / "checkpoint", "back");
    EXPECT_EQ(out.num_unchanged, in.num_quantised);
    EXPECT_EQ(out.num_changed, 0);
    EXPECT_EQ(weights_of(dir_ / "back"), weights_of(fixture)) << fixture;
    EXPECT_EQ(nlohmann::json::parse(read_file(dir_ / "back/config.json")),
              nlohmann::json::parse(read_file(fixture / "config.json")));

    export_model({.checkpoint = dir_ / "checkpoint", .out = dir_ / "bf16", .num_threads = 2});
    const HfWeights quantised(fixture), plain(dir_ / "bf16");
    for (const auto& [name, tensor] : quantised.tensors()) {
      ASSERT_NE(plain.find(name), nullptr) << name;
      std::vector<std::byte> meaning(static_cast<size_t>(tensor.shape().num_elements()) * dtype_bytes(tensor.dtype()));
      tensor.read(0, tensor.shape().num_elements(), tensor.dtype(), meaning.data());
      EXPECT_TRUE(std::ranges::equal(meaning, plain.find(name)->bytes())) << name;
      EXPECT_FALSE(plain.find(name)->is_quantised());
    }
    EXPECT_EQ(plain.tensors().size(), quantised.tensors().size());
    for (const char* folder : {"checkpoint", "back", "bf16"}) fs::remove_all(dir_ / folder);
    ++num_seen;
  }
  EXPECT_GT(num_seen, 0);
}

struct ScalesCase {
  const char* scale_fmt;
  float scale;
};
class KeepFormatOf : public KeepFormat, public testing::WithParamInterface<ScalesCase> {};

// Layers that are carried, too. Of what was trained, the rest is still the source's bytes. Scales are what config.json
// says that they are.
TEST_P(KeepFormatOf, OnlyWhatChangedIsQuantisedAnew) {
  HfFolder folder;
  folder.config["quantization_config"] = {{"quant_method", "fp8"},
                                          {"fmt", "e4m3"},
                                          {"activation_scheme", "dynamic"},
                                          {"weight_block_size", {128, 128}},
                                          {"scale_fmt", GetParam().scale_fmt}};
  for (const std::string name :
       {"model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.0.self_attn.o_proj.weight",
        "model.layers.2.mlp.experts.0.down_proj.weight"}) {
    const Shape shape = folder.weights.at(name).shape();
    folder.weights.remove(name);
    folder.weights.add(name, DType::kF8E4M3, shape);
    auto* codes = static_cast<uint8_t*>(folder.weights.at(name).raw());
    for (int64_t i = 0; i < shape.num_elements(); ++i) codes[i] = codes[i] == 0x7f ? 0 : codes[i];
    folder.weights.add(name + "_scale_inv", DType::kF32, {1, 1});
    *folder.weights.at(name + "_scale_inv").data<float>() = GetParam().scale;
  }
  folder.write(dir_ / "hf");
  const ImportReport in = import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .num_threads = 1});
  EXPECT_EQ(in.num_quantised, 3);
  EXPECT_EQ(exported(in.checkpoint, "back").num_carried, in.num_carried);
  EXPECT_EQ(tensors_in(dir_ / "back"), tensors_in(dir_ / "hf"));

  // As if expert 2's weights, and a norm, had been trained in fp32.
  const CheckpointReader reader = CheckpointReader::open(in.checkpoint);
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> model;
  for (const ManifestTensor& tensor : reader.model()) {
    values.emplace_back(static_cast<size_t>(tensor.shape.num_elements()));
    model.push_back({tensor.name, Tensor(values.back().data(), DType::kF32, tensor.shape)});
    reader.load(tensor.name, model.back().tensor);
    if (tensor.name != "layers.1.moe.experts_in") continue;
    for (int64_t i = 0; i < 16 * 16; ++i) values.back()[static_cast<size_t>(2 * 16 * 16 + i)] += 0.01f;
  }
  CheckpointHead head;
  head.info = reader.info();
  head.config_toml = reader.config_toml();
  head.carried = reader.carried();
  ThreadPool pool(1);
  const fs::path trained = write_checkpoint(dir_ / "trained", head, in_memory(model), {}, pool);
  const ExportReport out = exported(trained, "again", DType::kBF16);
  EXPECT_EQ(out.num_unchanged, 2);
  EXPECT_EQ(out.num_changed, 1);
  const auto before = tensors_in(dir_ / "hf"), after = tensors_in(dir_ / "again");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, what] : before) {
    EXPECT_EQ(after.at(name) == what, !contains(name, "model.layers.1.mlp.experts.2.") || contains(name, "down_proj"))
        << name;
  }
  const auto config = nlohmann::json::parse(read_file(dir_ / "again/config.json"));
  EXPECT_EQ(config.at("quantization_config"), nlohmann::json(folder.config.at("quantization_config")));
  const SafetensorsFile file(dir_ / "again/model.safetensors");
  float scale = 0;
  std::memcpy(&scale, file.bytes(*file.find("model.layers.1.mlp.experts.2.up_proj.weight_scale_inv")).data(), 4);
  EXPECT_NE(scale, GetParam().scale);
  int exponent = 0;
  EXPECT_EQ(std::frexp(scale, &exponent) == 0.5f, GetParam().scale_fmt == std::string_view("ue8m0")) << scale;
}

INSTANTIATE_TEST_SUITE_P(ScaleFmt, KeepFormatOf,
                         testing::Values(ScalesCase{"float", 0.003f}, ScalesCase{"ue8m0", 0x1p-8f}),
                         [](const auto& test) { return test.param.scale_fmt; });

TEST_F(KeepFormat, NeedsAFormat) {
  HfFolder().write(dir_ / "hf");
  const ImportReport in = import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .num_threads = 1});
  const Error error = error_of([&] { exported(in.checkpoint, "back"); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "was not imported from quantised weights"));
  EXPECT_TRUE(contains(error.remedy(), "--keep-format"));
  EXPECT_FALSE(fs::exists(dir_ / "back"));
}

}  // namespace
}  // namespace nmoe
