// What generates is what trains: on the CPU in fp32, for models shaped like DeepSeek's and Qwen's, bit for bit.
#include "eval/generation_parity.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "support/errors.h"
#include "support/tiny_run.h"

namespace nmoe::test {
namespace {

// Weights large enough for routers and attention that are anything but even; documents of more than one block of keys.
Config shaped_config(const std::string& model, const std::vector<std::string>& overrides = {}) {
  return parse_config(R"(
    [model]
    vocab_size = 272
    dim = 40
    num_heads = 4
    num_dense_layers = 1
    dense_dim = 56
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

Config deepseek_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(R"(
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

Config qwen_shaped(const std::vector<std::string>& overrides = {}) {
  return shaped_config(R"(
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

GenerationParityOptions options_of(std::optional<GenerationArithmetic> arithmetic = {}) {
  return {.num_threads = 2, .tokens = 70, .batches = {1, 7, 64}, .longest = 400, .seed = 3, .arithmetic = arithmetic};
}

void expect_equal(const Config& config, const GenerationParityOptions& options) {
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

TEST(GenerationParity, OfMlaWithExpertsIsExact) {
  expect_equal(deepseek_shaped(), options_of(GenerationArithmetic::kTraining));
}
TEST(GenerationParity, OfGroupedQueriesWithExpertsIsExact) { expect_equal(qwen_shaped(), options_of()); }
TEST(GenerationParity, OfPartsOfHeadsAndGatedExpertsIsExact) {
  expect_equal(qwen_shaped({"model.gqa.rotary_dim=10", "model.gqa.bias=qkv", "model.moe.num_shared_experts=1",
                            "model.moe.shared_gate=true", "model.moe.shared_dim=30"}),
               options_of());
}
TEST(GenerationParity, OfNormsOverAllHeadsIsExact) {
  expect_equal(qwen_shaped({"model.gqa.bias=all", "model.gqa.qk_norm_over=all_heads", "model.rope.scaling=llama3",
                            "model.rope.original_max_positions=64"}),
               options_of());
}
TEST(GenerationParity, OfWindowsIsExact) {
  expect_equal(qwen_shaped({"model.window=70", "model.attn_global_every=2"}), options_of());
}
// Products of more than one chain of terms.
TEST(GenerationParity, OfLongSumsIsExact) {
  expect_equal(deepseek_shaped({"model.dim=288", "model.dense_dim=520"}),
               {.num_threads = 2,
                .tokens = 40,
                .batches = {1, 20},
                .longest = 100,
                .arithmetic = GenerationArithmetic::kTraining});
}

// In latent space MLA sums otherwise: that is found, and where it begins.
TEST(GenerationParity, FindsWhereLatentAttentionDiffers) {
  for (const BatchParity& parity :
       compare_generation(deepseek_shaped(), byte_tokenizer(), options_of(GenerationArithmetic::kLatent))) {
    EXPECT_FALSE(parity.equal());
    EXPECT_GT(parity.differing, 0);
    EXPECT_GT(parity.largest, 0.0);
    ASSERT_TRUE(parity.first);
    EXPECT_EQ(parity.first->what, Intermediate::kAttentionHeads);
    EXPECT_EQ(parity.first->layer, 0);
    EXPECT_GT(parity.first->rows, 0);
  }
}

TEST(GenerationParity, RefusesWhatItCannotCompare) {
  const auto compare = [](const Config& config, const GenerationParityOptions& options) {
    compare_generation(config, byte_tokenizer(), options);
  };
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped({"run.precision=fp8"}), options_of()); }).what(),
                       "round their operands"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.tokens = 0}); }).what(), "0 tokens"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.batches = {0}}); }).what(), "0 sequences at a time"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.prompt_text = ""}); }).what(), "has no tokens"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), options_of(GenerationArithmetic::kTraining)); }).what(),
                       "no layer has mla"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped({"data.seq_len=1"}), options_of()); }).what(),
                       "context is one token"));
}

}  // namespace
}  // namespace nmoe::test
