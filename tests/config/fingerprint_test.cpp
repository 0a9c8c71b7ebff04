#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/sha256.h"
#include "config/load.h"
#include "configs.h"

namespace nmoe {
namespace {

// What may change between a run and its continuation.
const std::set<std::string> kFree = {"train.tokens",
                                     "train.epochs",
                                     "run.name",
                                     "run.experiment",
                                     "run.dir",
                                     "run.device",
                                     "run.precision",
                                     "run.threads",
                                     "data.path",
                                     "data.mixture",
                                     "data.profile",
                                     "data.verify",
                                     "train.microbatch_seqs",
                                     "train.steps",
                                     "train.recompute",
                                     "train.memory_limit",
                                     "train.log_every",
                                     "train.valid_every",
                                     "train.valid_seqs",
                                     "train.target_loss",
                                     "train.stop_on_collapse",
                                     "optim.offload",
                                     "parallel.ranks",
                                     "parallel.capacity_factor",
                                     "parallel.rebalance_every",
                                     "parallel.bucket_bytes",
                                     "parallel.timeout_s",
                                     "parallel.stall_s",
                                     "eval.every",
                                     "eval.tasks",
                                     "eval.limit",
                                     "eval.data_dir",
                                     "generation.arithmetic",
                                     "checkpoint.every",
                                     "checkpoint.every_minutes",
                                     "checkpoint.keep_last",
                                     "checkpoint.staging_bytes",
                                     "track.alert_command",
                                     "train.sample_prompts",
                                     "train.sample_tokens",
                                     "model.max_positions"};
// Whether a key may change in a run so configured: between what devices compute in, precision may, and how closely it
// is looked at while nobody acts on it; and the unit that model.mtp.later_from alone is in.
bool is_free(const std::string& key, const Config& config) {
  if (key == "precision.fallback" || key == "precision.check_every") {
    return config.precision.fallback != PrecisionFallback::kAct;
  }
  if (key == "optim.schedule.unit")
    return config.optim.schedule.warmup.is_none() && config.optim.schedule.decay.is_none();
  return kFree.contains(key) && !(key == "run.precision" && is_low(config.run.precision));
}
// A path, which is not hashed; but being there it leaves the keys of random initialisation without effect.
const std::string kInitFrom = "model.init.from";

// Every key in every configuration: the fingerprint changes when a key that defines the run and has
// an effect changes, and at nothing else.
TEST(Fingerprint, FollowsWhatDefinesTheRun) {
  for (const Config& base : all_kinds_of_configs()) {
    const std::string fingerprint = config_fingerprint(base);
    const size_t num_fields = values_of(base).size();
    for (size_t i = 0; i < num_fields; ++i) {
      Config config = base;
      const Field field = describe(config)[i];
      if (!change(field)) continue;
      const bool defines_run = field.used() && !(is_free(field.key, base) && is_free(field.key, config));
      EXPECT_EQ(config_fingerprint(config) != fingerprint, defines_run) << field.key;
      EXPECT_EQ(explain_difference(base, config).empty(), !defines_run) << field.key;
    }
  }
}

TEST(Fingerprint, IsTheHashOfItsCanonicalLines) {
  for (Config config : all_kinds_of_configs()) {
    std::set<std::string> lines;
    for (const Field& field : describe(config)) {
      if (field.shown() && !is_free(field.key, config) && field.key != kInitFrom) {
        lines.insert(field.key + "=" + to_toml(field.get()) + "\n");
      }
    }
    std::string text;
    for (const std::string& line : lines) text += line;
    EXPECT_EQ(config_fingerprint(config), sha256_hex(text));
  }
}

TEST(Fingerprint, DoesNotDependOnHowValuesAreWritten) {
  const Config a = parse_config("[optim.matrices]\nlr = 1\n", "a.toml");
  const Config b = parse_config("optim = {matrices = {lr = 1.0e0}}\n", "b.toml");
  EXPECT_EQ(config_fingerprint(a), config_fingerprint(b));
  EXPECT_EQ(explain_difference(a, b), "");
}

TEST(ExplainDifference, NamesKeysAndValues) {
  const Config mla;
  Config gqa;
  gqa.model.attention = PartKind::kGqa;
  gqa.optim.rest.lr = 0.5;
  gqa.train.steps = 7;
  EXPECT_EQ(explain_difference(mla, gqa),
            "model.attention: \"mla\" != \"gqa\"\n"
            "model.mla.q_lora_rank: 0 != unused\n"
            "model.mla.kv_lora_rank: 64 != unused\n"
            "model.mla.qk_nope_head_dim: 32 != unused\n"
            "model.mla.qk_rope_head_dim: 16 != unused\n"
            "model.mla.v_head_dim: 32 != unused\n"
            "model.mla.norm_eps: 1e-06 != unused\n"
            "model.gqa.num_kv_heads: unused != 1\n"
            "model.gqa.head_dim: unused != 64\n"
            "model.gqa.qk_norm: unused != false\n"
            "optim.rest.lr: 0.001 != 0.5");
}

// Without experts keys of [optim] have no effect; that is no difference of models.
TEST(ExplainDifference, OfModelsAloneNothingElseIsSaid) {
  ModelConfig experts, none;
  none.moe.num_experts = 0;
  experts.moe.num_experts = 4;
  const std::string said = explain_difference(experts, none);
  EXPECT_NE(said.find("model.moe.num_experts: 4 != 0"), std::string::npos) << said;
  EXPECT_EQ(said.find("optim."), std::string::npos) << said;
  EXPECT_EQ(explain_difference(none, none), "");
}

}  // namespace
}  // namespace nmoe
