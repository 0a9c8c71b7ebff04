// Texts scored on a GPU: against the CPU, and how far what is packed beside a text moves its score.
#include <gtest/gtest.h>

#include <algorithm>

#include "eval/cached_scorer.h"
#include "eval/packed_scorer.h"
#include "eval/scored_groups.h"

namespace nmoe {
namespace {

using test::Group;
using test::mixed_groups;
using test::scores_of;

// Heads of a size that cuDNN takes, and experts that the grouped products take.
Config config() {
  return parse_config(test::kTinyToml, "tiny.toml",
                      std::vector<std::string>{"model.vocab_size=264", "model.dim=128", "model.dense_dim=256",
                                               "model.num_heads=2", "model.mla.kv_lora_rank=64",
                                               "model.mla.qk_nope_head_dim=64", "model.mla.qk_rope_head_dim=64",
                                               "model.mla.v_head_dim=64", "model.moe.expert_dim=64", "run.seed=3"});
}

std::vector<std::vector<TextScore>> on_cuda(DType dtype, int64_t num_seqs, const std::vector<Group>& groups) {
  PackedScorer scorer(config(), {.device = "cuda", .compute_dtype = dtype, .num_seqs = num_seqs, .seq_len = 512});
  return scores_of(scorer, groups);
}

TEST(PackedScorerOnCuda, GivesWhatTheCpuDoes) {
  const std::vector<Group> groups = mixed_groups();
  CachedScorer cpu(std::make_unique<CachedModel>(
                       config(), byte_tokenizer(),
                       CachedModelOptions{.num_slots = 4, .capacity = 512, .max_scores = CachedScorer::kMaxScores}),
                   /*share_prefixes=*/true);
  const auto expected = scores_of(cpu, groups);
  const auto fp32 = on_cuda(DType::kF32, 4, groups), bf16 = on_cuda(DType::kBF16, 4, groups);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < expected[group].size(); ++i) {
      const double nats = expected[group][i].nats;
      EXPECT_NEAR(fp32[group][i].nats, nats, 1e-4 * nats) << "group " << group << ", text " << i;
      EXPECT_NEAR(bf16[group][i].nats, nats, 2e-2 * nats) << "group " << group << ", text " << i;
    }
  }
}

// Products and attention add up in an order that depends on where a text lies in a pass.
TEST(PackedScorerOnCuda, RepeatsAndHardlyDependsOnWhatIsBesideAText) {
  const std::vector<Group> groups = mixed_groups();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto expected = on_cuda(dtype, 4, groups);
    EXPECT_EQ(on_cuda(dtype, 4, groups), expected);
    const auto expect_near = [&](const std::vector<std::vector<TextScore>>& actual, const char* what) {
      for (size_t group = 0; group < groups.size(); ++group) {
        for (size_t i = 0; i < expected[group].size(); ++i) {
          const double nats = expected[group][i].nats;
          EXPECT_NEAR(actual[group][i].nats, nats, (dtype == DType::kF32 ? 1e-5 : 1e-2) * nats)
              << dtype_name(dtype) << ", " << what << ": group " << group << ", text " << i;
        }
      }
    };
    auto reversed = groups;
    std::ranges::reverse(reversed);
    auto backwards = on_cuda(dtype, 4, reversed);
    std::ranges::reverse(backwards);
    expect_near(backwards, "in another order");
    expect_near(on_cuda(dtype, 1, groups), "one sequence at a time");
    expect_near(on_cuda(dtype, 7, groups), "seven sequences at a time");
  }
}

std::vector<std::vector<TextScore>> cached_on_cuda(bool fp32, int64_t slots, bool share_prefixes,
                                                   const std::vector<Group>& groups) {
  const CachedScorerOptions options{.device = "cuda", .fp32 = fp32, .num_slots = slots, .capacity = 512};
  CachedScorer scorer(std::make_unique<CachedModel>(config(), byte_tokenizer(), CachedScorer::model_options(options)),
                      share_prefixes);
  return scores_of(scorer, groups);
}

TEST(CachedScorerOnCuda, GivesWhatPackedTextsDo) {
  const std::vector<Group> groups = mixed_groups();
  for (const bool fp32 : {true, false}) {
    const auto expected = on_cuda(fp32 ? DType::kF32 : DType::kBF16, 4, groups);
    const auto cached = cached_on_cuda(fp32, 4, /*share_prefixes=*/true, groups);
    for (size_t group = 0; group < groups.size(); ++group) {
      for (size_t i = 0; i < expected[group].size(); ++i) {
        const double nats = expected[group][i].nats;
        EXPECT_NEAR(cached[group][i].nats, nats, (fp32 ? 1e-4 : 2e-2) * nats) << "group " << group << ", text " << i;
      }
    }
  }
}

// Every call has as many rows, so that libraries choose alike.
TEST(CachedScorerOnCuda, HasTheSameBitsWhateverIsBesideAText) {
  const std::vector<Group> groups = mixed_groups();
  for (const bool fp32 : {true, false}) {
    const auto expected = cached_on_cuda(fp32, 4, /*share_prefixes=*/true, groups);
    EXPECT_EQ(cached_on_cuda(fp32, 1, /*share_prefixes=*/true, groups), expected) << "one at a time";
    EXPECT_EQ(cached_on_cuda(fp32, 7, /*share_prefixes=*/false, groups), expected) << "from their beginnings";
    auto reversed = groups;
    std::ranges::reverse(reversed);
    auto backwards = cached_on_cuda(fp32, 4, /*share_prefixes=*/true, reversed);
    std::ranges::reverse(backwards);
    EXPECT_EQ(backwards, expected) << "in another order";
  }
}

}  // namespace
}  // namespace nmoe
