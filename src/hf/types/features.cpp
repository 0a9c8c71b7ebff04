#include "hf/types/features.h"

#include <algorithm>

namespace nmoe {
namespace {

struct Feature {
  std::string_view of;
  std::string_view what;
};

constexpr Feature kOfKeys[] = {
    {"attention_chunk_size", "attention within chunks"},
    {"attn_logit_softcapping", "soft-capped attention scores"},
    {"attn_output_gate", "gates on attention's output"},
    {"audio_config", "sound"},
    {"conv_kernel", "convolutions in front of recurrent layers"},
    {"final_logit_softcapping", "soft-capped logits"},
    {"hybrid_override_pattern", "layers of Mamba-2"},
    {"index_head_dim", "indexer of sparse attention (DSA)"},
    {"index_n_heads", "indexer of sparse attention (DSA)"},
    {"index_topk", "indexer of sparse attention (DSA)"},
    {"linear_attn_config", "layers of Kimi delta attention"},
    {"linear_conv_kernel_dim", "layers of Gated DeltaNet"},
    {"linear_key_head_dim", "layers of Gated DeltaNet"},
    {"linear_num_key_heads", "layers of Gated DeltaNet"},
    {"linear_num_value_heads", "layers of Gated DeltaNet"},
    {"linear_value_head_dim", "layers of Gated DeltaNet"},
    {"mamba_head_dim", "layers of Mamba-2"},
    {"mamba_num_heads", "layers of Mamba-2"},
    {"no_rope_layers", "choice of layers that rotate"},
    {"ssm_state_size", "layers of Mamba-2"},
    {"text_config", "models of text beside images"},
    {"vision_config", "images"},
};

constexpr Feature kOfTypes[] = {
    {"bailing_moe_v2", "queries, keys and values in one tensor"},
    {"deepseek_v32", "indexer of sparse attention (DSA)"},
    {"deepseek_v4", "hyper-connections, hash routing, compressed attention"},
    {"glm_moe_dsa", "indexer of sparse attention (DSA)"},
    {"kimi_linear", "layers of Kimi delta attention"},
    {"llama4", "images, attention within chunks, scores on experts' inputs"},
    {"llama4_text", "attention within chunks, scores on experts' inputs, L2 norms of queries and keys"},
    {"mimo_v2_flash", "values of another size than keys, windowed layers with heads and a rotation of their own"},
    {"qwen3_5_moe", "layers of Gated DeltaNet, gates on attention's output, zero-centred norms"},
    {"qwen3_next", "layers of Gated DeltaNet, gates on attention's output, zero-centred norms"},
};

template <size_t N>
std::string_view found_in(const Feature (&table)[N], std::string_view of) {
  const auto* const feature = std::ranges::find(table, of, &Feature::of);
  return feature == std::end(table) ? "" : feature->what;
}

}  // namespace

std::string_view feature_of_key(std::string_view key) { return found_in(kOfKeys, key); }

std::string_view features_of_type(std::string_view model_type) { return found_in(kOfTypes, model_type); }

}  // namespace nmoe
