// Configurations as a user meets them: files, --set, `n config` and `n plan`.
#include "cli/cli_test.h"

namespace nmoe {
namespace {

using ConfigCommandTest = CliTest;

TEST_F(ConfigCommandTest, AMissingFile) {
  for (const char* command : {"train", "plan", "config"}) {
    expect_error(n({command, "no.toml"}), 2, "there is no configuration file no.toml", "path");
  }
}

TEST_F(ConfigCommandTest, WrongKeysAndValues) {
  write("unknown.toml", "[model]\ndim = 16\n\n[train]\nstep = 3\n");
  expect_error(n({"train", "unknown.toml"}), 2, "unknown.toml:5: unknown key train.step", "did you mean train.steps?");
  write("range.toml", "[train]\nsteps = -1\n");
  expect_error(n({"train", "range.toml"}), 2, "range.toml:2: train.steps = -1, but it must be an integer from 0",
               "train.steps");
  write("type.toml", "[model]\ntied_head = 1\n");
  expect_error(n({"plan", "type.toml"}), 2, "model.tied_head = 1, but it must be true or false", "model.tied_head");
  write("syntax.toml", "[model]\ndim 16\n");
  expect_error(n({"config", "syntax.toml"}), 2, "syntax.toml:2:", "correct the TOML");
  write("unused.toml", "[model.gqa]\nhead_dim = 16\n");
  expect_error(n({"config", "unused.toml"}), 2, "unused.toml:2: model.gqa.head_dim has no effect because it needs",
               "remove it");
}

TEST_F(ConfigCommandTest, WrongOverrides) {
  const auto config = [&](const std::string& setting) { return n({"config", "tiny.toml", "--set", setting}); };
  expect_error(config("model.dims=16"), 2, "--set model.dims=16: unknown key model.dims", "did you mean model.dim?");
  expect_error(config("model.dim"), 2, "--set model.dim: there is no value", "section.key=value");
  expect_error(config("model.dim=wide"), 2, "--set model.dim=wide: model.dim = \"wide\"", "model.dim");
  expect_error(config("model=16"), 2, "model is a section, not a key", "[model]");
  expect_error(config("data.path=${HOME}"), 2, "--set data.path=${HOME}", "NMOE_");
  expect_error(config("train.microbatch_seqs=3"), 2, "train.microbatch_seqs = 3 with train.batch_seqs = 8", "divide");
}

// What it prints is a configuration, and the same one.
TEST_F(ConfigCommandTest, RoundTrip) {
  const std::string printed =
      output({"config", "tiny.toml", "--set", "model.norm_eps=1.25e-5", "--set", "run.experiment=a \"quoted\" name"});
  EXPECT_TRUE(contains(printed, "# fingerprint "));
  write("printed.toml", printed);
  EXPECT_EQ(output({"config", "printed.toml"}), printed);
  EXPECT_NE(output({"config", "tiny.toml"}), printed);
}

TEST_F(ConfigCommandTest, TheLastOverrideCounts) {
  const std::string printed = output({"config", "tiny.toml", "--set", "run.seed=3", "--set", "run.seed=5"});
  EXPECT_TRUE(contains(printed, "\nseed       = 5 "));
}

TEST_F(ConfigCommandTest, PlanNeedsNoCorpusButAVocabulary) {
  expect_error(n({"plan", "tiny.toml"}), 2, "model.vocab_size is 0", "--set model.vocab_size=N");
  const std::string given = output({"plan", "tiny.toml", "--set", "model.vocab_size=257"});
  for (const char* owner : {"parameters", "gradients", "optimizer", "activations", "scratch", "checkpoint staging",
                            "process", "total", "FLOP per token"}) {
    EXPECT_TRUE(contains(given, owner));
  }
  // embedding 257 * 16, head the same, two layers: attention 16 * (16 + 8 + 4) + 24 * 8 + 16 * 16
  // and norms 8 + 2 * 16; a dense MLP 3 * 16 * 32; 1 + 6 experts of 3 * 16 * 16, a router 6 * 16;
  // and a last norm 16.
  constexpr int kAttention = 16 * (2 * 8 + 8 + 4) + 2 * (4 + 8) * 8 + 16 * 16 + 8 + 2 * 16;
  constexpr int kTotal = 2 * 257 * 16 + 2 * kAttention + 3 * 16 * 32 + 7 * 3 * 16 * 16 + 6 * 16 + 16;
  EXPECT_TRUE(contains(given, fmt::format("{:.2f} k parameters", kTotal / 1000.0)));

  prepare();
  EXPECT_TRUE(contains(output({"plan", "tiny.toml"}), "data "));
  expect_error(n({"plan", "tiny.toml", "--set", "train.memory_limit=1 MiB"}), 2, "train.memory_limit is 1.00 MiB",
               "raise train.memory_limit");
}

}  // namespace
}  // namespace nmoe
