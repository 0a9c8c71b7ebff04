// Models shaped like DeepSeek's, Qwen's and Nemotron's whose generation is compared with their training.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "eval/generation_parity.h"
#include "support/tiny_run.h"

namespace nmoe::test {

// Weights large enough for routers and attention that are anything but even; documents of more than one block of keys.
// `layers`: keys of [model] that say what its layers are.
inline Config shaped_config(const std::string& layers, const std::string& model,
                            const std::vector<std::string>& overrides = {}) {
  return parse_config(R"(
    [model]
    vocab_size = 272
    dim = 40
    num_heads = 4
    )" + layers + R"(
    init.std = 0.25
    init.embedding_std = 1
    init.router_std = 0.5
    [data]
    seq_len = 448
    mask_documents = true
    [train]
    batch_seqs = 3
    microbatch_seqs = 3
    [run]
    seed = 5
    )" + model,
                      "shaped.toml", overrides);
}

inline constexpr const char* kOneDenseLayer = "num_dense_layers = 1\n dense_dim = 56";

inline Config deepseek_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(kOneDenseLayer, R"(
    [model.mla]
    q_lora_rank = 20
    kv_lora_rank = 24
    qk_nope_head_dim = 12
    qk_rope_head_dim = 8
    v_head_dim = 14
    [model.moe]
    num_experts = 8
    top_k = 3
    expert_dim = 20
    num_shared_experts = 1
    num_groups = 2
    top_groups = 1
    score = "sigmoid"
    routed_scale = 2.5
    )",
                       overrides);
}

inline Config qwen_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(kOneDenseLayer, R"(
    [model.gqa]
    num_kv_heads = 2
    head_dim = 18
    qk_norm = true
    [model.moe]
    num_experts = 8
    top_k = 2
    expert_dim = 24
    num_shared_experts = 0
    score = "softmax"
    )",
                       [&] {
                         std::vector<std::string> all = {"model.attention=gqa", "model.rope.layout=half_split"};
                         all.insert(all.end(), overrides.begin(), overrides.end());
                         return all;
                       }());
}

// Recurrent layers beside attention and experts, as in Nemotron 3; chunks that texts end in the middle of.
inline Config nemotron_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(R"(
    layers = "mamba2, moe, mamba2/moe, gqa_nope, moe, mamba2"
    activation = "relu_squared")",
                       R"(
    [model.gqa]
    num_kv_heads = 2
    head_dim = 16
    [model.mamba2]
    num_heads = 6
    head_dim = 10
    state_dim = 20
    num_groups = 2
    chunk = 48
    step_max = 0.5
    [model.moe]
    num_experts = 8
    top_k = 3
    expert_dim = 20
    latent_dim = 24
    num_shared_experts = 1
    )",
                       overrides);
}

// Three layers of Gated DeltaNet to one of attention, as in Qwen3-Next.
inline Config qwen_next_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(R"(
    layers = "3 x gated_deltanet/moe, gqa/moe"
    zero_centred_norms = true)",
                       R"(
    [model.gqa]
    num_kv_heads = 2
    head_dim = 16
    qk_norm = true
    rotary_dim = 4
    output_gate = true
    [model.gated_deltanet]
    num_key_heads = 2
    num_value_heads = 6
    key_head_dim = 10
    value_head_dim = 20
    [model.moe]
    num_experts = 8
    top_k = 3
    expert_dim = 20
    shared_gate = true
    score = "softmax"
    )",
                       overrides);
}

// No value of generation is another than training's; what fails names the first that is.
inline void expect_equal(const Config& config, const GenerationParityOptions& options) {
  const std::vector<BatchParity> parities = compare_generation(config, byte_tokenizer(), options);
  ASSERT_EQ(parities.size(), options.batches.size());
  for (const BatchParity& parity : parities) {
    SCOPED_TRACE(parity.batch);
    EXPECT_GE(parity.tokens, options.tokens);
    EXPECT_GT(parity.choices, 10 * parity.tokens);
    EXPECT_EQ(parity.largest, 0.0);
    EXPECT_EQ(parity.differing, 0);
    EXPECT_EQ(parity.other_choices, 0);
    EXPECT_EQ(parity.other_tokens, 0);
    EXPECT_TRUE(parity.equal());
    if (!parity.first) continue;
    ADD_FAILURE() << intermediate_name(parity.first->what, parity.first->layer) << " of sequence "
                  << parity.first->sequence << ", position " << parity.first->position << ", in " << parity.first->rows
                  << " rows";
  }
}

}  // namespace nmoe::test
