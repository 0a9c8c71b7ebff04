// What generates is what trains: on the CPU in fp32, for models shaped like DeepSeek's and Qwen's, bit for bit.
#include "eval/generation_parity.h"

#include "eval/shaped_models.h"
#include "ops/contracts/attention.h"
#include "support/errors.h"

namespace nmoe::test {
namespace {

GenerationParityOptions options_of(std::optional<GenerationArithmetic> arithmetic = {}) {
  return {.num_threads = 2, .tokens = 70, .batches = {1, 7, 64}, .longest = 400, .seed = 3, .arithmetic = arithmetic};
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
TEST(GenerationParity, OfLatentExpertsIsExact) {
  for (const char* shared : {"0", "1"}) {
    expect_equal(deepseek_shaped({"model.moe.latent_dim=24", "model.activation=relu_squared",
                                  "model.moe.num_shared_experts=" + std::string(shared)}),
                 options_of(GenerationArithmetic::kTraining));
  }
}
TEST(GenerationParity, OfRecurrentLayersIsExact) {
  expect_equal(nemotron_shaped(), options_of());
  expect_equal(nemotron_shaped({"model.mamba2.chunk=256", "model.mamba2.num_groups=1", "model.mamba2.conv_width=2"}),
               options_of());
}
TEST(GenerationParity, OfDeltaRulesIsExact) {
  expect_equal(qwen_next_shaped(), options_of());
  expect_equal(qwen_next_shaped({"model.gated_deltanet.num_key_heads=6", "model.gated_deltanet.conv_width=2"}),
               options_of());
}
TEST(GenerationParity, OfWindowsIsExact) {
  expect_equal(qwen_shaped({"model.window=70", "model.attn_global_every=2"}), options_of());
}
// Documents that lie as they do on CUDA.
TEST(GenerationParity, OfAlignedDocumentsIsExact) {
  GenerationParityOptions options = options_of();
  options.align_documents = kDocumentAlignment;
  expect_equal(qwen_shaped(), options);
  options.align_documents = 7;
  expect_equal(qwen_shaped(), options);
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

// Training's passes are the run's: with tokens that travel to experts in FP8, they are not what generates.
TEST(GenerationParity, FindsWhereTokensTravelRounded) {
  GenerationParityOptions options = options_of();
  options.batches = {7};
  const std::vector<BatchParity> parities =
      compare_generation(qwen_shaped({"precision.wire=fp8"}), byte_tokenizer(), options);
  EXPECT_FALSE(parities[0].equal());
  ASSERT_TRUE(parities[0].first);
  EXPECT_EQ(parities[0].first->layer, 1);  // the first with experts
  EXPECT_EQ(parities[0].first->what, Intermediate::kFeedForwardOut);
}

TEST(GenerationParity, RefusesWhatItCannotCompare) {
  const auto compare = [](const Config& config, const GenerationParityOptions& options) {
    compare_generation(config, byte_tokenizer(), options);
  };
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped({"run.precision=fp8"}), options_of()); }).what(),
                       "round their operands"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.tokens = 0}); }).what(), "0 tokens"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.batches = {0}}); }).what(), "0 sequences at a time"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.align_documents = -1}); }).what(), "multiples of -1"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), {.prompt_text = ""}); }).what(), "has no tokens"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped(), options_of(GenerationArithmetic::kTraining)); }).what(),
                       "no layer has mla"));
  EXPECT_TRUE(contains(error_of([&] { compare(qwen_shaped({"data.seq_len=1"}), options_of()); }).what(),
                       "context is one token"));
}

}  // namespace
}  // namespace nmoe::test
