#include "hf/parity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "hf/binding.h"
#include "hf/fixtures.h"
#include "hf/tensor_map.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

struct HostTensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;

  float* floats() { return reinterpret_cast<float*>(bytes.data()); }
};
using Tensors = std::map<std::string, HostTensor>;

Tensors read_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const auto& entry : file.entries()) {
    const auto bytes = file.bytes(entry);
    tensors[entry.name] = {entry.dtype, entry.shape, {bytes.begin(), bytes.end()}};
  }
  return tensors;
}

void write_tensors(const fs::path& path, const Tensors& tensors) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    sources.push_back({name, tensor.dtype, tensor.shape, [&tensor](size_t begin, std::span<std::byte> scratch) {
                         return std::span(tensor.bytes).subspan(begin, scratch.size());
                       }});
  }
  ThreadPool pool(1);
  write_safetensors(path, sources, pool);
}

// The first fixture with routed experts in a fused tensor, and a place for changed expectations.
class Parity : public testing::Test {
 protected:
  void SetUp() override {
    const auto fixtures = test::hf_fixtures();
    if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
    model_ = fixtures.front();
    tensors_ = read_tensors(model_ / "expected.safetensors");
  }

  ParityReport compare() {
    write_tensors(dir_.path() / "expected.safetensors", tensors_);
    return compare_with_reference({.model = model_, .expected = dir_.path() / "expected.safetensors"});
  }
  // With one change, taken back afterwards.
  ParityReport compare_with(const std::function<void(Tensors&)>& change) {
    const Tensors original = tensors_;
    change(tensors_);
    const ParityReport report = compare();
    tensors_ = original;
    return report;
  }
  std::string refusal_of(const std::function<void(Tensors&)>& change) {
    const Tensors original = tensors_;
    change(tensors_);
    const Error error = error_of([&] { compare(); });
    tensors_ = original;
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_NE(error.remedy(), "");
    return error.what();
  }
  std::string fused_name() const {
    for (const auto& [name, tensor] : tensors_) {
      if (name.ends_with(".mlp.experts.gate_up_proj")) return name;
    }
    ADD_FAILURE() << "no experts";
    return "";
  }

  fs::path model_;
  Tensors tensors_;
  test::TempDir dir_;
};

TEST_F(Parity, HoldsForEveryModel) {
  for (const fs::path& fixture : test::hf_fixtures()) {
    const ParityReport report =
        compare_with_reference({.model = fixture, .expected = fixture / "expected.safetensors"});
    EXPECT_LE(report.loss_error(), 1e-6 * report.expected_loss) << fixture;
    EXPECT_LE(report.logits.difference, 5e-6 * report.largest_logit) << fixture;
    ASSERT_FALSE(report.gradients.empty());
    EXPECT_LE(report.gradients.front().relative, 5e-6) << fixture << " " << report.gradients.front().tensor;
    EXPECT_TRUE(std::ranges::is_sorted(report.gradients, std::ranges::greater(), &GradientError::relative));
  }
}

// What is easily overlooked in a config.json. Read otherwise than transformers reads it, each is seen: expectations
// that could not tell would prove nothing.
TEST_F(Parity, TellsEveryKeyThatIsEasilyMisread) {
  struct Misread {
    const char* fixture;
    const char* change;
  };
  for (const Misread& misread : {
           Misread{"olmoe", R"({"norm_topk_prob": true})"},  // Mixtral's softmax, of the chosen ones alone
           Misread{"qwen2_moe", R"({"norm_topk_prob": true})"},
           Misread{"qwen3", R"({"norm_topk_prob": false})"},
           Misread{"dots1", R"({"n_group": 1})"},
           Misread{"dots1", R"({"routed_scaling_factor": 1.0})"},
           Misread{"glm4_groups", R"({"topk_group": 2})"},
           Misread{"glm4_groups",
                   R"({"rope_parameters": {"partial_rotary_factor": 1.0}, "partial_rotary_factor": null})"},
           Misread{"minimax", R"({"rope_parameters": {"partial_rotary_factor": 1.0}, "rotary_dim": 16})"},
           Misread{"dsv3_half_split", R"({"rope_interleave": true})"},
           Misread{"dsv3_groups", R"({"rms_norm_eps": 0.01})"},
           Misread{"dsv2_lite", R"({"rope_parameters": {"mscale": 1.0, "mscale_all_dim": 1.0}})"},
           Misread{"llama3", R"({"rope_parameters": {"low_freq_factor": 2.0}})"},
           Misread{"llama_linear", R"({"rope_parameters": {"factor": 2.0}})"},
           Misread{"mixtral", R"({"num_experts_per_tok": 3})"},
           Misread{"nemotron", R"({"layer_norm_epsilon": 0.01})"},
           Misread{"nemotron", R"({"routed_scaling_factor": 1.0})"},
           Misread{"nemotron_latent", R"({"norm_topk_prob": true})"},
           Misread{"nemotron_latent", R"({"n_group": 1})"},
       }) {
    const fs::path fixture = fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf" / misread.fixture;
    const fs::path copy = dir_.path() / "copy";
    fs::copy(fixture, copy, fs::copy_options::recursive);
    auto config = nlohmann::json::parse(read_file(copy / "config.json"));
    config.merge_patch(nlohmann::json::parse(misread.change));
    write_file_atomically(copy / "config.json", config.dump());
    const ParityReport report = compare_with_reference({.model = copy, .expected = fixture / "expected.safetensors"});
    EXPECT_GT(report.logits.difference, 1e-3 * report.largest_logit) << misread.fixture << " " << misread.change;
    EXPECT_GT(report.gradients.front().relative, 1e-2) << misread.fixture << " " << misread.change;
    fs::remove_all(copy);
  }
}

TEST_F(Parity, ThreadsChangeNothing) {
  const fs::path expected = model_ / "expected.safetensors";
  const ParityReport one = compare_with_reference({.model = model_, .expected = expected, .num_threads = 1});
  const ParityReport two = compare_with_reference({.model = model_, .expected = expected, .num_threads = 2});
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.logits.difference, two.logits.difference);
  EXPECT_EQ(one.gradients.front().relative, two.gradients.front().relative);
}

TEST_F(Parity, FindsAWrongLoss) {
  const ParityReport report = compare_with([](Tensors& t) { t["loss"].floats()[0] += 0.25F; });
  EXPECT_NEAR(report.loss_error(), 0.25, 1e-5);
}

TEST_F(Parity, FindsWrongLogitsAndTheirPlace) {
  const Shape shape = tensors_["logits"].shape;
  const int64_t place = (1 * shape[1] + 5) * shape[2] + 7;
  const ParityReport wrong = compare_with([&](Tensors& t) { t["logits"].floats()[place] -= 0.5F; });
  EXPECT_NEAR(wrong.logits.difference, 0.5, 1e-4);
  EXPECT_EQ(wrong.logits.sequence, 1);
  EXPECT_EQ(wrong.logits.position, 5);
  EXPECT_EQ(wrong.logits.token, 7);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ParityReport none = compare_with([&](Tensors& t) { t["logits"].floats()[place] = nan; });
  EXPECT_TRUE(std::isnan(none.logits.difference));
  EXPECT_EQ(none.logits.token, 7);
}

TEST_F(Parity, FindsWrongGradients) {
  const std::string head = "grad.model.norm.weight";
  const ParityReport scaled = compare_with([&](Tensors& t) {
    for (int64_t i = 0; i < t[head].shape.num_elements(); ++i) t[head].floats()[i] *= 1.25F;
  });
  EXPECT_EQ(scaled.gradients.front().parameter, "final_norm");
  EXPECT_EQ(scaled.gradients.front().tensor, "model.norm.weight");
  EXPECT_NEAR(scaled.gradients.front().relative, 0.2, 1e-4);  // |1 - 1.25| / 1.25

  // One matrix of one expert: the last rows of the first expert's gate and up are up's.
  const std::string fused = fused_name();
  const Shape shape = tensors_[fused].shape;
  const ParityReport expert = compare_with([&](Tensors& t) { t[fused].floats()[shape[1] * shape[2] - 1] += 1000.0F; });
  EXPECT_TRUE(contains(expert.gradients.front().tensor, ".mlp.experts.0.up_proj.weight"));

  const ParityReport none =
      compare_with([&](Tensors& t) { t[fused].floats()[0] = std::numeric_limits<float>::quiet_NaN(); });
  EXPECT_TRUE(std::isnan(none.gradients.front().relative));
  EXPECT_TRUE(contains(none.gradients.front().tensor, ".mlp.experts.0.gate_proj.weight"));
}

// A softmax over the one expert that is chosen is 1, whatever the router says: of its derivative, which is 0, both
// sides have the rounding of what cancels.
TEST_F(Parity, AGradientThatIsZeroIsNotDividedByItsRounding) {
  const fs::path fixture = fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf/mixtral", copy = dir_.path() / "copy";
  fs::copy(fixture, copy, fs::copy_options::recursive);
  auto config = nlohmann::json::parse(read_file(copy / "config.json"));
  config["num_experts_per_tok"] = 1;
  write_file_atomically(copy / "config.json", config.dump());
  const std::string router = ".gate.weight";
  const auto routers_with = [&](float value) {
    Tensors tensors = read_tensors(fixture / "expected.safetensors");
    for (auto& [name, tensor] : tensors) {
      if (!contains(name, router)) continue;
      for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) tensor.floats()[i] = value;
    }
    write_tensors(dir_.path() / "expected.safetensors", tensors);
    std::vector<GradientError> found;
    for (const GradientError& error :
         compare_with_reference({.model = copy, .expected = dir_.path() / "expected.safetensors"}).gradients) {
      if (contains(error.tensor, router)) found.push_back(error);
    }
    return found;
  };
  const std::vector<GradientError> zero = routers_with(1e-12F), wrong = routers_with(1e-3F);
  ASSERT_FALSE(zero.empty());
  for (const GradientError& error : zero) {
    EXPECT_TRUE(error.is_rounding) << error.tensor;
    EXPECT_EQ(error.relative, 0.0);
  }
  for (const GradientError& error : wrong) {
    EXPECT_FALSE(error.is_rounding) << error.tensor;
    EXPECT_NEAR(error.relative, 1.0, 1e-2);  // nothing of what is expected is there
  }
}

TEST_F(Parity, TakesExpertsOneByOne) {
  const ParityReport fused = compare();
  const ParityReport split = compare_with([&](Tensors& t) {
    const std::string name = fused_name();
    const HostTensor all = t[name];
    const std::string prefix = name.substr(0, name.size() - std::string("gate_up_proj").size());
    const int64_t rows = all.shape[1] / 2, columns = all.shape[2];
    const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(float);
    for (int64_t i = 0; i < 2 * all.shape[0]; ++i) {
      const auto begin = all.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * bytes);
      const std::string matrix = fmt::format("{}{}.{}_proj.weight", prefix, i / 2, i % 2 == 0 ? "gate" : "up");
      t[matrix] = {DType::kF32, {rows, columns}, {begin, begin + static_cast<std::ptrdiff_t>(bytes)}};
    }
    t.erase(name);
  });
  ASSERT_EQ(split.gradients.size(), fused.gradients.size());
  for (size_t i = 0; i < split.gradients.size(); ++i) {
    EXPECT_EQ(split.gradients[i].relative, fused.gradients[i].relative);
    EXPECT_EQ(split.gradients[i].tensor, fused.gradients[i].tensor);
  }
}

// What was found with the routers' logits of fp32 is what first order says, of every model; routers that may choose
// others cost more.
TEST_F(Parity, LowPrecisionsCostWhatFirstOrderSays) {
  int64_t other_choices = 0;
  for (const fs::path& fixture : test::hf_fixtures()) {
    for (const Precision precision : {Precision::kFp8, Precision::kMxFp8, Precision::kNvFp4}) {
      const ParityReport report = compare_with_reference(
          {.model = fixture, .expected = fixture / "expected.safetensors", .precision = precision});
      ASSERT_TRUE(report.low);
      const LowPrecisionReport& low = *report.low;
      EXPECT_TRUE(low.as_expected()) << fixture;
      EXPECT_NEAR(std::log(low.found.logits / low.expected.logits), 0.0, std::log(1.5)) << fixture;
      EXPECT_NEAR(std::log(low.found.gradients / low.expected.gradients), 0.0, std::log(1.5)) << fixture;
      const bool has_experts = read_hf_model(fixture).config.moe.num_experts > 0;
      EXPECT_EQ(low.choices > low.other_choices, has_experts) << fixture;
      EXPECT_GE(report.relative.logits, low.found.logits) << fixture;
      other_choices += low.other_choices;
    }
  }
  EXPECT_GT(other_choices, 0);
}

TEST_F(Parity, TheCpuHasNoBf16) {
  const Error error = error_of([&] {
    compare_with_reference(
        {.model = model_, .expected = model_ / "expected.safetensors", .precision = Precision::kBf16});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "bf16"));
}

TEST_F(Parity, LowPrecisionsDoNotExplainAnotherModel) {
  const auto is_as_expected = [&](const std::function<void(Tensors&)>& change) {
    Tensors changed = tensors_;
    change(changed);
    write_tensors(dir_.path() / "expected.safetensors", changed);
    return compare_with_reference(
               {.model = model_, .expected = dir_.path() / "expected.safetensors", .precision = Precision::kFp8})
        .low->as_expected();
  };
  EXPECT_TRUE(is_as_expected([](Tensors&) {}));
  EXPECT_FALSE(is_as_expected([](Tensors& t) { t["logits"].floats()[3] = std::numeric_limits<float>::quiet_NaN(); }));
}

TEST_F(Parity, RefusesExpectationsOfAnotherModel) {
  EXPECT_TRUE(
      contains(refusal_of([](Tensors& t) { t.erase("grad.model.norm.weight"); }), "grad.model.norm.weight is missing"));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) { t.erase("logits"); }), "logits is missing"));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) { t["grad.model.other"] = t["grad.model.norm.weight"]; }),
                       "grad.model.other is not part of the model"));
  EXPECT_TRUE(
      contains(refusal_of([&](Tensors& t) { t[fused_name() + "_2"] = t["loss"]; }), "is not part of the model"));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) { t["grad.model.norm.weight"] = t["loss"]; }),
                       "grad.model.norm.weight is [1], should be ["));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) { t["loss"].dtype = DType::kI32; }), "loss is I32, not F32"));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) { t["input_ids"].shape = {t["input_ids"].shape.num_elements()}; }),
                       "input_ids is ["));
  EXPECT_TRUE(contains(refusal_of([](Tensors& t) {
                         const int32_t id = 1 << 20;
                         std::memcpy(t["input_ids"].bytes.data(), &id, sizeof(id));
                       }),
                       "input_ids has 1048576, and the vocabulary"));
}

}  // namespace
}  // namespace nmoe
