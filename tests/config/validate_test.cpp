#include "config/validate.h"

#include <gtest/gtest.h>

#include <functional>

#include "configs.h"

namespace nmoe {
namespace {

std::string what_is_wrong(const Config& config) {
  std::string text;
  for (const Issue& issue : find_issues(config)) text += (text.empty() ? "" : "\n") + issue.what;
  return text;
}

TEST(Validate, AcceptsGoodConfigs) {
  for (const Config& config : all_kinds_of_configs()) EXPECT_EQ(what_is_wrong(config), "");
}

TEST(Validate, FindsOddRopeDimensions) {
  Config mla;
  mla.model.mla.qk_rope_head_dim = 15;
  EXPECT_EQ(what_is_wrong(mla), "model.mla.qk_rope_head_dim = 15: RoPE rotates pairs");
  mla.model.attention = PartKind::kGqa;  // MLA's dimensions no longer matter
  EXPECT_EQ(what_is_wrong(mla), "");

  Config gqa = dense_gqa_config();
  gqa.model.gqa.head_dim = 63;
  EXPECT_EQ(what_is_wrong(gqa), "model.gqa.head_dim = 63: RoPE rotates pairs");
}

TEST(Validate, FindsUnevenHeads) {
  Config config = dense_gqa_config();
  config.model.gqa.num_kv_heads = 3;
  EXPECT_EQ(what_is_wrong(config),
            "model.gqa.num_kv_heads = 3 with model.num_heads = 4: key and value heads share the "
            "query heads evenly");
}

TEST(Validate, FindsAWindowThatNoLayerHas) {
  Config config = dense_gqa_config();
  config.model.attn_global_every = 1;
  EXPECT_EQ(what_is_wrong(config),
            "model.window = 32 with model.attn_global_every = 1, model.num_layers = 4: every "
            "layer is global, so the window has no effect");
  config.model.attn_global_every = 2;
  config.model.num_layers = 1;
  EXPECT_NE(what_is_wrong(config), "");
  config.model.num_layers = 2;
  EXPECT_EQ(what_is_wrong(config), "");
}

TEST(Validate, FindsAYarnRampTheWrongWayRound) {
  Config config = mla_moe_config();
  config.model.yarn.beta_slow = 32.0;
  EXPECT_EQ(what_is_wrong(config), "");  // one pair wide, as in Kimi-K2
  config.model.yarn.beta_slow = 33.0;
  EXPECT_EQ(find_issues(config).at(0).keys, (std::vector<std::string>{"model.yarn.beta_fast", "model.yarn.beta_slow"}));
  config.model.yarn.factor = 1.0;
  EXPECT_EQ(what_is_wrong(config), "");
}

TEST(Validate, FindsExpertsThatDoNotFit) {
  const Config base = mla_moe_config();  // 8 experts in 2 groups, top_k 2, top_groups 1

  Config config = base;
  config.model.num_dense_layers = config.model.num_layers;
  EXPECT_EQ(what_is_wrong(config),
            "model.num_dense_layers = 4 with model.num_layers = 4: no layer is left to the experts");

  config = base;
  config.model.moe.top_k = 9;
  EXPECT_EQ(what_is_wrong(config),
            "model.moe.top_k = 9 with model.moe.num_experts = 8: a token cannot go to more experts "
            "than there are");

  config = base;
  config.model.moe.top_k = 4;
  EXPECT_EQ(what_is_wrong(config), "");
  config.model.moe.top_k = 5;
  EXPECT_EQ(what_is_wrong(config),
            "model.moe.top_k = 5 with model.moe.top_groups = 1, model.moe.num_groups = 2, "
            "model.moe.num_experts = 8: the groups a token chooses have only 4 experts");

  config = base;
  config.model.moe.num_groups = 3;
  EXPECT_EQ(what_is_wrong(config),
            "model.moe.num_groups = 3 with model.moe.num_experts = 8: all groups have the same "
            "number of experts");

  config = base;
  config.model.moe.top_groups = 3;
  EXPECT_EQ(what_is_wrong(config),
            "model.moe.top_groups = 3 with model.moe.num_groups = 2: a token cannot choose more "
            "groups than there are");

  config = base;
  config.model.moe.num_groups = 8;
  config.model.moe.top_groups = 4;
  EXPECT_NE(what_is_wrong(config).find("a group ranks by its two best"), std::string::npos);
  config.model.moe.score = ScoreFunction::kSoftmax;
  EXPECT_EQ(what_is_wrong(config), "");
}

TEST(Validate, KeepsMuonToMatricesAndExperts) {
  Config config = mla_moe_config();
  config.optim.matrices.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(what_is_wrong(config), "");
  config.optim.router.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(what_is_wrong(config), "optim.router.optimizer = \"muon\": the router is trained by AdamW");
  config.optim.router.optimizer = OptimizerKind::kAdamW;
  config.optim.rest.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(what_is_wrong(config), "optim.rest.optimizer = \"muon\": embedding, head and norms are trained by AdamW");
}

TEST(Validate, FindsUnequalMicrobatches) {
  Config config;
  config.train.batch_seqs = 12;
  config.train.microbatch_seqs = 5;
  EXPECT_EQ(what_is_wrong(config),
            "train.microbatch_seqs = 5 with train.batch_seqs = 12: a batch is cut into equal "
            "microbatches");
}

TEST(Validate, FindsUnequalSharesOfRanks) {
  Config config;
  config.train.batch_seqs = 12;
  config.train.microbatch_seqs = 3;
  config.parallel.ranks = 4;
  EXPECT_EQ(what_is_wrong(config), "");
  config.parallel.ranks = 3;
  EXPECT_EQ(what_is_wrong(config),
            "parallel.ranks = 3 with train.batch_seqs = 12, train.microbatch_seqs = 3: every rank takes an equal share "
            "of a batch, in whole microbatches");
}

TEST(Validate, FindsAllThatIsWrong) {
  Config config = mla_moe_config();
  config.model.mla.qk_rope_head_dim = 15;
  config.model.moe.top_k = 9;  // nor do the groups have so many, which is no second fault
  config.optim.rest.optimizer = OptimizerKind::kMuon;
  config.data.seq_len = 512;
  config.model.max_positions = 256;
  EXPECT_EQ(what_is_wrong(config),
            "model.mla.qk_rope_head_dim = 15: RoPE rotates pairs\n"
            "model.moe.top_k = 9 with model.moe.num_experts = 8: a token cannot go to more experts than there are\n"
            "optim.rest.optimizer = \"muon\": embedding, head and norms are trained by AdamW\n"
            "data.seq_len = 512 with model.max_positions = 256: sequences are longer than the model is meant for");
  // Where the layers cannot be read, nothing is said of them, and the rest still is.
  config = hybrid_config();
  config.model.layers = "mla/dense, ???";
  config.train.batch_seqs = 12;
  config.train.microbatch_seqs = 5;
  const std::vector<Issue> issues = find_issues(config);
  ASSERT_EQ(issues.size(), 2u);
  EXPECT_EQ(issues[0].keys, std::vector<std::string>{"model.layers"});
  EXPECT_EQ(issues[1].keys, (std::vector<std::string>{"train.microbatch_seqs", "train.batch_seqs"}));
}

TEST(Validate, FindsSequencesThatAreNotAligned) {
  Config config = dense_gqa_config();
  config.data.seq_len = 3 * 16;
  EXPECT_EQ(what_is_wrong(config), "");
  config.data.align_documents = 32;
  EXPECT_EQ(
      what_is_wrong(config),
      "data.seq_len = 48 with data.align_documents = 32: sequences are no multiple of what documents are aligned to");
}

TEST(Validate, FindsPrecisionsThatADeviceCannotDo) {
  Config config = low_precision_config();
  EXPECT_EQ(what_is_wrong(config), "");
  config.run.device = "cuda";
  EXPECT_EQ(what_is_wrong(config), "");
  config.precision.fp8_weight_gradients = true;
  EXPECT_EQ(what_is_wrong(config), "");
  config.precision.fp8_weight_gradients = false;
  config.run.precision = Precision::kMxFp8;
  EXPECT_EQ(what_is_wrong(config), "");
  config.precision.experts = PartPrecision::kNvFp4;
  EXPECT_EQ(what_is_wrong(config), "");
  config.precision.experts = PartPrecision::kRun;
  config.run.precision = Precision::kNvFp4;
  EXPECT_EQ(what_is_wrong(config), "");
}

TEST(Validate, RowsAreCodesWhateverProductsAreIn) {
  const auto expect_right = [](const std::function<void(PrecisionConfig&)>& set) {
    Config config = low_precision_config();
    set(config.precision);
    EXPECT_EQ(what_is_wrong(config), "");
    config.run.precision = Precision::kDevice;
    EXPECT_EQ(what_is_wrong(config), "");
    config.run.device = "cuda";
    EXPECT_EQ(what_is_wrong(config), "");
  };
  expect_right([](PrecisionConfig& precision) { precision.wire = RowFormat::kFp8; });
  expect_right([](PrecisionConfig& precision) { precision.saved = RowFormat::kFp8; });
}

TEST(Validate, FindsThatNoLayerIsLeftToAPrecision) {
  Config config = low_precision_config();
  config.precision.keep_first = 1;
  config.precision.keep_last = 2;
  EXPECT_EQ(what_is_wrong(config), "");
  config.precision.keep_last = 3;
  EXPECT_EQ(what_is_wrong(config),
            "precision.keep_first = 1 with precision.keep_last = 3: of 4 layers none is left to run.precision");
}

}  // namespace
}  // namespace nmoe
