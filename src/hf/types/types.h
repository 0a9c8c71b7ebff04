// What each type says in its config.json: how it is read, written, and what of a configuration it cannot express. One
// file for each family of types; types.cpp lists them. Private to hf/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/layers.h"
#include "hf/hf_model.h"
#include "hf/types/keys.h"

namespace nmoe {

// Why `config` is no model of a type, key by key.
class Fit {
 public:
  Fit(const ModelConfig& config, std::string_view type) : type_(type) { config_.model = config; }

  // The type has only `has`; the configuration's key says otherwise unless `holds`.
  void require(bool holds, std::string_view key, std::string_view has);
  std::vector<std::string> obstacles() && { return std::move(obstacles_); }

 private:
  Config config_;
  std::string_view type_;
  std::vector<std::string> obstacles_;
};

struct TypeText {
  // The rest of what is common to all types (config_json.cpp), into model.config and model's counts.
  void (*read)(Keys& keys, HfModel& model);
  void (*write)(Keys::Json& json, const HfModel& model);
  void (*require)(Fit& fit, const ModelConfig& config, ModelType type);
};
const TypeText& text_of(ModelType type);

// What layers of a type's models may have each its own; all else is common to them.
struct LayerFreedom {
  enum class Windows { kNone, kAllLayers, kAny };
  bool dense = false;                // whether layers without experts may be others than the first ones
  Windows windows = Windows::kNone;  // which may have a window, of one size: all or none of them, or any
};
LayerFreedom layer_freedom(ModelType type);

TypeText deepseek_text();  // DeepSeek-V3, Kimi-K2 and GLM-4-MoE-Lite
TypeText deepseek_v2_text();
TypeText dense_text();     // Llama and Qwen3
TypeText qwen_moe_text();  // Qwen2-MoE and Qwen3-MoE
TypeText mixtral_text();   // Mixtral and OLMoE
TypeText minimax_text();
TypeText glm4_moe_text();  // GLM-4-MoE and dots1
TypeText ernie_text();
TypeText gpt_oss_text();
TypeText nemotron_text();

// --- rotation (rope.cpp)
// Both spellings: rope_theta beside rope_scaling (null, or what to do beyond the trained length), and rope_parameters
// with all of it; how much of a head rotates, beside either or within.
void read_rope(Keys& file, ModelType type, ModelConfig& model);
// rope_theta, rope_scaling and, for types that have it, partial_rotary_factor, as all versions of transformers read
// them.
void write_rope(Keys::Json& json, ModelType type, const ModelConfig& config);
void require_rope(Fit& fit, const ModelConfig& config);
// Other keys that say what one of rope's does.
bool is_rope_key(std::string_view key);
constexpr std::string_view kRopeKeys[] = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"};

// --- what several families share (parts.cpp)
// Of grouped-query attention, what a type may have.
struct GqaTraits {
  enum class Norms { kNone, kPerHead, kAllHeads, kPerHeadOrNone };
  Norms norms = Norms::kNone;
  AttentionBias bias = AttentionBias::kNone;  // what the type has where it has biases
  bool rotates_part = false;                  // whether it may rotate a part of heads
  int64_t head_dim = 0;                       // where the file does not say; 0: hidden_size / num_attention_heads
};
// num_key_value_heads (absent: as many as heads, where `kv_optional`; other types have numbers of their own) and
// head_dim.
void read_gqa(Keys& keys, ModelConfig& config, const GqaTraits& traits, bool kv_optional);
void write_gqa(Keys::Json& json, const ModelConfig& config);
void require_gqa(Fit& fit, const ModelConfig& config, const GqaTraits& traits);

// Of every layer, what a file says of it: whether it has no experts, and its window, 0 where it has none.
struct LayerKinds {
  explicit LayerKinds(const ModelConfig& config)
      : dense(static_cast<size_t>(config.num_layers)), windows(dense.size()) {}
  std::vector<char> dense;
  std::vector<int64_t> windows;
};
// Into num_dense_layers, or a pattern where that does not say it.
void set_layers(ModelConfig& config, const LayerKinds& kinds);
// The other way. The layers must have a mixer of one kind each, followed by a feed-forward part.
LayerKinds layer_kinds(const ModelConfig& config);

// Windows by layer_types or, without, of the layers that max_window_layers says: those behind them, or (`is_qwen2`)
// every other one up to them, or (`alternates`) every other one. Without `has_switch`, use_sliding_window means nothing
// to the type.
struct WindowKeys {
  bool has_switch = true;
  bool is_qwen2 = false;
  bool alternates = false;
  int64_t size = 4096;  // where the file does not say it
};
void read_windows(Keys& keys, const WindowKeys& has, LayerKinds& kinds);
void write_windows(Keys::Json& json, const LayerKinds& kinds, bool has_switch);
// Layers that have no experts: mlp_only_layers, and all but every decoder_sparse_step-th.
void read_dense_layers(Keys& keys, LayerKinds& kinds);
void write_dense_layers(Keys::Json& json, const LayerKinds& kinds);
// Without dense layers their width means nothing, and a configuration's text does not have it; transformers wants some
// number.
int64_t written_dense_dim(const ModelConfig& config);
// Of shared experts together, in whichever way the configuration says it.
int64_t written_shared_dim(const MoeConfig& moe);
void read_groups(Keys& keys, MoeConfig& moe);
void write_groups(Keys::Json& json, const MoeConfig& moe);
// Routers by softmax, without groups, bias and factor.
void set_softmax_router(MoeConfig& moe);
void require_softmax_router(Fit& fit, const MoeConfig& moe);
void require_no_shared_experts(Fit& fit, const MoeConfig& moe);
// Shared experts of expert_dim each, without a gate; at least `min`.
void require_plain_shared_experts(Fit& fit, const MoeConfig& moe, int64_t min);
void require_no_dense_layers(Fit& fit, const ModelConfig& config);

}  // namespace nmoe
