#include "config/load.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <sstream>

#include "config/other_names.h"
#include "configs.h"
#include "expect_error.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using Overrides = std::vector<std::string>;

void expect_error(const std::string& toml, const std::string& what, const std::string& remedy,
                  const Overrides& overrides = {}) {
  expect_usage_error([&] { parse_config(toml, "bad.toml", overrides); }, what, remedy);
}

TEST(Load, EmptyTextGivesTheDefaults) {
  EXPECT_EQ(values_of(parse_config("", "empty.toml")), values_of(Config()));
  EXPECT_EQ(values_of(parse_config("[model]\n[model.moe]\n", "x")), values_of(Config()));
}

TEST(Load, ReadsEveryKindOfValue) {
  const Config config = parse_config(R"(
    [run]
    name = 'a-1.b_c'
    device = "cuda"
    [model]
    dim = 1_024
    activation = "relu_squared"
    tied_head = true
    norm_eps = 1e-5
    moe = {num_experts = 4, score = "softmax", routed_scale = 2}
    [model.rope]
    layout = "half_split"
    [optim]
    schedule.decay = 7
    schedule.shape = "sqrt"
    schedule.unit = "tokens")",
                                     "good.toml");
  EXPECT_EQ(config.run.name, "a-1.b_c");
  EXPECT_EQ(config.run.device, "cuda");
  EXPECT_EQ(config.model.dim, 1024);
  EXPECT_EQ(config.model.activation, Activation::kReluSquared);
  EXPECT_TRUE(config.model.tied_head);
  EXPECT_EQ(config.model.norm_eps, 1e-5);
  EXPECT_EQ(config.model.moe.num_experts, 4);
  EXPECT_EQ(config.model.moe.score, ScoreFunction::kSoftmax);
  EXPECT_EQ(config.model.moe.routed_scale, 2.0);  // an integer where a float is wanted
  EXPECT_EQ(config.model.rope.layout, RopeLayout::kHalfSplit);
  EXPECT_EQ(config.optim.schedule.decay, 7);
  EXPECT_EQ(config.optim.schedule.shape, DecayShape::kSqrt);
  EXPECT_EQ(config.optim.schedule.unit, ScheduleUnit::kTokens);
}

TEST(Load, UnknownKeys) {
  expect_error("[model.moe]\nnum_experts = 4\ntopk = 2\n", "bad.toml:3: unknown key model.moe.topk",
               "did you mean model.moe.top_k?");
  expect_error("[checkpoint]\nkept = 2\n", "bad.toml:2: unknown key checkpoint.kept",
               "keys of [checkpoint]: every, every_minutes, keep_last, staging_bytes");
  expect_error("[moe]\ntop_k = 2\n", "bad.toml:2: unknown key moe.top_k", "did you mean model.moe.top_k?");
  expect_error("[optim]\nweight_decay = 2\n", "bad.toml:2: unknown key optim.weight_decay",
               "did you mean optim.matrices.weight_decay, optim.experts.weight_decay, optim.router.weight_decay or "
               "optim.rest.weight_decay?");
  expect_error("[modle]\ndims = 2\n", "bad.toml:2: unknown key modle.dims", "did you mean model.dim?");
  expect_error("\n\"model.dim\" = 2\n", "bad.toml:2: unknown key \"model.dim\"", "did you mean model.dim?");
  expect_error("[model.dim]\nx = 2\n", "bad.toml:2: unknown key model.dim.x", "did you mean model.dim?");
}

TEST(Load, ManyFaultsAreToldInNoTime) {
  std::string toml;
  for (int i = 0; i < 80'000; ++i) toml += fmt::format("[unknown{}]\n", i);
  const std::clock_t begin = std::clock();  // of this process, whatever else the machine does
  const Error error = test::error_of([&] { parse_config(toml, "bad.toml"); });
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
  EXPECT_TRUE(test::contains(error.what(), "more than 20 things are wrong with the configuration; the first of them:"));
  EXPECT_TRUE(test::contains(error.what(), "bad.toml:20: unknown section [unknown19]"));
  EXPECT_FALSE(test::contains(error.what(), "bad.toml:21:"));

  const std::string long_key(1'000'000, 'x');
  EXPECT_TRUE(test::contains(test::error_of([&] { parse_config(long_key + " = 1", "bad.toml"); }).what(), long_key));
}

// They could not be read back from TOML.
TEST(Load, OtherBytesThanUtf8AreRefusedByName) {
  for (const std::string key : {"run.dir", "data.path", "run.experiment"}) {
    const Error error = test::error_of([&] { parse_config("", "x", Overrides{key + "=a\xFF"}); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_TRUE(test::contains(error.what(), key + " is not UTF-8"));
  }
  setenv("NMOE_TEST_BYTES", "a\xC3", 1);
  const Error error = test::error_of([&] { parse_config("[run]\ndir = '${NMOE_TEST_BYTES}'", "x.toml"); });
  unsetenv("NMOE_TEST_BYTES");
  EXPECT_TRUE(test::contains(error.what(), "x.toml:2: run.dir is not UTF-8"));
  EXPECT_EQ(parse_config("", "x", Overrides{"run.dir=\xC3\xA4"}).run.dir, "\xC3\xA4");
}

TEST(Load, UnknownSections) {
  expect_error("\n[optim.muno]\n", "bad.toml:2: unknown section [optim.muno]", "did you mean [optim.muon]?");
  const std::string sections =
      "sections: run, precision, model, model.rope, model.yarn, model.mla, model.gqa, model.mamba2, "
      "model.gated_deltanet, model.moe, model.mtp, model.scaling, model.scaling.base, model.scaling.base.mla, "
      "model.scaling.base.gqa, "
      "model.scaling.base.mamba2, model.scaling.base.gated_deltanet, model.scaling.base.moe, "
      "model.init, "
      "data, optim, optim.matrices, optim.experts, optim.router, optim.rest, optim.adamw, "
      "optim.muon, optim.schedule, train, parallel, eval, generation, checkpoint, track";
  expect_error("[logging]\n", "bad.toml:1: unknown section [logging]", sections);
  expect_error("[logging]\nlevel = 3\n", "bad.toml:2: unknown key logging.level", sections);
  expect_error("model = 3\n", "bad.toml:1: model is a section, not a key", "write [model] and its keys below");
  expect_error("[[model]]\ndim = 3\n", "bad.toml:1: model is a section, not a key", "write [model] and its keys below");
}

TEST(Load, WrongTypesAndValuesOutOfRange) {
  const std::string dim_remedy = "correct model.dim (width of the residual stream)";
  const std::string dim_range = ", but it must be an integer from 1 to 1048576";
  expect_error("[model]\n\ndim = \"wide\"\n", "bad.toml:3: model.dim = \"wide\"" + dim_range, dim_remedy);
  expect_error("[model]\ndim = 0\n", "bad.toml:2: model.dim = 0" + dim_range, dim_remedy);
  expect_error("[model]\ndim = 64.0\n", "bad.toml:2: model.dim = 64.0" + dim_range, dim_remedy);
  expect_error("[model]\ndim = true\n", "bad.toml:2: model.dim = true" + dim_range, dim_remedy);
  expect_error("[model]\ndim = [64]\n", "bad.toml:2: model.dim = [...]" + dim_range, dim_remedy);
  expect_error("[model.dim]\n", "bad.toml:1: model.dim = {...}" + dim_range, dim_remedy);
  expect_error("[model]\nattention = \"mha\"\n",
               "bad.toml:2: model.attention = \"mha\", but it must be \"mla\" or \"gqa\"",
               "correct model.attention (multi-head latent or grouped-query attention)");
  expect_error("[optim.adamw]\nbeta2 = 1\n",
               "bad.toml:2: optim.adamw.beta2 = 1, but it must be a finite number of at least 0 and "
               "below 1",
               "correct optim.adamw.beta2 (decay rate of the second moment)");
  expect_error("[optim.rest]\nlr = nan\n",
               "bad.toml:2: optim.rest.lr = nan, but it must be a finite number of at least 0",
               "correct optim.rest.lr (peak learning rate)");
  expect_error("[model.init]\ntruncation = 0.0\n",
               "bad.toml:2: model.init.truncation = 0.0, but it must be a finite number above 0",
               "correct model.init.truncation (standard deviations at which the normal distribution is truncated)");
  expect_error("[model]\ntied_head = 1\n", "bad.toml:2: model.tied_head = 1, but it must be true or false",
               "correct model.tied_head (the head shares the embedding table)");
  expect_error("[run]\nname = \"../x\"\n",
               "bad.toml:2: run.name = \"../x\", but it must be a string of up to 255 letters, digits, '.', "
               "'_' and '-' that starts with neither '.' nor '-'",
               "correct run.name (name of the run)");
  expect_error("[train]\nmemory_limit = \"much\"\n",
               "bad.toml:2: train.memory_limit = \"much\", but it must be a size such as \"8 GiB\" "
               "or \"512MiB\", or empty",
               "correct train.memory_limit (memory that the run may use; empty: what the machine has)");
  expect_error("[model.moe]\nnum_experts = 4\n[optim.router]\nweight_decay = 0.1\n",
               "bad.toml:4: optim.router.weight_decay = 0.1, but it must be 0",
               "correct optim.router.weight_decay (router weights never decay)");
}

TEST(Load, WhatOtherSystemsCallAKeyIsKnown) {
  const auto remedy = [](const std::string& toml) {
    try {
      parse_config(toml, "bad.toml");
    } catch (const Error& error) {
      return error.remedy();
    }
    return std::string();
  };
  EXPECT_EQ(remedy("[model]\nd_model = 512\n"), "did you mean model.dim?");
  EXPECT_EQ(remedy("[model]\nhidden_size = 512\n"), "did you mean model.dim?");
  EXPECT_EQ(remedy("[model]\nn_layer = 12\n"), "did you mean model.num_layers?");
  EXPECT_EQ(remedy("[model.moe]\nn_routed_experts = 64\n"), "did you mean model.moe.num_experts?");
  EXPECT_EQ(remedy("[training]\nmax_steps = 5\n"), "did you mean train.steps?");
  EXPECT_EQ(remedy("[train]\nbatch_size = 5\n"),
            "did you mean train.batch_seqs (sequences of a whole optimizer step)?");
}

// Every name leads to a key that there is, and hides none of ours.
TEST(Load, OtherNamesAreConsistent) {
  Config config;
  std::set<std::string> keys, own_names, names;
  for (const Field& field : describe(config)) {
    keys.insert(field.key);
    own_names.emplace(field.name());
  }
  for (const OtherNames& entry : other_names()) {
    EXPECT_TRUE(keys.contains(std::string(entry.key))) << entry.key;
    std::istringstream list{std::string(entry.names)};
    for (std::string name; list >> name;) {
      EXPECT_FALSE(own_names.contains(name)) << name;
      EXPECT_TRUE(names.insert(name).second) << name << " stands twice";
      ASSERT_NE(find_other_name(name), nullptr);
      EXPECT_EQ(find_other_name(name)->key, entry.key);
    }
  }
  EXPECT_EQ(find_other_name("dim"), nullptr);
  EXPECT_EQ(find_other_name(""), nullptr);
}

TEST(Load, AllErrorsAreReportedAtOnce) {
  expect_error(
      "[train]\nzzz = 1\n[model]\nn_layer = 4\ndim = 0\n",
      "4 things are wrong with the configuration:\n"
      "  bad.toml:2: unknown key train.zzz\n"
      "    -> keys of [train]: steps, tokens, epochs, batch_seqs, microbatch_seqs, recompute, gradients, memory_limit, "
      "log_every, valid_every, valid_seqs, target_loss, logit_z_loss, stop_on_collapse, sample_prompts, sample_tokens\n"
      "  bad.toml:4: unknown key model.n_layer\n"
      "    -> did you mean model.num_layers?\n"
      "  bad.toml:5: model.dim = 0, but it must be an integer from 1 to 1048576\n"
      "    -> correct model.dim (width of the residual stream)\n"
      "  --set run.seed: there is no value\n"
      "    -> write --set section.key=value",
      "do what stands behind each arrow", {"run.seed"});
  // Keys without effect beside keys that do not go together.
  expect_error("[model.gqa]\nhead_dim = 64\n[train]\nbatch_seqs = 12\nmicrobatch_seqs = 5\n",
               "2 things are wrong with the configuration:\n"
               "  bad.toml:2: model.gqa.head_dim has no effect because it needs model.attention = \"gqa\"\n"
               "    -> remove it, or set model.attention = \"gqa\"\n"
               "  bad.toml:5: train.microbatch_seqs = 5 with train.batch_seqs = 12: a batch is cut into equal "
               "microbatches\n"
               "    -> let train.microbatch_seqs divide train.batch_seqs",
               "do what stands behind each arrow");
  // What only follows from another error is not reported: the default of a key that was misspelt, and what it leaves
  // without effect.
  expect_error(
      "[model]\natention = \"gqa\"\n[model.gqa]\nhead_dim = 64\n[train]\nbatch_size = 12\n"
      "microbatch_seqs = 12\n",
      "2 things are wrong with the configuration:\n"
      "  bad.toml:2: unknown key model.atention\n"
      "    -> did you mean model.attention?\n"
      "  bad.toml:6: unknown key train.batch_size\n"
      "    -> did you mean train.batch_seqs (sequences of a whole optimizer step)?",
      "do what stands behind each arrow");
}

TEST(Load, MicrobatchesFollowFromTheBatchUnlessSet) {
  const auto microbatch = [](const std::string& toml, const Overrides& overrides = {}) {
    return parse_config(toml, "x", overrides).train.microbatch_seqs;
  };
  EXPECT_EQ(microbatch(""), 16);
  EXPECT_EQ(microbatch("train.batch_seqs = 8"), 8);
  EXPECT_EQ(microbatch("", {"train.batch_seqs=48"}), 16);
  EXPECT_EQ(microbatch("train.batch_seqs = 18"), 9);
  EXPECT_EQ(microbatch("train.batch_seqs = 17"), 1);
  EXPECT_EQ(microbatch("train.batch_seqs = 16\nparallel.ranks = 4"), 4);
  EXPECT_EQ(microbatch("train.batch_seqs = 16\ntrain.microbatch_seqs = 2"), 2);
  // Ranks that cannot have equal shares are still told so.
  expect_error("train.batch_seqs = 8\nparallel.ranks = 3\n",
               "bad.toml:2: parallel.ranks = 3 with train.batch_seqs = 8, train.microbatch_seqs = 8: every rank takes "
               "an equal share of a batch, in whole microbatches",
               "let parallel.ranks * train.microbatch_seqs divide train.batch_seqs");
}

// Each text sets one key that nothing would read.
TEST(Load, KeysWithoutEffect) {
  struct Case {
    const char* toml;
    const char* key;
    const char* lacks;
  };
  const char* has_experts = "model.moe.num_experts > 0";
  for (const Case& c : {
           Case{"[model.gqa]\nhead_dim = 64", "model.gqa.head_dim", "model.attention = \"gqa\""},
           Case{"model.attention = \"gqa\"\nmodel.mla.q_lora_rank = 0", "model.mla.q_lora_rank",
                "model.attention = \"mla\""},
           Case{"[model.moe]\ntop_k = 2", "model.moe.top_k", has_experts},
           Case{"[model]\nnum_dense_layers = 2", "model.num_dense_layers", has_experts},
           Case{"[optim.experts]\nlr = 1", "optim.experts.lr", has_experts},
           Case{"[train]\nstop_on_collapse = true", "train.stop_on_collapse", has_experts},
           Case{"model.moe.num_experts = 4\nmodel.moe.top_groups = 1", "model.moe.top_groups",
                "model.moe.num_groups > 1"},
           Case{"\nmodel = {num_dense_layers = 0, dense_dim = 8, moe = {num_experts = 4}}", "model.dense_dim",
                "model.num_dense_layers > 0"},
           Case{"[model]\nattn_global_every = 2", "model.attn_global_every", "model.window > 0"},
           Case{"[model.yarn]\nmscale = 1", "model.yarn.mscale", "model.yarn.factor > 1"},
           Case{"[optim.muon]\nmomentum = 0.9", "optim.muon.momentum",
                "optim.matrices.optimizer or optim.experts.optimizer = \"muon\""},
           Case{"[data]\nalign_documents = 128", "data.align_documents", "data.mask_documents = true"},
           Case{"model.tied_head = true\noptim.rest.weight_decay = 0", "optim.rest.weight_decay",
                "model.tied_head = false"},
           Case{"[optim.schedule]\nfloor = 0", "optim.schedule.floor", "optim.schedule.decay > 0"},
           Case{"[optim.schedule]\nhold = 5", "optim.schedule.hold", "optim.schedule.decay > 0"},
           Case{"[optim.schedule]\nunit = \"steps\"", "optim.schedule.unit",
                "optim.schedule.warmup, optim.schedule.decay or model.mtp.later_from > 0"},
       }) {
    expect_error(c.toml, fmt::format("bad.toml:2: {} has no effect because it needs {}", c.key, c.lacks),
                 fmt::format("remove it, or set {}", c.lacks));
  }
}

TEST(Load, KeysThatDoNotGoTogether) {
  const std::string what =
      "train.microbatch_seqs = 6 with train.batch_seqs = 16: a batch is cut into equal "
      "microbatches";
  const std::string remedy = "let train.microbatch_seqs divide train.batch_seqs";
  // The place is where the last of the two was set.
  expect_error("[train]\nmicrobatch_seqs = 6\n", "bad.toml:2: " + what, remedy);
  expect_error("[train]\nmicrobatch_seqs = 6\nbatch_seqs = 16\nsteps = 3\n", "bad.toml:3: " + what, remedy);
  expect_error("[train]\nmicrobatch_seqs = 6\n", "--set train.batch_seqs=16: " + what, remedy, {"train.batch_seqs=16"});
}

TEST(Load, BrokenToml) {
  const auto what_of = [](const std::string& toml) -> std::string {
    try {
      parse_config(toml, "bad.toml");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  };
  // The words are toml++'s.
  EXPECT_TRUE(what_of("[model]\ndim = \n").starts_with("bad.toml:2: "));
  EXPECT_TRUE(what_of("[model\n").starts_with("bad.toml:1: "));
  const std::string twice = what_of("[model]\ndim = 1\ndim = 2\n");
  EXPECT_TRUE(twice.starts_with("bad.toml:3: ")) << twice;
  EXPECT_NE(twice.find("dim"), std::string::npos) << twice;
}

TEST(Load, MissingFile) {
  expect_usage_error([] { load_config("/nowhere/x.toml"); }, "there is no configuration file /nowhere/x.toml",
                     "check the path");
}

TEST(Load, ExpandsTheEnvironmentInStrings) {
  setenv("NMOE_TEST_ROOT", "/corpora", 1);
  const Config config =
      parse_config("[data]\npath = \"${NMOE_TEST_ROOT}/austen\"\n[run]\ndevice = \"${NMOE_TEST_DEVICE:-cpu}\"\n", "x");
  EXPECT_EQ(config.data.path, "/corpora/austen");
  EXPECT_EQ(config.run.device, "cpu");
  EXPECT_EQ(parse_config("", "x", Overrides{"data.path=${NMOE_TEST_ROOT}"}).data.path, "/corpora");
  unsetenv("NMOE_TEST_ROOT");
  expect_error("[data]\npath = \"${HOME}/data\"\n",
               "bad.toml:2: data.path: ${HOME} is not expanded: its name does not start with NMOE_",
               "write ${NMOE_NAME} or ${NMOE_NAME:-default}");
  // Only strings expand: a number stays one.
  expect_error("[train]\nsteps = \"${NMOE_TEST_STEPS:-5}\"\n",
               "bad.toml:2: train.steps = \"5\", but it must be an integer from 0 to "
               "1000000000000000",
               "correct train.steps (step at which to stop; 0: where the plan of data.mixture ends)");
}

TEST(Overrides, ReplaceTheFileInOrder) {
  const Config config = parse_config("[train]\nsteps = 1\n[model]\ndim = 8\n", "x",
                                     Overrides{"train.steps=2", " model.attention = gqa ", "train.steps=3",
                                               "optim.rest.lr=1", "model.tied_head=true", "model.gqa.head_dim=0x10"});
  EXPECT_EQ(config.train.steps, 3);
  EXPECT_EQ(config.model.dim, 8);
  EXPECT_EQ(config.model.attention, PartKind::kGqa);
  EXPECT_EQ(config.optim.rest.lr, 1.0);
  EXPECT_TRUE(config.model.tied_head);
  EXPECT_EQ(config.model.gqa.head_dim, 16);
}

TEST(Load, OneRateForAllGroups) {
  const auto rates = [](const std::string& toml, const Overrides& overrides = {}) {
    const OptimConfig optim = parse_config(toml, "x", overrides).optim;
    return std::vector<double>{optim.matrices.lr, optim.experts.lr, optim.router.lr, optim.rest.lr};
  };
  EXPECT_EQ(rates("optim.lr = 0.5"), (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
  // A group's own rate goes before it, wherever either is set.
  EXPECT_EQ(rates("[optim]\nmatrices.lr = 2\nlr = 0.5"), (std::vector<double>{2, 0.5, 0.5, 0.5}));
  EXPECT_EQ(rates("[optim]\nlr = 0.5\nrest.lr = 2"), (std::vector<double>{0.5, 0.5, 0.5, 2}));
  EXPECT_EQ(rates("optim.matrices.lr = 2\nmodel.moe.num_experts = 4", {"optim.rest.lr=1", "optim.lr=0.5"}),
            (std::vector<double>{2, 0.5, 0.5, 1}));
  EXPECT_EQ(rates("model.moe.num_experts = 4\n[optim]\nlr = 3\nrouter.lr = 2", {"optim.lr=0.5"}),
            (std::vector<double>{0.5, 0.5, 2, 0.5}));
  EXPECT_EQ(rates("optim.lr = 3", {"optim.lr=1", "optim.lr=0.5"}), (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
  // Where all have one it would be ignored; of a model without experts those are two.
  const std::string all_own = "optim.matrices.lr = 2\noptim.rest.lr = 1\n";
  expect_usage_error([&] { parse_config(all_own, "x", std::vector<std::string>{"optim.lr=0.5"}); },
                     "--set optim.lr=0.5: optim.lr has no effect because every key that it stands for is set by itself",
                     "remove it, or set those keys: optim.matrices.lr, optim.rest.lr");
  EXPECT_EQ(parse_config(all_own + "model.moe.num_experts = 4", "x", std::vector<std::string>{"optim.lr=0.5"})
                .optim.router.lr,
            0.5);
  // It is no more than what it sets.
  const Config by_all = parse_config("optim.lr = 0.5\nmodel.moe.num_experts = 4", "x");
  const Config by_each = parse_config(
      "optim.matrices.lr = 0.5\noptim.experts.lr = 0.5\noptim.router.lr = 0.5\noptim.rest.lr = 0.5\n"
      "model.moe.num_experts = 4",
      "x");
  EXPECT_EQ(print_config(by_all), print_config(by_each));
  EXPECT_EQ(config_fingerprint(by_all), config_fingerprint(by_each));
  expect_error("optim.lr = -1\n", "bad.toml:1: optim.lr = -1, but it must be a finite number of at least 0",
               "correct optim.lr (peak learning rate of every group without an lr of its own)");
}

TEST(Load, TheModelOfWhatTrainingStartsWith) {
  const ModelSource source = [](const Config& config) {
    EXPECT_EQ(config.model.init.from, "weights");
    EXPECT_EQ(config.run.name, "mine");
    return ModelText{"[model]\ndim = 96\n[model.init]\nstd = 0.5\n[optim]\nlr = 7\n", "weights/config.toml"};
  };
  const std::string start = "run.name = \"mine\"\nmodel.init.from = \"weights\"\n";
  const Config config = parse_config(start + "model.num_layers = 3\n", "x", {}, source);
  EXPECT_EQ(config.model.dim, 96);
  EXPECT_EQ(config.model.num_layers, 3);
  EXPECT_EQ(config.model.init.from, "weights");
  EXPECT_EQ(config.optim.rest.lr, OptimConfig().rest.lr);  // the model alone
  // [model.init] may say how those weights began, and nothing else.
  parse_config(start + "model.init.std = 0.5\n", "x", {}, source);
  expect_usage_error([&] { parse_config(start + "model.init.std = 0.25\n", "x", {}, source); },
                     "x:3: model.init.std has no effect because it needs model.init.from = \"\"",
                     "remove it, or set model.init.from = \"\"");
  // Nobody is asked where training starts afresh.
  EXPECT_EQ(parse_config("run.name = \"mine\"\n", "x", {}, source).model.dim, 256);
}

TEST(Overrides, TextNeedsNoQuotes) {
  const Config config = parse_config("", "x",
                                     Overrides{"run.name=2024", "run.experiment='a = b'", "run.dir=\"q\\\"\"",
                                               "data.path=/a b/c=d", "train.memory_limit=8 GiB"});
  EXPECT_EQ(config.run.name, "2024");
  EXPECT_EQ(config.run.experiment, "a = b");
  EXPECT_EQ(config.run.dir, "q\"");
  EXPECT_EQ(config.data.path, "/a b/c=d");
  EXPECT_EQ(config.train.memory_limit, "8 GiB");
}

TEST(Overrides, Errors) {
  expect_error("", "--set model.moe.topk=2: unknown key model.moe.topk", "did you mean model.moe.top_k?",
               {"model.moe.topk=2"});
  expect_error("", "--set model.dim: there is no value", "write --set section.key=value", {"model.dim"});
  expect_error("",
               "--set model.dim=wide: model.dim = \"wide\", but it must be an integer from 1 to "
               "1048576",
               "correct model.dim (width of the residual stream)", {"model.dim=wide"});
  expect_error("", "--set model={dim=3}: model is a section, not a key", "write [model] and its keys below",
               {"model={dim=3}"});
  expect_error("",
               "--set model.gqa.head_dim=8: model.gqa.head_dim has no effect because it needs "
               "model.attention = \"gqa\"",
               "remove it, or set model.attention = \"gqa\"", {"model.gqa.head_dim=8"});
}

TEST(Examples, Load) {
  unsetenv("NMOE_DATA");
  const std::filesystem::path examples = std::filesystem::path(NMOE_SOURCE_DIR) / "configs" / "examples";
  const Config dense = load_config(examples / "gqa_dense.toml");
  EXPECT_EQ(dense.model.attention, PartKind::kGqa);
  EXPECT_EQ(dense.model.moe.num_experts, 0);
  const Config moe = load_config(examples / "mla_moe.toml");
  EXPECT_EQ(moe.model.moe.num_groups, 4);
  EXPECT_EQ(moe.data.path, "data/austen");
  for (const Config& config : {dense, moe}) {
    EXPECT_EQ(values_of(parse_config(print_config(config), "printed")), values_of(config));
  }
}

TEST(Load, LengthsOfTheScheduleAreCountsSharesOrTheRest) {
  const Config config = parse_config(R"(optim.schedule = { warmup = "2.5%", hold = "rest", decay = 30 })", "a.toml");
  EXPECT_EQ(config.optim.schedule.warmup, Span::share(2.5));
  EXPECT_EQ(config.optim.schedule.hold, Span::rest());
  EXPECT_EQ(config.optim.schedule.decay, Span(30));
  const std::string printed = print_config(config);
  EXPECT_EQ(print_config(parse_config(printed, "printed")), printed);
  for (const char* wrong : {"\"5 %\"", "\"0%\"", "\"101%\"", "\"-1%\"", "\"half\"", "\"rest\"", "0.5", "-1", "\"%\""}) {
    EXPECT_TRUE(test::contains(
        test::error_of([&] { parse_config(fmt::format("optim.schedule.decay = {}", wrong), "a.toml"); }).what(),
        "a share of the run"))
        << wrong;
  }
  EXPECT_TRUE(test::contains(
      test::error_of([&] { parse_config(R"(optim.schedule = { warmup = "60%", decay = "50%" })", "a.toml"); }).what(),
      "together they are more than the run"));
}

// One length in three units: two of them in a file are an error, an override takes the file's place.
TEST(Load, ARunHasOneLength) {
  EXPECT_TRUE(
      test::contains(test::error_of([&] { parse_config("train = { steps = 5, tokens = 1000 }", "a.toml"); }).what(),
                     "train.steps has no effect because it needs train.tokens = 0"));
  const std::vector<std::string> epochs = {"train.epochs=1.5"};
  const Config config = parse_config("train = { steps = 5 }", "a.toml", epochs);
  EXPECT_EQ(config.train.epochs, 1.5);
  const std::string printed = print_config(config);
  EXPECT_EQ(print_config(parse_config(printed, "printed")), printed);
  const std::vector<std::string> steps = {"train.steps=7"};
  EXPECT_EQ(parse_config("train = { tokens = 1000 }", "a.toml", steps).train.steps, 7);
  const std::vector<std::string> both = {"train.steps=7", "train.tokens=900"};
  EXPECT_TRUE(test::contains(test::error_of([&] { parse_config("", "a.toml", both); }).what(), "has no effect"));
}

TEST(Load, TheBaseOfARuleIsAModelOfItsOwn) {
  const auto error = [](const std::string& scaling) {
    const std::string text = fmt::format("model.moe.num_experts = 8\n[model.scaling]\n{}", scaling);
    return std::string(test::error_of([&] { parse_config(text, "a.toml"); }).what());
  };
  EXPECT_TRUE(test::contains(error("base = { dim = 64 }"), "model.scaling.base.dim has no effect because it needs"));
  EXPECT_TRUE(test::contains(error("rule = \"mup\"\nbase = { gqa.head_dim = 64 }"),
                             "model.gqa.head_dim has no effect in this model"));
  EXPECT_TRUE(test::contains(error("rule = \"mup\"\nbase = { moe.num_experts = 1 }"), "of the base model, "));
  EXPECT_TRUE(test::contains(error("rule = \"mup\"\nbase = { layers = \"mla/moe\" }"), "described by keys"));
  EXPECT_TRUE(test::contains(error("rule = \"mup\"\nbase = { vocab_size = 64 }"), "unknown key"));
}

}  // namespace
}  // namespace nmoe
