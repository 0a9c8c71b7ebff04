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

TEST_F(ConfigCommandTest, ABatchAloneIsEnough) {
  write("batch.toml", "[train]\nbatch_seqs = 8\n");
  EXPECT_TRUE(contains(output({"config", "batch.toml"}), "microbatch_seqs = 8 "));
}

// The page in docs/ is what this program prints: after a change of keys, `n config --all > docs/config.md`.
TEST_F(ConfigCommandTest, TheReferenceOfAllKeysIsTheOneInDocs) {
  EXPECT_EQ(output({"config", "--all"}), read_file(fs::path(NMOE_SOURCE_DIR) / "docs/config.md"));
}

TEST_F(ConfigCommandTest, TemplatesTrain) {
  prepare();
  for (const std::string name : {"dense", "moe", "mla-moe"}) {
    write(name + ".toml", output({"config", "--template", name}));
    const std::vector<std::string> smaller = {"--set", "data.path=data", "--set", "data.seq_len=16",
                                              "--set", "model.dim=32",   "--set", "train.batch_seqs=2"};
    std::vector<std::string> plan = {"plan", name + ".toml"}, train = {"train", name + ".toml"};
    plan.insert(plan.end(), smaller.begin(), smaller.end());
    EXPECT_TRUE(contains(output(plan), "1000 steps of 32 tokens"));
    train.insert(train.end(), smaller.begin(), smaller.end());
    train.insert(train.end(), {"--set", "train.steps=2"});
    EXPECT_TRUE(contains(output(train), "2 steps in "));
  }
  // As it says of itself.
  EXPECT_TRUE(contains(output({"export", "runs/checkpoints/mla-moe", "out"}), "as deepseek_v3: "));
  expect_error(n({"config", "--template", "dens"}), 2, "dens", "n config --help");
}

TEST_F(ConfigCommandTest, TakesOneOfAFileAllAndATemplate) {
  expect_error(n({"config"}), 2, "a configuration file, --all, --template or --from is required", "n config --help");
  expect_error(n({"config", "tiny.toml", "--all"}), 2, "excludes", "n config --help");
  expect_error(n({"config", "--template", "moe", "--all"}), 2, "excludes", "n config --help");
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
  expect_error(n({"plan", "tiny.toml"}), 2, "data.path = \"data\": there is no such folder",
               "correct data.path, or prepare a corpus there (n prep TEXT... --out data), or, to go without a corpus");
  expect_error(n({"plan", "tiny.toml", "--set", "data.path="}), 2, "data.path and model.vocab_size are not set",
               "--set model.vocab_size=N");
  const std::string given = output({"plan", "tiny.toml", "--set", "model.vocab_size=257"});
  EXPECT_TRUE(contains(given, "note: there is no 'data' yet"));
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

TEST_F(ConfigCommandTest, PlanPrintsTheScheduleAndRefusesToTrainBeyondIt) {
  const auto plan = [&](std::vector<std::string> settings) {
    std::vector<std::string> arguments = {"plan", "tiny.toml", "--set", "model.vocab_size=257"};
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return n(arguments);
  };
  EXPECT_TRUE(contains(plan({}).out, "20 steps of 128 tokens: 2.56 k tokens, "));
  EXPECT_TRUE(
      contains(plan({}).out,
               "learning rates: from 0 to their peaks at step 5, held to step 15, then down to 0 after step 55\n"));
  EXPECT_EQ(plan({"train.steps=55"}).exit_code, 0);
  expect_error(plan({"train.steps=56"}), 2,
               "train.steps = 56, but the learning rate is 0 from step 56 on: optim.schedule ends after 55 steps",
               "set train.steps = 55, lengthen optim.schedule.hold or decay, or set optim.schedule.floor");
  const Outcome held = plan({"train.steps=56", "optim.schedule.floor=1e-4"});
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_TRUE(contains(held.out, "then down to 0.0001 after step 55, and held there\n"));
}

TEST_F(ConfigCommandTest, PlanSaysWhereARunEndsInItsSchedule) {
  prepare();
  const auto plan = [&](std::vector<std::string> settings) {
    std::vector<std::string> arguments = {"plan", "tiny.toml"};
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return output(arguments);
  };
  const std::string shares = "(shares, such as decay = \"50%\", follow the run's length)";
  EXPECT_TRUE(contains(plan({"train.steps=4"}), "NOTE: the run ends at step 4, still in the warm-up, at 80 % of"));
  EXPECT_TRUE(contains(plan({"train.steps=15"}),
                       "NOTE: the run ends at step 15, at the peak of its learning rates: the "
                       "decay would begin after step 15 " +
                           shares));
  EXPECT_TRUE(contains(plan({"train.steps=35"}), "with 50 % of the decay done, which goes on to step 55"));
  EXPECT_FALSE(contains(plan({"train.steps=55"}), "NOTE"));
  const std::vector<std::string> follows = {"optim.schedule.warmup=10%", "optim.schedule.hold=rest",
                                            "optim.schedule.decay=50%"};
  const auto with = [&](const std::string& setting) {
    std::vector<std::string> settings = follows;
    settings.push_back(setting);
    return plan(settings);
  };
  for (const std::string setting : {"train.steps=30", "train.tokens=3900"}) {  // of 128 tokens each
    const std::string text = with(setting);
    EXPECT_TRUE(contains(text, "30 steps of 128 tokens: 3.84 k tokens, "));
    EXPECT_TRUE(contains(text, "from 0 to their peaks at step 3, held to step 15, then down to 0 after step 30\n"));
    EXPECT_FALSE(contains(text, "NOTE"));
  }
  EXPECT_TRUE(contains(with("train.epochs=2"), "93 steps of 128 tokens: 11.90 k tokens, 1.98 epochs, "));
  // Of a corpus that is not there yet the end is not known.
  EXPECT_TRUE(contains(output({"plan", "tiny.toml", "--set", "train.epochs=2", "--set", "optim.schedule.decay=50%",
                               "--set", "data.path=later", "--set", "model.vocab_size=257"}),
                       "shares of the run, whose length takes the corpus to be known"));
  expect_error(n({"plan", "tiny.toml", "--set", "train.tokens=127"}), 2,
               "train.tokens = 127 is less than a step, of train.batch_seqs = 8 sequences of 16 tokens", "raise");
  expect_error(n({"plan", "tiny.toml", "--set", "train.steps=6", "--set", "optim.schedule.hold=rest"}), 2,
               "optim.schedule.hold = \"rest\", but warmup = 5 and decay = 40 are longer than the 6 steps of the run",
               "train longer");
}

TEST_F(ConfigCommandTest, PlanPrintsTheTableOfARule) {
  const std::vector<std::string> arguments = {
      "plan", "tiny.toml", "--set", "model.vocab_size=257", "--set", "model.scaling.rule=completep"};
  EXPECT_TRUE(contains(output(arguments), "model.scaling.rule = \"completep\": factors of the base's"));
  std::vector<std::string> wider = arguments;
  wider.insert(wider.end(), {"--set", "model.scaling.base.dim=8"});
  const std::string text = output(wider);
  EXPECT_TRUE(contains(text, "layers.*.moe.router"));
  EXPECT_TRUE(contains(text, "routers are outputs"));
  EXPECT_TRUE(contains(text, "NOTE: model.dim / model.moe.expert_dim is 1, the base's 0.5"));
}

// On a machine without one, from a program without CUDA.
TEST_F(ConfigCommandTest, PlanForAGpuThatIsNotHere) {
  const fs::path super = fs::path(NMOE_SOURCE_DIR) / "configs/speedrun/super.toml";
  const auto plan = [&](const std::string& part, const std::string& batch = "32") {
    return n({"plan", super.string(), "--set", "train.microbatch_seqs=" + batch, "--device-memory", part});
  };
  const Outcome outcome = plan("h200-141g");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"  activations ", "  scratch ", "  context ", "  total on the device ",
                           "  total in the host ", "  planned for h200-141g with ",
                           "  4875 steps of 524288 tokens: 2.56 G tokens, ", "m at 40 % of 989.40 TFLOP/s\n"}) {
    EXPECT_TRUE(contains(outcome.out, part));
  }
  EXPECT_TRUE(contains(plan("b200-192g").out, "49m10s at 40 % of 2.25 PFLOP/s\n"));
  expect_error(plan("60GiB", "128"), 2, "the memory of 60GiB is 60.00 GiB", "lower train.microbatch_seqs (now 128)");
  EXPECT_EQ(plan("100 GiB", "1").exit_code, 0);
  expect_error(plan("gtx"), 2, "--device-memory gtx: that is neither a size nor a part that is known", "h100-80g");
  expect_error(n({"plan", "tiny.toml", "--set", "model.vocab_size=257", "--device-memory", "80GiB"}), 2,
               "run.device = \"cpu\"", "run.device=cuda");
}

TEST_F(ConfigCommandTest, PlanRefusesAStartingCheckpointThatIsNotThere) {
  for (const char* command : {"plan", "train", "config"}) {
    expect_error(n({command, "tiny.toml", "--set", "model.vocab_size=257", "--set", "model.init.from=nowhere"}), 2,
                 "model.init.from = \"nowhere\": there is no such folder", "name a checkpoint");
  }
  make_directories(dir_ / "empty");
  expect_error(n({"plan", "tiny.toml", "--set", "model.vocab_size=257", "--set", "model.init.from=empty"}), 1,
               "no checkpoint in 'empty'", "name a checkpoint");
  prepare();
  output(train({"train.steps=1"}));
  const std::string from = "model.init.from=runs/checkpoints/tiny";
  output({"plan", "tiny.toml", "--set", "run.name=second", "--set", from});
  expect_error(n({"plan", "tiny.toml", "--set", "run.name=second", "--set", from, "--set", "model.dense_dim=64"}), 2,
               "model.dense_dim: 32 != 64", "without them, [model] is the checkpoint's");
}

// A plan that looks well and a run that does not begin would be two answers to one question.
TEST_F(ConfigCommandTest, PlanRefusesANameThatIsTaken) {
  prepare();
  output(train({"train.steps=1"}));
  const Outcome outcome = n({"plan", "tiny.toml"});
  EXPECT_TRUE(contains(outcome.out, "  total "));
  expect_error(outcome, 2, "runs/checkpoints/tiny already holds checkpoints of a run named \"tiny\"",
               "add --resume to go on with it, or choose another run.name");
  EXPECT_EQ(n(train({})).err.substr(n(train({})).err.rfind("error: ")),
            outcome.err.substr(outcome.err.rfind("error: ")));
  output({"plan", "tiny.toml", "--resume"});
}

// Neither key of the pair that has to agree is blamed: the corpus is what can be made anew.
TEST_F(ConfigCommandTest, AStartFromAnotherVocabularyNamesTheTokenizer) {
  prepare();
  output(train({"train.steps=1"}));  // bytes: 257 ids
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "other"});
  write("tune.toml",
        "[run]\nname = \"tune\"\nthreads = 1\n[model.init]\nfrom = \"runs/checkpoints/tiny\"\n"
        "[data]\npath = \"other\"\nseq_len = 16\n[train]\nsteps = 2\nbatch_seqs = 4\n");
  for (const char* command : {"plan", "train"}) {
    expect_error(n({command, "tune.toml"}), 2, "the corpus's tokenizer has 270 ids, but model.vocab_size = 257",
                 "prepare the corpus with the checkpoint's tokenizer (n prep ... --tokenizer ");
    // Whatever is tried with model.vocab_size leads to the same place.
    for (const char* size : {"0", "270", "300"}) {
      expect_error(n({command, "tune.toml", "--set", std::string("model.vocab_size=") + size}), 2,
                   "the data was prepared with another tokenizer than that of runs/checkpoints/tiny/step_",
                   "n prep ... --tokenizer runs/checkpoints/tiny/step_00000001");
    }
  }
  // And that is the end of it.
  output({"prep", "train.txt", "--tokenizer", "runs/checkpoints/tiny/step_00000001", "--out", "other", "--force"});
  output({"train", "tune.toml"});
}

// All that fine-tuning has to say is what it starts with and what it reads.
TEST_F(ConfigCommandTest, AStartingCheckpointBringsItsModel) {
  prepare();
  output(train({"train.steps=2"}));
  write("tune.toml",
        "[run]\nname = \"tune\"\nthreads = 1\n[model.init]\nfrom = \"runs/checkpoints/tiny\"\n"
        "[data]\npath = \"data\"\nseq_len = 16\n[train]\nsteps = 2\nbatch_seqs = 4\n");
  const std::string resolved = output({"config", "tune.toml"});
  for (const char* line : {"\nvocab_size       = 257 ", "\nkv_lora_rank     = 8 ", "\nnum_experts        = 6 "}) {
    EXPECT_TRUE(contains(resolved, line));
  }
  output({"plan", "tune.toml"});
  output({"train", "tune.toml", "--set", "train.steps=1"});
  output({"train", "tune.toml", "--resume"});
  // What may differ from the checkpoint still may.
  output({"train", "tune.toml", "--set", "run.name=other", "--set", "model.moe.bias_rate=0.5"});

  // The configuration of the checkpoint itself is one to begin with.
  const std::string own = "runs/checkpoints/tiny/step_00000002/config.toml";
  const std::vector<std::string> again = {
      "train",        own, "--set", "run.name=again", "--set", "model.init.from=runs/checkpoints/tiny", "--set",
      "train.steps=1"};
  output(again);
  std::vector<std::string> wrong = again;
  wrong.insert(wrong.end(), {"--set", "model.init.std=0.5"});
  expect_error(n(wrong), 2, "model.init.std has no effect because it needs model.init.from = \"\"", "remove it");

  // A run that has begun can go on without what it began with.
  fs::remove_all(dir_ / "runs/checkpoints/tiny");
  output({"train", "tune.toml", "--resume", "--set", "train.steps=3"});
  expect_error(n({"train", "tune.toml", "--set", "run.name=third"}), 2, "model.init.from = \"runs/checkpoints/tiny\"",
               "name a checkpoint");
}

}  // namespace
}  // namespace nmoe
