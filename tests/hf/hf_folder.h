// Small Hugging Face folders, written by hand.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/rng.h"
#include "checkpoint/safetensors.h"

namespace nmoe {

// Tensors by name, which own their bytes.
class TensorFile {
 public:
  void add(const std::string& name, DType dtype, Shape shape) {
    auto& bytes = storage_.emplace_back(static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype));
    // Any bits will do: import and export do not compute. The exponent's top bit is cleared, against NaN.
    const Philox random(7, name);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(random.uniform(i) * 256.0);
      if (i % dtype_bytes(dtype) + 1 == dtype_bytes(dtype)) bytes[i] &= std::byte{0xbf};
    }
    tensors_.push_back({name, Tensor(bytes.data(), dtype, shape)});
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const NamedTensor& tensor) { return tensor.name == name; });
  }
  Tensor at(const std::string& name) const {
    for (const NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor.tensor;
    }
    throw std::out_of_range(name);
  }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

  void write(const fs::path& path) const {
    ThreadPool pool(1);
    write_safetensors(path, in_memory(tensors_), pool, {{"format", "pt"}});
  }

 private:
  std::deque<std::vector<std::byte>> storage_;
  std::vector<NamedTensor> tensors_;
};

// DeepSeek-V3 with every part it may have: latent queries, one dense layer, groups, a shared expert, one
// multi-token-prediction layer.
struct HfFolder {
  nlohmann::json config = {{"architectures", {"DeepseekV3ForCausalLM"}},
                           {"model_type", "deepseek_v3"},
                           {"vocab_size", 40},
                           {"hidden_size", 16},
                           {"intermediate_size", 24},
                           {"moe_intermediate_size", 8},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 2},
                           {"num_key_value_heads", 2},
                           {"n_shared_experts", 1},
                           {"n_routed_experts", 4},
                           {"routed_scaling_factor", 2.5},
                           {"kv_lora_rank", 6},
                           {"q_lora_rank", 10},
                           {"qk_rope_head_dim", 4},
                           {"v_head_dim", 5},
                           {"qk_nope_head_dim", 3},
                           {"n_group", 2},
                           {"topk_group", 1},
                           {"num_experts_per_tok", 2},
                           {"first_k_dense_replace", 1},
                           {"norm_topk_prob", true},
                           {"hidden_act", "silu"},
                           {"max_position_embeddings", 64},
                           {"rms_norm_eps", 1e-5},
                           {"tie_word_embeddings", false},
                           {"rope_theta", 10000.0},
                           {"num_nextn_predict_layers", 1},
                           {"eos_token_id", 1},
                           {"bos_token_id", 0},
                           {"torch_dtype", "bfloat16"}};
  TensorFile weights;

  explicit HfFolder(DType dtype = DType::kBF16) {
    weights.add("model.embed_tokens.weight", dtype, {40, 16});
    add_layer("model.layers.0.", dtype);
    add_dense("model.layers.0.mlp.", 24, dtype);
    add_layer("model.layers.1.", dtype);
    add_experts("model.layers.1.mlp.", dtype);
    weights.add("model.norm.weight", dtype, {16});
    weights.add("lm_head.weight", dtype, {40, 16});
    add_layer("model.layers.2.", dtype);
    add_experts("model.layers.2.mlp.", dtype);
    weights.add("model.layers.2.enorm.weight", dtype, {16});
    weights.add("model.layers.2.eh_proj.weight", dtype, {16, 32});
  }

  void write(const fs::path& dir) const {
    make_directories(dir);
    write_file_atomically(dir / "config.json", config.dump(2));
    write_file_atomically(dir / "generation_config.json", R"({"eos_token_id": 1, "temperature": 0.6})");
    weights.write(dir / "model.safetensors");
  }

 private:
  void add_layer(const std::string& prefix, DType dtype) {
    weights.add(prefix + "input_layernorm.weight", dtype, {16});
    weights.add(prefix + "post_attention_layernorm.weight", dtype, {16});
    const std::string attention = prefix + "self_attn.";
    weights.add(attention + "q_a_proj.weight", dtype, {10, 16});
    weights.add(attention + "q_a_layernorm.weight", dtype, {10});
    weights.add(attention + "q_b_proj.weight", dtype, {2 * 7, 10});
    weights.add(attention + "kv_a_proj_with_mqa.weight", dtype, {6 + 4, 16});
    weights.add(attention + "kv_a_layernorm.weight", dtype, {6});
    weights.add(attention + "kv_b_proj.weight", dtype, {2 * 8, 6});
    weights.add(attention + "o_proj.weight", dtype, {16, 2 * 5});
  }
  void add_dense(const std::string& prefix, int64_t hidden, DType dtype) {
    weights.add(prefix + "gate_proj.weight", dtype, {hidden, 16});
    weights.add(prefix + "up_proj.weight", dtype, {hidden, 16});
    weights.add(prefix + "down_proj.weight", dtype, {16, hidden});
  }
  void add_experts(const std::string& prefix, DType dtype) {
    weights.add(prefix + "gate.weight", dtype, {4, 16});
    weights.add(prefix + "gate.e_score_correction_bias", DType::kF32, {4});
    for (int expert = 0; expert < 4; ++expert) add_dense(prefix + "experts." + std::to_string(expert) + ".", 8, dtype);
    add_dense(prefix + "shared_experts.", 8, dtype);
  }
};

// name -> "dtype shape sha256" of all tensors of a folder, in whatever files they are.
inline std::map<std::string, std::string> tensors_in(const fs::path& dir) {
  std::map<std::string, std::string> found;
  for (const auto& item : fs::directory_iterator(dir)) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(item.path());
    for (const SafetensorsFile::Entry& entry : file.entries()) {
      found[entry.name] =
          fmt::format("{} {} {}", dtype_name(entry.dtype), entry.shape, tensor_sha256(file.chunk_hashes(entry)));
    }
  }
  return found;
}

}  // namespace nmoe
