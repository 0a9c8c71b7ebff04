// Texts scored on a GPU: against the CPU, and that what is beside a text does not change a bit of its score.
#include <gtest/gtest.h>

#include <algorithm>

#include "eval/cached_scorer.h"
#include "eval/packed_scorer.h"
#include "eval/scored_groups.h"
#include "infer/load_model.h"

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

constexpr int64_t kRows = 2048;  // of a pass

std::vector<std::vector<TextScore>> on_cuda(DType dtype, bool share_prefixes, const std::vector<Group>& groups) {
  PackedScorer scorer(config(), {.device = "cuda",
                                 .compute_dtype = dtype,
                                 .max_tokens = 512,
                                 .num_rows = kRows,
                                 .share_prefixes = share_prefixes});
  return scores_of(scorer, groups);
}

TEST(PackedScorerOnCuda, GivesWhatTheCpuDoes) {
  const std::vector<Group> groups = mixed_groups();
  CachedScorer cpu(
      random_cached_model(config(), byte_tokenizer(),
                          {.cached = {.num_slots = 4, .capacity = 512, .max_scores = CachedScorer::kMaxScores}}),
      /*share_prefixes=*/true);
  const auto expected = scores_of(cpu, groups);
  const auto fp32 = on_cuda(DType::kF32, /*share_prefixes=*/true, groups);
  const auto bf16 = on_cuda(DType::kBF16, /*share_prefixes=*/true, groups);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < expected[group].size(); ++i) {
      const double nats = expected[group][i].nats;
      EXPECT_NEAR(fp32[group][i].nats, nats, 1e-4 * nats) << "group " << group << ", text " << i;
      EXPECT_NEAR(bf16[group][i].nats, nats, 2e-2 * nats) << "group " << group << ", text " << i;
    }
  }
}

// Attention's sums go by positions alone, and products have as many rows in every pass.
TEST(PackedScorerOnCuda, HasTheSameBitsWhateverIsBesideAText) {
  const std::vector<Group> groups = mixed_groups();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto expected = on_cuda(dtype, /*share_prefixes=*/true, groups);
    EXPECT_EQ(on_cuda(dtype, /*share_prefixes=*/false, groups), expected) << "from their beginnings";
    auto reversed = groups;
    std::ranges::reverse(reversed);
    auto backwards = on_cuda(dtype, /*share_prefixes=*/true, reversed);
    std::ranges::reverse(backwards);
    EXPECT_EQ(backwards, expected) << "in another order";
    const auto alone = on_cuda(dtype, /*share_prefixes=*/true, {groups[0]});
    EXPECT_EQ(alone.front(), expected.front()) << "alone";
  }
}

}  // namespace
}  // namespace nmoe
