// What generates is what trains on a GPU, too: bit for bit, in BF16 and in FP32. Needs a GPU.
#include "eval/generation_parity.h"

#include "eval/shaped_models.h"

namespace nmoe::test {
namespace {

// On CUDA in sizes that its kernels take, with more heads of queries than of keys and documents of several blocks.
std::vector<std::string> sizes(const std::string& precision, const std::vector<std::string>& more) {
  std::vector<std::string> all = {"run.device=cuda",      "run.precision=" + precision, "model.num_layers=3",
                                  "model.dim=256",        "model.dense_dim=384",        "model.moe.expert_dim=128",
                                  "model.init.std=0.125", "train.batch_seqs=8",         "train.microbatch_seqs=8"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class GenerationParityOnCuda : public testing::TestWithParam<std::string> {};

GenerationParityOptions options_of(std::optional<GenerationArithmetic> arithmetic = {}) {
  return {
      .device = "cuda", .tokens = 512, .batches = {1, 7, 64, 256}, .longest = 300, .seed = 3, .arithmetic = arithmetic};
}

TEST_P(GenerationParityOnCuda, OfMlaWithExpertsIsExact) {
  expect_equal(deepseek_shaped(sizes(GetParam(), {"model.mla.q_lora_rank=128", "model.mla.kv_lora_rank=64",
                                                  "model.mla.qk_nope_head_dim=128", "model.mla.qk_rope_head_dim=64",
                                                  "model.mla.v_head_dim=128"})),
               options_of(GenerationArithmetic::kTraining));
}
TEST_P(GenerationParityOnCuda, OfGroupedQueriesWithExpertsIsExact) {
  for (const char* head_dim : {"64", "128"}) {
    SCOPED_TRACE(head_dim);
    expect_equal(qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=" + std::string(head_dim)})), options_of());
  }
}
TEST_P(GenerationParityOnCuda, OfWindowsIsExact) {
  expect_equal(
      qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=128", "model.window=70", "model.attn_global_every=2"})),
      options_of());
}

TEST_P(GenerationParityOnCuda, OfBiasesAndPartsOfHeadsIsExact) {
  expect_equal(qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=128", "model.gqa.rotary_dim=64", "model.gqa.bias=qkv",
                                              "model.gqa.qk_norm=false"})),
               options_of());
}
TEST_P(GenerationParityOnCuda, OfNormsOverAllHeadsIsExact) {
  expect_equal(
      qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=64", "model.gqa.qk_norm_over=all_heads", "model.gqa.bias=all",
                                     "model.rope.scaling=llama3", "model.rope.original_max_positions=64"})),
      options_of());
}
TEST_P(GenerationParityOnCuda, OfLatentExpertsIsExact) {
  expect_equal(qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=64", "model.moe.num_shared_experts=1",
                                              "model.moe.shared_dim=320", "model.moe.latent_dim=64"})),
               options_of());
}
// The gate is a product with a single output.
TEST_P(GenerationParityOnCuda, OfGatedSharedExpertsIsExact) {
  expect_equal(qwen_shaped(sizes(GetParam(), {"model.gqa.head_dim=64", "model.moe.num_shared_experts=1",
                                              "model.moe.shared_gate=true", "model.moe.shared_dim=320"})),
               options_of());
}

// In FP32: scans of BF16 are added by tensor cores in training, and not in generation.
TEST(RecurrentGenerationParityOnCuda, IsExactInFp32) {
  for (const char* chunk : {"48", "128"}) {
    SCOPED_TRACE(chunk);
    expect_equal(nemotron_shaped({"run.device=cuda", "run.precision=fp32", "model.dim=256", "model.init.std=0.125",
                                  "model.gqa.head_dim=64", "model.moe.expert_dim=128", "train.batch_seqs=8",
                                  "train.microbatch_seqs=8", "model.mamba2.chunk=" + std::string(chunk)}),
                 options_of());
  }
}
// In FP32: delta rules of BF16 go through chunks in training, and from token to token in generation.
TEST(RecurrentGenerationParityOnCuda, OfDeltaRulesIsExactInFp32) {
  expect_equal(
      qwen_next_shaped({"run.device=cuda", "run.precision=fp32", "model.dim=256", "model.init.std=0.125",
                        "model.gqa.head_dim=64", "model.gqa.rotary_dim=16", "model.moe.expert_dim=128",
                        "model.gated_deltanet.key_head_dim=32", "train.batch_seqs=8", "train.microbatch_seqs=8"}),
      options_of());
}

INSTANTIATE_TEST_SUITE_P(Precisions, GenerationParityOnCuda, testing::Values("bf16", "fp32"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nmoe::test
