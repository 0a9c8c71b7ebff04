// gpt-oss against its definition, written out here from transformers' tensors (arXiv 2508.10925 and transformers'
// modelling), gradients by finite differences; its files to a checkpoint and back, in MXFP4 too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/files.h"
#include "base/rng.h"
#include "checkpoint/reader.h"
#include "hf/binding.h"
#include "hf/export.h"
#include "hf/import.h"
#include "hf/parity.h"
#include "hf/weights.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe {
namespace {

using nlohmann::json;

struct Sizes {
  int64_t V = 11, D = 8, layers = 2, H = 4, G = 2, C = 4, E = 4, K = 2, F = 3, window = 3, B = 2, S = 6;
};

json config_of(const Sizes& n) {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"model_type", "gpt_oss"},
          {"vocab_size", n.V},
          {"hidden_size", n.D},
          {"num_hidden_layers", n.layers},
          {"num_attention_heads", n.H},
          {"num_key_value_heads", n.G},
          {"head_dim", n.C},
          {"num_local_experts", n.E},
          {"num_experts_per_tok", n.K},
          {"experts_per_token", n.K},
          {"intermediate_size", n.F},
          {"sliding_window", n.window},
          {"layer_types", {"sliding_attention", "full_attention"}},
          {"hidden_act", "silu"},
          {"attention_bias", true},
          {"swiglu_limit", 7.0},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 64},
          {"initial_context_length", 8},
          {"rope_theta", 50.0},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 4.0},
            {"beta_fast", 2.0},
            {"beta_slow", 1.0},
            {"original_max_position_embeddings", 16},
            {"truncate", false}}},
          {"tie_word_embeddings", false},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.9},
          {"pad_token_id", 2},
          {"eos_token_id", 1},
          {"torch_dtype", "float32"}};
}

using Values = std::vector<double>;
struct Parameter {
  Shape shape;
  Values values;
};
using Parameters = std::map<std::string, Parameter>;

// Values that FP32 has.
Parameters random_parameters(const Sizes& n) {
  Parameters all;
  const auto add = [&](const std::string& name, const Shape& shape, double deviation, double mean = 0.0) {
    const Philox random(5, name);
    Parameter& parameter = all[name] = {shape, Values(static_cast<size_t>(shape.num_elements()))};
    for (size_t i = 0; i < parameter.values.size(); ++i) {
      parameter.values[i] = static_cast<double>(static_cast<float>(mean + deviation * random.normal(i)));
    }
  };
  add("model.embed_tokens.weight", {n.V, n.D}, 1.0);
  add("model.norm.weight", {n.D}, 0.2, 1.0);
  add("lm_head.weight", {n.V, n.D}, 0.5);
  for (int64_t i = 0; i < n.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i), attention = layer + "self_attn.";
    add(layer + "input_layernorm.weight", {n.D}, 0.2, 1.0);
    add(layer + "post_attention_layernorm.weight", {n.D}, 0.2, 1.0);
    for (const auto& [name, out, in] : {std::tuple("q_proj", n.H * n.C, n.D),
                                        {"k_proj", n.G * n.C, n.D},
                                        {"v_proj", n.G * n.C, n.D},
                                        {"o_proj", n.D, n.H * n.C}}) {
      add(fmt::format("{}{}.weight", attention, name), {out, in}, 0.5);
      add(fmt::format("{}{}.bias", attention, name), {out}, 0.3);
    }
    add(attention + "sinks", {n.H}, 1.0);
    add(layer + "mlp.router.weight", {n.E, n.D}, 1.0);
    add(layer + "mlp.router.bias", {n.E}, 0.5);
    add(layer + "mlp.experts.gate_up_proj", {n.E, n.D, 2 * n.F}, 0.5);
    add(layer + "mlp.experts.gate_up_proj_bias", {n.E, 2 * n.F}, 5.0);  // some beyond what is clamped
    add(layer + "mlp.experts.down_proj", {n.E, n.F, n.D}, 0.2);
    add(layer + "mlp.experts.down_proj_bias", {n.E, n.D}, 0.3);
  }
  return all;
}

// The model, a sequence at a time.
class Reference {
 public:
  Reference(const Sizes& n, const Parameters& parameters) : n_(n), parameters_(parameters) {}

  // [S, V]
  Values logits(const std::vector<int32_t>& tokens) const {
    Values x(at(n_.S * n_.D));
    for (int64_t t = 0; t < n_.S; ++t) {
      for (int64_t d = 0; d < n_.D; ++d)
        x[at(t * n_.D + d)] = p("model.embed_tokens.weight")[at(tokens[at(t)] * n_.D + d)];
    }
    for (int64_t i = 0; i < n_.layers; ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      add(x, attention(layer + "self_attn.", normed(x, layer + "input_layernorm.weight"), i == 0 ? n_.window : 0));
      add(x, experts(layer + "mlp.", normed(x, layer + "post_attention_layernorm.weight")));
    }
    return linear(normed(x, "model.norm.weight"), n_.D, "lm_head.weight", "");
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  const Values& p(const std::string& name) const { return parameters_.at(name).values; }
  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Values normed(const Values& x, const std::string& gain) const {
    Values y(x.size());
    for (int64_t t = 0; t < n_.S; ++t) {
      double squares = 0;
      for (int64_t d = 0; d < n_.D; ++d) squares += x[at(t * n_.D + d)] * x[at(t * n_.D + d)];
      const double rms = std::sqrt(squares / static_cast<double>(n_.D) + 1e-5);
      for (int64_t d = 0; d < n_.D; ++d) y[at(t * n_.D + d)] = x[at(t * n_.D + d)] / rms * p(gain)[at(d)];
    }
    return y;
  }
  Values linear(const Values& x, int64_t in, const std::string& weight, const std::string& bias) const {
    const int64_t out = std::ssize(p(weight)) / in;
    Values y(at(n_.S * out));
    for (int64_t t = 0; t < n_.S; ++t) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = bias.empty() ? 0.0 : p(bias)[at(o)];
        for (int64_t i = 0; i < in; ++i) sum += x[at(t * in + i)] * p(weight)[at(o * in + i)];
        y[at(t * out + o)] = sum;
      }
    }
    return y;
  }
  // Halves of a head rotate by YaRN's angles, whose ramp has the ends that the formula says.
  void rotate(Values& x, int64_t heads) const {
    const double base = 50.0, factor = 4.0, context = 16.0, dim = static_cast<double>(n_.C);
    const auto pair_of = [&](double turns) {
      return dim * std::log(context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(base));
    };
    const double low = std::max(pair_of(2.0), 0.0), high = std::min(pair_of(1.0), dim - 1.0);
    const double magnitude = 0.1 * std::log(factor) + 1.0;
    for (int64_t t = 0; t < n_.S; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < n_.C / 2; ++i) {
          const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / dim);
          const double kept = 1.0 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
          const double angle = static_cast<double>(t) * (frequency * kept + frequency / factor * (1.0 - kept));
          double& first = x[at((t * heads + h) * n_.C + i)];
          double& second = x[at((t * heads + h) * n_.C + i + n_.C / 2)];
          const double a = first, b = second, cos = magnitude * std::cos(angle), sin = magnitude * std::sin(angle);
          first = a * cos - b * sin;
          second = b * cos + a * sin;
        }
      }
    }
  }
  Values attention(const std::string& name, const Values& x, int64_t window) const {
    const auto project = [&](const char* what, const Values& from, int64_t in) {
      return linear(from, in, name + what + ".weight", name + what + ".bias");
    };
    Values q = project("q_proj", x, n_.D), k = project("k_proj", x, n_.D);
    const Values v = project("v_proj", x, n_.D);
    rotate(q, n_.H);
    rotate(k, n_.G);
    Values heads(at(n_.S * n_.H * n_.C));
    for (int64_t i = 0; i < n_.S; ++i) {
      for (int64_t h = 0; h < n_.H; ++h) {
        const int64_t g = h / (n_.H / n_.G);
        double total = std::exp(p(name + "sinks")[at(h)]);
        for (int64_t j = window == 0 ? 0 : std::max<int64_t>(0, i - window + 1); j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < n_.C; ++d) {
            score += q[at((i * n_.H + h) * n_.C + d)] * k[at((j * n_.G + g) * n_.C + d)];
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(n_.C)));
          total += weight;
          for (int64_t d = 0; d < n_.C; ++d) {
            heads[at((i * n_.H + h) * n_.C + d)] += weight * v[at((j * n_.G + g) * n_.C + d)];
          }
        }
        for (int64_t d = 0; d < n_.C; ++d) heads[at((i * n_.H + h) * n_.C + d)] /= total;
      }
    }
    return project("o_proj", heads, n_.H * n_.C);
  }
  Values experts(const std::string& name, const Values& x) const {
    const Values scores = linear(x, n_.D, name + "router.weight", name + "router.bias");
    Values y(x.size());
    for (int64_t t = 0; t < n_.S; ++t) {
      std::vector<int64_t> order(at(n_.E));
      for (int64_t e = 0; e < n_.E; ++e) order[at(e)] = e;
      std::ranges::sort(order, std::ranges::greater(), [&](int64_t e) { return scores[at(t * n_.E + e)]; });
      double total = 0;
      for (int64_t k = 0; k < n_.K; ++k) total += std::exp(scores[at(t * n_.E + order[at(k)])]);
      for (int64_t k = 0; k < n_.K; ++k) {
        const int64_t e = order[at(k)];
        add_expert(name + "experts.", e, std::exp(scores[at(t * n_.E + e)]) / total, &x[at(t * n_.D)],
                   &y[at(t * n_.D)]);
      }
    }
    return y;
  }
  void add_expert(const std::string& name, int64_t e, double weight, const double* x, double* y) const {
    const auto pre = [&](int64_t column) {
      double sum = p(name + "gate_up_proj_bias")[at(e * 2 * n_.F + column)];
      for (int64_t d = 0; d < n_.D; ++d) sum += x[d] * p(name + "gate_up_proj")[at((e * n_.D + d) * 2 * n_.F + column)];
      return sum;
    };
    for (int64_t d = 0; d < n_.D; ++d) y[d] += weight * p(name + "down_proj_bias")[at(e * n_.D + d)];
    for (int64_t f = 0; f < n_.F; ++f) {
      const double gate = std::min(pre(2 * f), 7.0), up = std::clamp(pre(2 * f + 1), -7.0, 7.0);
      const double hidden = (up + 1.0) * gate / (1.0 + std::exp(-1.702 * gate));
      for (int64_t d = 0; d < n_.D; ++d) y[d] += weight * hidden * p(name + "down_proj")[at((e * n_.F + f) * n_.D + d)];
    }
  }

  const Sizes& n_;
  const Parameters& parameters_;
};

// The mean cross-entropy of sequences of S + 1 tokens.
double loss_of(const Sizes& n, const Parameters& parameters, const std::vector<int32_t>& ids,
               Values* logits = nullptr) {
  double loss = 0;
  for (int64_t b = 0; b < n.B; ++b) {
    const std::vector<int32_t> tokens(ids.begin() + b * (n.S + 1), ids.begin() + (b + 1) * (n.S + 1));
    const Values found = Reference(n, parameters).logits(tokens);
    if (logits != nullptr) logits->insert(logits->end(), found.begin(), found.end());
    for (int64_t t = 0; t < n.S; ++t) {
      double total = 0;
      for (int64_t v = 0; v < n.V; ++v) total += std::exp(found[static_cast<size_t>(t * n.V + v)]);
      loss += std::log(total) - found[static_cast<size_t>(t * n.V + tokens[static_cast<size_t>(t + 1)])];
    }
  }
  return loss / static_cast<double>(n.B * n.S);
}

class TensorBytes {
 public:
  template <class T>
  void add(const std::string& name, DType dtype, const Shape& shape, const std::vector<T>& values) {
    auto& bytes = storage_.emplace_back(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors_.push_back({name, Tensor(bytes.data(), dtype, shape)});
  }
  void add(const std::string& name, const Parameter& parameter) {
    add(name, DType::kF32, parameter.shape, std::vector<float>(parameter.values.begin(), parameter.values.end()));
  }
  void write(const fs::path& path) const {
    ThreadPool pool(1);
    write_safetensors(path, in_memory(tensors_), pool, {{"format", "pt"}});
  }

 private:
  std::deque<std::vector<std::byte>> storage_;
  std::vector<NamedTensor> tensors_;
};

class GptOss : public test::TempDirTest {
 protected:
  void write_model(const json& config, const TensorBytes& tensors) const {
    make_directories(dir_ / "hf");
    write_file_atomically(dir_ / "hf/config.json", config.dump(2));
    tensors.write(dir_ / "hf/model.safetensors");
  }
  std::string bytes_of(const fs::path& path, const std::string& name) const {
    const SafetensorsFile file(dir_ / path);
    const auto* entry = file.find(name);
    if (entry == nullptr) return "none";
    const auto bytes = file.bytes(*entry);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

TEST_F(GptOss, IsItsDefinition) {
  const Sizes n;
  Parameters parameters = random_parameters(n);
  TensorBytes model, expected;
  for (const auto& [name, parameter] : parameters) model.add(name, parameter);
  write_model(config_of(n), model);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n.B * (n.S + 1); ++i) ids.push_back(static_cast<int32_t>(i * i * 7 % n.V));

  Values logits;
  const double loss = loss_of(n, parameters, ids, &logits);
  expected.add("input_ids", DType::kI32, {n.B, n.S + 1}, ids);
  expected.add("logits", {{n.B, n.S, n.V}, logits});
  expected.add("loss", {{1}, {loss}});
  for (auto& [name, parameter] : parameters) {
    Parameter gradient = parameter;
    for (size_t i = 0; i < parameter.values.size(); ++i) {
      constexpr double kStep = 1e-5;
      const double before = parameter.values[i];
      parameter.values[i] = before + kStep;
      const double above = loss_of(n, parameters, ids);
      parameter.values[i] = before - kStep;
      gradient.values[i] = (above - loss_of(n, parameters, ids)) / (2 * kStep);
      parameter.values[i] = before;
    }
    expected.add("grad." + name, gradient);
  }
  expected.write(dir_ / "expected.safetensors");
  const ParityReport report = compare_with_reference({.model = dir_ / "hf", .expected = dir_ / "expected.safetensors"});
  EXPECT_LT(report.loss_error() / loss, 1e-6);
  EXPECT_LT(report.logits.difference / report.largest_logit, 5e-6);
  ASSERT_FALSE(report.gradients.empty());
  EXPECT_LT(report.gradients.front().relative, 2e-5) << report.gradients.front().tensor;  // by finite differences
}

TEST_F(GptOss, ComesBackByteForByte) {
  const Sizes n;
  TensorBytes model;
  const Parameters parameters = random_parameters(n);
  for (const auto& [name, parameter] : parameters) model.add(name, parameter);
  write_model(config_of(n), model);
  import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .num_threads = 2});
  export_model({.checkpoint = dir_ / "checkpoint", .out = dir_ / "back", .num_threads = 2});
  for (const auto& [name, parameter] : parameters) {
    EXPECT_EQ(bytes_of("back/model.safetensors", name), bytes_of("hf/model.safetensors", name)) << name;
  }
  EXPECT_EQ(json::parse(read_file(dir_ / "back/config.json")), config_of(n));
}

// Codes and scales at random: every value of every code.
class GptOssInMxFp4 : public GptOss {
 protected:
  static constexpr Sizes kSizes{.D = 64, .H = 4, .C = 4, .F = 32};

  static std::vector<uint8_t> random_bytes(const std::string& name, int64_t count, int64_t least, int64_t range) {
    const Philox random(9, name);
    std::vector<uint8_t> bytes(static_cast<size_t>(count));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(least + static_cast<int64_t>(random.uniform(i) * static_cast<double>(range)));
    }
    return bytes;
  }
  // [E, in, out]
  void add_quantised(TensorBytes& model, const std::string& name, int64_t in, int64_t out) {
    const int64_t E = kSizes.E, blocks = in / 32;
    const auto codes = random_bytes(name, E * out * blocks * 16, 0, 256);
    const auto scales = random_bytes(name + "s", E * out * blocks, 110, 20);
    model.add(name + "_blocks", DType::kU8, {E, out, blocks, 16}, codes);
    model.add(name + "_scales", DType::kU8, {E, out, blocks}, scales);
    Values& values = meanings_[name];
    values.resize(static_cast<size_t>(E * in * out));
    constexpr double kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int64_t row = 0; row < E * out; ++row) {
      for (int64_t i = 0; i < in; ++i) {
        const uint8_t pair = codes[static_cast<size_t>((row * in + i) / 2)];
        const int code = i % 2 == 0 ? pair & 15 : pair >> 4;
        const int scale = scales[static_cast<size_t>((row * in + i) / 32)];
        const double value = std::ldexp(code >= 8 ? -kCodes[code - 8] : kCodes[code], scale - 127);
        values[static_cast<size_t>((row / out * in + i) * out + row % out)] = value;
      }
    }
  }
  json config() const {
    json config = config_of(kSizes);
    config["torch_dtype"] = "bfloat16";
    config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
    return config;
  }
  void write_quantised() {
    TensorBytes model;
    for (const auto& [name, parameter] : random_parameters(kSizes)) {
      if (name.ends_with("gate_up_proj")) {
        add_quantised(model, name, kSizes.D, 2 * kSizes.F);
      } else if (name.ends_with("down_proj")) {
        add_quantised(model, name, kSizes.F, kSizes.D);
      } else {
        std::vector<uint16_t> values;
        for (const double value : parameter.values) values.push_back(float_to_bf16(static_cast<float>(value)));
        model.add(name, DType::kBF16, parameter.shape, values);
      }
    }
    write_model(config(), model);
  }

  std::map<std::string, Values> meanings_;
};

TEST_F(GptOssInMxFp4, IsExportedAsWhatItMeansOrAsItWas) {
  write_quantised();
  const ImportReport in = import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .num_threads = 2});
  EXPECT_EQ(in.num_quantised, 2 * kSizes.layers);
  EXPECT_EQ(in.model.format, HfFormat::kMxFp4);
  export_model({.checkpoint = dir_ / "checkpoint", .out = dir_ / "plain", .num_threads = 2});
  for (const auto& [name, values] : meanings_) {
    std::vector<uint16_t> expected;
    for (const double value : values) expected.push_back(float_to_bf16(static_cast<float>(value)));
    const std::string bytes(reinterpret_cast<const char*>(expected.data()), expected.size() * 2);
    EXPECT_TRUE(bytes_of("plain/model.safetensors", name) == bytes) << name;
  }
  json plain = config();
  plain.erase("quantization_config");
  EXPECT_EQ(json::parse(read_file(dir_ / "plain/config.json")), plain);

  const ExportReport kept =
      export_model({.checkpoint = dir_ / "checkpoint", .out = dir_ / "kept", .keep_format = true, .num_threads = 2});
  EXPECT_EQ(kept.num_unchanged, 2 * kSizes.layers);
  EXPECT_EQ(kept.num_changed, 0);
  EXPECT_EQ(json::parse(read_file(dir_ / "kept/config.json")), config());
  const SafetensorsFile file(dir_ / "hf/model.safetensors");
  for (const auto& entry : file.entries()) {
    EXPECT_TRUE(bytes_of("kept/model.safetensors", entry.name) == bytes_of("hf/model.safetensors", entry.name))
        << entry.name;
  }
}

TEST_F(GptOssInMxFp4, SaysWhichScalesAreMissing) {
  TensorBytes model;
  model.add("model.layers.0.mlp.experts.down_proj_blocks", DType::kU8, {1, 1, 1, 16}, std::vector<uint8_t>(16));
  write_model(config(), model);
  const Error error = test::error_of([&] { HfBinding binding(dir_ / "hf"); });
  EXPECT_TRUE(test::contains(error.what(), "down_proj_scales")) << error.what();
}

}  // namespace
}  // namespace nmoe
